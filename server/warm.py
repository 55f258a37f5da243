"""A start on an arena's file: the streams of the server before are streams again.

Their records are looked at before the server listens, their tokens when a stream is first used; what nobody
uses is looked at meanwhile. So the first answer does not wait for all the others.
"""

from __future__ import annotations

import logging
import threading
import time

from rondel.decoder.attach import AttachedStream, attach
from rondel.decoder.errors import InvalidLayer, InvalidShape, ProjectionNotFound
from rondel.decoder.projection import fitted
from rondel.server.last_cut import last_attach, last_truncate
from rondel.server.logs import shortened
from rondel.server.projections import ProjectionSets
from rondel.server.streams import StreamRegistry
from rondel.server.tags import Tag

log = logging.getLogger("rondel.server")


def take_back(streams: StreamRegistry, projections: ProjectionSets, verify: str) -> Verification:
    """Registers what is in the arena's file. Streams with damaged records, and those that are none of a
    server's, stay in it and are not served. For the worker."""
    found = attach(streams.arena, verify=verify, lazily=True)
    served = [each for each in found if _registered(each, streams, projections)]
    if streams.arena.file is not None:
        log.info(
            "%d streams were in %s, %d of them are set aside",
            len(found),
            streams.arena.file.path,
            len(found) - len(served),
        )
    return Verification(served)


class Verification:
    """Looks at streams' tokens on a thread of its own, one stream after the other. A call that finds its
    stream being looked at waits; one that comes before looks itself."""

    def __init__(self, streams: list[AttachedStream]) -> None:
        self._streams = streams
        self._stopping = False
        # Not waited for at the end: it changes nothing, and may be inside a large stream.
        self._thread = threading.Thread(target=self._run, name="rondel-verify", daemon=True)

    def start(self) -> None:
        """Begins, if there is anything to look at. Once."""
        if self._streams:
            self._thread.start()

    def stop(self) -> None:
        """Looks at no further stream."""
        self._stopping = True

    def _run(self) -> None:
        began, damaged = time.monotonic(), 0
        while self._streams and not self._stopping:
            stream = self._streams.pop(0)
            if reason := stream.verify():
                damaged += 1
                log.warning("%s is set aside: %s", _name(stream), reason)
        if not self._stopping:
            seconds = time.monotonic() - began
            log.info("all streams were looked at, in %.1f s; %d are damaged", seconds, damaged)


def _name(stream: AttachedStream) -> str:
    tag = Tag.decode(stream.tag)
    return "a stream" if tag is None else f"stream {shortened(tag.handle)}"


def _registered(stream: AttachedStream, streams: StreamRegistry, projections: ProjectionSets) -> bool:
    tag = Tag.decode(stream.tag)
    if stream.session is None or tag is None:
        log.warning("%s is set aside: %s", _name(stream), stream.reason or "it is none of a server's")
        if stream.session is not None:
            stream.session.detach()
        return False
    try:
        named = projections.get(tag.projections)
        stream.session.projections = fitted(named, stream.session.spec)
    except (ProjectionNotFound, InvalidLayer, InvalidShape) as error:
        who = shortened(tag.handle)
        log.warning("stream %s goes on without its projections: %s", who, error.message)
    entry = streams.take_back(tag, stream.session)
    entry.truncated, entry.attached = last_truncate(stream.session), last_attach(stream.session)
    return True
