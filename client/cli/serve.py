"""``rondel serve``: every option is a field of ``ServerConfig``, with its default and its description.

What no option says may come from the environment or a file: server/settings.py.
"""

from __future__ import annotations

import ast
import inspect
import os
import signal
import textwrap
import threading
from dataclasses import MISSING, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from rondel.client.cli.output import print_json, print_note, print_text
from rondel.client.cli.signals import nothing_to_undo
from rondel.client.cli.usage import wrong_usage
from rondel.server.config import ServerConfig
from rondel.server.settings import NAMES, load

if TYPE_CHECKING:
    from rondel.server.app import Server


def serve(ctx: typer.Context, **options: Any) -> None:
    """Serve attention, and text when a model is named, until Ctrl-C or SIGTERM.

    Settings may also come from a TOML file (--config) or from the environment (RONDEL_SERVE_MAX_STREAMS and
    so on). Options count first, then the environment, then the file. SIGHUP reads both again.
    """
    given = {
        name: value
        for name, value in options.items()
        if name in NAMES and getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    if options["no_tcp"]:
        given["port"] = None
    read = partial(load, given, file=options["config"], environment=os.environ)
    with wrong_usage():
        settings = read()
    if options["print_config"]:
        print_text(settings.toml())
    if options["print_config"] or options["check_config"]:
        return
    if options["stop_with_stdin"]:
        threading.Thread(target=_stop_at_end_of_input, name="stdin", daemon=True).start()
    as_json = options["as_json"]
    with nothing_to_undo():  # here, because every other command does without a server
        from rondel.decoder import kernels
        from rondel.server.process import serve as run_server

    def on_ready(server: Server) -> None:
        if as_json:
            print_json(
                {
                    "addresses": server.addresses,
                    "admin": server.observatory.admin_address,
                    "tier": kernels.TIER,
                    "pid": os.getpid(),
                }
            )
        else:
            print_note(f"serving on {', '.join(server.addresses)}; Ctrl-C stops")

    run_server(settings.config, on_ready=on_ready, read_again=lambda: read().config)


def _stop_at_end_of_input() -> None:
    # Not sys.stdin: a thread that waits in it makes the interpreter abort when it ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def field_notes() -> dict[str, str]:
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
    notes = field_notes()
    hints = get_type_hints(ServerConfig)
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if field.default is MISSING else field.default,
            annotation=Annotated[
                list[str] if field.default == () else hints[field.name],  # what may be given many times
                typer.Option(_flag(field.name, field.default), help=notes.get(field.name)),
            ],
        )
        for field in fields(ServerConfig)
    ]
    for name, (flag, note) in _EXTRA.items():
        kind = str | None if name == "config" else bool
        default = None if name == "config" else False
        annotation = Annotated[kind, typer.Option(flag, help=note)]  # type: ignore[valid-type]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return inspect.Signature([context, *parameters])


def _flag(name: str, default: object) -> str:
    """The option of a setting; only what is on by default has a twin that turns it off."""
    dashed = name.replace("_", "-")
    return f"--{dashed}/--no-{dashed}" if default is True else f"--{dashed}"


_EXTRA: Final = {
    "config": ("--config", "TOML file of settings, named as here with _ in place of -."),
    "print_config": ("--print-config", "Print all settings as such a file, each with its source, and exit."),
    "check_config": ("--check-config", "Exit: 0 if the settings can be, 2 if not."),
    "no_tcp": ("--no-tcp", "Listen on the unix socket only."),
    "as_json": ("--json", "Print one line of JSON when serving: addresses, admin port's, tier, pid."),
    "stop_with_stdin": (
        "--stop-with-stdin",
        "Stop when standard input ends, for programs that start a server.",
    ),
}

# Typer reads a command's options off its signature.
serve.__signature__ = _signature()  # type: ignore[attr-defined]
serve.__annotations__ = {name: parameter.annotation for name, parameter in _signature().parameters.items()}
