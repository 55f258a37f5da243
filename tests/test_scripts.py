"""The checks that `.ci/run` relies on see what they are there to see."""

import platform
import shutil
import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path

import check_dist
import check_isa
import check_stubs
import gen_protos
import pytest

x86_64 = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="tiers and objdump's names are those of x86-64"
)


def _module(name: str) -> Path:
    spec = find_spec(f"rondel.decoder.kernels.{name}")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


@x86_64
@pytest.mark.parametrize("tier", sorted(check_isa.MODULES))
def test_a_tier_keeps_to_its_instructions(tier: str) -> None:
    assert check_isa.check([_module(tier)]) == []


@x86_64
@pytest.mark.parametrize(
    ("tier", "passed_off_as"),
    [
        ("_v3", "_cpu"),
        ("_v3", "_base"),
        ("_v4", "_base"),
        ("_base", "_v3"),
        ("_v4", "_v3"),
        ("_v3", "_v4"),
        ("_v4vnni", "_v4"),
        ("_v4", "_v4vnni"),
        ("_v4amx", "_v4vnni"),
        ("_v4vnni", "_v4amx"),
        ("_v4", "_v4amx"),
        ("_v4amx", "_v4"),
        ("_v4amx", "_base"),
    ],
)
def test_another_tier_s_instructions_are_reported(tier: str, passed_off_as: str, tmp_path: Path) -> None:
    copy = tmp_path / f"{passed_off_as}.so"
    shutil.copy(_module(tier), copy)
    assert check_isa.check([copy]) != []


@x86_64
@pytest.mark.parametrize(
    "name", ["pshufb", "popcnt", "pmaddubsw", "vaddps", "shlx", "pmulld", "movbe", "roundss"]
)
def test_an_instruction_beyond_sse2_is_reported(name: str) -> None:
    assert check_isa.problems_of("_base", [(name, "%xmm0,%xmm1")], "") == [f"beyond SSE2: {name}"]


@pytest.mark.parametrize("name", ["tdpbssd", "tileloadd", "tilezero", "ldtilecfg", "tdpbf16ps"])
@pytest.mark.parametrize("tier", sorted(check_isa.MODULES - {"_v4amx"}))
def test_the_matrix_unit_is_reported_everywhere_else(tier: str, name: str) -> None:
    # The tile registers have names of their own, so no rule about vector registers sees them.
    assert "the matrix unit belongs to _v4amx" in check_isa.problems_of(tier, [(name, "%tmm0")], "")


def test_the_matrix_unit_must_be_released() -> None:
    code = [("ldtilecfg", "(%rax)"), ("tdpbssd", "%tmm4,%tmm2,%tmm0"), ("vaddps", "%zmm0,%zmm1,%zmm2")]
    assert check_isa.problems_of("_v4amx", code, "") == ["must use tilerelease"]
    assert check_isa.problems_of("_v4amx", [*code, ("tilerelease", "")], "") == []


@pytest.mark.parametrize("name", ["vpdpbusd", "vpdpwssd"])
def test_vnni_is_for_two_tiers(name: str) -> None:
    found = "VNNI instructions belong into _v4vnni and _v4amx"
    code = [(name, "%zmm0,%zmm1,%zmm2")]
    for tier in check_isa.MODULES:
        assert (found in check_isa.problems_of(tier, code, "")) == (tier not in ("_v4vnni", "_v4amx"))


def test_instructions_of_sse2_are_not_reported() -> None:
    names = [
        "pmaddwd",
        "paddd",
        "movdqu",
        "pextrw",
        "pinsrw",
        "pminsw",
        "pmaxub",
        "tzcnt",
        "bsf",
        "pshufd",
        "psadbw",
    ]
    assert check_isa.problems_of("_base", [(name, "%xmm0,%xmm1") for name in names], "") == []


@x86_64
def test_fast_math_and_openmp_are_reported(tmp_path: Path) -> None:
    source, library = tmp_path / "_base.c", tmp_path / "_base.so"
    source.write_text("float f(float x) { return x + 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-ffast-math", "-o", library, source], check=True)
    (written, *_) = [p for p in check_isa.check([library]) if "control register" in p]
    assert written.startswith("_base.so")
    headers = "  NEEDED               libgomp.so.1\n  NEEDED               libc.so.6\n"
    assert check_isa.problems_of("_base", [], headers) == ["needs libgomp.so.1"]


def test_every_compiled_module_has_a_stub() -> None:
    assert "rondel.decoder.kernels._base" in check_stubs.compiled_modules()


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    gen_protos.generate(tmp_path)
    assert gen_protos.stale(tmp_path) == []


def test_stale_generated_code_is_reported(tmp_path: Path) -> None:
    gen_protos.generate(tmp_path)
    one, two, *_ = sorted(tmp_path.rglob("*_pb2.py"))
    one.write_text(one.read_text() + "# changed\n")
    two.rename(two.with_name("new_pb2.py"))
    names = [f"proto/{path.relative_to(tmp_path)}" for path in (one, two.with_name("new_pb2.py"), two)]
    assert gen_protos.stale(tmp_path) == sorted(
        [f"differs: {names[0]}", f"missing: {names[1]}", f"no longer generated: {names[2]}"],
        key=lambda problem: problem.partition(": ")[2],
    )


def test_a_wheel_with_sources_or_without_modules_is_reported(tmp_path: Path) -> None:
    wheel = tmp_path / "rondel-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("rondel/decoder/kernels/_base.pyx", "")
        archive.writestr("decoder/spec.py", "")
    problems = check_dist.wheel_problems(wheel)
    assert "wheel has a source file: rondel/decoder/kernels/_base.pyx" in problems
    assert "wheel has a file outside the package: decoder/spec.py" in problems
    assert "wheel lacks rondel/py.typed" in problems
