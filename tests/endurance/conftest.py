"""What a service must bear for months: load with faults, bad input, idle and stalled clients."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "server"))

from rawclient import Client
from watched import OWN_CHANNEL

from rondel.server.app import Server
from rondel.server.config import ServerConfig


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0, budget_bytes=256 << 20, drain_seconds=5.0, log_level="warning")


@pytest_asyncio.fixture
async def server(config: ServerConfig) -> AsyncIterator[Server]:
    running = await Server.start(config)
    yield running
    await running.stop(drain_seconds=0.5)


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(server.address, options=OWN_CHANNEL) as channel:
        yield Client(channel)
