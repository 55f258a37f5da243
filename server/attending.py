"""Attend, cut between its rows: nothing changes, so it may stop there, and others have their turns."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

import numpy as np

from rondel.decoder.options import AttendOptions
from rondel.decoder.session import DecoderSession
from rondel.server import exactly_once
from rondel.server.exactly_once import Floats
from rondel.server.loads import row_products
from rondel.server.returns import most_keys

PIECE_PRODUCTS: Final = 1 << 28
"""Multiplications of a piece: a few milliseconds on one core, 50 of an old one."""


def attend(
    session: DecoderSession,
    *,
    generation: int,
    position: int | None,
    layer: int,
    q: Floats,
    return_lse: bool,
    options: AttendOptions | None,
    check: Callable[[], None],
) -> Generator[None, None, tuple[Floats, Floats | None]]:
    """:func:`exactly_once.attend`, to the bit, with a yield between pieces; ``check`` is called before each.

    A row's answer does not depend on the others. The stream may be closed meanwhile, by its lease alone.
    """

    def piece(rows: slice, first: int | None) -> tuple[Floats, Floats | None]:
        check()
        return exactly_once.attend(
            session,
            generation=generation,
            position=first,
            layer=layer,
            q=q[rows],
            return_lse=return_lse,
            options=None if options is None else options.of_rows(rows),
        )

    group, held = session.spec.group(layer), session.layer_length(layer)
    rows = len(q) if q.ndim == 3 else 0
    most = max(1, PIECE_PRODUCTS // max(1, row_products(group, most_keys(group, held, 1))))
    first = held - rows if position is None and group.placed else position
    # What the rules or the session will refuse is refused for the whole of it.
    if rows <= most or (first is not None and not 0 <= first <= held - rows):
        return piece(slice(None), position)
    if options is not None:
        options.check(group, rows)
    parts = []
    for start in range(0, rows, most):
        if start:
            yield
        parts.append(piece(slice(start, start + most), None if first is None else first + start))
    out = np.concatenate([out for out, _ in parts])
    return out, np.concatenate([lse for _, lse in parts if lse is not None]) if return_lse else None
