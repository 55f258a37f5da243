from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinygguf

from rondel.decoder.errors import InvalidRequest, InvalidSpec, LengthExceeded
from rondel.decoder.lm.engine import Token, generate
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.sampling import Sampling
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

Open = Callable[[StreamSpec], DecoderSession]

PROMPT = [5, 9, 80, 33]
WARM = Sampling(temperature=1.5, seed=4)


@pytest.fixture
def run(tiny: LanguageModel, open_session: Open) -> Callable[..., list[Token]]:
    def run(prompt: list[int] = PROMPT, max_tokens: int | None = 20, **options: Any) -> list[Token]:
        options = {"stop_ids": (), "sampling": WARM} | options
        return list(generate(tiny, open_session(tiny.spec()), prompt, max_tokens=max_tokens, **options))

    return run


Run = Callable[..., list[Token]]


def test_ends_at_max_tokens_and_the_text_is_the_ids_decoded(tiny: LanguageModel, run: Run) -> None:
    tokens = run(max_tokens=40)
    assert [token.index for token in tokens] == list(range(40))
    assert [token.finish_reason for token in tokens] == [None] * 39 + ["length"]
    assert "".join(token.text for token in tokens) == tiny.tokenizer.decode([token.id for token in tokens])
    assert all(token.logprob <= 0.0 for token in tokens)


def test_greedy_is_the_default_and_repeats(run: Run) -> None:
    assert run(sampling=Sampling()) == run(sampling=Sampling(seed=99))


def test_an_end_token_ends_it_without_text(run: Run) -> None:
    free = run()
    end = free[7].id
    first = [token.id for token in free].index(end)
    tokens = run(stop_ids={end})
    assert [token.id for token in tokens] == [token.id for token in free[: first + 1]]
    assert tokens[-1].finish_reason == "stop"
    # Only what was still held back: a started character.
    assert set(tokens[-1].text) <= {"\ufffd"}


def test_the_models_own_end_token_is_the_default(tmp_path: Path, open_session: Open) -> None:
    weights = tinygguf.tensors()
    weights["output.weight"][tinygguf.END] = weights["output.weight"].mean(axis=0) * 0
    model = LanguageModel.load(tinygguf.write(tmp_path / "m.gguf", weights=weights))
    # A logit of 0 is drawn now and then.
    tokens = list(generate(model, open_session(model.spec()), PROMPT, Sampling(temperature=50.0, seed=1)))
    assert tokens[-1].id == tinygguf.END
    assert tokens[-1].finish_reason == "stop"
    assert tinygguf.END not in [token.id for token in tokens[:-1]]


def test_a_stop_text_ends_it_and_is_not_shown(run: Run) -> None:
    whole = "".join(token.text for token in run(max_tokens=40))
    stop = whole[9:12]
    tokens = run(max_tokens=40, stop=[stop])
    assert "".join(token.text for token in tokens) == whole[: whole.index(stop)]
    assert tokens[-1].finish_reason == "stop"
    assert len(tokens) < 40


def test_a_full_stream_or_context_ends_it(tiny: LanguageModel, open_session: Open, run: Run) -> None:
    tokens = run(prompt=[1] * 296, max_tokens=None)
    assert [token.finish_reason for token in tokens] == [None, None, None, None, "length"]
    short = open_session(tiny.spec(max_length=6))
    assert len(list(generate(tiny, short, PROMPT, WARM, stop_ids=()))) == 3
    assert short.length == 6


def test_a_resumed_run_goes_on_with_the_same_noise(run: Run) -> None:
    whole = [token.id for token in run(max_tokens=30)]
    rest = run(prompt=PROMPT + whole[:12], max_tokens=18, first_index=12)
    assert [token.id for token in rest] == whole[12:]
    assert rest[0].index == 12
    assert rest[-1].finish_reason == "length"


def test_the_stream_has_all_but_the_last_token_and_can_go_on(tiny: LanguageModel, open_session: Open) -> None:
    stream = open_session(tiny.spec())
    running = generate(tiny, stream, PROMPT, WARM, stop_ids=())
    taken = [next(running) for _ in range(5)]
    running.close()
    assert stream.length == len(PROMPT) + 4
    rest = list(generate(tiny, stream, [taken[-1].id], WARM, 5, stop_ids=(), first_index=5))
    fresh = open_session(tiny.spec())
    assert [*taken, *rest][:-1] == list(generate(tiny, fresh, PROMPT, WARM, 10, stop_ids=()))[:-1]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"prompt": []}, InvalidRequest),
        ({"prompt": [9999]}, InvalidRequest),
        ({"prompt": [1] * 301}, LengthExceeded),
        ({"max_tokens": 0}, InvalidSpec),
        ({"max_tokens": 1.5}, InvalidSpec),
        ({"first_index": -1}, InvalidSpec),
        ({"stop": [""]}, InvalidSpec),
    ],
)
def test_bad_requests_are_refused_at_once(
    tiny: LanguageModel, open_session: Open, options: dict[str, Any], error: type[Exception]
) -> None:
    stream = open_session(tiny.spec())
    with pytest.raises(error):
        generate(tiny, stream, options.pop("prompt", PROMPT), **options)
    assert stream.length == 0


def test_a_checkpoint_is_asked_before_every_pass(tiny: LanguageModel, open_session: Open) -> None:
    stream = open_session(tiny.spec())
    calls = []

    def checkpoint() -> None:
        calls.append(stream.length)
        if len(calls) > 5:
            raise TimeoutError

    running = generate(tiny, stream, [1] * 100, WARM, stop_ids=(), checkpoint=checkpoint)
    assert [next(running).index for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(TimeoutError):
        next(running)
    assert calls == [0, 64, 100, 101, 102, 103]
    assert stream.length == 103
