"""``rondel doctor``: what is installed, what the machine grants, and whether the kernels work."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from rondel import __version__
from rondel.client.cli.download import state
from rondel.client.cli.output import facts_table, human_bytes, out, print_json
from rondel.decoder.errors import RondelError
from rondel.decoder.lm.registry import KNOWN, model_path
from rondel.decoder.machine import cores, memory
from rondel.decoder.spec import StreamSpec

PACKAGES: Final = ("numpy", "grpcio", "protobuf", "gguf", "tokenizers", "typer", "rich")


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Check this installation and this machine. Exit code 1 when something needed is broken."""
    report = examine()
    if as_json:
        print_json(report)
    else:
        _show(report)
    if report["problems"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Everything that doctor knows, as plain values."""
    problems: list[str] = []
    report = {
        "rondel": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "packages": _packages(problems),
        "kernels": _kernels(problems),
        "cores": {**asdict(cores()), "in_force": cores().in_force},
        "memory": asdict(memory()),
        "models": _models(problems),
    }
    return {**report, "problems": problems}


def _packages(problems: list[str]) -> dict[str, str | None]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
            problems.append(f"the package {name} is not installed")
    return found


def _kernels(problems: list[str]) -> dict[str, Any]:
    try:
        from rondel.decoder import kernels

        _check_attention()
        return {"tier": kernels.TIER, "available": list(kernels.available())}
    except (ImportError, RondelError) as error:  # UnsupportedTier is both
        problems.append(f"the kernels do not work: {error}")
        return {"tier": None, "available": []}


def _check_attention() -> None:
    """One step of a small stream. All its values are alike, so the output must be that value."""
    import numpy as np

    from rondel.decoder.cache.arena import Arena
    from rondel.decoder.session import DecoderSession

    spec = StreamSpec.uniform(layers=1, query_heads=4, kv_heads=2, head_dim=64, window=64)
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((9, 4, 64), np.float32), rng.standard_normal((9, 2, 64), np.float32)
    v = np.full((9, 2, 64), 0.75, np.float32)
    with DecoderSession(spec, Arena(budget=16 << 20)) as session:
        output = session.step(0, q, k, v)
    worst = float(np.abs(output - 0.75).max())
    if not worst < 0.01:
        raise RondelError(f"attention over values of 0.75 is off by {worst:g}, expected less than 0.01")


def _models(problems: list[str]) -> list[dict[str, Any]]:
    rows = []
    for model in KNOWN.values():
        path = model_path(model.name)
        found = state(model)
        if found == "damaged":
            problems.append(f"{path} is not the whole file; mend it with: rondel model pull {model.name}")
        rows.append({"name": model.name, "state": found, "path": str(path)})
    return rows


def _show(report: dict[str, Any]) -> None:
    kernels, counted, sizes = report["kernels"], report["cores"], report["memory"]
    quota = "no quota" if counted["quota"] is None else f"quota {counted['quota']:g}"
    rows = [
        ("rondel", report["rondel"]),
        ("python", report["python"]),
        ("platform", report["platform"]),
        (
            "packages",
            ", ".join(f"{name} {number or 'missing'}" for name, number in report["packages"].items()),
        ),
        ("tier in force", kernels["tier"] or "none"),
        ("tiers available", ", ".join(kernels["available"]) or "none"),
        (
            "cores in force",
            f"{counted['in_force']} (host {counted['host']}, affinity {counted['affinity']}, {quota})",
        ),
        (
            "memory",
            f"{_size(sizes['total'])} in all, {_size(sizes['available'])} free, "
            f"{'no limit' if sizes['limit'] is None else 'limit ' + _size(sizes['limit'])}",
        ),
    ]
    for model in report["models"]:
        usable = model["state"] in ("checked", "unchecked")
        where = model["path"] if usable else f"{model['state']}; rondel model pull {model['name']}"
        rows.append((f"model {model['name']}", where))
    out.print(facts_table("rondel doctor", rows))
    verdict = Table.grid()
    for problem in report["problems"]:
        verdict.add_row(f"[bold red]broken[/]: {problem}")
    out.print(verdict if report["problems"] else "[bold green]all well[/]")


def _size(count: int | None) -> str:
    return "unknown" if count is None else human_bytes(count)
