"""Divergence by position and as a distribution, as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from rondel.decoder.lm.accuracy import Accuracy

COLOURS: Final = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#17becf")


def write(path: Path, title: str, measured: Sequence[Accuracy]) -> None:
    """Write the page. Raises OSError."""
    import plotly.io  # here: an optional package, and what is drawn can be looked at without it

    page = plotly.io.to_html(figure(title, measured), include_plotlyjs=True)
    path.write_text(page, encoding="utf-8")


def figure(title: str, measured: Sequence[Accuracy]) -> dict[str, Any]:
    """Above, mean KL at each position; below, the share of tokens whose KL is at most so large."""
    traces: list[dict[str, Any]] = []
    for number, one in enumerate(measured):
        line = {"color": COLOURS[number % len(COLOURS)]}
        shared = {"type": "scatter", "name": one.storage, "legendgroup": one.storage, "line": line}
        positions, means = one.kl_by_position()
        ascending = np.sort(one.rows.kl)
        share = np.arange(1, len(ascending) + 1) / len(ascending)
        seen = ascending > 0.0  # the axis is logarithmic; what is not above 0 still counts in the share
        traces += [
            shared | {"x": positions.tolist(), "y": means.tolist(), "mode": "lines"},
            shared
            | {"x": ascending[seen].tolist(), "y": share[seen].tolist(), "mode": "lines"}
            | {"xaxis": "x2", "yaxis": "y2", "showlegend": False},
        ]
    layout = {
        "title": {"text": title},
        "template": "plotly_white",
        "height": 900,
        "xaxis": {"title": {"text": "position in the context"}, "anchor": "y"},
        "yaxis": {
            "title": {"text": "mean KL(float32 ‖ storage), nats"},
            "domain": [0.56, 1.0],
            "rangemode": "tozero",
        },
        "xaxis2": {"title": {"text": "KL, nats"}, "type": "log", "anchor": "y2"},
        "yaxis2": {"title": {"text": "share of tokens"}, "domain": [0.0, 0.44], "range": [0.0, 1.0]},
    }
    return {"data": traces, "layout": layout}
