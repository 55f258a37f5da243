import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondel.decoder.errors import InvalidSpec
from rondel.decoder.lm.stops import MAX_STOP_BYTES, MAX_STOPS, StopTexts

FEW = st.text("ab", max_size=4)


@given(pieces=st.lists(FEW, max_size=8), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_shows_what_is_before_the_earliest_stop(pieces: list[str], stops: list[str]) -> None:
    watch = StopTexts(stops)
    shown = ""
    for number, piece in enumerate(pieces):
        shown += watch.feed(piece)
        # Nothing is held back without need.
        if not watch.found:
            held = "".join(pieces[: number + 1])[len(shown) :]
            assert not held or any(stop.startswith(held) for stop in stops)
    shown += watch.flush()
    whole = "".join(pieces)
    ends = [whole.find(stop) for stop in stops if stop in whole]
    assert watch.found == bool(ends)
    # A stop that is completed first ends the text, even where another one began earlier.
    if not ends:
        assert shown == whole
    else:
        assert whole.startswith(shown)
        assert not any(stop in shown for stop in stops)


def test_a_stop_across_pieces_is_never_shown_in_part() -> None:
    watch = StopTexts(["STOP"])
    assert [watch.feed(piece) for piece in ("say S", "T", "OX S", "TO", "P more", "x")] == [
        "say ", "", "STOX ", "", "", "",
    ]  # fmt: skip
    assert watch.found


@pytest.mark.parametrize(
    "stops",
    [[""], ["x" * (MAX_STOP_BYTES + 1)], ["é" * (MAX_STOP_BYTES // 2 + 1)], ["x"] * (MAX_STOPS + 1), "text"],
)
def test_impossible_stops_are_refused(stops: list[str]) -> None:
    with pytest.raises(InvalidSpec, match="stop"):
        StopTexts(stops)
