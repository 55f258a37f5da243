"""Text generated through foreign gRPC stacks: tokens as the model makes them in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from foreign import Caller, Refused

from rondel.decoder.cache.arena import Arena
from rondel.decoder.lm.engine import generate
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.sampling import Sampling
from rondel.decoder.session import DecoderSession
from rondel.v1 import generation_pb2 as pb

pytestmark = pytest.mark.interop


def test_tokens_arrive_one_by_one(caller: Caller, model_path: Path) -> None:
    model = LanguageModel.load(model_path)
    prompt = model.tokenizer.encode("Hello")
    with DecoderSession(model.spec(), Arena(budget=64 << 20)) as session:
        expected = [token.id for token in generate(model, session, prompt, Sampling(), 20)]
    events = caller.stream("GenerationService/Generate", pb.GenerateRequest(text="Hello", max_tokens=20))
    assert events[0].started.prompt_tokens == len(prompt)
    assert [event.token.id for event in events[1:-1]] == expected
    assert events[-1].WhichOneof("event") == "summary"


def test_a_prompt_is_refused_with_a_reason(caller: Caller) -> None:
    with pytest.raises(Refused) as refused:
        caller.stream("GenerationService/Generate", pb.GenerateRequest(text=""))
    assert refused.value.reason == "INVALID_REQUEST"
