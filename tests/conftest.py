"""What every test may use. Fixtures of one room stand in that room's own conftest."""

import os
import zlib
from collections.abc import Generator

import hypothesis
import numpy as np
import pytest
from company import turn

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


# Outermost, so that no test's time limit counts while it waits for its turn.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test marked ``alone`` have the machine, as far as it is ours."""
    with turn(alone=item.get_closest_marker("alone") is not None):
        return (yield)
