"""Watches a server from outside its code: what it was asked, what it did, what it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import combinations

from sim_changes import Change, Subject, changes, made, repeated
from sim_plan import Plan
from sim_properties import hold
from sim_tally import Tally

from rondel.decoder.session import DecoderSession
from rondel.server.dispatch import JOINT_SECONDS, Dispatch
from rondel.server.operation import Batch, Operation
from rondel.server.streams import StreamRegistry

_EPSILON = 1e-9


class Monitor:
    """Told of everything that happens on a server, across its restarts. Raises Violation."""

    def __init__(self, plan: Plan, clock: Callable[[], float], tally: Tally) -> None:
        self._plan = plan
        self.tally = tally
        self._clock = clock
        self._streams: StreamRegistry | None = None
        self._waiting: dict[Operation, int] = {}
        """With the order in which they came."""
        self._arrivals = 0
        self._last: dict[str, int] = {}
        """By handle, the arrival of the last request that was carried out."""
        self._before: dict[str, Change] = {}
        """What the streams of a batch were when it began."""
        self._left: dict[str, Change] = {}
        """What all streams were when the server ended."""
        self._used: dict[str, float] = {}
        self._promised: dict[str, int] = {}
        self.ended: set[str] = set()
        """Handles of streams that their lease has ended."""
        self._made: dict[str, str] = {}
        """By request id, the stream that it made."""
        self._got: Counter[str] = Counter()
        """Seconds of each tenant."""
        self._pairs: dict[tuple[str, str], tuple[float, float]] = {}
        self._longest = 0.0

    # --- the server begins, and ends ------------------------------------------------------------------

    def begun(self, streams: StreamRegistry) -> None:
        """A server has started on the file."""
        self._waiting.clear()
        self._pairs.clear()
        now = {handle: Change.of(session) for handle, session in sessions(streams).items()}
        if self._streams is not None:
            before = self._left
            hold(
                "acknowledged",
                now.keys() == before.keys(),
                f"streams {before.keys() ^ now.keys()} after a restart",
            )
            for handle, state in now.items():
                least = min(before[handle].lengths)
                whole = state == Change((least,) * len(state.lengths), before[handle].generation + 1)
                hold("acknowledged", whole, f"{handle} was {before[handle]}, is {state} after a restart")
                promised = self._promised.get(handle, 0)
                hold("acknowledged", least >= promised, f"{handle} has {least}, promised were {promised}")
        self._streams = streams
        self._used = dict.fromkeys(now, self._clock())

    def killed(self) -> None:
        """The server has stopped, with or without a warning: what its streams are is what they must be."""
        if self._streams is not None:
            self._left = self._states(sessions(self._streams))

    # --- its queue ------------------------------------------------------------------------------------

    def arrives(self) -> None:
        """An operation is about to be let in, or refused."""
        self._arrivals += 1

    def admitted(self, dispatch: Dispatch, operation: Operation, removed: Iterable[Operation]) -> None:
        """It was let in."""
        for each in removed:
            self._waiting.pop(each, None)
            self.tally.note("made room for others")
        waiting = [each for each in self._waiting if not each.withdrawn]
        at_work = [] if dispatch.at_work is None else dispatch.at_work.operations
        if operation.cost and (waiting or at_work):
            size = operation.cost + sum(each.cost for each in (*waiting, *at_work))
            most = self._plan.queue_bytes
            hold("bounded", size <= most, f"{size} bytes wait, the bound is {most}")
            own = sum(each.estimate for each in waiting if each.tenant == operation.tenant)
            bound = self._plan.queue_seconds
            hold(
                "bounded",
                own <= bound + _EPSILON,
                f"{own} s of {operation.tenant} wait, the bound is {bound}",
            )
        self._waiting[operation] = self._arrivals
        self._look_at_pairs(dispatch)

    def withdrawn(self, dispatch: Dispatch) -> None:
        """Somebody has left."""
        self._look_at_pairs(dispatch)

    def begins(self, dispatch: Dispatch, batch: Batch, seconds: float) -> None:
        """A batch is about to be carried out, and will take so long."""
        now = self._clock()
        for operation in batch.operations:
            late = operation.deadline is not None and now >= operation.deadline
            hold("deadline", not late, f"work began at {now}, its deadline was {operation.deadline}")
            arrival = self._waiting.get(operation, self._arrivals)
            for handle in Subject.of(operation).handles:
                last = self._last.get(handle, 0)
                hold("order", last <= arrival, f"{handle}: request {arrival} after {last}")
                self._last[handle] = arrival
        for operation in (*batch.operations, *batch.expired, *batch.cancelled):
            self._waiting.pop(operation, None)
        self._look_at_pairs(dispatch)
        self._before = self._states(
            handle for operation in batch.operations for handle in Subject.of(operation).handles
        )
        self._longest = max(self._longest, seconds, batch.estimate)
        expected = batch.estimate + 1e-6 * len(batch.operations)
        for operation in batch.operations:
            if operation.tenant is not None:
                self._got[operation.tenant] += seconds * (operation.estimate + 1e-6) / expected

    def worked(self, batch: Batch) -> None:
        """It was carried out."""
        if self._streams is None:
            raise RuntimeError("a server works that has not begun")
        expected = dict(self._before)
        for operation in batch.operations:
            subject = Subject.of(operation)
            request = subject.request
            if request is None:
                continue
            handles = list(subject.handles) if not operation.spent else []
            new = made(operation.result) if operation.settled else ""
            if new and new in self._used:
                handles.clear()  # a repetition: it is answered without a look at what it is made from
            if new:
                first = self._made.setdefault(request.request_id, new)  # type: ignore[attr-defined]
                again = first != new and first in sessions(self._streams)
                hold("exactly-once", not again, f"the same request has made {first} and {new}")
                self._made[request.request_id] = new  # type: ignore[attr-defined]
            self._used.update((handle, self._clock()) for handle in (*handles, new) if handle)
            if operation.settled and operation.error is None:
                changes(subject, operation.result, expected, self._promised)
                self.tally.note("repeated", repeated(operation.result))
        for handle, state in self._states(expected).items():
            wanted = expected[handle]
            lost = min(state.lengths) < min(wanted.lengths)
            hold(
                "acknowledged" if lost else "whole",
                state == wanted,
                f"{handle} was {self._before.get(handle)}, should be {wanted}, is {state}",
            )

    def put_back(self, operation: Operation) -> None:
        """It has more pieces."""
        self.tally.note("in pieces")
        self._waiting[operation] = self._last_arrival(operation)

    def finished(self, dispatch: Dispatch) -> None:
        """The time of a batch is over."""
        self._look_at_pairs(dispatch)
        bound = 2 * (self._longest + JOINT_SECONDS) + _EPSILON
        for (one, other), (first, second) in self._pairs.items():
            gap = abs((self._got[one] - first) - (self._got[other] - second))
            hold("fair", gap <= bound, f"{one} and {other} differ by {gap} s, the bound is {bound} s")

    def expires(self, streams: StreamRegistry, lease: float, now: float) -> None:
        """Has the server's streams expire, as was asked for at ``now``, and looks at which do."""
        oldest = now - lease
        before = set(sessions(streams))
        due = {handle for handle in before if self._used[handle] <= oldest}
        streams.expire(now)
        gone = before - set(sessions(streams))
        hold("lease", gone == due, f"{gone} were ended, {due} were due")
        self.ended |= gone
        self.tally.note("ended by its lease", len(gone))

    # --- inside ---------------------------------------------------------------------------------------

    def _last_arrival(self, operation: Operation) -> int:
        handles = Subject.of(operation).handles
        return max((self._last[handle] for handle in handles), default=self._arrivals)

    def _states(self, handles: Iterable[str]) -> dict[str, Change]:
        held = {} if self._streams is None else sessions(self._streams)
        return {handle: Change.of(held[handle]) for handle in handles if handle in held}

    def _look_at_pairs(self, dispatch: Dispatch) -> None:
        """Which tenants both have something to do, and what each had got when that began."""
        if self._plan.tenants < 2:
            return
        at_work = [] if dispatch.at_work is None else dispatch.at_work.operations
        busy = sorted(
            {each.tenant for each in (*self._waiting, *at_work) if each.tenant and not each.withdrawn}
        )
        pairs = set(combinations(busy, 2))
        self._pairs = {
            pair: self._pairs.get(pair, (self._got[pair[0]], self._got[pair[1]])) for pair in pairs
        }


def sessions(streams: StreamRegistry) -> dict[str, DecoderSession]:
    """All sessions of a server, by handle."""
    return {entry.handle: entry.session for each in streams._streams.values() for entry in each}
