"""docs/operations.md says what the code does."""

import json
import re
import time
from dataclasses import fields
from pathlib import Path

import gen_tables

from rondel.server.account import Account
from rondel.server.call_log import fields_of
from rondel.server.config import ServerConfig
from rondel.server.reload import RELOADABLE
from rondel.server.settings import load

PAGE = Path(gen_tables.PAGE).read_text(encoding="utf-8")


def _example(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


def test_its_tables_are_the_codes() -> None:
    assert gen_tables.filled(PAGE) == PAGE
    for field in fields(ServerConfig):
        assert f"| `{field.name}`{' *' if field.name in RELOADABLE else ''} |" in PAGE


def test_its_settings_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "rondel.toml"
    path.write_text(_example("toml"))
    config = load({}, file=str(path), environment={}).config
    assert (config.admin_port, config.budget_bytes, config.log_format) == (7412, 8 << 30, "json")


def test_its_line_of_a_call_is_one() -> None:
    line = json.loads(_example("json"))
    account = Account("a", "b", "c", time.monotonic())
    assert set(line) - {"time", "level", "logger", "message", "stream"} == set(fields_of(account))
    account.reason, account.tenant, account.trace_id = "X", "y", "z"
    for name in set(fields_of(account)) - set(line):
        assert f"`{name}`" in PAGE
