"""Sessions answer the operator: any call, against loops over its specification; nothing else does."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import calls, case_of
from hypothesis import given, settings
from operator_loops import operator

from cases import Case
from rondel.decoder.cache.arena import Arena
from verdicts import verdict

TOOL = Path(__file__).parents[2] / "conformance"
ORACLE = "rondel.decoder.reference"
needs_onnx = pytest.mark.skipif(
    importlib.util.find_spec("onnx") is None, reason="onnx is installed for `make conformance` only"
)


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena(budget=16 << 20)


@settings(max_examples=60, deadline=None)
@given(call=calls())
def test_any_call_is_answered(arena: Arena, call: tuple[dict[str, Any], dict[str, Any]]) -> None:
    inputs, attributes = call
    found = verdict(case_of(inputs, attributes, operator(inputs, **attributes), rtol=1e-4, atol=1e-5), arena)
    assert found.passed, found


def test_a_window_far_behind_the_last_key_is_whole(arena: Arena) -> None:
    rng = np.random.default_rng(2)
    inputs = {"Q": rng.normal(size=(1, 1, 3, 8)).astype(np.float32)}
    inputs |= {name: rng.normal(size=(1, 1, 700, 8)).astype(np.float32) for name in "KV"}
    attributes = {"is_causal": 1, "left_window_size": 2, "qk_matmul_output_mode": 3}
    found = verdict(case_of(inputs, attributes, operator(inputs, **attributes), rtol=1e-4, atol=1e-5), arena)
    assert found.sight == "window"
    assert found.passed, found


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_results_come_back_in_the_dtype_of_the_inputs(arena: Arena, dtype: type[np.floating]) -> None:
    rng = np.random.default_rng(3)
    inputs = {name: rng.random((2, 2, 4, 8)).astype(dtype) for name in "QKV"}
    case = case_of(inputs, {"is_causal": 1}, operator(inputs, is_causal=1))
    assert verdict(case, arena).passed


def test_a_wrong_expectation_is_noticed(arena: Arena) -> None:
    rng = np.random.default_rng(4)
    inputs = {name: rng.random((1, 2, 4, 8)).astype(np.float32) for name in "QKV"}
    wanted = operator(inputs)
    for output in wanted:
        spoiled = {**wanted, output: wanted[output] * 1.002}
        worst = verdict(case_of(inputs, {}, spoiled), arena).worst
        assert worst is not None
        assert (worst.output, worst.share > 1) == (output, True)


def test_a_value_that_sessions_refuse_is_explained(arena: Arena) -> None:
    inputs = {name: np.ones((1, 1, 2, 4), np.float32) for name in "QKV"}
    inputs["V"][0, 0, 1, 3] = np.inf
    found = verdict(case_of(inputs, {}, operator(inputs)), arena)
    assert found.explained == "V holds inf; sessions take values up to 1e+15"
    assert not found.passed


def test_a_refusal_that_nothing_explains_is_a_failure(arena: Arena) -> None:
    inputs = {"Q": np.ones((1, 3, 2, 4), np.float32)}
    inputs |= {name: np.ones((1, 2, 2, 4), np.float32) for name in "KV"}
    found = verdict(Case(name="heads", opset=23, inputs=inputs, outputs={}), arena)
    assert found.failed is not None
    assert found.failed.startswith("InvalidSpec: query_heads must be a multiple of kv_heads")
    assert found.explained is None
    assert not found.passed


def test_no_file_of_the_tool_imports_the_oracle() -> None:
    for path in TOOL.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            assert not any(name.startswith(ORACLE) for name in names), path.name


def test_the_oracle_is_never_loaded_by_a_run() -> None:
    run = f"""
import sys
sys.path.append({str(TOOL)!r})
import numpy as np
import run
from cases import Attributes, Case
inputs = {{name: np.ones((1, 1, 2, 4), np.float32) for name in "QKV"}}
outputs = {{"Y": inputs["V"], "qk_matmul_output": np.full((1, 1, 2, 2), 0.5, np.float32)}}
weights = Attributes(qk_matmul_output_mode=3)
case = Case(name="ones", opset=23, attributes=weights, inputs=inputs, outputs=outputs)
code = run.report(run.judge([case]))
print([name for name in sys.modules if name.startswith({ORACLE!r})], code)
"""
    ended = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, timeout=60, check=True
    )
    *_, summary, loaded = ended.stdout.splitlines()
    assert json.loads(summary) == {"passed": 1, "total": 1, "explained": []}
    assert loaded == "[] 0"


@needs_onnx
def test_the_suite_passes() -> None:
    run = f"import sys; sys.path.append({str(TOOL)!r}); import run; sys.exit(run.main([]))"
    ended = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == {"passed": 93, "total": 93, "explained": []}
