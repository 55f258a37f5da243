"""What `make test-interop` fetches is pinned by hash, and by no address."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent


def test_the_lockfile_pins_hashes_and_names_no_registry() -> None:
    text = (HERE / "package-lock.json").read_text(encoding="utf-8")
    packages = json.loads(text)["packages"]
    asked = json.loads((HERE / "package.json").read_text(encoding="utf-8"))["dependencies"]
    assert packages.pop("")["dependencies"] == asked
    assert len(packages) > len(asked)
    for name, package in packages.items():
        assert package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, name
    assert "registry" not in text
