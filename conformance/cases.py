"""The Attention cases of the ONNX backend suite, by the operator's own names. Only this file knows onnx."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

INPUTS: Final = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS: Final = ("Y", "present_key", "present_value", "qk_matmul_output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """The operator's attributes under its names, with its defaults (ONNX operators, Attention-25)."""

    scale: float | None = None
    is_causal: int = 0
    q_num_heads: int = 0  # given with 3-D inputs only
    kv_num_heads: int = 0
    softcap: float = 0.0
    softmax_precision: int | None = None
    qk_matmul_output_mode: int = 0
    left_window_size: int = -1
    right_window_size: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of the operator and the answer expected; only inputs and outputs that the case has."""

    name: str
    opset: int
    attributes: Attributes = field(default_factory=Attributes)
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    rtol: float = 1e-3
    atol: float = 1e-7

    def relative_tolerance(self, output: str) -> float:
        """The case's; for bfloat16 two units in the last place, as the suite's own runner has it."""
        return max(self.rtol, 2**-6) if self.outputs[output].dtype.name == "bfloat16" else self.rtol


def suite() -> list[Case]:
    """Every case that is one Attention node, in the suite's order, and none of the expanded graphs."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # other operators' cases overflow on purpose while they are collected
        collected = collect_testcases("Attention")
    return [_case(found) for found in collected if _is_attention(found.model.graph.node)]


def _is_attention(nodes: Sequence[Any]) -> bool:
    return len(nodes) == 1 and nodes[0].op_type == "Attention"


def _case(found: Any) -> Case:
    from onnx.helper import get_attribute_value

    (node,) = found.model.graph.node
    ((inputs, outputs),) = found.data_sets
    return Case(
        name=found.name,
        opset=found.model.opset_import[0].version,
        attributes=Attributes(**{given.name: get_attribute_value(given) for given in node.attribute}),
        inputs=_named(INPUTS, node.input, inputs),
        outputs=_named(OUTPUTS, node.output, outputs),
        rtol=found.rtol,
        atol=found.atol,
    )


def _named(names: Sequence[str], edges: Sequence[str], values: Sequence[Array]) -> dict[str, Array]:
    """Values by what their place in the node means: an empty edge is a place left out and has no value."""
    present = [name for name, edge in zip(names, edges, strict=False) if edge]
    return dict(zip(present, values, strict=True))
