"""What the protos say in their comments, and which errors a method is said to fail with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from rondel.decoder import errors
from rondel.v1 import attention_pb2, generation_pb2

PROTOS = Path(__file__).parent.parent.parent / "proto" / "rondel" / "v1"
SERVICES = (
    attention_pb2.DESCRIPTOR.services_by_name["AttentionService"],
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"],
)
METHODS: dict[str, MethodDescriptor] = {
    method.name: method for service in SERVICES for method in service.methods
}


def comments() -> dict[str, str]:
    """The comment above every message, field and method, by full name."""
    found: dict[str, str] = {}
    for path in PROTOS.glob("*.proto"):
        owner, words = "", []
        for line in map(str.strip, path.read_text().splitlines()):
            if line.startswith("//"):
                words.append(line.removeprefix("//").strip())
                continue
            if opened := re.match(r"(?:message|service|enum) (\w+) \{", line):
                owner = opened[1]
                found[f"rondel.v1.{owner}"] = " ".join(words)
            elif named := re.match(r"(?:rpc (\w+)\(|(?:[\w. ]+ )?(\w+) = \d+;)", line):
                found[f"rondel.v1.{owner}.{named[1] or named[2]}"] = " ".join(words)
            words = []
    return found


COMMENTS = comments()


def fields_within(*messages: Descriptor) -> Iterator[FieldDescriptor]:
    """Every field that these messages can hold, nested ones too."""
    waiting, seen = list(messages), set()
    while waiting:
        message = waiting.pop()
        if message.full_name not in seen:
            seen.add(message.full_name)
            yield from message.fields
            waiting += [field.message_type for field in message.fields if field.message_type is not None]


def all_errors() -> dict[str, type[errors.RondelError]]:
    """Every class of error, by its reason."""
    found, waiting = {}, [errors.RondelError]
    while waiting:
        cls = waiting.pop()
        found[cls.reason] = cls
        waiting += cls.__subclasses__()
    return found


def documented_reasons(name: str) -> set[str]:
    """Reasons of errors that a method is said to fail with: by its own comment, its service's, those of the
    messages and fields of its request, and the methods that it says it fails like."""
    method = METHODS[name]
    own = COMMENTS[method.full_name]
    fields = list(fields_within(method.input_type))
    names = {method.containing_service.full_name, *(field.full_name for field in fields)}
    names |= {method.input_type.full_name, *(field.containing_type.full_name for field in fields)}
    words = " ".join([own, *(COMMENTS[name] for name in names)])
    said = {reason for reason in all_errors() if re.search(rf"\b{reason}\b", words)}
    for phrase in re.findall(r"errors of ([\w ,]+)|[Ff]ails as (\w+) does", own):
        said |= {
            reason
            for other in METHODS
            if other != name and re.search(rf"\b{other}\b", " ".join(phrase))
            for reason in documented_reasons(other)
        }
    return said
