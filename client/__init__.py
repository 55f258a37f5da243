"""Talk to a Rondel server: attention on its streams, text from its model; waiting or with asyncio."""

from rondel.client.aio import AsyncAttentionClient, AsyncGeneration, AsyncGenerationClient, AsyncStream
from rondel.client.generation import Event, Model, Started, Summary, Token
from rondel.client.sync import AttentionClient, Generation, GenerationClient, Stream
from rondel.client.values import ServerInfo, StepOutcome, StreamStats

__all__ = [
    "AsyncAttentionClient",
    "AsyncGeneration",
    "AsyncGenerationClient",
    "AsyncStream",
    "AttentionClient",
    "Event",
    "Generation",
    "GenerationClient",
    "Model",
    "ServerInfo",
    "Started",
    "StepOutcome",
    "Stream",
    "StreamStats",
    "Summary",
    "Token",
]
