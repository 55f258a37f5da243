"""What a PromQL expression asks for, and what a server has to give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import promql_parser
from prometheus_client import CollectorRegistry

# What Prometheus itself puts on every series of a target.
TARGET = frozenset({"job", "instance"})
SYNTHETIC: Mapping[str, frozenset[str]] = {"up": frozenset()}
_HISTOGRAM = ("_bucket", "_sum", "_count")


def asked(expression: str) -> dict[str, set[str]]:
    """Names of metrics, and labels that are matched or kept of each. Raises ValueError: it is no PromQL."""
    # Grafana's own words stand for durations, or stand within strings.
    tree = promql_parser.parse(re.sub(r"\$__(rate_)?interval", "5m", expression))
    found: dict[str, set[str]] = {}

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name, f"a selector without a name in {expression}"
            found.setdefault(node.name, set()).update(m.name for m in node.matchers.matchers)
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            for name in names(node.expr):
                found.setdefault(name, set()).update(node.modifier.labels)

    promql_parser.walk(tree, visit)
    return found


def names(tree: promql_parser.Expr) -> set[str]:
    found: set[str] = set()

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.add(node.name or "")

    promql_parser.walk(tree, visit)
    return found


def kept(expression: str) -> frozenset[str]:
    """The labels that a recording has: those that its aggregations keep."""
    labels = set().union(*asked(expression).values())
    return frozenset(labels - {"le", "grpc_code", "kind", *TARGET})


def offered(registry: CollectorRegistry) -> dict[str, frozenset[str]]:
    """Every series that the server may have, with the names of its labels. Not on the event loop."""
    series: dict[str, frozenset[str]] = {}

    def add(name: str, kind: str, labels: Iterable[str]) -> None:
        if kind == "histogram":
            series.update({f"{name}{end}": frozenset(labels) | {"le"} for end in _HISTOGRAM})
        else:
            series[f"{name}_total" if kind == "counter" else name] = frozenset(labels)

    for collector in set(registry._names_to_collectors.values()):
        if hasattr(
            collector, "_labelnames"
        ):  # of what has not been counted yet nothing else tells the labels
            add(collector._name, collector._type, collector._labelnames)
        else:
            for family in collector.collect():
                add(family.name, family.type, getattr(family, "_labelnames", ()))
    return series


def unknown(expressions: Iterable[str], have: Mapping[str, frozenset[str]]) -> list[str]:
    """What the expressions ask for and nobody has."""
    problems = []
    for expression in expressions:
        for name, labels in asked(expression).items():
            if name not in have:
                problems.append(f"no metric {name} ({expression})")
            elif more := labels - have[name] - TARGET:
                problems.append(f"{name} has no label {', '.join(sorted(more))} ({expression})")
    return problems
