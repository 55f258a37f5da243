"""Rondel: bounded int8 key/value caches for long-running decoder streams, and the attention over them.

In-process: make an :class:`Arena`, describe a stream with :class:`StreamSpec`, and step a
:class:`DecoderSession`. Over the network: the same through :class:`AttentionClient` and its
:class:`Stream`, or whole texts through :class:`GenerationClient`; each has an asyncio twin.

Names load on first use, so ``import rondel`` brings in neither gRPC nor the kernels.
"""

from importlib import import_module

# Type checkers take this for typing.TYPE_CHECKING, whose import alone takes longer than all of this file.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rondel.client import (
        AsyncAttentionClient,
        AsyncGenerationClient,
        AsyncStream,
        AttentionClient,
        GenerationClient,
        Stream,
    )
    from rondel.decoder.attach import attach
    from rondel.decoder.cache.arena import Arena
    from rondel.decoder.errors import RondelError
    from rondel.decoder.projection import Projection, Projections
    from rondel.decoder.explanation import Explanation
    from rondel.decoder.options import AttendOptions
    from rondel.decoder.partials import merge_partials
    from rondel.decoder.rope import Rope
    from rondel.decoder.session import DecoderSession
    from rondel.decoder.spec import LayerGroup, StreamSpec

    __version__: str

__all__ = [
    "Arena",
    "AsyncAttentionClient",
    "AsyncGenerationClient",
    "AsyncStream",
    "AttendOptions",
    "AttentionClient",
    "DecoderSession",
    "Explanation",
    "GenerationClient",
    "LayerGroup",
    "Projection",
    "Projections",
    "RondelError",
    "Rope",
    "Stream",
    "StreamSpec",
    "__version__",
    "attach",
    "merge_partials",
]

_HOMES = {
    "Arena": "rondel.decoder.cache.arena",
    "AttendOptions": "rondel.decoder.options",
    "DecoderSession": "rondel.decoder.session",
    "Explanation": "rondel.decoder.explanation",
    "LayerGroup": "rondel.decoder.spec",
    "Projection": "rondel.decoder.projection",
    "Projections": "rondel.decoder.projection",
    "RondelError": "rondel.decoder.errors",
    "Rope": "rondel.decoder.rope",
    "StreamSpec": "rondel.decoder.spec",
    "attach": "rondel.decoder.attach",
    "merge_partials": "rondel.decoder.partials",
}


def __getattr__(name: str) -> "Any":
    if name not in __all__:
        raise AttributeError(f"module 'rondel' has no attribute {name!r}")
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("rondel")
    else:
        value = getattr(import_module(_HOMES.get(name, "rondel.client")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
