"""What docs/security.md says is so: its examples are read, its commands run, its names are those in force."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from rondel.client.access import AccessOptions
from rondel.client.cli.access import _OPTIONS, TOKEN_VARIABLE
from rondel.server.bounds import METADATA_BYTES
from rondel.server.config import ServerConfig
from rondel.server.quota import Quota
from rondel.server.security import CHECK_SECONDS
from rondel.server.tenants_file import read_tenants
from rondel.server.tokens import LEAST_TOKEN, MOST_TOKEN, TokenTable

PAGE = (Path(__file__).parent.parent / "docs/security.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_settings_are_a_server_s() -> None:
    settings = ServerConfig(**tomllib.loads(blocks("toml")[0]))
    assert settings.protected


def test_the_file_of_tenants_is_one() -> None:
    file = read_tenants(blocks("toml")[1])
    assert set(file.quotas) == {"alpha", "beta"}
    assert all(value is not None for value in vars_of(file.quotas["alpha"]))
    assert (len(file.tokens), len(file.certificates)) == (3, 2)


def vars_of(quota: Quota) -> list[object]:
    return [getattr(quota, field.name) for field in fields(quota)]


def test_every_key_is_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert explained == ["tokens", "certificates", *(field.name for field in fields(Quota))]


def test_the_command_prints_what_goes_into_the_file() -> None:
    (script,) = blocks("sh")
    done = subprocess.run(
        ["sh", "-c", f'{script}printf "%s" "$token"'], capture_output=True, check=True, text=True, timeout=60
    )
    digest, token = done.stdout.split("\n")
    assert LEAST_TOKEN <= len(token) <= MOST_TOKEN
    table = TokenTable(read_tenants(f'[tenants.a]\ntokens = [{{ sha256 = "{digest}" }}]').tokens)
    assert table.tenant_of(token, 0) == "a"


@pytest.mark.parametrize(
    "name",
    [
        *(f"RONDEL_{name.upper()}" for name in _OPTIONS),
        *(f"--{name.replace('_', '-')}" for name in _OPTIONS),
        TOKEN_VARIABLE,
        *(f"{name}=" for name in AccessOptions.__annotations__),
    ],
)
def test_every_way_of_saying_who_one_is_is_there(name: str) -> None:
    assert name in PAGE


def test_numbers_are_those_in_force() -> None:
    assert "two seconds" in PAGE
    assert CHECK_SECONDS == 2
    assert f"{METADATA_BYTES >> 10} KiB" in PAGE
