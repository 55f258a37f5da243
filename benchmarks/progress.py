"""What the benchmark is at, without taking part in it: drawn between samples, never during one."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Steps:
    """A bar over the parts of a run on standard error, or a line per part in a log; context manager."""

    def __init__(self, parts: int) -> None:
        self._console = Console(stderr=True)
        # rich would refresh from a thread of its own, in the middle of somebody's sample.
        self._progress = Progress(
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._progress.add_task("", total=parts)
        self._part = ""
        self._drawn = 0.0

    def begin(self, part: str) -> None:
        """The next part starts."""
        self._part = part
        if not self._console.is_terminal:
            self._console.print(part, highlight=False)
        self.show("")

    def show(self, doing: str) -> None:
        """What is done within the part; drawn four times a second at most."""
        if time.monotonic() - self._drawn > 0.25:
            self._drawn = time.monotonic()
            self._progress.update(self._task, description=f"{self._part} · {doing}", refresh=True)

    def end(self) -> None:
        """The part is done."""
        self._progress.advance(self._task)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
