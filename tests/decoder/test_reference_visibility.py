"""Visibility and distances against sentences, pictures and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loops import sees

from rondel.decoder import reference
from rondel.decoder.errors import InvalidRequest


def test_masks_of_the_docstring() -> None:
    def picture(n: int, m: int, window: int | None = None, sinks: int = 0, window_right: int = 0) -> str:
        rows, keys = np.arange(m - n, m), np.arange(m)
        seen = reference.visible(rows, keys, window, sinks, window_right=window_right)
        return "/".join("".join("01"[int(x)] for x in row) for row in seen)

    assert picture(2, 5) == "11110/11111"
    assert picture(5, 2) == "00/00/00/10/11"
    assert picture(4, 7, window=3, sinks=1) == "1111000/1011100/1001110/1000111"
    assert picture(4, 7, window=3, sinks=1, window_right=1) == "1111100/1011110/1001111/1000111"
    assert reference.visible([0, 1], [0, 1, 2], causal=False).all()


@pytest.mark.parametrize("sinks", [0, 1, 3, 7])
@pytest.mark.parametrize("window", [1, 2, 5, 8])
def test_visible_around_the_window(window: int, sinks: int) -> None:
    near = {max(1, window + d) for d in (-2, -1, 0, 1, 2)}
    for length in near | {2 * window - 1, 2 * window, 2 * window + 1}:
        p = length - 1
        seen = reference.visible([p], np.arange(length + 2), window, sinks)[0]
        expected = {j for j in range(length) if j < sinks or p - window < j <= p}
        assert set(np.flatnonzero(seen)) == expected
        assert seen[max(sinks, 0) : length].sum() == max(0, min(window, length - sinks))


@pytest.mark.parametrize("ranges", [None, [], [(0, 0)], [(2, 9), (4, 5), (11, 40)]])
@pytest.mark.parametrize("window_right", [0, 1, 4])
@pytest.mark.parametrize("sinks", [0, 2])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_visible_is_its_sentence(
    window: int | None, sinks: int, window_right: int, ranges: list[tuple[int, int]] | None
) -> None:
    rows, keys = range(-2, 14), range(14)
    seen = reference.visible(rows, keys, window, sinks, window_right=window_right, ranges=ranges)
    options: dict[str, Any] = {
        "window": window,
        "sinks": sinks,
        "window_right": window_right,
        "ranges": ranges,
    }
    assert seen.tolist() == [[sees(p, j, **options) for j in keys] for p in rows]


def test_ranges_narrow_what_has_no_order_too() -> None:
    seen = reference.visible([0], range(6), causal=False, ranges=[(1, 2), (4, 6)])
    assert seen[0].tolist() == [False, True, False, False, True, True]


def test_distances() -> None:
    np.testing.assert_array_equal(reference.distances([3, 4], [0, 3, 5]), [[-3, 0, 2], [-4, -1, 1]])
    # S = 2, W = 3: from p = 5 on the row looks at the sinks from slot 4 of the cache.
    np.testing.assert_array_equal(
        reference.distances([3, 4, 5, 900], [0, 1, 4, 900], window=3, sinks=2),
        [[-3, -2, 1, 897], [-4, -3, 0, 896], [-4, -3, -1, 895], [-4, -3, -896, 0]],
    )
    np.testing.assert_array_equal(reference.sink_position([3, 4, 5, 900], 3, 2), [3, 4, 4, 4])
    np.testing.assert_array_equal(reference.sink_position([3, 900], None, 0), [3, 900])


@pytest.mark.parametrize("sinks", [0, 1, 4])
@pytest.mark.parametrize("window", [1, 3, 8])
def test_visible_keys_are_as_far_as_their_slot_in_the_cache(window: int, sinks: int) -> None:
    """What a row sees, in order, is the cache: the sinks never look further away than its size."""
    for p in range(30):
        seen = np.flatnonzero(reference.visible([p], range(p + 1), window, sinks)[0])
        far = reference.distances([p], seen, window, sinks)[0]
        assert far.tolist() == list(range(1 - len(seen), 1))


@pytest.mark.parametrize("options", [{"window": 4}, {"sinks": 1}, {"window_right": 1}], ids=str)
def test_window_without_order_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="causal=False takes no window"):
        reference.visible([3], [0, 1, 2, 3], causal=False, **options)


@pytest.mark.parametrize(
    "options",
    [{"window": 0}, {"window": -3}, {"sinks": -1}, {"window_right": -1}, {"ranges": [(3, 2)]}],
    ids=str,
)
def test_impossible_sizes_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"must .* got"):
        reference.visible([3], [0, 1, 2, 3], **options)
