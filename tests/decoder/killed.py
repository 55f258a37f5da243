"""A process to be killed: it does things to the streams in an arena's file and says which are done.

``python killed.py PATH SEED FIRST POINT PLANT``: deeds from number FIRST on; it kills itself at the POINT-th
crash point (0 = never). Per deed a line before (the deed) and one after (its number, and whether it was
refused). PLANT names a wrong order of stores.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np
from deeds import Streams, carry_out, draw

from rondel.decoder.attach import attach
from rondel.decoder.cache import crash
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.record import StreamRecord
from rondel.decoder.call import LayerCall
from rondel.decoder.errors import RondelError
from rondel.decoder.kernels import Kernels
from rondel.decoder.writer import Writer

BUDGET = 24 << 20
CROWD = 9


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


AT = {"": "", "length first": "after record", "table first": "record body"}
"""Which crash points count, by planted mistake: each shows at its own only."""


def kill_at(point: int, of: str) -> None:
    """Put crash points in place that kill this process at the ``point``-th, of that name if it has one."""
    left = point

    def crash_point(name: str) -> None:
        nonlocal left
        left -= of in ("", name)
        if left == 0:
            say({"point": name})
            os.kill(os.getpid(), signal.SIGKILL)

    crash.crash_point = crash_point


def length_first(self: Writer, call: LayerCall, part: slice, kernels: Kernels) -> int:
    """As ``Writer.place``, with the length before the data."""
    first = self.extent.layer_length(call.layer)
    end = first + part.stop - part.start
    self.extent.claim(call.layer, end)
    for rings in self.rings:
        rings.grow(end, self.pages)
    self.extent.advance(call.layer, end)
    kernels.place(
        call.rings.words, self.arena.base, call.rings.table(call.layer), first, call.k[part], call.v[part]
    )
    return first


def table_first(self: StreamRecord, tag: bytes) -> None:
    """As ``StreamRecord.publish``, with the stream table before the record."""
    header, promises, lent = self._sections
    self._enter()
    self._write(header, promises, tag, lent)
    self.published = True


def plant(name: str) -> None:
    """Have one of the two wrong orders."""
    if name == "length first":
        Writer.place = length_first  # type: ignore[method-assign]
    elif name == "table first":
        StreamRecord.publish = table_first  # type: ignore[method-assign]


def main() -> None:
    path, seed, first, point, planted = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
    plant(planted)
    if point and not planted:  # on the way to the first deed, too
        kill_at(point, "")
    arena = Arena(BUDGET, path=path)
    streams: Streams = {}
    for each in attach(arena, verify="tail"):
        if each.session is not None:
            streams[each.tag.decode()] = each.session
    say("ready")
    if point and planted:
        kill_at(point, AT[planted])
    rng = np.random.default_rng(seed)
    number = first
    while True:
        deed = draw(rng, streams, number, CROWD)
        say(deed)
        try:
            failed = carry_out(deed, streams, arena)
        except RondelError as error:
            say({"done": number, "refused": error.reason})
        else:
            say({"done": number, "failed": failed})
        number += 1


if __name__ == "__main__":
    main()
