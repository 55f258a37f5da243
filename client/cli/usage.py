"""Wrong options, found before any work is done: one line, and exit code 2 as for those that Typer finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rondel.decoder.errors import InvalidRequest, InvalidSpec
from rondel.decoder.spec import LayerGroup


class WrongUsage(Exception):
    """The command line asks for what cannot be; its text says why."""


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Within the block a value that is refused is the fault of the command line.

    Raises:
        WrongUsage: in place of InvalidSpec and InvalidRequest.
    """
    try:
        yield
    except (InvalidSpec, InvalidRequest) as error:
        raise WrongUsage(error.message) from None


def check_cache(window: int | None, sinks: int, reserve: int, storage: str) -> None:
    """Whether a model's cache can be like this, whatever the model. Raises InvalidSpec."""
    LayerGroup(
        layers=(0,),
        query_heads=1,
        kv_heads=1,
        key_dim=1,
        value_dim=1,
        window=window,
        sinks=sinks,
        reserve=reserve,
        storage=storage,
    )
