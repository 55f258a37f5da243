"""Dashboard and rules ask for what the server tells, and for all of it."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from promql import SYNTHETIC, asked, kept, unknown

Series = dict[str, frozenset[str]]
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/rondel.json").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SHOWN = [target["expr"] for panel in PANELS for target in panel["targets"]]
SHOWN += [annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDINGS = {rule["record"]: kept(rule["expr"]) for rule in RULES if "record" in rule}


async def test_every_metric_and_label_that_is_asked_for_exists(have: Series) -> None:
    have = {**have, **SYNTHETIC, **RECORDINGS}
    assert unknown([*SHOWN, *(rule["expr"] for rule in RULES)], have) == []
    variables = [variable["query"]["query"] for variable in DASHBOARD["templating"]["list"][1:]]
    selectors = [query.removeprefix("label_values(").rpartition(",")[0] for query in variables]
    assert unknown(selectors, have) == []


async def test_what_does_not_exist_is_found(have: Series) -> None:
    assert unknown(["rate(rondel_gaps_total[5m])"], have) == []
    for wrong in (
        "rate(rondel_gaps[5m])",
        'rondel_arena_bytes{knd="budget"}',
        "sum by (worker) (rate(rondel_step_items_sum[5m]))",
    ):
        assert len(unknown([wrong], have)) == 1, wrong
    with pytest.raises(ValueError, match="unclosed"):
        asked("sum by (")


async def test_everything_that_the_server_counts_is_shown_or_watched(have: Series) -> None:
    used = {name for expression in [*SHOWN, *(rule["expr"] for rule in RULES)] for name in asked(expression)}
    ours = {name for name in have if name.startswith(("rondel_", "grpc_server_"))}
    # Of a histogram any of its series will do.
    ends = ("_bucket", "_sum", "_count")
    whole = {name.removesuffix(end) for name in used for end in ends if name.endswith(end)}
    missing = {
        name for name in ours - used if not any(name == f"{one}{end}" for one in whole for end in ends)
    }
    assert missing == set()


def test_the_dashboard_is_whole() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "job", "instance", "tenant"}
    for panel in PANELS:
        assert panel["title"], panel["id"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEF")[: len(panel["targets"])]
        for target in panel["targets"]:
            matched = asked(target["expr"])
            assert all({"job", "instance"} <= labels for labels in matched.values()), target["expr"]
    assert "__inputs" not in DASHBOARD  # it names no data source of anybody's


def test_panels_do_not_lie_on_one_another() -> None:
    def area(panel: dict[str, Any]) -> set[tuple[int, int]]:
        pos = panel["gridPos"]
        assert 0 <= pos["x"] < pos["x"] + pos["w"] <= 24, panel["title"]
        return {
            (x, y) for x in range(pos["x"], pos["x"] + pos["w"]) for y in range(pos["y"], pos["y"] + pos["h"])
        }

    for one, other in combinations(DASHBOARD["panels"], 2):
        assert not area(one) & area(other), (one["title"], other["title"])


def test_alerts_say_who_should_do_what() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names) > 5
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"], rule["alert"]
        assert rule["annotations"]["description"], rule["alert"]


def test_every_alert_is_in_the_tests_of_the_rules() -> None:
    cases = yaml.safe_load((DEPLOY / "prometheus/rules.test.yaml").read_text(encoding="utf-8"))["tests"]
    fired = {
        case["alertname"] for test in cases for case in test["alert_rule_test"] if case.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in ALERTS}
