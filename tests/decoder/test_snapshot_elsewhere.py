"""Snapshots move: into another process, to another tier, and between versions of this software."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mirror import Mirror, small
from oracle import TIERS, Floats

from rondel.decoder.rope import Rope
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = small(centring=True, rope=Rope())

_CHILD = """
import sys
import numpy as np
from rondel.decoder import kernels
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession

folder = sys.argv[1]
with open(f"{folder}/stream", "rb") as file:
    session = DecoderSession.restore(file, Arena(budget=64 << 20))
tokens = np.load(f"{folder}/tokens.npz")
out = session.step_all(tokens["q"], tokens["k"], tokens["v"])
session.truncate(session.min_length)
np.save(f"{folder}/out.npy", out)
with open(f"{folder}/stream", "wb") as file:
    session.snapshot(file)
print(kernels.TIER)
"""


@pytest.mark.parametrize("tier", TIERS)
def test_another_process_with_another_tier_goes_on_to_the_bit(tier: str, tmp_path: Path) -> None:
    mirror = Mirror(SPEC, tier).grow(700)
    with open(tmp_path / "stream", "wb") as file:
        mirror.session.snapshot(file)
    q, k, v = mirror.draw_stack(range(SPEC.layers), 200)
    np.savez(tmp_path / "tokens.npz", q=q, k=k, v=v)

    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path)],
        env={**os.environ, "RONDEL_TIER": tier},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, tier), done.stderr

    want = mirror.session.step_all(q, k, v)
    assert np.load(tmp_path / "out.npy").tobytes() == want.tobytes()
    mirror.session.truncate(mirror.session.min_length)
    with open(tmp_path / "stream", "rb") as file:
        back = DecoderSession.restore(file, mirror.arena, tier=tier)
    assert (back.length, back.generation) == (mirror.session.length, 1)
    more = mirror.draw_stack(range(SPEC.layers), 9)
    assert back.step_all(*more).tobytes() == mirror.session.step_all(*more).tobytes()


def numbers(*shape: int) -> Floats:
    """The same on every machine: no random number, no function of a library."""
    count = int(np.prod(shape))
    return (((np.arange(count) * 7919) % 2003 - 1001) / np.float32(64)).astype(np.float32).reshape(shape)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("storage", "centring", "digest"),
    [
        ("int8", False, "2ce0b08994b0273af4cb52f6e23c23de"),
        ("int8", True, "f1efee93a1d2b19c67b04fe28b0ee7d2"),
        ("float32", False, "7f7c719a3f8b3a4e32eaa246c77235b4"),
    ],
)
def test_the_format_is_the_one_of_version_1(tier: str, storage: str, centring: bool, digest: str) -> None:
    """Snapshots outlive the software that wrote them: other sums mean another version, and a way for this."""
    spec = StreamSpec.uniform(
        layers=2, query_heads=4, kv_heads=2, head_dim=9, value_dim=5, window=40, sinks=4, reserve=8,
        storage=storage, centring=centring,
    )  # fmt: skip
    hashed = hashlib.sha256()

    class Hashing:
        def write(self, data: bytes) -> None:
            hashed.update(data)

    mirror = Mirror(spec, tier)
    mirror.session.append_all(numbers(2, 450, 2, 9), numbers(2, 450, 2, 5))
    mirror.session.truncate(444)
    mirror.session.append(1, numbers(3, 2, 9), numbers(3, 2, 5))
    mirror.session.snapshot(Hashing())
    assert hashed.hexdigest()[:32] == digest
