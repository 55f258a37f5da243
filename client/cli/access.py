"""Options of commands that talk to a server: TLS, a certificate, a token; from flags or the environment."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from rondel.client.cli.usage import WrongUsage

if TYPE_CHECKING:
    from rondel.client.access import AccessOptions

    Access = AccessOptions
else:
    Access = dict  # commands begin without gRPC

TOKEN_VARIABLE: Final = "RONDEL_TOKEN"
_PANEL: Final = "Access"


def _option(kind: Any, name: str, help_text: str) -> Any:
    flag = f"--{name.replace('_', '-')}"
    variable = f"RONDEL_{name.upper()}"
    return Annotated[kind, typer.Option(flag, envvar=variable, help=help_text, rich_help_panel=_PANEL)]


_OPTIONS: Final[Mapping[str, tuple[Any, object]]] = {
    "tls": (_option(bool, "tls", "Encrypt; implied by the next three."), False),
    "ca": (
        _option(str | None, "ca", "PEM file of authorities that the server's certificate may come from."),
        None,
    ),
    "cert": (_option(str | None, "cert", "PEM file of a certificate of your own."), None),
    "key": (_option(str | None, "key", "PEM file of its key."), None),
    "token_file": (
        _option(
            str | None,
            "token_file",
            f"File with a bearer token; or {TOKEN_VARIABLE} holds one. No flag does: others could see it.",
        ),
        None,
    ),
}
"""By name: annotation and default."""


def with_access(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command these options; it gets them as ``access``."""

    @functools.wraps(command)
    def run(context: typer.Context, **options: Any) -> None:
        given = {name: options.pop(name) for name in _OPTIONS}
        if str(options.get("server") or options.get("target") or "").startswith("unix:"):
            given |= _not_for_sockets(context)
        command(**options, access=_access(**given))

    hints = get_type_hints(command, include_extras=True)
    plain = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "access"
    ]
    ours = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _OPTIONS.items()
    ]
    # Typer reads a command's options off its signature.
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    signature = inspect.Signature([context, *plain, *ours])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return run


def _not_for_sockets(context: typer.Context) -> dict[str, object]:
    """TLS that the environment asks for is for servers elsewhere; a flag would be a mistake that is told."""
    sources = {name: context.get_parameter_source(name) for name in ("tls", "ca", "cert", "key")}
    return {
        name: _OPTIONS[name][1]
        for name, source in sources.items()
        if source is not None and source.name == "ENVIRONMENT"
    }


def _access(
    *, tls: bool, ca: str | None, cert: str | None, key: str | None, token_file: str | None
) -> Access:
    access = Access(ca=ca, cert=cert, key=key, token=_token(token_file))
    if tls:
        access["tls"] = True
    return access


def _token(path: str | None) -> str | None:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise WrongUsage(f"cannot read the token file {path}: {error.strerror}") from None
    except UnicodeError:
        raise WrongUsage(f"the token file {path} is not text") from None
