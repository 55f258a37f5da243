"""Time against context, as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

from measure import Result
from ours import FLOAT32, INT8

OURS = {INT8: "#d62728", FLOAT32: "#ff9896"}
PEERS = (
    "#1f77b4",
    "#aec7e8",
    "#2ca02c",
    "#98df8a",
    "#9467bd",
    "#c5b0d5",
    "#8c564b",
    "#c49c94",
    "#17becf",
    "#7f7f7f",
)


def write_context(results: Sequence[Result], one_head: Sequence[Result], path: Path, title: str) -> None:
    """Lines over the number of keys: ours, the peers, the read loops; and ours alone with one kv head."""
    figure = go.Figure()
    names = [name for name in results[-1].timings if name in OURS or name in results[-1].peers]
    colours = {**dict(zip((name for name in names if name not in OURS), PEERS * 2, strict=False)), **OURS}
    for name in names:
        known = [(r.shape.keys, r.timings[name].us) for r in results if name in r.timings]
        _line(figure, name, known, colours[name], 4 if name == INT8 else 2)
    for storage in results[-1].reads:
        known = [(r.shape.keys, r.read_us(storage)) for r in results]
        _line(
            figure,
            f"reading the {storage} bytes",
            known,
            "#444444",
            2,
            "dash" if storage == "int8" else "dot",
        )
    if one_head:
        known = [(r.shape.keys, r.timings[INT8].us) for r in one_head]
        _line(figure, f"{INT8}, one kv head", known, OURS[INT8], 2, "dashdot")
    shape = results[-1].shape
    figure.update_layout(
        title=f"One decode step, {shape.query_heads}/{shape.kv_heads}×{shape.dim}<br><sub>{title}</sub>",
        template="plotly_white",
        xaxis={"type": "log", "title": "keys in the cache", "tickvals": [r.shape.keys for r in results]},
        yaxis={"type": "log", "title": "median µs"},
        hovermode="x unified",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)


def _line(
    figure: go.Figure,
    name: str,
    points: Sequence[tuple[int, float]],
    colour: str,
    width: int,
    dash: str = "solid",
) -> None:
    x, y = zip(*points, strict=True)
    line = {"color": colour, "width": width, "dash": dash}
    figure.add_trace(go.Scatter(x=x, y=y, name=name, mode="lines+markers", line=line))
