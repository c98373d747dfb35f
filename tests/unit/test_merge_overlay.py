"""The rows that a device shows: the base and what is pending on it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from anabranch.merge import MutationType, Pending, Policy, shown

INSERT, UPDATE, DELETE = MutationType
BASE = {"id": "x", "title": "milk", "n": 10}
SUMS = Policy(columns={"n": "counter"})


def insert(**values: object) -> Pending:
    return Pending(INSERT, values)


def update(**values: object) -> Pending:
    return Pending(UPDATE, values)


DELETED = Pending(DELETE, {})


@pytest.mark.parametrize(
    ("base", "pending", "row"),
    [
        (BASE, [], BASE),
        (None, [], None),
        (None, [insert(id="x", title="new")], {"id": "x", "title": "new"}),
        (BASE, [update(title="oat")], {**BASE, "title": "oat"}),
        (BASE, [update(title="one"), update(title="two")], {**BASE, "title": "two"}),
        (BASE, [DELETED], None),
        (BASE, [DELETED, insert(id="x", title="new")], {"id": "x", "title": "new"}),
        (None, [insert(id="x", n=1), update(n=2), DELETED], None),
        # A pending insert of a row that the base has shows as an update of its columns.
        (BASE, [insert(id="x", title="mine")], {**BASE, "title": "mine"}),
        (BASE, [insert(id="x", title="mine"), update(n=3)], {**BASE, "title": "mine", "n": 3}),
        # Any other that no longer fits shows nothing.
        (None, [update(title="oat")], None),
        (None, [DELETED], None),
        (BASE, [DELETED, update(title="oat")], None),
        (None, [update(title="oat"), insert(id="x", title="new")], {"id": "x", "title": "new"}),
    ],
)
def test_the_row_shown(
    base: Mapping[str, object] | None, pending: list[Pending], row: Mapping[str, object] | None
) -> None:
    assert shown(base, pending, Policy()) == row


def test_a_base_with_nothing_on_it_is_shown_as_it_is() -> None:
    assert shown(BASE, [], Policy()) is BASE


def test_nothing_that_was_given_is_changed() -> None:
    values = {"title": "oat"}
    shown(BASE, [Pending(UPDATE, values), update(n=2)], Policy())
    assert BASE == {"id": "x", "title": "milk", "n": 10}
    assert values == {"title": "oat"}


def test_computed_columns_show_by_their_policy_over_the_base() -> None:
    policy = Policy(columns={"n": "counter", "seen": "max", "low": "min"})
    base = {"n": 20, "seen": 5, "low": 5}
    pending = Pending(UPDATE, {"n": 13, "seen": 4, "low": 4}, {"n": 10, "seen": 3, "low": 9})
    assert shown(base, [pending], policy) == {"n": 23, "seen": 5, "low": 4}
    assert shown(base, [pending, pending], policy) == {"n": 26, "seen": 5, "low": 4}


def test_a_counter_past_64_bits_shows_what_is_there() -> None:
    assert shown({"n": 2**63 - 1}, [Pending(UPDATE, {"n": 1}, {"n": 0})], SUMS) == {"n": 2**63 - 1}


def test_a_pending_insert_of_a_row_that_is_there_shows_as_an_update_by_policy_too() -> None:
    """It has no undo: nobody can tell what it added to a counter, which is set."""
    policy = Policy(columns={"n": "counter", "seen": "max"})
    base = {"id": "x", "n": 10, "seen": 5}
    assert shown(base, [insert(id="x", n=3, seen=4)], policy) == {"id": "x", "n": 3, "seen": 5}


def test_a_guarded_column_shows_what_was_written() -> None:
    assert shown(BASE, [update(title="oat")], Policy(columns={"title": "reject"})) == {**BASE, "title": "oat"}


# A batch that the log has shown, and that waits in the queue for an earlier one of the row.


def test_what_was_seen_hides_what_an_earlier_batch_still_does_there() -> None:
    base = {**BASE, "title": "second"}
    pending = [Pending(UPDATE, {"title": "first", "n": 11}), Pending(UPDATE, {"title": "second"}, None, True)]
    assert shown(base, pending, Policy()) == {**BASE, "title": "second", "n": 11}


def test_what_was_seen_does_not_hide_what_another_node_wrote_after_it() -> None:
    base = {**BASE, "title": "from b"}
    pending = [Pending(UPDATE, {"title": "first"}), Pending(UPDATE, {"title": "second"}, None, True)]
    assert shown(base, pending, Policy()) == base


def test_what_was_seen_of_a_counter_is_not_added_twice() -> None:
    base = {**BASE, "n": 15}
    pending = [Pending(UPDATE, {"n": 11}, {"n": 10}), Pending(UPDATE, {"n": 16}, {"n": 11}, True)]
    assert shown(base, pending, SUMS) == {**BASE, "n": 16}


@pytest.mark.parametrize("seen", [Pending(DELETE, {}, None, True), Pending(INSERT, BASE, None, True)])
def test_a_row_that_was_seen_deleted_or_inserted_is_the_bases(seen: Pending) -> None:
    for base in (BASE, None):
        assert shown(base, [update(title="first"), seen], Policy()) == base
        assert shown(base, [DELETED, seen], Policy()) == base


def test_a_row_that_was_seen_updated_is_there_whatever_an_earlier_delete_shows() -> None:
    pending = [DELETED, Pending(UPDATE, {"title": "milk"}, None, True)]
    assert shown(BASE, pending, Policy()) == BASE
    assert shown(None, pending, Policy()) is None
    assert shown(None, [insert(**BASE), *pending[1:]], Policy()) is None, "somebody has deleted it since"
