"""What ``rondel demo`` measures: an answer, the calls below it, and how both are shown."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rondel.client.cli.output import facts_table, human_bytes, out, print_json, stream_text
from rondel.client.generation import Started, Summary, Token
from rondel.client.sync import AttentionClient
from rondel.client.sync_generation import GenerationClient
from rondel.decoder.errors import ServerInternal
from rondel.decoder.spec import LayerGroup, StreamSpec

WARM_UP_CALLS: Final = 20
MEASURED_CALLS: Final = 200
LOAD_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished generation, and when its tokens came."""

    text: str
    started: Started
    summary: Summary
    token_times: tuple[float, ...]
    """Seconds from the request to each token, as the client saw them."""

    @property
    def tokens_per_second(self) -> float | None:
        """Rate after the first token, which pays for the prompt; None when there was only one."""
        if len(self.token_times) < 2:
            return None
        return (len(self.token_times) - 1) / (self.token_times[-1] - self.token_times[0])


def ask(address: str, prompt: str, max_tokens: int, window: int, quiet: bool) -> Answer:
    """The answer of a server's model, shown as it comes unless ``quiet``."""
    started: Started | None = None
    summary: Summary | None = None
    pieces: list[str] = []
    times: list[float] = []
    with GenerationClient(address, timeout=LOAD_SECONDS) as client:
        client.models()  # answered when the model has been read, so that its loading is not counted below
        began = time.perf_counter()
        with client.generate([("user", prompt)], max_tokens=max_tokens, window=window) as generation:
            for event in generation:
                match event:
                    case Started():
                        started = event
                        continue
                    case Token():
                        times.append(time.perf_counter() - began)
                    case Summary():
                        summary = event
                pieces.append(event.text)
                if not quiet:
                    stream_text(event.text)
    if not quiet:
        stream_text("\n\n")
    if started is None or summary is None or not times:
        raise ServerInternal(f"the server streamed {len(times)} tokens and no whole answer")
    return Answer("".join(pieces), started, summary, tuple(times))


def time_steps(address: str, group: LayerGroup) -> list[float]:
    """Seconds of each of a run of Step calls, one token in a layer shaped like the model's."""
    spec = StreamSpec(groups=(replace(group, layers=(0,), window=256, sinks=0, reserve=0),))
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, group.query_heads, group.key_dim), np.float32)
    k = rng.standard_normal((1, group.kv_heads, group.key_dim), np.float32)
    v = rng.standard_normal((1, group.kv_heads, group.value_dim), np.float32)
    seconds = []
    with AttentionClient(address) as client, client.open(spec) as stream:
        for _ in range(WARM_UP_CALLS + MEASURED_CALLS):
            began = time.perf_counter()
            stream.step(0, q, k, v)
            seconds.append(time.perf_counter() - began)
    return seconds[WARM_UP_CALLS:]


def report(answer: Answer, model: str, prompt: str, seconds: list[float], as_json: bool) -> None:
    """Print what was measured."""
    summary, rate = answer.summary, answer.tokens_per_second
    window = answer.started.spec.groups[0].window
    p50, p99 = (1e3 * float(np.percentile(seconds, percent)) for percent in (50, 99))
    if as_json:
        print_json(
            {
                "model": model,
                "prompt": prompt,
                "answer": answer.text,
                "finish_reason": summary.finish_reason,
                "prompt_tokens": summary.prompt_tokens,
                "tokens": summary.generated_tokens,
                "tokens_per_second": rate,
                "first_token_seconds": answer.token_times[0],
                "cache_bytes": summary.bytes_resident,
                "bits_per_value": summary.bits_per_value,
                "window": window,
                "tier": summary.tier,
                "rpc_p50_ms": p50,
                "rpc_p99_ms": p99,
            }
        )
        return
    rows = [
        ("tokens", f"{summary.generated_tokens} (prompt {summary.prompt_tokens})"),
        ("tokens/s", "one token only" if rate is None else f"{rate:.1f}"),
        ("time to first token", f"{1e3 * answer.token_times[0]:.0f} ms"),
        ("cache", f"{human_bytes(summary.bytes_resident)}, {summary.bits_per_value:.2f} bits per value"),
        ("window", "everything" if window is None else f"{window} tokens"),
        ("kernel tier", summary.tier),
        (f"RPC, {len(seconds)} steps", f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"),
    ]
    out.print(facts_table("rondel demo", rows))
