"""Look at the files of deploy/ with linters of their kinds, which ``make lint-deploy`` has installed.

systemd-analyze, kubectl and promtool come with a machine or not: without one it is said, loudly, what nobody
has looked at. ``--prove`` also plants a mistake for each linter in a copy, and fails if one is not found.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
KUBERNETES = ("1.27", "1.31", "1.37")
"""The first with grpc probes for good, one between, the newest that kubernetes-validate knows."""
EXPOSURE = 15
"""Tenths: what systemd-analyze security may come to, from 0 to 100."""

Command = list[str | Path]


class Missing(Exception):
    """A linter is not on this machine."""


class Check(NamedTuple):
    """What a linter is asked about, and a mistake that it must find."""

    commands: Callable[[Path, Path], Iterator[Command]]
    """Of the folder deploy/ and a folder for scraps. Raises Missing."""
    plant: str
    """A file under deploy/, in which """
    sound: str
    """this becomes """
    broken: str
    """that."""


def tool(name: str) -> Path:
    """A program of this environment, or of the machine. Raises Missing."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise Missing(name)
    return Path(found)


def yaml(deploy: Path, scraps: Path) -> Iterator[Command]:
    folders = [deploy / "kubernetes", deploy / "prometheus"]
    yield [tool("yamllint"), "--strict", "--config-file", deploy / ".yamllint.yaml", *folders]


def dockerfile(deploy: Path, scraps: Path) -> Iterator[Command]:
    yield [tool("hadolint"), deploy / "docker/Dockerfile"]


def manifests(deploy: Path, scraps: Path) -> Iterator[Command]:
    files = [path for path in sorted((deploy / "kubernetes").glob("*.yaml")) if path.stem != "kustomization"]
    for version in KUBERNETES:
        yield [tool("kubernetes-validate"), "--strict", "--quiet", "-k", version, *files]


def kustomized(deploy: Path, scraps: Path) -> Iterator[Command]:
    built = scraps / "built.yaml"
    yield [tool("kubectl"), "kustomize", deploy / "kubernetes", "--output", built]
    yield [tool("kubernetes-validate"), "--strict", "--quiet", built]


def unit(deploy: Path, scraps: Path) -> Iterator[Command]:
    text = (deploy / "systemd/rondel.service").read_text(encoding="utf-8")
    copy = scraps / "rondel.service"
    # Whether the program is there is the other machine's affair.
    copy.write_text(text.replace("/opt/rondel/bin/rondel", sys.executable), encoding="utf-8")
    yield [tool("systemd-analyze"), "verify", "--man=no", "--recursive-errors=no", copy]
    yield [
        tool("systemd-analyze"),
        "security",
        "--offline=yes",
        f"--threshold={EXPOSURE}",
        "--no-pager",
        copy,
    ]


def rules(deploy: Path, scraps: Path) -> Iterator[Command]:
    yield [tool("promtool"), "check", "config", deploy / "prometheus/prometheus.yaml"]
    yield [tool("promtool"), "test", "rules", deploy / "prometheus/rules.test.yaml"]


CHECKS = {
    "YAML": Check(yaml, "kubernetes/statefulset.yaml", "  replicas: 1\n", "  replicas: 1\n  replicas: 2\n"),
    "Dockerfile": Check(dockerfile, "docker/Dockerfile", "STOPSIGNAL SIGTERM\n", "RUN sudo true\n"),
    "manifests": Check(manifests, "kubernetes/statefulset.yaml", "periodSeconds: 10", "periodSecs: 10"),
    "kustomization": Check(
        kustomized, "kubernetes/kustomization.yaml", "  - network.yaml\n", "  - net.yaml\n"
    ),
    "systemd unit": Check(unit, "systemd/rondel.service", "ProtectHome=yes", "ProtectHouse=yes"),
    "Prometheus rules": Check(
        rules, "prometheus/rules.yaml", "changes(process_start", "changed(process_start"
    ),
}


def problems(check: Check, deploy: Path) -> str:
    """What a linter has to say against the files; empty if nothing. Raises Missing."""
    with tempfile.TemporaryDirectory() as scraps:
        for words in check.commands(deploy, Path(scraps)):
            done = subprocess.run(words, capture_output=True, check=False)
            if done.returncode:
                return (done.stdout + done.stderr).decode(errors="replace").strip() or str(words)
    return ""


def seen(check: Check) -> bool:
    """Whether the planted mistake is found."""
    with tempfile.TemporaryDirectory() as folder:
        deploy = Path(folder) / "deploy"
        shutil.copytree(ROOT / "deploy", deploy)
        path = deploy / check.plant
        text = path.read_text(encoding="utf-8")
        if text.count(check.sound) != 1:
            raise SystemExit(f"{check.plant} has no single {check.sound!r} to break")
        path.write_text(text.replace(check.sound, check.broken), encoding="utf-8")
        return problems(check, deploy) != ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--prove", action="store_true", help="plant mistakes, too, and see that they are found"
    )
    prove = parser.parse_args().prove
    bad = False
    for name, check in CHECKS.items():
        try:
            found = problems(check, ROOT / "deploy")
            blind = not found and prove and not seen(check)
        except Missing as absent:
            print(f"!!! {absent} is not on this machine: nobody has looked at the {name} with it !!!")
            continue
        bad |= bool(found) or blind
        print(f"{name}: {found or ('does not see a planted mistake' if blind else 'clean')}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
