"""The files under deploy/, and what the server has of what they name."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from rondel.server.app import Server
from rondel.server.config import ServerConfig

sys.path.append(str(Path(__file__).parent))

from promql import offered


@pytest_asyncio.fixture
async def have() -> AsyncIterator[dict[str, frozenset[str]]]:
    """The series of a server that runs, with their labels."""
    server = await Server.start(ServerConfig(port=0, admin_port=0, budget_bytes=4 << 20))
    assert server.observatory.metrics is not None
    yield await asyncio.to_thread(offered, server.observatory.metrics.registry)
    await server.stop()
