"""Two devices and one row: every conflict case, told to its end. Promises 2, 3, 6 and 7 on the way."""

from __future__ import annotations

import pytest

from anabranch.testkit.story import Teller, new_id

pytestmark = pytest.mark.slow
"""Each of its stories takes a second or two of several processes."""

TODO = {"todo": "id text primary key, title text, done boolean"}
BOOKS = {
    "author": "id text primary key, name text",
    "book": "id text primary key, author_id text, title text,"
    " constraint book_author foreign key (author_id) references @author (id)",
}


def test_updates_of_different_columns_are_merged(story: Teller) -> None:
    told = story(TODO)
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk", "done": False})
    told.sync()
    b.offline()
    b.update("todo", {"id": x, "done": True})
    a.update("todo", {"id": x, "title": "oat milk"})
    a.sync()
    b.online()
    told.sync()
    assert told.server("todo") == [(x, "oat milk", True)]
    assert (a.outcomes, b.outcomes) == ([["APPLIED"], ["APPLIED"]], [["MERGED"]])
    assert told.conflicts == []


def test_promise_6_with_order_server_the_later_arrival_wins_and_the_loser_can_be_read(story: Teller) -> None:
    told = story(TODO, policy={"order": "server"})
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk"})
    told.sync()
    b.offline()
    b.update("todo", {"id": x, "title": "from b"})
    a.update("todo", {"id": x, "title": "from a"})
    a.sync()
    b.online()
    told.sync()
    assert told.server("todo", "title") == [("from b",)]
    assert told.conflicts == [("todo", x, "title", "from a")]
    assert b.outcomes == [["OVERWROTE"]]


def test_with_order_edit_the_later_edit_wins_whichever_arrives_first(story: Teller) -> None:
    told = story(TODO, policy={"order": "edit"})
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk", "done": False})
    told.sync()
    b.offline()
    b.update("todo", {"id": x, "title": "early edit", "done": True})
    a.clock_offset_ms += 30
    a.update("todo", {"id": x, "title": "late edit"})
    a.sync()
    b.online()
    told.sync()
    assert told.server("todo") == [(x, "late edit", True)]
    assert told.conflicts == [("todo", x, "title", "early edit")]
    assert b.outcomes == [["SUPERSEDED"]]


def test_promise_2_an_update_of_a_deleted_row_is_rejected_with_its_whole_batch(story: Teller) -> None:
    told = story(TODO)
    a, b, x, y = told.node("a"), told.node("b"), new_id(), new_id()
    a.insert("todo", {"id": x, "title": "milk"}, {"id": y, "title": "eggs"})
    told.sync()
    b.offline()
    with b.batch() as db:
        db.table("todo").update({"id": x, "title": "oat milk"})
        db.table("todo").update({"id": y, "title": "two eggs"})
    assert b.rows("todo", "id", "title") == sorted([(x, "oat milk"), (y, "two eggs")])
    a.delete("todo", x)
    a.sync()
    b.online()
    told.sync()
    assert told.server("todo", "id", "title") == [(y, "eggs")]
    assert (a.dead, b.dead) == ([], [("ROW_DELETED", "todo")])


def test_a_delete_by_a_node_that_had_not_seen_an_update_is_rejected_one_by_a_node_that_had_applies(
    story: Teller,
) -> None:
    told = story(TODO)
    a, b, x, y = told.node("a"), told.node("b"), new_id(), new_id()
    a.insert("todo", {"id": x, "title": "milk"}, {"id": y, "title": "eggs"})
    told.sync()
    b.offline()
    b.delete("todo", x)
    a.update("todo", {"id": x, "title": "oat milk"}, {"id": y, "title": "two eggs"})
    a.sync()
    b.online()
    told.sync()
    b.delete("todo", y)
    told.sync()
    assert told.server("todo", "id", "title") == [(x, "oat milk")]
    assert b.outcomes == ["CONCURRENT_UPDATE", ["APPLIED"]]
    [letter] = b.db.dead_letters()
    assert (letter.reason, letter.key) == ("CONCURRENT_UPDATE", (x,))
    assert letter.server_row == {"id": x, "title": "oat milk", "done": None}


def test_of_two_deletes_the_second_is_rejected_and_the_row_stays_deleted(story: Teller) -> None:
    told = story(TODO)
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk"})
    told.sync()
    b.offline()
    b.delete("todo", x)
    a.delete("todo", x)
    a.sync()
    b.online()
    told.sync()
    assert told.server("todo") == []
    assert b.dead == [("ALREADY_DELETED", "todo")]


def test_an_insert_of_a_key_that_exists_or_existed_is_rejected(story: Teller) -> None:
    told = story(TODO)
    a, b, x, y = told.node("a"), told.node("b"), new_id(), new_id()
    b.offline()
    for key in (x, y):
        b.insert("todo", {"id": key, "title": "from b"})
    for key in (x, y):
        a.insert("todo", {"id": key, "title": "from a"})
    a.sync()
    a.delete("todo", y)
    a.sync()
    b.online()
    told.sync()
    assert told.server("todo", "id", "title") == [(x, "from a")]
    assert b.dead == [("ROW_EXISTS", "todo"), ("ROW_DELETED", "todo")]


def test_a_row_that_refers_to_one_the_server_lacks_is_rejected_and_the_other_batches_go_through(story: Teller) -> None:
    told = story(BOOKS)
    a, b = told.node("a"), told.node("b")
    p, q, k = new_id(), new_id(), new_id()
    a.insert("author", {"id": p, "name": "Ursula"})
    told.sync()
    b.offline()
    b.insert("book", {"id": k, "author_id": p, "title": "The Dispossessed"})
    b.insert("author", {"id": q, "name": "Stanislaw"})
    a.delete("author", p)
    a.sync()
    b.online()
    told.sync()
    assert told.server("author") == [(q, "Stanislaw")]
    assert told.server("book") == []
    assert b.outcomes == ["CONSTRAINT", ["APPLIED"]]
    [letter] = b.db.dead_letters()
    assert (letter.table, letter.constraint, letter.sqlstate) == ("book", "book_author", "23503")
    assert not letter.still_shown


def test_promise_7_after_a_rejection_later_batches_that_still_make_sense_are_kept(story: Teller) -> None:
    told = story(TODO)
    a, b, x, y = told.node("a"), told.node("b"), new_id(), new_id()
    a.insert("todo", {"id": x, "title": "milk", "done": False}, {"id": y, "title": "eggs", "done": False})
    told.sync()
    b.offline()
    b.update("todo", {"id": x, "title": "b1"})
    b.update("todo", {"id": y, "title": "b2"})
    b.update("todo", {"id": x, "done": True})
    b.update("todo", {"id": y, "done": True})
    a.delete("todo", x)
    a.sync()
    b.online()
    told.sync()
    assert told.server("todo") == [(y, "b2", True)]
    assert b.outcomes == ["ROW_DELETED", ["APPLIED"], "ROW_DELETED", ["APPLIED"]]
    assert b.dead == [("ROW_DELETED", "todo")] * 2


def test_a_dead_letter_is_edited_and_replayed_as_a_new_batch(story: Teller) -> None:
    told = story(BOOKS)
    a, b, p, k = told.node("a"), told.node("b"), new_id(), new_id()
    a.insert("author", {"id": p, "name": "Ursula"})
    told.sync()
    b.insert("book", {"id": k, "author_id": "nobody", "title": "one"})
    told.sync()
    assert b.dead == [("CONSTRAINT", "book")]
    assert b.rows("book") == []
    first = b.made[0].id
    again = b.replay(1, set={"author_id": p})
    assert again > first
    assert b.dead == []
    assert b.rows("book") == [(k, p, "one")]
    told.sync()
    assert told.server("book") == [(k, p, "one")]
    assert b.outcomes == ["CONSTRAINT", ["APPLIED"]]


def test_a_nodes_own_later_write_does_not_hide_that_it_never_saw_anothers(story: Teller) -> None:
    told = story(TODO)
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk", "done": False})
    told.sync()
    a.offline()
    a.update("todo", {"id": x, "title": "from a"})
    a.delete("todo", x)
    b.update("todo", {"id": x, "title": "from b", "done": True})
    b.sync()
    a.online()
    told.sync()
    assert told.server("todo") == [(x, "from a", True)]
    assert a.outcomes == [["APPLIED"], ["OVERWROTE"], "CONCURRENT_UPDATE"]
    assert told.conflicts == [("todo", x, "title", "from b")]


def test_promise_3_counters_add_up_once_and_max_keeps_the_larger(story: Teller) -> None:
    told = story(
        {"stock": "id text primary key, n bigint, seen bigint, note text"},
        table_policies={"stock": {"columns": {"n": "counter", "seen": "max"}}},
    )
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("stock", {"id": x, "n": 10, "seen": 5, "note": ""})
    told.sync()
    b.offline()
    b.update("stock", {"id": x, "n": 7, "seen": 6})
    a.update("stock", {"id": x, "n": 15, "seen": 9, "note": "in"})
    a.sync()
    b.online()
    b.network.lose_answers(1)
    try:
        b.sync()
    except Exception as error:  # the answer is lost; the next sync finds the verdict
        assert "UNAVAILABLE" in str(error)  # noqa: PT017
    else:
        raise AssertionError("the answer was not lost")
    told.sync()
    verdicts = b.resend(1, times=3)
    assert [v.SerializeToString() for v in verdicts] == [b.verdicts[0].SerializeToString()] * 3
    assert told.server("stock") == [(x, 12, 9, "in")]


def test_what_a_node_did_to_its_own_refused_insert_never_touches_the_other_nodes_row(story: Teller) -> None:
    told = story(TODO)
    a, b, x = told.node("a"), told.node("b"), new_id()
    b.offline()
    b.insert("todo", {"id": x, "title": "from b"})
    b.update("todo", {"id": x, "title": "from b again"})
    a.insert("todo", {"id": x, "title": "from a"})
    a.sync()
    b.online()
    told.sync()
    assert told.server("todo", "id", "title") == [(x, "from a")]
    assert b.dead == [("ROW_EXISTS", "todo"), ("ROW_DELETED", "todo")]
    assert told.conflicts == []


def test_promise_7_an_update_of_a_refused_insert_is_refused_at_once(story: Teller) -> None:
    told = story(BOOKS, policy={"park_ms": 600_000})
    a, k = told.node("a"), new_id()
    a.insert("book", {"id": k, "author_id": "nobody", "title": "one"})
    a.update("book", {"id": k, "title": "two"})
    # Within the call, which is far shorter than the park time.
    assert a.db.flush(timeout_s=20)
    assert a.dead == [("CONSTRAINT", "book"), ("ROW_NOT_FOUND", "book")]
    assert a.db.status().queued == 0
