"""Talk to a Rondel server: attention on its streams, text from its model; waiting or with asyncio.

Names load on first use: the command line lives below this package and must begin without gRPC.
"""

from importlib import import_module

# Type checkers take this for typing.TYPE_CHECKING, whose import alone takes longer than all of this file.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rondel.client.aio import AsyncAttentionClient
    from rondel.client.aio_decode import AsyncDecodeCall
    from rondel.client.aio_generation import AsyncGeneration, AsyncGenerationClient
    from rondel.client.aio_stream import AsyncStream
    from rondel.client.generation import Event, Model, Started, Summary, Token
    from rondel.client.sync import AttentionClient
    from rondel.client.sync_decode import DecodeCall
    from rondel.client.sync_generation import Generation, GenerationClient
    from rondel.client.sync_stream import Stream
    from rondel.client.values import ListedStream, ServerInfo, StepOutcome, StreamStats, TenantInfo

__all__ = [
    "AsyncAttentionClient",
    "AsyncDecodeCall",
    "AsyncGeneration",
    "AsyncGenerationClient",
    "AsyncStream",
    "AttentionClient",
    "DecodeCall",
    "Event",
    "Generation",
    "GenerationClient",
    "ListedStream",
    "Model",
    "ServerInfo",
    "Started",
    "StepOutcome",
    "Stream",
    "StreamStats",
    "Summary",
    "TenantInfo",
    "Token",
]

_HOMES = {
    "rondel.client.aio_decode": ("AsyncDecodeCall",),
    "rondel.client.aio_generation": ("AsyncGeneration", "AsyncGenerationClient"),
    "rondel.client.aio_stream": ("AsyncStream",),
    "rondel.client.sync": ("AttentionClient",),
    "rondel.client.sync_decode": ("DecodeCall",),
    "rondel.client.sync_generation": ("Generation", "GenerationClient"),
    "rondel.client.sync_stream": ("Stream",),
    "rondel.client.generation": ("Event", "Model", "Started", "Summary", "Token"),
    "rondel.client.values": ("ListedStream", "ServerInfo", "StepOutcome", "StreamStats", "TenantInfo"),
}


def __getattr__(name: str) -> "Any":
    if name not in __all__:
        raise AttributeError(f"module 'rondel.client' has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "rondel.client.aio")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
