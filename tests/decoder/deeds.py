"""What is done to streams by name: drawn at random, carried out the same wherever, written as JSON.

The tokens of a deed come from its number, so two processes that carry it out store the same ones.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from families import SPECS
from numpy.typing import NDArray

from rondel.decoder.batch import Step, run_steps
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession

Deed = dict[str, Any]
Streams = dict[str, DecoderSession]
KINDS = ("append", "step", "steps", "all", "long", "fork", "truncate", "close", "open", "restore", "seal")
WEIGHTS = np.array([6, 8, 4, 8, 2, 3, 4, 1.5, 3, 1, 0.3])


def draw(rng: np.random.Generator, streams: Streams, number: int, crowd: int) -> Deed:
    """The next deed."""
    kind = str(rng.choice(KINDS, p=WEIGHTS / WEIGHTS.sum()))
    if len(streams) >= crowd and kind in ("open", "fork", "restore"):
        kind = "close"
    if not streams:
        kind = "open"
    deed: Deed = {"do": kind, "number": number, "new": f"s{number}"}
    if kind == "open":
        return {**deed, "spec": str(rng.choice(list(SPECS)))}
    name = str(rng.choice(list(streams)))
    session = streams[name]
    deed["on"] = name
    if kind in ("all", "long") and len(session.spec.groups) > 1:
        kind = deed["do"] = "append"
    if kind in ("append", "step"):
        level = [
            layer for layer in range(session.spec.layers) if session.layer_length(layer) == session.length
        ]
        deed |= {"layer": int(rng.choice(level)), "tokens": int(rng.integers(1, 9))}
    elif kind == "steps":
        names = rng.choice(list(streams), size=min(3, len(streams)), replace=False)
        deed |= {"on": [str(each) for each in names], "tokens": int(rng.integers(1, 4))}
    elif kind in ("all", "long"):
        deed["tokens"] = int(rng.integers(1, 140) if kind == "all" else rng.integers(300, 800))
    elif kind == "fork":
        deed["quota"] = None if rng.random() < 0.5 else int(rng.integers(0, 300))
    elif kind == "truncate":
        deed["length"] = int(rng.integers(session.min_length, session.length + 1))
    return deed


def carry_out(deed: Deed, streams: Streams, arena: Arena) -> list[str]:
    """Do it; the streams of a batch that refused their part. Raises what a session raises; then nothing has
    changed."""
    kind, name, new = deed["do"], deed.get("on"), deed["new"]
    rng, failed = np.random.default_rng(deed["number"]), deed.get("failed", ())
    if kind == "open":
        streams[new] = DecoderSession(SPECS[deed["spec"]], arena, tag=new.encode())
    elif kind == "steps":
        drawn = {each: tokens(rng, streams[each], 0, deed["tokens"]) for each in name}
        done = run_steps([Step(streams[each], 0, *qkv) for each, qkv in drawn.items() if each not in failed])
        return [each for each, answer in zip(drawn, done, strict=False) if isinstance(answer, Exception)]
    elif kind in ("append", "step"):
        q, k, v = tokens(rng, streams[name], deed["layer"], deed["tokens"])
        if kind == "append":
            streams[name].append(deed["layer"], k, v)
        else:
            streams[name].step(deed["layer"], q, k, v)
    elif kind in ("all", "long"):
        _all(deed, rng, streams[name])
    elif kind == "fork":
        streams[new] = streams[name].fork(max_new_tokens=deed["quota"], tag=new.encode())
    elif kind == "truncate":
        streams[name].truncate(deed["length"])
    elif kind == "seal":
        streams[name].seal()
    elif kind == "close":
        streams.pop(name).close()
    elif kind == "restore":
        snapshot = BytesIO()
        streams[name].snapshot(snapshot)
        snapshot.seek(0)
        streams[new] = DecoderSession.restore(snapshot, arena, tag=new.encode())
    return []


def _all(deed: Deed, rng: np.random.Generator, session: DecoderSession) -> None:
    """All layers in one call."""
    drawn = [tokens(rng, session, layer, deed["tokens"]) for layer in range(session.spec.layers)]
    session.append_all(*(np.stack([each[i] for each in drawn]) for i in (1, 2)))


def tokens(
    rng: np.random.Generator, session: DecoderSession, layer: int, count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """q, k, v of new tokens."""
    group = session.spec.group(layer)
    sizes = (
        (group.query_heads, group.key_dim),
        (group.kv_heads, group.key_dim),
        (group.kv_heads, group.value_dim),
    )
    q, k, v = (rng.standard_normal((count, *size), dtype=np.float32) for size in sizes)
    return q, k, v
