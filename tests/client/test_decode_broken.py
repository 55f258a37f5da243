"""Connections that break under a server that stays: clients go on where they were.

No token is lost or doubled: what a stream answers is always what a session answers that never stopped.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from pairs import SPEC, Pair
from restarts import Token
from transports import to

from rondel.client import AsyncAttentionClient, AsyncDecodeCall, AttentionClient
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import ServerUnavailable
from rondel.decoder.session import DecoderSession


@pytest.mark.parametrize("over", ["unary", "call"])
def test_lost_answers_are_asked_for_again(
    connect: Callable[..., Any], proxy: Any, address: str, over: str
) -> None:
    """The server has carried the step out, and the connection breaks before its answer is there."""
    client = connect(proxy.address)
    with client.decode() as call, AttentionClient(address, **to(address)) as direct:
        pair = Pair(call if over == "call" else client, 2)
        pair.tokens(70)
        for layer in (2, 0, 1):
            pair.begin(3)
            for before in range(layer):
                pair.layer(before)
            proxy.mute()
            cutting = threading.Timer(0.2, proxy.cut)
            cutting.start()
            pair.layer(layer)
            cutting.join()
            for after in range(layer + 1, SPEC.layers):
                pair.layer(after)
            pair.tokens(2)
        assert direct.info().streams == 1
        pair.stream.close()


@pytest.mark.slow
async def test_connections_that_break_all_the_time(address: str, proxy: Any) -> None:
    """Thirty streams of one call, which is cut several times a second."""
    over = False

    def cut() -> None:
        rng = np.random.default_rng(8)
        while not over:
            time.sleep(rng.uniform(0.05, 0.25))
            proxy.cut()

    async def drive(call: AsyncDecodeCall, seed: int) -> None:
        token, session = Token(SPEC, seed), DecoderSession(SPEC, Arena(budget=4 << 20))
        stream = await call.open(SPEC)
        for turn in range(60):
            q, k, v = token.draw(1 + turn % 3)
            for layer in range(SPEC.layers):
                out = await stream.step(layer, q[layer], k[layer], v[layer])
                assert np.array_equal(out, session.step(layer, q[layer], k[layer], v[layer]))
        assert stream.length == session.length
        while not stream.closed:
            with suppress(
                ServerUnavailable
            ):  # with calls of its own it is tried six times, and then again here
                assert (await stream.stats()).length == session.length
                await stream.close()

    async with AsyncAttentionClient(address, **to(address)) as direct:
        before = (await direct.info()).streams
        cutting = threading.Thread(target=cut)
        async with (
            AsyncAttentionClient(proxy.address, **to(proxy.address)) as client,
            client.decode() as call,
        ):
            await client.info()
            cutting.start()
            try:
                await asyncio.gather(*(drive(call, seed) for seed in range(30)))
            finally:
                over = True
                cutting.join()
        assert (await direct.info()).streams == before
