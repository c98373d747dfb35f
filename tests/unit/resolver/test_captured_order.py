"""Changes of one row, captured in another order than they were made in, are laid end to end."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch_conflict_resolver.captured.order import UNKNOWN, end_to_end, is_chain, is_settled

IMAGES = st.sampled_from([None, b"a", b"b", b"c"])


@given(st.lists(IMAGES, min_size=2, max_size=8), st.data())
def test_whatever_the_order_of_capture_they_fit_and_lead_to_the_last_image(
    images: list[bytes | None], data: st.DataObject
) -> None:
    links = list(pairwise(images))
    shuffled = data.draw(st.permutations(links))
    around = images[0] if images[0] == images[-1] else UNKNOWN
    order = end_to_end(shuffled, [1] * len(shuffled), around)
    assert order is not None
    assert sorted(order) == list(range(len(links)))
    made = [shuffled[place] for place in order]
    assert is_chain(made)
    assert (made[0][0], made[-1][1]) == (images[0], images[-1])


def test_what_a_statement_set_off_came_after_it_where_nothing_else_tells() -> None:
    captured = [(b"b", b"a"), (b"a", b"b")]
    assert is_chain(captured)
    assert not is_settled(captured)
    assert end_to_end(captured, [2, 1]) == [1, 0]
    assert end_to_end(captured, [2, 1], b"b") == [0, 1]


def test_what_does_not_fit_is_told() -> None:
    assert end_to_end([(b"a", b"b"), (b"c", b"d")], [1, 1]) is None
