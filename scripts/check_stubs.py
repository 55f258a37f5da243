"""Compare the hand-written .pyi of every compiled module with the module itself (mypy's stubtest).

Only tiers that this processor has can be imported; the others have the same source and the same stub.
"""

import os
import subprocess
import sys
from pathlib import Path

from rondel.decoder import kernels

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"decoder": "rondel.decoder", "server": "rondel.server", "client": "rondel.client"}
TIERS = {"base", "v3", "v4", "v4vnni", "v4amx"}


def compiled_modules() -> list[str]:
    """Every module that has a .pyx, less the tiers that would stop this process."""
    names = []
    for room, package in ROOMS.items():
        for path in sorted((ROOT / room).rglob("*.pyx")):
            tier = path.stem.removeprefix("_")
            if tier in TIERS and tier not in kernels.available():
                print(f"stubs: {path.stem} skipped, this processor lacks it")
                continue
            if not path.with_suffix(".pyi").exists():
                raise SystemExit(f"{path.relative_to(ROOT)} has no .pyi beside it")
            names.append(".".join([package, *path.relative_to(ROOT / room).with_suffix("").parts]))
    return names


def main() -> int:
    command = [sys.executable, "-m", "mypy.stubtest", "--concise"]
    command += ["--mypy-config-file", str(ROOT / "pyproject.toml")]
    command += ["--allowlist", str(ROOT / "scripts/stubtest_allowlist.txt"), "--ignore-unused-allowlist"]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    return subprocess.run([*command, *compiled_modules()], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
