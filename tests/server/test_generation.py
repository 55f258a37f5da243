"""GenerationService, with a tiny model whose words make no sense."""

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import tinygguf
from rawclient import Client, Tokens, ask, everything_given_back, refusal
from transports import listening

from rondel.decoder import kernels
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import CorruptModel, ModelError, ModelNotFound
from rondel.decoder.lm.engine import Token, generate
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.sampling import Sampling
from rondel.decoder.session import DecoderSession
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import generation_pb2 as pb
from rondel.v1 import spec_pb2

Connect = Callable[[str], Client]
LONG = "It was the best of times, it was the worst of times. " * 4  # more than three chunks


@pytest.fixture(scope="module")
def model(model_path: Path) -> LanguageModel:
    return LanguageModel.load(model_path)


@pytest.fixture
def config(model_path: Path) -> ServerConfig:
    return ServerConfig(port=0, budget_bytes=64 << 20, model=str(model_path))


def here(
    model: LanguageModel, prompt: list[int], sampling: Sampling, max_tokens: int, **options: object
) -> list[Token]:
    """The same generation in this process."""
    spec = model.spec(**options)  # type: ignore[arg-type]
    with DecoderSession(spec, Arena(budget=64 << 20)) as session:
        return list(generate(model, session, prompt, sampling, max_tokens))


@pytest.mark.parametrize(
    "options",
    [{}, {"storage": "float32"}, {"window": 40, "sinks": 4, "reserve": 8}, {"window": 16}],
    ids=str,
)
@pytest.mark.parametrize("prompt", ["Hello", LONG], ids=["short", "long"])
async def test_tokens_are_those_of_the_model_in_process(
    client: Client, model: LanguageModel, prompt: str, options: dict[str, int | str]
) -> None:
    request = pb.GenerateRequest(text=prompt, max_tokens=40)
    for name, value in options.items():
        setattr(request, name, spec_pb2.STORAGE_TYPE_FLOAT32 if name == "storage" else value)
    answer = await ask(client, request)
    expected = here(model, model.tokenizer.encode(prompt), Sampling(), 40, **options)
    assert answer.ids == [token.id for token in expected]
    assert answer.text == "".join(token.text for token in expected)
    assert [token.index for token in answer.tokens] == list(range(len(expected)))
    prompt_tokens = answer.started.prompt_tokens
    assert [token.committed_length - prompt_tokens for token in answer.tokens] == list(range(len(expected)))


@pytest.mark.every_transport
async def test_a_conversation_uses_the_models_template(client: Client, model: LanguageModel) -> None:
    messages = [
        pb.ChatMessage(role=pb.ROLE_SYSTEM, content="Be brief."),
        pb.ChatMessage(role=pb.ROLE_USER, content="Who are you?"),
    ]
    answer = await ask(client, pb.GenerateRequest(chat=pb.Chat(messages=messages), max_tokens=5))
    prompt = model.tokenizer.chat(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]
    )
    assert answer.ids == [token.id for token in here(model, prompt, Sampling(), 5)]
    ready_made = await ask(client, pb.GenerateRequest(tokens=pb.TokenIds(ids=prompt), max_tokens=5))
    assert ready_made.ids == answer.ids


async def test_a_seed_fixes_the_choices(client: Client, model: LanguageModel) -> None:
    request = pb.GenerateRequest(
        text="x", max_tokens=30, temperature=2.0, top_p=0.9, top_k=50, seed=2**64 - 1
    )
    first, second = await ask(client, request), await ask(client, request)
    assert first.ids == second.ids
    sampling = Sampling(temperature=2.0, top_p=0.9, top_k=50, seed=2**64 - 1)
    assert first.ids == [t.id for t in here(model, model.tokenizer.encode("x"), sampling, 30)]
    request.seed = 2**64 - 2
    assert (await ask(client, request)).ids != first.ids


async def test_the_summary_tells_what_was_in_force(client: Client) -> None:
    request = pb.GenerateRequest(text="Hello", max_tokens=3, window=16, sinks=2, reserve=1)
    answer = await ask(client, request)
    group = answer.started.spec.groups[0]
    assert (group.window, group.sinks, group.reserve) == (16, 2, 1)
    assert group.storage == spec_pb2.STORAGE_TYPE_INT8
    assert (answer.started.model, answer.started.prompt_tokens, answer.started.max_tokens) == ("tiny", 5, 3)
    summary = answer.summary
    assert (summary.prompt_tokens, summary.generated_tokens) == (5, 3)
    assert summary.finish_reason == pb.FINISH_REASON_MAX_TOKENS
    assert 0 < summary.bytes_resident <= summary.bytes_reserved
    assert 8 < summary.bits_per_value < 20  # heads of 8: scales and headers weigh much
    assert summary.tier == kernels.TIER
    assert min(summary.queue_seconds, summary.prompt_seconds, summary.decode_seconds) >= 0


async def test_the_context_is_the_end(client: Client) -> None:
    ids = [65] * (tinygguf.CONTEXT - 3)
    answer = await ask(client, pb.GenerateRequest(tokens=pb.TokenIds(ids=ids), max_tokens=50))
    assert answer.summary.finish_reason == pb.FINISH_REASON_CONTEXT_FULL
    assert len(answer.tokens) == answer.started.max_tokens == 4
    last = await ask(client, pb.GenerateRequest(tokens=pb.TokenIds(ids=[*ids, 1, 2, 3])))
    assert len(last.tokens) == 1


async def test_a_text_ends_where_the_model_says(client: Client, model: LanguageModel) -> None:
    prompt = model.tokenizer.encode("Hello")
    seed = next(
        n
        for n in range(100)
        if here(model, prompt, Sampling(temperature=2.0, seed=n), 100)[-1].finish_reason == "stop"
    )
    request = pb.GenerateRequest(text="Hello", temperature=2.0, seed=seed, max_tokens=100)
    answer = await ask(client, request)
    assert answer.summary.finish_reason == pb.FINISH_REASON_END_OF_TEXT
    assert answer.tokens[-1].id == tinygguf.END
    assert "<|" not in answer.text


async def test_a_stop_text_ends_it_and_is_not_shown(client: Client) -> None:
    whole = (await ask(client, pb.GenerateRequest(text="Hello", max_tokens=40))).text
    stop = whole[10:13]
    answer = await ask(client, pb.GenerateRequest(text="Hello", max_tokens=40, stop=[stop]))
    assert answer.text == whole[: whole.index(stop)]
    assert answer.summary.finish_reason == pb.FINISH_REASON_STOP


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "INVALID_REQUEST"),
        ({"text": ""}, "INVALID_REQUEST"),
        ({"chat": pb.Chat()}, "INVALID_REQUEST"),
        ({"chat": pb.Chat(messages=[pb.ChatMessage(content="x")])}, "INVALID_REQUEST"),
        ({"tokens": pb.TokenIds()}, "INVALID_REQUEST"),
        ({"tokens": pb.TokenIds(ids=[2**32 - 1])}, "INVALID_REQUEST"),
        ({"tokens": pb.TokenIds(ids=[1] * 200 + [len(tinygguf.TOKENS)])}, "INVALID_REQUEST"),
        ({"text": "x", "temperature": -1.0}, "INVALID_SPEC"),
        ({"text": "x", "temperature": float("nan")}, "INVALID_SPEC"),
        ({"text": "x", "top_p": 0.0}, "INVALID_SPEC"),
        ({"text": "x", "top_p": 1.5}, "INVALID_SPEC"),
        ({"text": "x", "top_k": 2**32 - 1}, "INVALID_SPEC"),
        ({"text": "x", "window": 0}, "INVALID_SPEC"),
        ({"text": "x", "window": 2**31}, "INVALID_SPEC"),
        ({"text": "x", "sinks": 4}, "INVALID_SPEC"),
        ({"text": "x", "window": 8, "sinks": 2**31}, "INVALID_SPEC"),
        ({"text": "x", "window": 8, "reserve": 2**31}, "INVALID_SPEC"),
        ({"text": "x", "storage": 9}, "INVALID_SPEC"),
        ({"text": "x", "stop": [""]}, "INVALID_SPEC"),
        ({"text": "x", "stop": ["a"] * 17}, "INVALID_SPEC"),
        ({"text": "x", "stop": ["a" * 257]}, "INVALID_SPEC"),
    ],
)
async def test_impossible_requests(
    client: Client, server: Server, fields: dict[str, object], reason: str
) -> None:
    failed = await refusal(client, pb.GenerateRequest(**fields))  # type: ignore[arg-type]
    assert (failed.reason, failed.code) == (reason, grpc.StatusCode.INVALID_ARGUMENT)
    await everything_given_back(server)


async def test_a_prompt_beyond_the_context(client: Client, server: Server) -> None:
    failed = await refusal(client, pb.GenerateRequest(text="x" * (tinygguf.CONTEXT + 1)))
    assert (failed.reason, failed.facts["limit"]) == ("LENGTH_EXCEEDED", str(tinygguf.CONTEXT))
    assert server.arena.stats().reserved == 0


async def test_an_unknown_model(client: Client) -> None:
    failed = await refusal(client, pb.GenerateRequest(model="gpt-17", text="x"))
    assert (failed.reason, failed.code) == ("MODEL_NOT_FOUND", grpc.StatusCode.NOT_FOUND)
    assert (await ask(client, pb.GenerateRequest(model="tiny", text="x", max_tokens=1))).tokens


async def test_models_are_listed(client: Client) -> None:
    await ask(client, pb.GenerateRequest(text="x", max_tokens=1))
    (listed,) = (await client.generation.ListModels(pb.ListModelsRequest())).models
    assert (listed.name, listed.loaded) == ("tiny", True)
    assert (listed.context_length, listed.vocabulary) == (tinygguf.CONTEXT, len(tinygguf.TOKENS))
    assert list(listed.spec.groups[0].layers) == [0, 1]


async def test_without_a_model_only_generation_suffers(connect: Connect, tokens: Tokens) -> None:
    server = await Server.start(listening(ServerConfig(port=0, budget_bytes=8 << 20)))
    client = connect(server.address)
    assert (await refusal(client, pb.GenerateRequest(text="x"))).reason == "MODEL_NOT_FOUND"
    assert not (await client.generation.ListModels(pb.ListModelsRequest())).models
    stream = await client.open()
    assert (await client.append(stream, 0, *tokens.kv(1))).committed_length == 1
    await server.stop()


@pytest.mark.parametrize(
    ("case", "cls"),
    [
        ("missing", ModelNotFound),
        ("folder", ModelNotFound),
        ("empty", CorruptModel),
        ("foreign", CorruptModel),
        ("cut", CorruptModel),
        ("rotten", CorruptModel),
        ("nope", ModelNotFound),
    ],
)
async def test_a_model_that_cannot_be_used_is_no_server(
    tmp_path: Path, model_path: Path, case: str, cls: type[ModelError]
) -> None:
    path = tmp_path / "some.gguf"
    whole = model_path.read_bytes()
    match case:
        case "folder":
            path.mkdir()
        case "empty":
            path.write_bytes(b"")
        case "foreign":
            path.write_bytes(b"PK\3\4" + bytes(1000))
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case "rotten":  # a good header, and weights that are not numbers
            path.write_bytes(whole[:-64] + b"\xff" * 64)
    name = "nope" if case == "nope" else str(path)
    with pytest.raises(cls) as caught:
        await Server.start(ServerConfig(port=0, budget_bytes=8 << 20, model=name))
    assert caught.value.facts["name"] == (
        "nope" if case == "nope" else path.stem if cls is CorruptModel else name
    )
