"""Settings."""

import pytest

from rondel.decoder.errors import InvalidSpec
from rondel.server.config import ServerConfig, is_loopback


def test_the_default_is_reachable_from_this_machine_only() -> None:
    assert is_loopback(ServerConfig().host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.7", "10.0.0.1", "example.org", "", "127.0.0.1.evil.org"]
)
def test_other_addresses_need_the_flag(host: str) -> None:
    with pytest.raises(InvalidSpec, match="allow_insecure_bind") as caught:
        ServerConfig(host=host)
    assert caught.value.field == "host"
    assert ServerConfig(host=host, allow_insecure_bind=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_addresses_do_not(host: str) -> None:
    assert ServerConfig(host=host).host == host


def test_ipv6_is_written_in_brackets() -> None:
    assert ServerConfig(host="::1", port=5).tcp_address == "[::1]:5"


def test_a_server_listens_somewhere() -> None:
    with pytest.raises(InvalidSpec, match="neither"):
        ServerConfig(port=None)
    assert ServerConfig(port=None, unix_path="x.sock").tcp_address is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", -1),
        ("port", 65536),
        ("port", True),
        ("unix_path", ""),
        ("unix_path", "/" + "x" * 200),
        ("budget_bytes", 0),
        ("overcommit", 0.5),
        ("overcommit", float("nan")),
        ("max_message_bytes", 1),
        ("max_message_bytes", 1 << 31),
        ("max_streams", 0),
        ("max_step_items", 0),
        ("max_calls_per_connection", 0),
        ("queue_bytes", 0),
        ("max_generations", 0),
        ("idle_lease_seconds", -1.0),
        ("idle_lease_seconds", float("nan")),
        ("drain_seconds", float("inf")),
        ("max_queue_seconds", -1),
        ("stuck_seconds", float("nan")),
    ],
)
def test_impossible_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidSpec) as caught:
        ServerConfig(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
