"""The simulation's own modules."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rondel.decoder import pool


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The kernels' other threads would only wait for each other."""
    before = pool.threads()
    pool.set_threads(1)
    yield
    pool.set_threads(before)
