"""A start on an arena's file: the streams of the server before are streams again. For the worker."""

from __future__ import annotations

import logging

from rondel.decoder.attach import AttachedStream, attach
from rondel.decoder.errors import InvalidLayer, InvalidShape, ProjectionNotFound
from rondel.decoder.projection import fitted
from rondel.server.logs import shortened
from rondel.server.projections import ProjectionSets
from rondel.server.streams import StreamRegistry
from rondel.server.tags import Tag

log = logging.getLogger("rondel.server")


def take_back(streams: StreamRegistry, projections: ProjectionSets, verify: str) -> None:
    """Registers what is in the arena's file. Streams that are damaged, or none of a server's, stay in it and
    are not served."""
    found = attach(streams.arena, verify=verify)
    served = [each for each in found if _registered(each, streams, projections)]
    if streams.arena.file is not None:
        log.info(
            "%d streams were in %s, %d of them are set aside",
            len(found),
            streams.arena.file.path,
            len(found) - len(served),
        )


def _registered(stream: AttachedStream, streams: StreamRegistry, projections: ProjectionSets) -> bool:
    tag = Tag.decode(stream.tag)
    if stream.session is None or tag is None:
        who = "a stream" if tag is None else f"stream {shortened(tag.handle)}"
        log.warning("%s is set aside: %s", who, stream.reason or "it is none of a server's")
        if stream.session is not None:
            stream.session.detach()
        return False
    try:
        named = projections.get(tag.projections)
        stream.session.projections = fitted(named, stream.session.spec)
    except (ProjectionNotFound, InvalidLayer, InvalidShape) as error:
        who = shortened(tag.handle)
        log.warning("stream %s goes on without its projections: %s", who, error.message)
    streams.take_back(tag, stream.session)
    return True
