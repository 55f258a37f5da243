"""Settings."""

from typing import Any

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


TLS = {"tls_cert": "c", "tls_key": "k"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_other_addresses_need_tls_and_to_know_who_calls(host: str) -> None:
    tenants, clients = {"tenants_file": "t"}, {"tls_client_ca": "ca"}
    for known in (tenants, clients, {**tenants, **clients}):
        assert ServerConfig(host=host, **TLS, **known).host == host
    for lacking in (TLS, tenants):
        with pytest.raises(InvalidSpec, match="there is TLS, and tenants_file or tls_client_ca") as caught:
            ServerConfig(host=host, **lacking)
        assert caught.value.field == "host"
        assert ServerConfig(host=host, allow_insecure_bind=True, **lacking).host == host


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tls_cert": "c"}, "tls_key"),
        ({"tls_key": "k"}, "tls_cert"),
        ({"tls_client_ca": "ca"}, "tls_client_ca"),
        ({**TLS, "port": None, "unix_path": "s"}, "tls_cert"),
        ({**TLS, "tls_client_ca": ""}, "tls_client_ca"),
        ({"tls_cert": "", "tls_key": "k"}, "tls_cert"),
        ({"tenants_file": ""}, "tenants_file"),
    ],
)
def test_settings_that_need_one_another(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        ServerConfig(**options)
    assert caught.value.field == field


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
        ("max_connections", 0),
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
