"""What a seed stands for: how bad the network is, how slow the machine, who comes and what they do."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Plan:
    """One schedule, drawn from its seed. Times in seconds."""

    seed: int
    drops: float
    """Share of messages that are lost; so ``doubles``."""
    doubles: float
    delay: float
    """Mean of a message's time on its way, exponential: later ones overtake."""
    cancels: float
    """Share of calls that their callers leave."""
    kills: int
    stops: int
    """Restarts with and without a warning."""
    tenants: int
    clients: int
    operations: int
    """Of a client."""
    flood: int
    """Reads that one tenant sends at once, now and then."""
    patience: float
    """Mean of the time that a caller gives a call."""
    work: float
    """Seconds of a call, roughly; each takes ``noise`` times that or the other way round."""
    noise: float
    queue_bytes: int
    queue_seconds: float
    window: int
    """Bytes of results that a Decode call's client may be behind."""
    lease: float
    idle: float
    """How long clients may do nothing, now and then."""

    @classmethod
    def of(cls, seed: int) -> Self:
        rng = random.Random(f"plan {seed}")
        work = rng.choice([0.0002, 0.002, 0.01])
        lease = rng.choice([2.0, 5.0, 20.0])
        return cls(
            seed=seed,
            drops=rng.choice([0.0, 0.02, 0.1]),
            doubles=rng.choice([0.0, 0.1, 0.3]),
            delay=rng.choice([0.0005, 0.005, 0.02]),
            cancels=rng.choice([0.0, 0.1]),
            kills=rng.choice([0, 0, 1, 2]),
            stops=rng.choice([0, 0, 1]),
            tenants=rng.choice([1, 1, 2, 3]),
            clients=rng.randint(2, 4),
            operations=rng.randint(4, 10),
            flood=rng.choice([0, 0, 8, 16]),
            patience=rng.choice([10 * work, 0.5, 5.0]),
            work=work,
            noise=rng.choice([1.2, 3.0]),
            queue_bytes=rng.choice([1500, 6000, 1 << 20]),
            queue_seconds=rng.choice([8 * work, 0.2, 5.0]),
            window=rng.choice([6000, 1 << 20]),
            lease=lease,
            idle=rng.choice([0.0, 0.0, 0.5 * lease, 1.6 * lease]),
        )
