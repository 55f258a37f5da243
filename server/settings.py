"""Where a server's settings come from: flags, the environment, a TOML file, defaults; the first that has one
counts.

What a setting may be is said once, by the fields of ``ServerConfig``; here texts and TOML values become what
those want. In the environment and in a file an empty text stands for None, which neither can say.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, get_args, get_type_hints

from rondel.decoder.errors import InvalidSpec
from rondel.server.config import ServerConfig

PREFIX: Final = "RONDEL_SERVE_"
"""Of the environment variables: RONDEL_SERVE_MAX_STREAMS sets max_streams."""
FILE_VARIABLE: Final = f"{PREFIX}CONFIG"
"""Names the file where no flag does."""
DEFAULT: Final = "default"

_TYPES: Final[Mapping[str, Any]] = get_type_hints(ServerConfig)
NAMES: Final = tuple(field.name for field in fields(ServerConfig))


@dataclass(frozen=True, slots=True)
class Settings:
    """A server's settings, and where each comes from."""

    config: ServerConfig
    sources: Mapping[str, str]
    """By name: ``default``, ``flag --max-streams``, ``environment RONDEL_SERVE_MAX_STREAMS``, or the file."""

    def toml(self) -> str:
        """All settings as a file that :func:`load` reads again; sources are comments. Secrets are only paths
        in a configuration, so there are none in it."""
        return "".join(
            f"{name} = {written(getattr(self.config, name))}  # {' '.join(self.sources[name].split())}\n"
            for name in NAMES
        )


def load(flags: Mapping[str, object], *, file: str | None, environment: Mapping[str, str]) -> Settings:
    """Settings from all four sources.

    ``flags`` holds the values that were given on the command line, by field name.

    Raises:
        InvalidSpec: the file cannot be read, a name is unknown, or a value cannot be; its text names the
            source.
    """
    values: dict[str, object] = {}
    sources = dict.fromkeys(NAMES, DEFAULT)
    path = file or environment.get(FILE_VARIABLE) or None
    if path is not None:
        for given, value in _read(path).items():
            name = _known(given, path)
            values[name] = _checked(name, value, path)
            sources[name] = path
    for variable, text in environment.items():
        if variable.startswith(PREFIX) and variable != FILE_VARIABLE:
            name = _known(variable.removeprefix(PREFIX).lower(), f"environment {variable}", PREFIX)
            values[name] = _parsed(name, text, variable)
            sources[name] = f"environment {variable}"
    for name, value in flags.items():
        values[name] = value
        sources[name] = f"flag --{name.replace('_', '-')}"
    try:
        config = ServerConfig(**values)  # type: ignore[arg-type]  # which checks them
    except InvalidSpec as error:
        source = sources.get(error.field, DEFAULT)
        if source == DEFAULT or source.startswith("flag"):
            raise
        raise InvalidSpec(f"{error.message} ({source})", field=error.field) from error
    return Settings(config, sources)


def written(value: object) -> str:
    """The value of a setting in TOML."""
    match value:
        case None:
            return '""'
        case tuple():
            return f"[{', '.join(written(each) for each in value)}]"
        case str():
            # JSON's escapes are TOML's, but for the one control character that JSON lets through.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return json.dumps(value)


def _read(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise InvalidSpec(f"cannot read {path}: {error.strerror}", field="config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"{path} is not TOML: {error}", field="config") from error


def _known(name: str, source: str, prefix: str = "") -> str:
    if name in _TYPES:
        return name
    import difflib  # only here: no start that goes well needs it

    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)
    meant = f"{prefix}{near[0].upper()}" if prefix else near[0]
    raise InvalidSpec(f"unknown setting {name!r} ({source}); the nearest is {meant}", field=name)


def _checked(name: str, value: object, source: str) -> object:
    """A value of a TOML file as its field's type."""
    kinds = _kinds(name)
    if value == "" and type(None) in kinds:
        return None
    match value:
        case bool() if bool in kinds:
            return value
        case int() if int in kinds and not isinstance(value, bool):
            return value
        case int() | float() if float in kinds and not isinstance(value, bool):
            return float(value)
        case str() if str in kinds:
            return value
        case list() if tuple in kinds and all(isinstance(each, str) for each in value):
            return tuple(value)
    raise InvalidSpec(f"{name} must be {_expected(kinds)}, got {value!r} ({source})", field=name)


def _parsed(name: str, text: str, variable: str) -> object:
    """The text of an environment variable as its field's type."""
    kinds = _kinds(name)
    if not text and type(None) in kinds:
        return None
    readers: dict[type, Callable[[str], object]] = {
        bool: lambda text: {"true": True, "1": True, "false": False, "0": False}[text.lower()],
        int: int,
        float: float,
        str: str,
        tuple: lambda text: tuple(text.split(os.pathsep)) if text else (),
    }
    (kind,) = (kind for kind in kinds if kind in readers)
    try:
        return readers[kind](text)
    except (ValueError, KeyError):
        wanted = _expected(kinds)
        raise InvalidSpec(
            f"{name} must be {wanted}, got {text!r} (environment {variable})", field=name
        ) from None


def _kinds(name: str) -> tuple[type, ...]:
    """The types that a field may have, without arguments."""
    hint = _TYPES[name]
    if getattr(hint, "__origin__", None) is tuple:
        return (tuple,)
    return get_args(hint) or (hint,)


def _expected(kinds: tuple[type, ...]) -> str:
    words = {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "a text",
        tuple: "a list of texts",
        type(None): "empty",
    }
    return " or ".join(words[kind] for kind in kinds)
