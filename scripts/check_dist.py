"""Build the sdist and, from it, the wheel into dist/; look at what is in them; try the wheel.

The wheel is installed into an empty venv and used from an empty folder, so that nothing of the checkout
can help it. ``--no-install`` leaves that out.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"

SOURCES = re.compile(r"\.(pyx|pxi|pxd|h|c)$")
IN_BOTH = [
    "rondel/__init__.py",
    "rondel/py.typed",
    "rondel/client/cli/main.py",
    "rondel/decoder/session.py",
    "rondel/decoder/kernels/_base.pyi",
    "rondel/server/app.py",
    "rondel/v1/attention.proto",
    "rondel/v1/attention_pb2.py",
    "rondel/v1/attention_pb2.pyi",
    "rondel/v1/attention_pb2_grpc.py",
    "rondel/v1/attention_pb2_grpc.pyi",
]
IN_SDIST = ["LICENSE", "README.md", "pyproject.toml", "setup.py", "src/rondel/decoder/kernels/_base.pyx"]


def build() -> tuple[Path, Path]:
    """(sdist, wheel), both new."""
    for old in DIST.glob("rondel-*"):
        old.unlink()
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT)], check=True)
    (sdist,) = DIST.glob("rondel-*.tar.gz")
    (wheel,) = DIST.glob("rondel-*.whl")
    return sdist, wheel


def sdist_problems(sdist: Path) -> list[str]:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    wanted = IN_SDIST + [f"src/{name}" for name in IN_BOTH]
    problems = [f"sdist lacks {name}" for name in wanted if name not in names]
    # The rooms are links in the repository; who unpacks the archive must find files.
    problems += [f"sdist has a link: {member.name}" for member in members if member.issym() or member.islnk()]
    problems += [f"sdist has a built file: {name}" for name in names if re.search(r"\.(so|c|pyc)$", name)]
    kernels = {path.name for path in (ROOT / "decoder/kernels").iterdir() if SOURCES.search(path.name)}
    packed = {name.rpartition("/")[2] for name in names if "/decoder/kernels/" in name}
    return problems + [f"sdist lacks kernel source {name}" for name in sorted(kernels - packed)]


def wheel_problems(wheel: Path) -> list[str]:
    names = set(zipfile.ZipFile(wheel).namelist())
    problems = [f"wheel lacks {name}" for name in IN_BOTH if name not in names]
    problems += [f"wheel has a source file: {name}" for name in names if SOURCES.search(name)]
    problems += [
        f"wheel has a file outside the package: {name}" for name in names if not re.match(r"rondel[-/]", name)
    ]
    modules = {path.stem for path in (ROOT / "decoder/kernels").glob("*.pyx")}
    built = {Path(name).name.partition(".")[0] for name in names if name.endswith(".so")}
    if os.uname().machine == "x86_64":
        problems += [f"wheel lacks compiled module {name}" for name in sorted(modules - built)]
    return problems


def try_out(wheel: Path) -> None:
    """Install the wheel where there is nothing else, and run it there."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty"
        empty.mkdir()
        venv.create(Path(folder) / "venv", with_pip=True)
        programs = Path(folder) / "venv/bin"
        pip = [programs / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        for command in (
            [*pip, wheel],
            [
                programs / "python",
                "-c",
                "import rondel; print(rondel.__version__, rondel.__file__); rondel.DecoderSession",
            ],
            [programs / "rondel", "--version"],
            [programs / "rondel", "doctor"],
        ):
            subprocess.run(command, cwd=empty, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-install", action="store_true", help="do not try the wheel in an empty venv")
    install = not parser.parse_args().no_install
    sdist, wheel = build()
    problems = sdist_problems(sdist) + wheel_problems(wheel)
    print("\n".join(problems) or f"{sdist.name}, {wheel.name}: contents as they should be")
    if problems:
        return 1
    if install:
        try_out(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
