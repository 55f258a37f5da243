"""Write the tables of docs/operations.md that the code knows; ``--check`` only says whether they are fresh.

Settings come from ``ServerConfig`` and the notes under its fields, metrics from the registry that a server
counts in.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from rondel.client.cli.serve import field_notes
from rondel.server.app import DESCRIPTORS
from rondel.server.config import ServerConfig
from rondel.server.gauges import Readings, families
from rondel.server.metrics import Metrics
from rondel.server.reload import RELOADABLE
from rondel.server.rpc_metrics import RpcMetrics
from rondel.server.settings import written

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operations.md"


def settings() -> str:
    """A row per setting: name, default, what it is; an asterisk for those that a reload takes."""
    notes = field_notes()
    rows = (
        (f"`{field.name}`{' *' if field.name in RELOADABLE else ''}", f"`{written(field.default)}`", note)
        for field in fields(ServerConfig)
        if (note := notes[field.name])
    )
    return _table(("setting", "default", "what it is"), rows)


def metrics() -> str:
    """A row per metric: name, kind, labels, what it is."""
    found: list[tuple[str, str, Any, str]] = []
    counted = Metrics(version="", tier="")
    RpcMetrics(counted.registry, DESCRIPTORS)
    # The library tells names, labels and texts only of what has been counted already.
    for each in set(counted.registry._names_to_collectors.values()):
        name = f"{each._name}_total" if each._type == "counter" else each._name
        found.append((name, each._type, each._labelnames, each._documentation))
    found += [
        (each.name, each.type, each._labelnames, each.documentation) for each in families(Readings(), {})
    ]
    rows = (
        (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels), text)
        for name, kind, labels, text in sorted(found)
    )
    return _table(("metric", "kind", "labels", "what it is"), rows)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = tuple(heads)
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(page: str) -> str:
    """The page with its tables as they should be."""
    for name, table in (("settings", settings), ("metrics", metrics)):
        begin, end = f"<!-- {name}: scripts/gen_tables.py -->\n", f"<!-- {name} end -->\n"
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise SystemExit(f"{PAGE} has no place for the table of {name}")
        page = f"{before}{begin}{table()}{end}{after}"
    return page


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a table is stale")
    arguments = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    if (fresh := filled(page)) == page:
        return 0
    if arguments.check:
        print("stale: docs/operations.md (run scripts/gen_tables.py)")
        return 1
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
