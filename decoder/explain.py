"""From the kernels' scores to weights, in float64 and in the open: what the kernels do without storing it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.edits import added, reach, shown
from rondel.decoder.errors import InvalidRequest
from rondel.decoder.explanation import MAX_CELLS, Explanation, Positions
from rondel.decoder.kernels import Kernels, Query
from rondel.decoder.options import AttendOptions
from rondel.decoder.partials import null_share
from rondel.decoder.rows import QueryRows, positions_from
from rondel.decoder.spec import LayerGroup

_Wide = NDArray[np.float64]


def explained(
    group: LayerGroup, rows: QueryRows, first: int, held: int, query: Query | None, kernels: Kernels
) -> Explanation:
    """Every stage of ``rows``, at ``first`` and on, which ask ``query`` of a layer of ``held`` tokens.

    Raises:
        InvalidRequest: the stages would have more than MAX_CELLS cells.
    """
    count, options = len(rows.q), rows.options or AttendOptions()
    low, high = reach(group, first, count, held)
    keys = _keys(group, first, low, high)
    cells = count * group.query_heads * len(keys)
    if cells > MAX_CELLS:
        raise InvalidRequest(
            f"an explanation has at most {MAX_CELLS} cells, got {count} rows x {group.query_heads} heads x "
            f"{len(keys)} keys; ask for fewer rows at a time",
            field="q",
        )
    places = positions_from(first, count) if group.placed else np.full(count, -1, np.int64)
    raw = _scores(group, rows, query, keys, kernels)
    capped = raw if options.softcap is None else options.softcap * np.tanh(raw / options.softcap)
    sees = _sees(group, places, keys)
    capped = np.where(sees, capped, -np.inf)  # tanh has made a number of the -inf of keys out of sight
    masked = _masked(group, options, capped, places, keys, low, high)
    top = masked.max(axis=-1, initial=-np.inf, keepdims=True)
    e = np.exp(masked - np.where(np.isneginf(top), 0.0, top))
    total = np.maximum(e.sum(axis=-1, keepdims=True), 1.0)  # at least 1 already where anything is visible
    lse = (top + np.log(total))[..., 0].T
    weights, null = e / total, np.zeros_like(lse)
    if options.null_logit is not None:
        kept = null_share(options.null_logit.astype(np.float64), lse)
        # A null logit of -inf is none: it takes nothing even where nothing else is there to take it.
        null = np.where(np.isneginf(options.null_logit), 0.0, 1.0 - kept)
        weights = weights * kept.T[..., None]
    stages = (raw, capped, masked, weights, null, lse)
    return Explanation(places, keys, *(stage.astype(np.float32) for stage in stages))


def _keys(group: LayerGroup, first: int, low: int, high: int) -> Positions:
    """Positions that any row sees by its place: the sinks, and from the first row's window on."""
    start = low if group.window is None else max(low, first - group.window + 1)
    sinks = positions_from(0, min(group.sinks, start, high))
    return np.concatenate([sinks, positions_from(start, max(0, high - start))])


def _scores(
    group: LayerGroup, rows: QueryRows, query: Query | None, keys: Positions, kernels: Kernels
) -> _Wide:
    """scale / temperature · q·k, [Hq, N, M]; -inf where the row does not see the key by its place."""
    # The sinks may lie far before the window, so each run of positions is asked for by itself.
    parts = []
    for run in np.split(keys, np.flatnonzero(np.diff(keys) > 1) + 1):
        part = np.full((len(rows.q), group.query_heads, len(run)), -np.inf, np.float32)
        if query is not None and len(run):
            kernels.scores(query, part, int(run[0]))
        parts.append(part)
    return np.concatenate(parts, axis=2).astype(np.float64).transpose(1, 0, 2)


def _sees(group: LayerGroup, places: Positions, keys: Positions) -> NDArray[np.bool_]:
    """Which keys each row sees by its place: [N, M]."""
    p, j = places[:, None], keys[None, :]
    if not group.placed:
        return np.ones((p.size, j.size), np.bool_)
    sees = j <= p + group.window_right
    return sees if group.window is None else sees & ((j > p - group.window) | (j < group.sinks))


def _masked(
    group: LayerGroup,
    options: AttendOptions,
    capped: _Wide,
    places: Positions,
    keys: Positions,
    low: int,
    high: int,
) -> _Wide:
    """After ALiBi, bias, mask and ranges: [Hq, N, M], -inf where not visible."""
    s = capped
    if options.alibi is not None:
        p, j = places[:, None], keys[None, :]
        if group.window is not None:  # a sink counts as lying right before the window
            p = np.where(j < group.sinks, np.minimum(p, group.sinks + group.window - 1), p)
        s = s + options.alibi.astype(np.float64)[:, None, None] * (j - p)
    if (bias := added(options, None, low, high)) is not None:
        s = s + bias[..., keys - low]
    seen = shown(options, None, low, high)
    return s if seen is None else np.where(seen[..., keys - low], s, -np.inf)
