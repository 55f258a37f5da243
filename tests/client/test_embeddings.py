"""Stepping by embeddings with both clients, against a server process that was given a file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinysafetensors
from transports import flags

from rondel import Arena, AttendOptions, DecoderSession, Projections, StreamSpec
from rondel.client.cli.launch import server
from rondel.decoder.errors import (
    InvalidRequest,
    InvalidShape,
    ProjectionNotFound,
    ServerUnavailable,
    StreamClosed,
)

SPEC = StreamSpec.uniform(
    layers=2, query_heads=6, kv_heads=2, head_dim=16, value_dim=24, window=64, sinks=4, reserve=8
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    return tinysafetensors.save(path, tinysafetensors.draw(SPEC, 40, biases=True), "F16")


@pytest.fixture(scope="module")
def address(file: Path) -> Iterator[str]:
    """A server with projections, as a process of its own."""
    with server(
        "--budget-bytes=67108864", f"--projections=tiny={file}", f"--projections=x={file}", *flags()
    ) as running:
        yield running.address


def test_a_stream_answers_as_a_session_does(client: Any, file: Path, rng: np.random.Generator) -> None:
    local = DecoderSession(SPEC, Arena(budget=64 << 20), projections=Projections.load(file))
    assert client.info().projections == ("tiny", "x")
    with client.open(SPEC, projections="tiny") as stream:
        x = rng.standard_normal((300, 40), np.float32)
        for part in stream.chunks(300):
            for layer in range(2):
                got = stream.step_embeddings(layer, x[part])
                np.testing.assert_array_equal(got, local.step_embeddings(layer, x[part]))
        assert stream.length == local.length == 300
        half = x[:3].astype(np.float16)
        np.testing.assert_array_equal(
            stream.step_embeddings(0, half), local.step_embeddings(0, half.astype(np.float32))
        )
        assert stream.layer_length(0) == 303
        options = AttendOptions(softcap=0.5, ranges=((290, 400),))
        np.testing.assert_array_equal(
            stream.step_embeddings(0, x[:2], options=options),
            local.step_embeddings(0, x[:2], options=options),
        )


def test_errors_are_those_of_a_session(client: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 40), np.float32)
    with pytest.raises(ProjectionNotFound, match="got 'huge'"):
        client.open(SPEC, projections="huge")
    for wrong in (3, None, "\ud800"):
        with pytest.raises(InvalidRequest, match="projections must be a text"):
            client.open(SPEC, projections=wrong)
    plain = client.open(SPEC)
    with pytest.raises(ProjectionNotFound, match="layer 0 has no projection"):
        plain.step_embeddings(0, x)
    stream = client.open(SPEC, projections="x")
    for bad in (x[0], x.astype(np.float64), x[:, :39]):
        with pytest.raises(InvalidShape):
            stream.step_embeddings(0, bad)
    assert stream.step_embeddings(0, x).shape == (2, 6, 24)
    stream.close()
    with pytest.raises(StreamClosed):
        stream.step_embeddings(0, x)


def test_an_imported_stream_is_given_its_projections_anew(
    client: Any, file: Path, rng: np.random.Generator
) -> None:
    """A snapshot has none in it: they are the model's, not the stream's."""
    x = rng.standard_normal((30, 40), np.float32)
    projections, snapshot = Projections.load(file), io.BytesIO()
    local = DecoderSession(SPEC, Arena(budget=64 << 20), projections=projections)
    for layer in range(2):
        local.step_embeddings(layer, x[:20])
    local.snapshot(snapshot)
    streams = []
    for name in ("tiny", ""):
        snapshot.seek(0)
        streams.append(client.import_stream(snapshot, projections=name))
    got = streams[0].step_embeddings(0, x[20:])
    with pytest.raises(ProjectionNotFound):
        streams[1].step_embeddings(0, x[20:])
    snapshot.seek(0)
    back = DecoderSession.restore(snapshot, Arena(budget=64 << 20), projections=projections)
    for session in (local, back):
        np.testing.assert_array_equal(got, session.step_embeddings(0, x[20:]))
    other = client.open(StreamSpec.uniform(layers=2, query_heads=1, kv_heads=1, head_dim=8, window=9))
    unlike = io.BytesIO()
    other.export(unlike)
    unlike.seek(0)
    with pytest.raises(InvalidShape):
        client.import_stream(unlike, projections="tiny")


def test_a_server_does_not_start_without_its_file(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerUnavailable, match="expected a safetensors file"),
        server(f"--projections=a={tmp_path / 'none'}"),
    ):
        pass
