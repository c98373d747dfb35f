"""Late arrival, sentence by sentence. Node a's batches are made at 10, 20, 30...; the park time is over at once, unless
said otherwise."""

from __future__ import annotations

import pytest

from anabranch.merge import Mutation, MutationType, Outcome, Policy, Write, applied, place_of
from anabranch.testkit.memory_batches import batch, delete, insert, update
from anabranch.testkit.memory_node import ulid
from anabranch.testkit.memory_server import MemoryServer, MemoryTable, MemoryVerdict, Sent

OLD = {"id": "x", "title": "old", "done": False, "note": None}
TODO = MemoryTable({"id": None, "title": "untitled", "done": False, "note": None})


class Story:
    """A server on which each batch is a group of its own, positions 100, 200, 300..."""

    def __init__(self, policy: Policy | None = None, row: dict[str, object] | None = OLD) -> None:
        self.server = MemoryServer({"todo": TODO}, policy or Policy(), 0)
        if row is not None:
            self.server.preset("todo", "x", row)

    def comes(self, made: int, *mutations: Mutation, node: str = "a", basis: int = 0) -> MemoryVerdict:
        """A batch arrives alone and is decided."""
        sent = Sent(ulid(made, 0), node, basis, made, mutations)
        now = (self.server.now // 100 + 1) * 100
        self.server.send(sent, now)
        self.server.commit(now)
        return self.server.verdicts[sent.id]

    @property
    def row(self) -> dict[str, object] | None:
        row = self.server.live().get(("todo", "x"))
        return dict(row) if row is not None else None

    def logged(self) -> list[tuple[int, MutationType | None, dict[str, object]]]:
        return [(b.position, e.type, dict(e.values)) for b in self.server.log for e in b.effects]


def ends(verdict: MemoryVerdict, *outcomes: Outcome) -> None:
    assert (verdict.reason, verdict.outcomes) == ("", outcomes)


def dies(verdict: MemoryVerdict, reason: str) -> None:
    assert verdict.reason == reason


# place


def test_the_place_of_a_batch_is_the_smallest_position_among_later_accepted_ones_of_its_node() -> None:
    accepted = [("C", 300), ("D", 200), ("A", 100)]
    assert place_of("B", 400, accepted) == 200
    assert place_of("D", 400, accepted) == 400, "without such it is its own position"
    assert place_of("C", 400, accepted) == 200


def test_place_counts_whatever_rows_the_later_batch_touched() -> None:
    """a's later batch at 100 is of another row; b writes x at 200; a's late one, placed at 100, stands before it."""
    story = Story()
    story.comes(20, insert("y"))
    story.comes(15, update("x", title="from b"), node="b")
    ends(story.comes(10, update("x", title="from a")), Outcome.SUPERSEDED)
    assert story.row is not None
    assert story.row["title"] == "from b"


def test_place_does_not_count_later_batches_that_were_rejected_or_of_other_nodes() -> None:
    story = Story()
    dies(story.comes(20, insert("x")), "ROW_EXISTS")
    story.comes(30, update("x", title="from b"), node="b")
    ends(story.comes(10, update("x", title="from a")), Outcome.OVERWROTE)


# columns


def test_a_late_update_gets_the_columns_that_no_later_batch_wrote_and_no_others() -> None:
    story = Story()
    ends(story.comes(20, update("x", title="second")), Outcome.APPLIED)
    ends(story.comes(10, update("x", title="first", done=True)), Outcome.SUPERSEDED)
    assert story.row == {**OLD, "title": "second", "done": True}


def test_superseded_by_an_own_later_write_is_no_conflict() -> None:
    story = Story()
    story.comes(20, update("x", title="second"))
    story.comes(10, update("x", title="first"))
    assert story.server.conflicts == []


def test_superseded_by_another_nodes_write_is_one() -> None:
    story = Story()
    story.comes(20, update("x", title="second"))
    story.comes(30, update("x", title="from b"), node="b", basis=100)
    ends(story.comes(10, update("x", title="first", done=True)), Outcome.SUPERSEDED)
    assert [(c.column, c.losing_value, c.winning_node) for c in story.server.conflicts] == [("title", "first", "b")]
    assert story.row == {**OLD, "title": "from b", "done": True}


def test_an_own_value_is_written_over_however_late_the_batch() -> None:
    """The second of two updates in one late batch stands, where nothing later wrote the column."""
    story = Story()
    story.comes(20, update("x", done=True))
    ends(story.comes(10, update("x", title="one"), update("x", title="two")), Outcome.APPLIED, Outcome.APPLIED)
    assert story.row == {**OLD, "title": "two", "done": True}


def test_an_insert_stamps_every_column_also_those_that_it_does_not_give() -> None:
    """delete at 20, insert at 30 without note; the late update of note, made at 10, was of the row before."""
    story = Story()
    story.comes(20, delete("x"))
    story.comes(30, insert("x", title="new"))
    ends(story.comes(10, update("x", note="old note")), Outcome.SUPERSEDED)
    assert story.row == {**OLD, "title": "new"}


def test_three_late_batches_end_as_in_order() -> None:
    story = Story()
    story.comes(40, update("x", title="4"))
    story.comes(30, update("x", title="3", done=True))
    story.comes(10, update("x", title="1", done=False, note="1"))
    story.comes(20, update("x", note="2"))
    assert story.row == {**OLD, "title": "4", "done": True, "note": "2"}


def test_with_order_edit_late_batches_of_one_node_end_as_in_order_too() -> None:
    story = Story(Policy(order="edit"))
    story.comes(20, update("x", title="second"))
    ends(story.comes(10, update("x", title="first", note="n")), Outcome.SUPERSEDED)
    assert story.row == {**OLD, "title": "second", "note": "n"}


def test_with_order_edit_a_clock_ahead_does_not_lift_a_late_batch_over_its_place() -> None:
    """a's ids are of the far future: its late batch still stands at the place of the later one, 100, before b's at 150,
    which was made after that."""
    story = Story(Policy(order="edit"))
    story.comes(10**7, insert("y"))
    story.comes(150, update("x", title="from b"), node="b")
    ends(story.comes(10**6, update("x", title="from a")), Outcome.SUPERSEDED)


# rows


@pytest.mark.parametrize("late", [update("x", title="late"), delete("x"), insert("x", title="late")])
def test_over_the_tombstone_of_a_later_own_batch_every_late_mutation_is_superseded(late: Mutation) -> None:
    story = Story()
    story.comes(20, delete("x"))
    ends(story.comes(10, late), Outcome.SUPERSEDED)
    assert story.row is None


@pytest.mark.parametrize(
    ("late", "reason"),
    [(update("x", title="late"), "ROW_DELETED"), (delete("x"), "ALREADY_DELETED"), (insert("x"), "ROW_DELETED")],
)
def test_where_another_wrote_the_row_since_the_basis_the_table_decides(late: Mutation, reason: str) -> None:
    """b wrote at 100; a saw that when it deleted the row, but not when it made the late batch. An insert so late would
    bring back what the node itself deleted after it."""
    story = Story()
    story.comes(5, update("x", title="from b"), node="b")
    story.comes(120, delete("x"), basis=100)
    dies(story.comes(10, late), reason)
    assert story.row is None


@pytest.mark.parametrize(
    ("between", "reason"),
    [(update("x", title="between"), "ROW_DELETED"), (delete("x"), "ALREADY_DELETED"), (insert("x"), "")],
)
def test_over_the_tombstone_of_an_earlier_own_batch_the_table_decides(between: Mutation, reason: str) -> None:
    """A later batch had written the row, and then a late one at 10 took it away, by a cascade: what was made at 20
    comes after that delete, though before the later write."""
    story = Story()
    story.comes(30, update("x", title="third"))
    late = batch(made=10, basis=0, position=200, place=100)
    rows = story.server.rows
    rows["todo", "x"] = applied(rows["todo", "x"], late, Write("todo", "x", MutationType.DELETE, {}, -1, -1))
    dies(story.comes(20, between), reason)


def test_a_late_delete_of_the_live_row_is_superseded() -> None:
    story = Story()
    story.comes(20, update("x", title="second"))
    ends(story.comes(10, delete("x")), Outcome.SUPERSEDED)
    assert story.row == {**OLD, "title": "second"}


def test_a_late_delete_is_rejected_where_another_wrote_since_the_basis() -> None:
    story = Story()
    story.comes(20, update("x", title="second"))
    story.comes(130, update("x", note="from b"), node="b", basis=100)
    dies(story.comes(10, delete("x")), "CONCURRENT_UPDATE")


def test_a_late_insert_writes_only_columns_whose_stored_key_is_older() -> None:
    """Made: delete at 10, insert at 20, update of done at 30. They come the other way round."""
    story = Story()
    ends(story.comes(30, update("x", done=True)), Outcome.APPLIED)
    ends(story.comes(20, insert("x", title="new", done=False)), Outcome.SUPERSEDED)
    ends(story.comes(10, delete("x")), Outcome.SUPERSEDED)
    assert story.row == {**OLD, "title": "new", "done": True}


def test_a_late_insert_sets_what_it_does_not_give_to_its_default() -> None:
    """As in the right order: nothing of the old row shows."""
    story = Story(row={**OLD, "title": "old title", "note": "old note"})
    story.comes(30, update("x", done=True))
    story.comes(10, delete("x"))
    ends(story.comes(20, insert("x")), Outcome.APPLIED)
    assert story.row == {"id": "x", "title": "untitled", "done": True, "note": None}


@pytest.mark.parametrize("given", [{}, {"note": None}], ids=["a default is written", "nothing is written"])
def test_a_late_insert_becomes_the_rows_insert_though_nothing_of_it_is_left_to_write(given: dict[str, None]) -> None:
    """The update at 5 was of the row before; it comes last of all and finds every column taken."""
    story = Story()
    story.comes(30, update("x", title="new", done=True))
    story.comes(10, delete("x"))
    ends(story.comes(20, insert("x", title="late", done=False, **given)), Outcome.SUPERSEDED)
    ends(story.comes(5, update("x", note="old note", title="older")), Outcome.SUPERSEDED)
    assert story.row == {**OLD, "title": "new", "done": True}


def test_nothing_is_left_of_a_late_insert_behind_a_later_insert() -> None:
    story = Story()
    story.comes(30, delete("x"), insert("x", title="third"))
    ends(story.comes(20, insert("x", title="second", note="second")), Outcome.SUPERSEDED)
    ends(story.comes(10, delete("x")), Outcome.SUPERSEDED)
    assert story.row == {**OLD, "title": "third"}


def test_a_late_batch_that_inserts_twice_ends_as_its_second_insert() -> None:
    story = Story()
    story.comes(30, update("x", title="third"))
    story.comes(20, insert("x", note="one"), delete("x"), insert("x", done=True))
    story.comes(10, delete("x"))
    assert story.row == {"id": "x", "title": "third", "done": True, "note": None}


def test_a_late_insert_is_rejected_where_another_wrote_since_the_basis() -> None:
    story = Story()
    story.comes(30, update("x", done=True))
    story.comes(130, update("x", note="from b"), node="b", basis=100)
    dies(story.comes(20, insert("x", title="new")), "ROW_EXISTS")


# delete: wins, resurrect

WINS = Policy(delete="wins")


@pytest.mark.parametrize("column", ["title", "note"])
def test_with_delete_wins_a_late_delete_is_superseded_even_if_others_wrote(column: str) -> None:
    """Also where nothing of the own later write is left: b wrote that very column."""
    story = Story(WINS)
    story.comes(20, update("x", title="second"))
    story.comes(130, update("x", None, **{column: "from b"}), node="b", basis=100)
    ends(story.comes(10, delete("x")), Outcome.SUPERSEDED)
    assert story.row is not None
    assert story.row[column] == "from b"


def test_with_delete_wins_a_late_delete_over_anothers_tombstone_is_superseded_too() -> None:
    story = Story(WINS)
    story.comes(20, update("x", title="second"))
    story.comes(130, delete("x"), node="b", basis=100)
    ends(story.comes(10, delete("x")), Outcome.SUPERSEDED)


def test_with_delete_wins_a_delete_that_is_not_late_wins() -> None:
    story = Story(WINS)
    story.comes(5, update("x", title="second"))
    story.comes(130, update("x", title="from b"), node="b", basis=100)
    ends(story.comes(20, delete("x")), Outcome.OVERWROTE)
    assert story.row is None
    assert [c.losing_value for c in story.server.conflicts] == ["from b"]


def test_resurrect_never_applies_to_an_insert_older_than_an_accepted_own_write_of_the_row() -> None:
    """b deleted what a had gone on to write: the late insert brings nothing back."""
    story = Story(Policy(resurrect=True))
    story.comes(30, update("x", title="third"))
    story.comes(130, delete("x"), node="b", basis=100)
    dies(story.comes(20, insert("x", title="second")), "ROW_DELETED")
    ends(story.comes(40, insert("x", title="fourth")), Outcome.APPLIED)


def test_a_row_remembers_who_was_overtaken_through_several_owners() -> None:
    story = Story(WINS)
    story.comes(20, update("x", title="a"))
    story.comes(130, update("x", title="b"), node="b", basis=100)
    story.comes(240, update("x", title="c"), node="c", basis=200)
    ends(story.comes(10, delete("x")), Outcome.SUPERSEDED)
    ends(story.comes(120, delete("x"), node="b", basis=100), Outcome.SUPERSEDED)


# real positions


def test_concurrency_is_judged_by_the_real_position_of_the_row() -> None:
    """a's late batch is placed at 100 but stands at 200: b, who had seen 100, has not seen it."""
    story = Story()
    story.comes(20, update("x", title="second"))
    story.comes(10, update("x", note="late"))
    dies(story.comes(130, delete("x"), node="b", basis=100), "CONCURRENT_UPDATE")
    ends(story.comes(230, delete("x"), node="b", basis=200), Outcome.APPLIED)


def test_concurrency_is_judged_by_the_real_position_of_each_column() -> None:
    story = Story()
    story.comes(20, update("x", title="second"))
    story.comes(10, update("x", note="late"))
    ends(story.comes(130, update("x", title="b"), node="b", basis=100), Outcome.MERGED)
    ends(story.comes(140, update("x", note="b"), node="b", basis=100), Outcome.OVERWROTE)


def test_the_log_entry_stands_at_its_real_position_with_what_it_really_changed() -> None:
    story = Story()
    story.comes(20, update("x", title="second"))
    story.comes(10, update("x", title="first", done=True))
    story.comes(5, update("x", title="zero"))
    assert story.logged() == [
        (100, MutationType.UPDATE, {"title": "second"}),
        (200, MutationType.UPDATE, {"done": True}),
        (300, None, {}),
    ]


# counter, max and min

STOCK = MemoryTable({"id": None, "n": 0, "seen": 0, "low": 0})
SUMS = Policy(columns={"n": "counter", "seen": "max", "low": "min"})


def stock() -> Story:
    story = Story(SUMS, None)
    story.server = MemoryServer({"todo": STOCK}, SUMS, 0)
    story.server.preset("todo", "x", {"id": "x", "n": 10, "seen": 5, "low": 5})
    return story


def test_counter_max_and_min_ignore_keys() -> None:
    story = stock()
    story.comes(20, update("x", {"n": 13}, n=14, seen=7, low=4))
    ends(story.comes(10, update("x", {"n": 10}, n=13, seen=9, low=6)), Outcome.APPLIED)
    assert story.row == {"id": "x", "n": 14, "seen": 9, "low": 4}


def test_except_that_an_update_older_than_the_rows_insert_is_superseded() -> None:
    story = stock()
    story.comes(20, delete("x"))
    story.comes(30, insert("x", n=1, seen=1, low=1))
    ends(story.comes(10, update("x", {"n": 10}, n=13, seen=9, low=0)), Outcome.SUPERSEDED)
    assert story.row == {"id": "x", "n": 1, "seen": 1, "low": 1}


def test_a_late_update_of_a_counter_leaves_the_later_ones_stamp() -> None:
    """Else the insert at 15, coming last, would take the column from the update at 20."""
    story = stock()
    story.comes(20, update("x", {"n": 1}, n=3))
    story.comes(10, update("x", {"n": 10}, n=11))
    story.comes(14, delete("x"))
    ends(story.comes(15, insert("x", n=1)), Outcome.SUPERSEDED)
    assert story.row is not None
    assert story.row["n"] == 13
