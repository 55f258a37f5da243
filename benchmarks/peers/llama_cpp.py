"""llama.cpp's FLASH_ATTN_EXT on the CPU: q8_0 and f16 caches, through ggml's own C interface.

``LLAMA_CPP_BIN`` names the folder of a build's shared libraries (``libggml.so`` and its parts: ``bin/`` of
a CMake build). Called in the process rather than through ``test-backend-ops``: any shape, interleaved with
everybody else, and the answer can be checked. K and V are contiguous per head, the order that suits it best.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from checking import HALF, HALF_SUMS
from peers import Contestant, Unavailable
from shapes import Floats, Problem

F32: Final = 0
F16: Final = 1
Q8_0: Final = 8
Q8_BLOCK: Final = np.dtype([("scale", "<f2"), ("codes", "i1", 32)])
SUCCESS: Final = 0


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


class _Plan(ctypes.Structure):
    """ggml_cplan; the spare room is for fields that other versions add at its end."""

    _fields_ = (
        ("work_size", c_size_t),
        ("work_data", c_void_p),
        ("n_threads", c_int),
        ("rest", ctypes.c_char * 256),
    )


def _library() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    folder = os.environ.get("LLAMA_CPP_BIN")
    if not folder:
        raise Unavailable("LLAMA_CPP_BIN names no build")
    found = {
        name: next(iter(sorted(Path(folder).rglob(f"lib{name}.so*"))), None)
        for name in ("ggml-base", "ggml-cpu")
    }
    if None in found.values():
        raise Unavailable(f"{folder} has no libggml-base.so and libggml-cpu.so")
    base, cpu = (ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in found.values())
    signatures: dict[ctypes.CDLL, dict[str, tuple[Any, list[Any]]]] = {
        base: {
            "ggml_init": (c_void_p, [_InitParams]),
            "ggml_free": (None, [c_void_p]),
            "ggml_new_tensor_3d": (c_void_p, [c_void_p, c_int, c_int64, c_int64, c_int64]),
            "ggml_get_data": (c_void_p, [c_void_p]),
            "ggml_nbytes": (c_size_t, [c_void_p]),
            "ggml_flash_attn_ext": (c_void_p, [c_void_p] * 5 + [c_float] * 3),
            "ggml_new_graph": (c_void_p, [c_void_p]),
            "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
            "ggml_type_name": (c_char_p, [c_int]),
        },
        cpu: {
            "ggml_cpu_init": (None, []),
            "ggml_graph_plan": (_Plan, [c_void_p, c_int, c_void_p]),
            "ggml_graph_compute": (c_int, [c_void_p, c_void_p]),
        },
    }
    for library, functions in signatures.items():
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    if base.ggml_type_name(Q8_0) != b"q8_0" or base.ggml_type_name(F16) != b"f16":
        raise Unavailable("this version of ggml numbers its types otherwise")
    cpu.ggml_cpu_init()
    return base, cpu


def _blocks(x: Floats) -> NDArray[np.void]:
    """x [Hkv, M, D] as q8_0: blocks of 32 channels with a float16 scale, as ggml quantises them."""
    rows = x.reshape(-1, 32)
    scales = np.abs(rows).max(axis=1) / 127
    blocks = np.empty(len(rows), Q8_BLOCK)
    blocks["scale"] = scales
    blocks["codes"] = np.rint(rows / np.where(scales > 0, scales, 1)[:, None])
    return blocks


class FlashAttention:
    """One cache type. The engine rounds queries to it, and over f16 it also sums in f16."""

    def __init__(self, base: ctypes.CDLL, cpu: ctypes.CDLL, kind: int) -> None:
        self.name = f"llama.cpp {'q8_0' if kind == Q8_0 else 'float16'}"
        self.tolerance = HALF if kind == Q8_0 else HALF_SUMS
        self._base, self._cpu, self._kind = base, cpu, kind

    def prepare(self, problem: Problem, threads: int) -> None:
        shape, self._problem, base = problem.shape, problem, self._base
        if self._kind == Q8_0 and shape.dim % 32:
            raise Unavailable(f"q8_0 needs a multiple of 32 channels, got {shape.dim}")
        size = 2 * shape.keys * shape.kv_heads * shape.dim * 2 + (16 << 20)
        self._context = base.ggml_init(_InitParams(size, None, False))
        stored = [np.ascontiguousarray(x.transpose(1, 0, 2)) for x in (problem.k, problem.v)]
        if self._kind == Q8_0:
            blocks = [_blocks(x) for x in stored]
            self._stored = [(x["scale"].astype(np.float32)[:, None] * x["codes"]) for x in blocks]
            k, v = (self._tensor(self._kind, problem.k, x) for x in blocks)
        else:
            halves = [x.astype(np.float16) for x in stored]
            self._stored = [x.astype(np.float32) for x in halves]
            k, v = (self._tensor(self._kind, problem.k, x) for x in halves)
        q = self._tensor(F32, problem.q, np.ascontiguousarray(problem.q.transpose(1, 0, 2)))
        self._out = base.ggml_flash_attn_ext(self._context, q, k, v, None, shape.dim**-0.5, 0.0, 0.0)
        self._graph = base.ggml_new_graph(self._context)
        base.ggml_build_forward_expand(self._graph, self._out)
        self._plan = self._cpu.ggml_graph_plan(self._graph, threads, None)
        self._work = ctypes.create_string_buffer(max(1, self._plan.work_size))
        self._plan.work_data = ctypes.addressof(self._work)

    def _tensor(self, kind: int, tokens: Floats, data: NDArray[np.generic]) -> int:
        count, heads, dim = tokens.shape
        tensor: int = self._base.ggml_new_tensor_3d(self._context, kind, dim, count, heads)
        if self._base.ggml_nbytes(tensor) != data.nbytes:
            raise Unavailable(f"ggml stores {self._base.ggml_nbytes(tensor)} bytes, got {data.nbytes}")
        ctypes.memmove(self._base.ggml_get_data(tensor), data.ctypes.data, data.nbytes)
        return tensor

    def run(self) -> object:
        status = self._cpu.ggml_graph_compute(self._graph, ctypes.byref(self._plan))
        if status != SUCCESS:
            raise Unavailable(f"ggml_graph_compute returned {status}")
        return status

    def answer(self) -> Floats:
        out = np.empty(self._problem.q.shape, np.float32)
        ctypes.memmove(out.ctypes.data, self._base.ggml_get_data(self._out), out.nbytes)
        return out

    def computed_from(self) -> Problem:
        if not hasattr(self, "_rounded"):
            shape = self._problem.shape
            k, v = (x.reshape(shape.kv_heads, shape.keys, shape.dim).transpose(1, 0, 2) for x in self._stored)
            self._rounded = Problem(shape, self._problem.q, k, v)
        return self._rounded

    def close(self) -> None:
        self._base.ggml_free(self._context)
        del self._problem, self._stored


def contestants() -> list[Contestant]:
    """Fresh contestants."""
    base, cpu = _library()
    return [FlashAttention(base, cpu, kind) for kind in (Q8_0, F16)]
