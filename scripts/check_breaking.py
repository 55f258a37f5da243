"""Whether proto/ still keeps what it has promised: ``buf breaking`` against the last release.

The last release is the last tag ``v*`` before this commit. Where there is none, as in a clone without tags or
before the first release, it is proto/baseline.binpb, which ``--renew`` writes anew from proto/ as it is now.
"""

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINE = "proto/baseline.binpb"
BUF = Path(sys.executable).with_name("buf")
FOUND = 100
"""Exit code of buf when it has found what it looks for, rather than failed."""


def last_tag(root: Path) -> str | None:
    """The nearest release tag among this commit and those before it."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]
    described = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return described.stdout.strip() if described.returncode == 0 else None


@contextmanager
def promised(root: Path) -> Iterator[tuple[str, Path]]:
    """(what to call it, where it is): what proto/ is compared with."""
    tag = last_tag(root)
    if tag is None:
        yield BASELINE, root / BASELINE
        return
    # As files: buf's own reading of repositories knows no worktrees.
    archive = subprocess.run(
        ["git", "archive", tag, "proto", "buf.yaml"], cwd=root, capture_output=True, check=True
    )
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        yield f"the tag {tag}", Path(folder)


def problems(root: Path, against: Path) -> list[str]:
    """What breaks callers or servers made for ``against``, a line each."""
    done = subprocess.run(
        [BUF, "breaking", "--against", against], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, FOUND):
        raise SystemExit(f"buf failed: {done.stderr.strip()}")
    return done.stdout.splitlines()


def renew(root: Path) -> None:
    """Promise what proto/ is now."""
    subprocess.run([BUF, "build", "--exclude-source-info", "--output", root / BASELINE], cwd=root, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--renew", action="store_true", help=f"write {BASELINE}, compare nothing")
    if parser.parse_args().renew:
        renew(ROOT)
        return 0
    with promised(ROOT) as (name, against):
        found = problems(ROOT, against)
    print("\n".join(found) or f"proto/ breaks nothing that {name} promised")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
