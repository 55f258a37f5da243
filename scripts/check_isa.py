"""Disassemble the compiled modules: does each use the instructions of its tier and no others?

``_base``, ``_cpu`` and ``_pool`` run on every x86-64 machine, so nothing beyond SSE2 may stand in them; the
other tiers must really use their wide registers, ``_v4vnni`` its byte multiply and ``_v4amx`` the matrix
unit, which no other module may use. No module may touch the process's floating-point mode (what -ffast-math
does at link time) or bring in an OpenMP runtime.
"""

import argparse
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "rondel/decoder/kernels"
MODULES = {"_cpu", "_pool", "_base", "_v3", "_v4", "_v4vnni", "_v4amx"}

# Beyond SSE2 and without a VEX prefix: SSE3, SSSE3, SSE4, POPCNT, LZCNT, BMI, MOVBE. Not tzcnt: gcc writes
# `rep bsf`, which is bsf on old processors and which objdump shows as tzcnt.
BEYOND_SSE2 = re.compile(
    r"addsub\w+|hadd\w+|hsub\w+|lddqu|mov[sd]?[lhd]dup|pabs[bwd]|palignr|ph(add|sub)s?[wd]|pmaddubsw|pmulhrsw|pshufb"
    r"|psign[bwd]|blend\w+|dpp[sd]|(extract|insert)ps|movntdqa|mpsadbw|packusdw|pblend\w+|pcmp(eq|gt)q|pcmp[ei]str\w"
    r"|p(extr|insr)[bdq]|phminposuw|p(min|max)(sb|sd|uw|ud)|pmov[sz]x\w+|pmuldq|pmulld|ptest|round[ps][sd]|crc32\w*"
    r"|popcnt\w*|lzcnt\w*|andn|bextr|bls(i|r|msk)|bzhi|mulx|pdep|pext|rorx|s[ah][rl]x|movbe|v(?!err|erw|m)\w+"
)
INSTRUCTION = re.compile(
    r"^\s*[0-9a-f]+:\t(?:(?:rep|repz|repnz|lock|bnd|notrack|data16|cs|ds)\s+)*(\S+)(.*)$"
)
TILES = re.compile(r"tdp\w+|tile\w+|(ld|st)tilecfg")
# What shows that a tier is what its name says; releasing the tiles keeps them out of every switch of threads.
MUST_USE = {"_v4vnni": {"vpdpbusd"}, "_v4amx": {"ldtilecfg", "tdpbssd", "tilerelease"}}
OPENMP = re.compile(r"NEEDED\s+(lib(?:gomp|omp|iomp)\S*)")


def disassemble(path: Path) -> list[tuple[str, str]]:
    """(mnemonic, operands) of every instruction in the file."""
    text = _objdump("-d", "--no-show-raw-insn", path)
    return [(found[1], found[2]) for line in text.splitlines() if (found := INSTRUCTION.match(line))]


def problems_of(tier: str, code: Iterable[tuple[str, str]], headers: str) -> list[str]:
    """What a module named ``_<tier>`` has that it must not have, or lacks."""
    code = list(code)
    names = {name for name, _ in code}
    registers = {found for _, operands in code for found in re.findall(r"%([yz]mm)\d", operands)}
    problems = []
    if tier in ("_base", "_cpu", "_pool"):
        foreign = sorted(name for name in names if BEYOND_SSE2.fullmatch(name))
        if foreign or registers:
            problems.append(f"beyond SSE2: {', '.join([*foreign, *sorted(registers)])}")
    elif tier == "_v3":
        if registers != {"ymm"}:
            problems.append(f"must use ymm and not zmm registers, uses {sorted(registers)}")
    else:
        if "zmm" not in registers:
            problems.append(f"must use zmm registers, uses {sorted(registers)}")
    if lacking := MUST_USE.get(tier, set()) - names:
        problems.append(f"must use {', '.join(sorted(lacking))}")
    if tier not in ("_v4vnni", "_v4amx") and any(name.startswith("vpdp") for name in names):
        problems.append("VNNI instructions belong into _v4vnni and _v4amx")
    if tier != "_v4amx" and any(TILES.fullmatch(name) for name in names):
        problems.append("the matrix unit belongs to _v4amx")
    if names & {"ldmxcsr", "vldmxcsr", "fldcw"}:
        problems.append("writes the floating-point control register (crtfastmath?)")
    problems += [f"needs {name}" for name in OPENMP.findall(headers)]
    return problems


def check(paths: list[Path]) -> list[str]:
    problems = []
    for path in paths:
        tier = path.name.partition(".")[0]
        code = disassemble(path)
        if len(code) < 100:
            problems.append(
                f"{path.name}: only {len(code)} instructions read: does objdump print what we expect?"
            )
        problems += [f"{path.name}: {problem}" for problem in problems_of(tier, code, _objdump("-p", path))]
    return problems


def _objdump(*arguments: str | Path) -> str:
    done = subprocess.run(["objdump", *map(str, arguments)], capture_output=True, text=True, check=True)
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", nargs="?", type=Path, help="look into this wheel instead of the source tree")
    wheel = parser.parse_args().wheel
    if platform.machine().lower() not in ("x86_64", "amd64"):
        print(f"instruction sets: nothing to check on {platform.machine()}")
        return 0
    if shutil.which("objdump") is None:
        print("instruction sets: objdump is missing (package binutils)", file=sys.stderr)
        return 1
    with TemporaryDirectory() as folder:
        start = ROOT / "src"
        if wheel:
            zipfile.ZipFile(wheel).extractall(folder)
            start = Path(folder)
        paths = sorted((start / FOLDER).glob("_*.so"))
        missing = MODULES - {path.name.partition(".")[0] for path in paths}
        problems = [f"{tier}: not built" for tier in sorted(missing)] + check(paths)
    print("\n".join(problems) or f"instruction sets: {len(paths)} modules keep to their tier")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
