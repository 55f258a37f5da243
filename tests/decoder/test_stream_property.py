"""Any sequence of calls on any stream, against plain lists: answered right, or refused for its reason.

In memory, and in a file whose owner comes to an end now and then and is followed by another.
"""

from __future__ import annotations

import pytest
from file_stream_machine import FileStreamMachine
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from stream_machine import StreamMachine

KINDS = pytest.mark.parametrize("machine", [StreamMachine, FileStreamMachine], ids=["memory", "file"])


def run(machine: type[StreamMachine], examples: int, steps: int, phases: tuple[Phase, ...]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=phases,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


@KINDS
@pytest.mark.timeout(300)
def test_any_sequence_of_calls(machine: type[StreamMachine]) -> None:
    """A failure is reported as it was found; the slow test below makes it short."""
    run(machine, 100, 20, (Phase.explicit, Phase.reuse, Phase.generate))


@KINDS
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_any_sequence_of_calls_for_a_long_time(machine: type[StreamMachine]) -> None:
    run(machine, 2000, 60, tuple(Phase))
