"""What is asked of a stream, and how an answer is judged: no kernel takes part."""

from __future__ import annotations

import json

import numpy as np
import pytest

import run
from cases import Attributes, Case
from entries import Inexpressible, entries
from sight import sight
from verdicts import Difference, Verdict, difference

ONES = np.ones((2, 1, 3, 4), np.float32)


def case(**given: object) -> Case:
    outputs = given.pop("outputs", {})
    attributes = given.pop("attributes", Attributes())
    inputs = {"Q": ONES, "K": ONES, "V": ONES, **given}
    return Case(name="made", opset=24, attributes=attributes, inputs=inputs, outputs=outputs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("causal", "left", "right", "offset", "said"),
    [
        (0, -1, -1, 0, ("all", False, None, 0, None)),
        (1, -1, -1, 2, ("causal", True, None, 0, 2)),
        (1, 2, -1, 0, ("window", True, 3, 0, 0)),
        (1, 2, 5, 0, ("window", True, 3, 0, 0)),  # the causal bound is the nearer one
        (0, 0, 0, 1, ("window", True, 1, 0, 1)),
        (0, 1, 2, 1, ("two-sided", False, 2, 2, 1)),
        (0, -1, 1, 1, ("two-sided", False, 4, 1, 1)),
        (0, 1, -1, 1, ("two-sided", False, 2, 6, 1)),
        (1, -1, -1, -1, ("mask", False, None, 0, None)),
        (1, -1, -1, 4, ("mask", False, None, 0, None)),
    ],
)
def test_sight(causal: int, left: int, right: int, offset: int, said: tuple[object, ...]) -> None:
    asked = Attributes(is_causal=causal, left_window_size=left, right_window_size=right)
    found = sight(asked, offset, 3, 6, hidden_scores=False)
    assert (found.name, found.causal, found.window, found.window_right, found.position) == said
    assert (found.mask is not None) == (found.name == "mask")


def test_scores_of_hidden_keys_need_a_mask() -> None:
    found = sight(Attributes(is_causal=1, left_window_size=1), 1, 3, 4, hidden_scores=True)
    assert found.mask is not None
    assert found.mask.tolist() == [
        [[True, True, False, False], [False, True, True, False], [False, False, True, True]]
    ]


def test_a_short_mask_hides_the_rest() -> None:
    (first, second) = entries(case(attn_mask=np.zeros((2, 1, 1, 2), np.float16)))
    assert first.bias is not None
    assert first.bias.dtype == np.float32
    np.testing.assert_array_equal(first.bias, [[[0, 0, -np.inf]]])
    (first, second) = entries(case(attn_mask=np.array([True])))
    assert second.mask is not None
    assert second.mask.tolist() == [[[True, False, False]]]


def test_an_entry_gets_its_own_part_of_the_batch() -> None:
    mask = np.arange(18, dtype=np.float32).reshape(2, 1, 3, 3)
    first, second = entries(case(attn_mask=mask, nonpad_kv_seqlen=np.array([0, 2])))
    assert (first.ranges, second.ranges) == ((), ((0, 2),))
    assert second.bias is not None
    np.testing.assert_array_equal(second.bias, mask[1])


def test_a_flat_input_has_its_heads_side_by_side() -> None:
    flat = np.arange(12, dtype=np.float32).reshape(1, 2, 6)
    heads = Attributes(q_num_heads=3, kv_num_heads=1)
    (entry,) = entries(case(Q=flat, K=flat, V=flat, attributes=heads))
    assert entry.q[1].tolist() == [[6, 7], [8, 9], [10, 11]]
    ((k, _),) = entry.chunks
    assert k[1].tolist() == [[6, 7, 8, 9, 10, 11]]


def test_what_has_no_words_is_refused_with_the_reason() -> None:
    with pytest.raises(Inexpressible, match=r"scale is -1; a session's is above 0"):
        entries(case(attributes=Attributes(scale=-1.0)))
    with pytest.raises(Inexpressible, match="K holds nan"):
        entries(case(K=ONES * np.nan))


def test_tolerance_is_used_up_by_the_worst_cell() -> None:
    wanted = np.array([1.0, -np.inf, 0.0], np.float32)
    found = difference(case(outputs={"Y": wanted}), "Y", wanted + np.array([5e-4, 0, 0], np.float32))
    assert found.error == pytest.approx(5e-4, rel=1e-3)
    assert found.share == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(
    "got",
    [
        np.array([1.0, np.nan], np.float32),
        np.array([1.0, 2.0], np.float32),
        np.array([1.0, -np.inf]),
        np.array([[1.0, -np.inf]], np.float32),
    ],
    ids=["nan", "finite for infinite", "dtype", "shape"],
)
def test_what_does_not_compare_is_infinitely_wrong(got: np.ndarray) -> None:
    found = difference(case(outputs={"Y": np.array([1.0, -np.inf], np.float32)}), "Y", got)
    assert found.share == np.inf


def verdict_of(name: str, share: float) -> Verdict:
    worst = Difference(output="Y", error=share / 1e3, share=share, rtol=1e-3, atol=1e-7)
    return Verdict(name=name, opset=23, sight="mask/causal", differences=(worst,))


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (verdict_of("c", 1.0), 0),
        (verdict_of("c", 1.01), 1),
        (Verdict(name="c", opset=23, failed="SequenceGap: no such row"), 1),
        (Verdict(name="c", opset=23), 1),
    ],
)
def test_the_last_line_and_the_exit_code(
    last: Verdict, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    explained = Verdict(name="b", opset=24, explained="no words for it")
    assert run.report([verdict_of("a", 0.2), explained, last]) == code
    printed = capsys.readouterr().out
    assert json.loads(printed.splitlines()[-1]) == {
        "passed": 1 + (code == 0),
        "total": 3,
        "explained": [{"case": "b", "reason": "no words for it"}],
    }
    assert "not expressible: b: no words for it" in printed
    assert "sight mask: " in printed
    assert ("failed: c" in printed) == bool(code)


def test_a_suite_of_another_size_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "suite", lambda: [case()])
    assert run.main([]) == 1
    assert "must have 93 Attention cases, got 1" in capsys.readouterr().err
