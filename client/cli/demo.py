"""``rondel demo``: a server, a question, the answer token by token, and what it cost."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from rondel.client.cli.launch import server
from rondel.client.cli.model import pull_model
from rondel.client.cli.output import print_note
from rondel.client.cli.signals import nothing_to_undo
from rondel.client.cli.usage import check_cache, wrong_usage
from rondel.decoder.lm.registry import DEFAULT_MODEL, KNOWN
from rondel.decoder.spec import STORAGE_TYPES

QUESTION: Final = "What is the capital of France?"


def demo(
    prompt: Annotated[str, typer.Argument(help="The question.")] = QUESTION,
    model: Annotated[str, typer.Option(help="A known model, or the path of a GGUF file.")] = DEFAULT_MODEL,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to make.")] = 128,
    window: Annotated[int, typer.Option(min=1, help="Tokens that a query sees.")] = 1024,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")] = False,
) -> None:
    """Start a server on a free loopback port, stream an answer from it, show what it cost, stop it.

    A known model that is not here yet is fetched first.
    """
    with wrong_usage():
        check_cache(window, 0, 0, STORAGE_TYPES[0])
    with nothing_to_undo():  # here, because they bring in much
        from rondel.client.cli.measured import MEASURED_CALLS, ask, report, time_steps
    if model in KNOWN:
        pull_model(model)
    print_note("starting a server on a free loopback port")
    with server(f"--model={model}") as running:
        print_note(f"asking it at {running.address}: {prompt}")
        answer = ask(running.address, prompt, max_tokens, window, quiet=as_json)
        print_note(f"measuring {MEASURED_CALLS} calls")
        seconds = time_steps(running.address, answer.started.spec.groups[0])
    report(answer, model, prompt, seconds, as_json)
