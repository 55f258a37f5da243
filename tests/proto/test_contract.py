"""The protos and what is made from them."""

import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from google.protobuf.descriptor import EnumDescriptor

from rondel.v1 import attention_pb2, generation_pb2, options_pb2, rope_pb2, spec_pb2, tensor_pb2

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = (attention_pb2, generation_pb2, options_pb2, rope_pb2, spec_pb2, tensor_pb2)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("arguments", [("lint",), ("format", "--diff", "--exit-code")])
def test_buf_is_content(arguments: tuple[str, ...]) -> None:
    done = run(str(Path(sys.executable).with_name("buf")), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_buf_wants_a_comment_on_everything() -> None:
    assert "- COMMENTS" in (ROOT / "buf.yaml").read_text()


def test_the_generated_code_is_fresh() -> None:
    done = run(sys.executable, "scripts/gen_protos.py", "--check")
    assert done.returncode == 0, done.stderr


def test_the_copy_of_the_foreign_proto_is_the_packages() -> None:
    ours = (ROOT / "proto/google/rpc/status.proto").read_text()
    assert ours == (resources.files("google.rpc") / "status.proto").read_text()


def test_no_map_is_used() -> None:
    for file in FILES:
        for message in file.DESCRIPTOR.message_types_by_name.values():
            assert not message.nested_types, message.full_name


def test_enums_start_unspecified() -> None:
    for file in FILES:
        enums: list[EnumDescriptor] = list(file.DESCRIPTOR.enum_types_by_name.values())
        for enum in enums:
            assert enum.values_by_number[0].name.endswith("_UNSPECIFIED")
