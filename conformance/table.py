"""A table for people, one JSON object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from sight import MASK, MASK_REASON
from verdicts import Verdict


def table(verdicts: Sequence[Verdict]) -> Table:
    """Every case with its worst output."""
    rows = Table(
        title="ONNX Attention through sessions, float32 storage", title_justify="left", box=box.SIMPLE
    )
    rows.add_column("case", overflow="fold")
    rows.add_column("opset", justify="right")
    for column in ("sight", "worst output"):
        rows.add_column(column, no_wrap=True)
    for column in ("error", "rtol, atol", "used"):
        rows.add_column(column, justify="right", no_wrap=True)
    rows.add_column("", no_wrap=True)
    for verdict in verdicts:
        worst = verdict.worst
        numbers = [""] * 4
        if worst is not None:
            tolerance = f"{worst.rtol:.2g}, {worst.atol:.0e}"
            numbers = [worst.output, f"{worst.error:.1e}", tolerance, f"{worst.share:.2%}"]
        name = verdict.name.removeprefix("test_")
        rows.add_row(name, str(verdict.opset), verdict.sight, *numbers, _mark(verdict))
    return rows


def remarks(verdicts: Sequence[Verdict]) -> list[Text]:
    """What the table has no room for: why a mask was needed, and why a case did not pass."""
    lines = []
    if any(MASK in verdict.sight.split("/") for verdict in verdicts):
        lines.append(Text(f"sight {MASK}: {MASK_REASON}"))
    for verdict in verdicts:
        if verdict.explained is not None:
            lines.append(Text(f"not expressible: {verdict.name}: {verdict.explained}", style="yellow"))
        elif not verdict.passed:
            why = verdict.failed or ", ".join(
                f"{d.output} is off by {d.error:.1e}, {d.share:.3g} times what it may"
                for d in verdict.differences
                if d.share > 1
            )
            lines.append(Text(f"failed: {verdict.name}: {why}", style="bold red"))
    return lines


def summarise(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The last line of ``make conformance``."""
    return {
        "passed": sum(verdict.passed for verdict in verdicts),
        "total": len(verdicts),
        "explained": [
            {"case": verdict.name, "reason": verdict.explained}
            for verdict in verdicts
            if verdict.explained is not None
        ],
    }


def _mark(verdict: Verdict) -> Text:
    if verdict.explained is not None:
        return Text("explained", style="yellow")
    return Text("passed", style="green") if verdict.passed else Text("failed", style="bold red")
