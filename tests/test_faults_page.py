"""docs/faults.md names tests that are there, for every row."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| (\d+) \| .* \| (.*) \|$", PAGE, re.MULTILINE))


def test_every_row_is_there_and_names_a_test() -> None:
    assert sorted(map(int, ROWS)) == list(range(1, 31))
    for number, tests in ROWS.items():
        assert ".py::test_" in tests, number


def test_the_tests_are_there() -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 60
    for path, name in named:
        text = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"def {name}\(", text), f"{path}::{name}"
