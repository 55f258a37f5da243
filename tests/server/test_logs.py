"""The log: lines that machines can read, no more of a kind than helps, and no handle in any of them."""

import asyncio
import gc
import json
import logging
import signal
from collections.abc import Callable

import grpc
import pytest
from processes import Serve
from rawclient import Client, Tokens, item
from transports import listening

from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.logs import JsonFormatter, Sparing, TextFormatter, set_level, shortened
from rondel.v1 import attention_pb2 as pb

Connect = Callable[[str], Client]


def record(message: str = "said %s", level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("rondel.test", level, "file.py", 1, message, ("this",), None)
    vars(made).update(extra)
    return made


def test_a_line_of_json() -> None:
    line = json.loads(JsonFormatter().format(record(fields={"tenant": "red", "bytes": 7})))
    assert line.pop("time").startswith("20")
    assert line == {
        "level": "info",
        "logger": "rondel.test",
        "message": "said this",
        "tenant": "red",
        "bytes": 7,
    }


def test_an_error_in_json_is_one_line_too() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        made = record(exc_info=(type(error), error, error.__traceback__))
    text = JsonFormatter().format(made)
    assert "\n" not in text
    assert "two\nlines" in json.loads(text)["error"]


def test_nobody_can_forge_a_line_of_text() -> None:
    made = record("said %s\n2026-01-01 CRITICAL rondel: all is lost", fields={"peer": "a\r\nb"})
    text = TextFormatter().format(made)
    assert "\n" not in text
    assert "\r" not in text
    assert text.endswith("all is lost peer=a\\r\\nb")


def test_lines_of_a_kind_are_spared_and_counted() -> None:
    now = 100.0
    spare = Sparing(lambda: now)
    passed = [spare.filter(record(level=logging.WARNING)) for _ in range(50)]
    assert passed == [True] * 20 + [False] * 30
    assert spare.filter(record("another %s", logging.WARNING))
    assert spare.filter(record(level=logging.ERROR))
    now += 10
    again = record(level=logging.WARNING)
    assert spare.filter(again)
    assert json.loads(JsonFormatter().format(again))["left_out"] == 30
    last = record(level=logging.WARNING)
    assert spare.filter(last)
    assert "left_out" not in json.loads(JsonFormatter().format(last))


def test_what_is_no_warning_is_spared_only_if_it_names_a_kind() -> None:
    spare = Sparing(lambda: 0.0)
    assert all(spare.filter(record()) for _ in range(100))
    assert sum(spare.filter(record(kind="calls")) for _ in range(100)) == 20


def test_kinds_are_not_kept_without_end() -> None:
    spare = Sparing(lambda: 0.0)
    for number in range(10_000):
        spare.filter(record(kind=number))
    assert len(spare._kinds) <= 512


def test_a_handle_is_shown_by_its_beginning() -> None:
    assert shortened("abcdefghijklmnopqrstuvwx") == "abcdefgh…"
    assert shortened("") == ""


async def test_a_call_is_a_line(serve: Serve, connect: Connect, tokens: Tokens) -> None:
    process = serve("--log-format=json", "--log-calls=all", "--drain-seconds=1")
    client = connect(process.address)
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(5))
    await client.step(0, item(stream, 5, *tokens.qkv(1)))
    with pytest.raises(grpc.aio.AioRpcError):
        await client.get(pb.StreamRef(handle=stream.handle, epoch=5))
    pieces = [piece async for piece in client.attention.ExportStream(pb.ExportStreamRequest(stream=stream))]
    _, _, log = await process.end(signal.SIGTERM)
    assert stream.handle not in log
    lines = [json.loads(line) for line in log.splitlines()]
    calls = {line["method"]: line for line in lines if line["logger"] == "rondel.calls"}
    assert list(calls) == ["OpenStream", "AppendToken", "Step", "GetStream", "ExportStream"]
    appended = calls["AppendToken"]
    assert appended["message"] == "AppendToken ended as OK"
    assert appended["code"] == "OK"
    assert appended["service"] == "rondel.v1.AttentionService"
    assert appended["stream"] == shortened(stream.handle)
    assert appended["peer"].startswith(("ipv4:127.0.0.1:", "unix:"))
    assert appended["bytes_received"] > 5 * 3 * 24 * 4
    assert 0 < appended["kernel_ms"] <= appended["seconds"] * 1000
    assert 0 <= appended["queue_ms"] <= appended["seconds"] * 1000
    assert "reason" not in appended
    failed = calls["GetStream"]
    assert (failed["code"], failed["reason"]) == ("NOT_FOUND", "STREAM_NOT_FOUND")
    assert failed["stream"] == shortened(stream.handle)
    assert calls["ExportStream"]["messages_sent"] == len(pieces)
    assert {"SIGTERM: stopping", "stopped"} <= {line["message"] for line in lines}


@pytest.mark.parametrize(("which", "wanted"), [("all", 3), ("failed", 1), ("none", 0)])
async def test_which_calls_are_lines(
    connect: Connect, caplog: pytest.LogCaptureFixture, which: str, wanted: int
) -> None:
    server = await Server.start(listening(ServerConfig(port=0, budget_bytes=4 << 20, log_calls=which)))
    client = connect(server.address)
    with caplog.at_level("INFO", logger="rondel.calls"):
        await client.info()
        await client.open()
        with pytest.raises(grpc.aio.AioRpcError):
            await client.get(pb.StreamRef(handle="nobody"))
        await server.stop()
    lines = [each for each in caplog.records if each.name == "rondel.calls"]
    assert len(lines) == wanted


async def test_a_client_that_leaves_is_a_line(
    server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="rondel.calls"):
        call = client.attention.ImportStream()
        await call.write(pb.ImportStreamRequest())
        while not server._door.inside:
            await asyncio.sleep(0.002)
        call.cancel()
        while server._door.inside:
            await asyncio.sleep(0.002)
    (line,) = (each for each in caplog.records if each.name == "rondel.calls")
    assert line.getMessage() == "ImportStream ended as CANCELLED"
    assert line.levelno == logging.INFO


def test_a_level_holds_for_all_but_never_for_what_grpc_tells_its_developers() -> None:
    root, grpc_log = logging.getLogger(), logging.getLogger("grpc")
    before = (root.level, grpc_log.level)
    try:
        set_level("debug")
        assert logging.getLogger("rondel.calls").isEnabledFor(logging.DEBUG)
        assert not logging.getLogger("grpc.aio").isEnabledFor(logging.DEBUG)
        set_level("error")
        assert not logging.getLogger("rondel.calls").isEnabledFor(logging.WARNING)
        assert not grpc_log.isEnabledFor(logging.WARNING)
        assert gc.isenabled()
    finally:
        root.setLevel(before[0])
        grpc_log.setLevel(before[1])
