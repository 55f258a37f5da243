"""PyTorch's scaled_dot_product_attention: float32 and bfloat16, grouped by the engine and by hand."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from checking import HALF, SAME
from peers import Contestant
from shapes import Floats, Problem


class Sdpa:
    """One dtype and one way to say which query heads share a kv head.

    ``enable_gqa`` leaves that to PyTorch; folded, the group stands along the query length, so that a kernel
    may read each key once for the whole group. One query token needs no mask; more get a float mask that is
    made beforehand, causal and aligned at the end.
    """

    def __init__(self, dtype: torch.dtype, *, folded: bool) -> None:
        self.name = f"torch {str(dtype).removeprefix('torch.')} {'folded' if folded else 'enable_gqa'}"
        self.tolerance = SAME if dtype == torch.float32 else HALF
        self._dtype, self._folded = dtype, folded

    def prepare(self, problem: Problem, threads: int) -> None:
        torch.set_num_threads(threads)
        shape, rows, self._problem = problem.shape, len(problem.q), problem
        self._k, self._v = (
            torch.from_numpy(x).to(self._dtype).transpose(0, 1)[None].contiguous()
            for x in (problem.k, problem.v)
        )
        heads = (shape.kv_heads, shape.group * rows) if self._folded else (shape.query_heads, rows)
        q = torch.from_numpy(problem.q).to(self._dtype).transpose(0, 1)
        self._q = q.reshape(1, *heads, shape.dim).contiguous()
        self._mask = None
        if rows > 1:
            mask = torch.full((rows, shape.keys), -torch.inf, dtype=self._dtype)
            self._mask = mask.triu(shape.keys - rows + 1).repeat(heads[1] // rows, 1)

    def run(self) -> object:
        grouped = self._q.shape[1] != self._k.shape[1]
        with torch.inference_mode():
            self._out = scaled_dot_product_attention(
                self._q, self._k, self._v, self._mask, enable_gqa=grouped
            )
        return self._out

    def answer(self) -> Floats:
        rows, heads, dim = self._problem.q.shape
        out: Floats = self._out.reshape(heads, rows, dim).transpose(0, 1).float().numpy()
        return out

    def computed_from(self) -> Problem:
        if self._dtype == torch.float32:
            return self._problem
        if not hasattr(self, "_rounded"):
            q, k, v = (
                np.ascontiguousarray(torch.from_numpy(x).to(self._dtype).float().numpy())
                for x in (self._problem.q, self._problem.k, self._problem.v)
            )
            self._rounded = Problem(self._problem.shape, q, k, v)
        return self._rounded

    def close(self) -> None:
        del self._problem, self._q, self._k, self._v, self._out


def contestants() -> list[Contestant]:
    """Fresh contestants."""
    dtypes = (torch.float32, torch.bfloat16)
    return [Sdpa(dtype, folded=folded) for dtype in dtypes for folded in (False, True)]
