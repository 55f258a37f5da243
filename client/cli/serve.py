"""``rondel serve``: every option is a field of ``ServerConfig``, with its default and its description."""

from __future__ import annotations

import ast
import inspect
import os
import signal
import textwrap
import threading
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from rondel.client.cli.output import print_json, print_note
from rondel.client.cli.signals import nothing_to_undo
from rondel.client.cli.usage import wrong_usage
from rondel.server.config import ServerConfig

if TYPE_CHECKING:
    from rondel.server.app import Server


def serve(**options: Any) -> None:
    """Serve attention, and text when a model is named, until Ctrl-C or SIGTERM."""
    as_json = options.pop("as_json")
    if options.pop("stop_with_stdin"):
        threading.Thread(target=_stop_at_end_of_input, name="stdin", daemon=True).start()
    if options.pop("no_tcp"):
        options["port"] = None
    with wrong_usage():
        config = ServerConfig(**options)
    with nothing_to_undo():  # here, because every other command does without a server
        from rondel.decoder import kernels
        from rondel.server.process import serve as run_server

    def on_ready(server: Server) -> None:
        if as_json:
            print_json({"addresses": server.addresses, "tier": kernels.TIER, "pid": os.getpid()})
        else:
            print_note(f"serving on {', '.join(server.addresses)}; Ctrl-C stops")

    run_server(config, on_ready=on_ready)


def _stop_at_end_of_input() -> None:
    # Not sys.stdin: a thread that waits in it makes the interpreter abort when it ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _field_notes() -> dict[str, str]:
    """What ``ServerConfig`` says about its fields, in the strings that follow them."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(ServerConfig))).body
    notes: dict[str, str] = {}
    name = ""
    for node in body.body if isinstance(body, ast.ClassDef) else []:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                continue
            case ast.Expr(value=ast.Constant(value=str(note))) if name:
                notes[name] = " ".join(note.split())
        name = ""
    return notes


def _signature() -> inspect.Signature:
    notes = _field_notes()
    hints = get_type_hints(ServerConfig)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if field.default is MISSING else field.default,
            # Named, so that a flag has no --no- twin.
            annotation=Annotated[
                list[str] if field.default == () else hints[field.name],  # what may be given many times
                typer.Option(f"--{field.name.replace('_', '-')}", help=notes.get(field.name)),
            ],
        )
        for field in fields(ServerConfig)
    ]
    extra = {
        "no_tcp": ("--no-tcp", "Listen on the unix socket only."),
        "as_json": ("--json", "Print one line of JSON when serving: addresses, tier, pid."),
        "stop_with_stdin": (
            "--stop-with-stdin",
            "Stop when standard input ends, for programs that start a server.",
        ),
    }
    parameters += [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False,
            annotation=Annotated[bool, typer.Option(flag, help=note)],
        )
        for name, (flag, note) in extra.items()
    ]
    return inspect.Signature(parameters)


# Typer reads a command's options off its signature.
serve.__signature__ = _signature()  # type: ignore[attr-defined]
serve.__annotations__ = {name: parameter.annotation for name, parameter in _signature().parameters.items()}
