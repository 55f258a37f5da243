"""The vector primitives and tile products against scalar C, compiled with each tier's own flags."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from rondel.decoder import kernels

HERE = Path(__file__).resolve().parent
WIDE = ["-march=x86-64-v4", "-mprefer-vector-width=512"]
FLAGS = {
    "base": ["-march=x86-64"] if platform.machine() == "x86_64" else [],
    "v3": ["-march=x86-64-v3"],
    "v4": WIDE,
    "v4vnni": [*WIDE, "-mavx512vnni"],
    "v4amx": [*WIDE, "-mavx512vnni", "-mamx-tile", "-mamx-int8"],
}


@pytest.mark.parametrize("program", ["primitives", "products", "softmax"])
@pytest.mark.parametrize("tier", kernels.available())
def test_against_scalar_code(tier: str, program: str, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is what the project is built with"
    binary = tmp_path / program
    source, headers = str(HERE / f"{program}.c"), str(HERE.parent.parent / "decoder/kernels")
    flags = ["-std=gnu11", "-O2", "-ffp-contract=off", *FLAGS[tier], f"-I{headers}"]
    subprocess.run([compiler, *flags, source, "-lm", "-o", str(binary)], check=True)
    done = subprocess.run([str(binary)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert " 0 faults" in done.stdout
