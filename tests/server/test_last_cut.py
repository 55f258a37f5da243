"""What a file says of a stream's last truncate or attach is what was asked, whatever its request_id."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import Start
from rawclient import SPEC, Client, Tokens

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.server.bounds import MAX_ID_BYTES
from rondel.server.entries import Attached, Truncated
from rondel.server.last_cut import (
    last_attach,
    last_truncate,
    note_of_attach,
    note_of_truncate,
    owned_since,
)
from rondel.v1 import attention_pb2 as pb

NAMES = ["cut", "\0" + "1\0x", "\0\0x", "\0\0", "\0", "\0" + "12\0" + "é" * 62, "x\0" + "1\0x", "ÿ"]


def cut_with(note: bytes) -> DecoderSession:
    """A stream in its first generation, which began with this note."""
    session = DecoderSession(SPEC, Arena(64 << 20))
    session.truncate(0, note=note)
    return session


@given(st.one_of(st.sampled_from(NAMES), st.text("\0" + "1éÿ", min_size=1, max_size=MAX_ID_BYTES // 2)))
@settings(deadline=None)
def test_the_two_kinds_are_told_apart(name: str) -> None:
    session = cut_with(note_of_truncate(name))
    assert last_truncate(session) == Truncated(name, 0, 0, 1)
    assert last_attach(session) is None
    assert owned_since(session) == 0
    for generation in (None, 0):
        session = cut_with(note_of_attach(name, generation))
        assert last_attach(session) == Attached(name, generation, 1)
        assert last_truncate(session) is None
        assert owned_since(session) == 1


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("\0")])
def test_what_older_software_wrote_is_read(name: str) -> None:
    assert last_truncate(cut_with(name.encode())) == Truncated(name, 0, 0, 1)


def test_a_request_without_a_name_is_not_known_again() -> None:
    for note in (note_of_truncate(""), note_of_attach("", 0)):
        session = cut_with(note)
        assert (last_truncate(session), last_attach(session)) == (None, None)


async def test_a_truncate_of_any_name_is_answered_again_after_a_kill(
    start: Start, connect: Callable[[str], Client], tokens: Tokens, tmp_path: Path
) -> None:
    path = str(tmp_path / "arena")
    process = start(arena_file=path)
    client = connect(process.address)
    cuts = []
    for name in NAMES:
        stream = await client.open()
        await client.append(stream, 0, *tokens.kv(3))
        cuts.append(pb.TruncateStreamRequest(stream=stream, length=2, request_id=name))
        await client.attention.TruncateStream(cuts[-1])
    await process.end(signal.SIGKILL)
    client = connect(start(arena_file=path).address)
    for cut in cuts:
        answer = await client.attention.TruncateStream(cut)
        assert (answer.generation, answer.committed_length) == (2, 2)
