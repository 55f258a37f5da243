"""What every test may use. Fixtures of one room stand in that room's own conftest."""

import os
import zlib
from collections.abc import Generator

import hypothesis
import numpy as np
import pytest
from company import turn
from transports import NAMES, Transport

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--transport",
        choices=NAMES,
        help="how tests of server and clients reach a server; default: tcp, and some of them in every way",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test with the marker on every transport, unless one is asked for."""
    marked = metafunc.definition.get_closest_marker("every_transport") is not None
    if marked and not metafunc.config.getoption("transport"):
        # Of the session: tests of one transport go together, so what they share is made once for each.
        metafunc.parametrize("transport", NAMES, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is about one transport where another is asked for."""
    chosen = config.getoption("transport")
    other = [
        item
        for item in items
        if chosen and (marker := item.get_closest_marker("only_transport")) and chosen not in marker.args
    ]
    config.hook.pytest_deselected(items=other)
    items[:] = [item for item in items if item not in other]


@pytest.fixture(scope="session")
def transport(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Transport:
    """The way to servers."""
    name = getattr(request, "param", None) or request.config.getoption("transport") or "tcp"
    return Transport(name, tmp_path_factory.mktemp(name))
