"""What every test may use. Fixtures of one room stand in that room's own conftest."""

import os
import zlib

import hypothesis
import numpy as np
import pytest

# Machines are shared and slow at times: a deadline per example would measure the neighbours. In CI the
# examples are the same every time, so that a failure is the change's own.
hypothesis.settings.register_profile(
    "rondel", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("rondel")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that are the same in every run, and others in every test."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
