"""The yardstick: how fast the same bytes can be read with the same number of threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from itertools import pairwise
from operator import xor

from checking import WrongAnswer
from ours import Stored
from rondel.decoder import kernels


class ReadLoops:
    """Every read loop over what attention reads, the page table cut into one part per thread.

    Raises:
        WrongAnswer: two loops read different bytes.
    """

    def __init__(self, stored: Stored, threads: int) -> None:
        cuts = [stored.pages * i // threads for i in range(threads + 1)]
        self._workers = ThreadPoolExecutor(threads) if threads > 1 else None
        self.calls: dict[str, Callable[[], int]] = {}
        for variant, name in enumerate(kernels.READ_LOOPS):
            parts = [stored.reader(variant, *cut) for cut in pairwise(cuts)]
            self.calls[name] = parts[0] if len(parts) == 1 else partial(self._together, parts)
        checksums = {name: call() for name, call in self.calls.items()}
        if len(set(checksums.values())) > 1:
            raise WrongAnswer(f"the read loops read different bytes: {checksums}")

    def _together(self, parts: list[Callable[[], int]]) -> int:
        if self._workers is None:
            raise ValueError("the read loops are closed")
        return reduce(xor, [part.result() for part in [self._workers.submit(part) for part in parts]])

    def close(self) -> None:
        """Stop the threads."""
        if self._workers is not None:
            self._workers.shutdown()
            self._workers = None
