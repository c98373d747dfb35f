"""The database refuses writes, and the resolver makes something of it: waves, order, blame."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.store.catalog.registration import add_table
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.group import statements

BOOKS = """
create table author (id text primary key, name text);
create table book (id text primary key, author_id text, title text,
                   constraint book_author foreign key (author_id) references author (id));
"""
BOOK_NAMES = {"author": None, "book": None}


def refused(rig: ResolverRig, batch_id: str) -> tuple[str, str, str]:
    verdict = rig.verdict(batch_id)
    assert verdict is not None
    reason = rig.outcome(batch_id)
    assert isinstance(reason, str)
    return reason, verdict.constraint, verdict.sqlstate


def test_a_missing_reference_is_rejected_by_name_and_the_rest_goes_through(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(BOOKS, BOOK_NAMES)
    a = rig.node("a")
    bad = a.insert("book", {"id": "k", "author_id": "nobody", "title": "t"})
    good = a.insert("author", {"id": "q", "name": "Stanislaw"})
    rig.group()
    assert refused(rig, bad) == ("CONSTRAINT", "book_author", "23503")
    assert rig.outcome(good) == ["APPLIED"]
    verdict = rig.verdict(bad)
    assert verdict is not None
    [mutation] = verdict.mutations
    assert (mutation.table, mutation.key[0].string_value) == ("book", "k")
    assert "nobody" not in verdict.message, "no word of the database's own error text"


def test_parents_go_first_and_children_leave_first_whatever_the_order(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(BOOKS, BOOK_NAMES)
    a = rig.node("a")
    together = a.write(
        ("insert", "book", [{"id": "k", "author_id": "p", "title": "t"}]), ("insert", "author", [{"id": "p"}])
    )
    child = a.insert("book", {"id": "k2", "author_id": "p2", "title": "t"})
    parent = a.insert("author", {"id": "p2"})
    rig.group()
    assert [rig.outcome(one) for one in (together, child, parent)] == [["APPLIED"] * 2, ["APPLIED"], ["APPLIED"]]
    a.see()
    gone = a.write(("delete", "author", [{"id": "p"}]), ("delete", "book", [{"id": "k"}]))
    still = a.delete("author", {"id": "p2"})
    rig.group()
    assert rig.outcome(gone) == ["APPLIED"] * 2
    assert refused(rig, still) == ("CONSTRAINT", "book_author", "23503")
    assert rig.rows("book", "id") == [("k2",)]


def test_no_batch_is_refused_for_the_company_it_came_in(make_rig: Any) -> None:
    """A reference that was never good is left alone by updates of other columns, however many of them share a group."""
    old_dirt = """
    create table author (id text primary key, name text);
    create table book (id text primary key, author_id text, pages int, title text);
    insert into book values ('k', 'nobody', 1, 'zero');
    alter table book add constraint book_author foreign key (author_id) references author (id) not valid;
    """
    rig: ResolverRig = make_rig(old_dirt, BOOK_NAMES)
    a = rig.node("a")
    good = [a.update("book", {"id": "k", "title": title}) for title in ("one", "two", "three")]
    bad = a.update("book", {"id": "k", "author_id": "nobody else"})
    last = a.update("book", {"id": "k", "pages": 2})
    for _ in range(5):
        rig.group()
    assert [rig.outcome(one) for one in (*good, last)] == [["APPLIED"]] * 4
    assert refused(rig, bad) == ("CONSTRAINT", "book_author", "23503")
    assert rig.rows("book", "title", "author_id", "pages") == [("three", "nobody", 2)]


def test_a_circle_of_deferrable_keys_is_judged_after_the_wave(make_rig: Any) -> None:
    circle = """
    create table a (id text primary key, b_id text);
    create table b (id text primary key,
                    a_id text constraint b_a references a (id) deferrable initially deferred);
    alter table a add constraint a_b foreign key (b_id) references b (id) deferrable initially deferred;
    """
    rig: ResolverRig = make_rig(circle, {"a": None, "b": None})
    node = rig.node("n")
    good = node.write(("insert", "a", [{"id": "1", "b_id": "2"}]), ("insert", "b", [{"id": "2", "a_id": "1"}]))
    bad = node.insert("a", {"id": "3", "b_id": "nowhere"})
    later = node.update("a", {"id": "1", "b_id": None})
    rig.group()
    assert rig.outcome(good) == ["APPLIED"] * 2
    assert refused(rig, bad) == ("CONSTRAINT", "a_b", "23503")
    assert rig.outcome(later) == ["APPLIED"]


def test_a_circle_of_keys_that_can_not_wait_is_gone_through_in_the_batches_own_order(make_rig: Any) -> None:
    circle = """
    create table a (id text primary key, b_id text);
    create table b (id text primary key, a_id text constraint b_a references a (id));
    alter table a add constraint a_b foreign key (b_id) references b (id);
    """
    rig: ResolverRig = make_rig(circle, {"a": None, "b": None})
    node = rig.node("n")
    sent = [
        node.write(
            ("insert", first, [{"id": "1"}]),
            ("insert", second, [{"id": "1", f"{first}_id": "1"}]),
            ("update", first, [{"id": "1", f"{second}_id": "1"}]),
        )
        for first, second in (("a", "b"),)
    ]
    tree = node.write(
        ("insert", "b", [{"id": "2", "a_id": None}]),
        ("insert", "a", [{"id": "2", "b_id": "2"}]),
        ("insert", "b", [{"id": "3", "a_id": "2"}]),
    )
    rig.group()
    assert rig.outcome(sent[0]) == ["APPLIED"] * 3
    assert rig.outcome(tree) == ["APPLIED"] * 3


def test_rows_of_one_table_that_point_to_each_other(make_rig: Any) -> None:
    tree = "create table n (id text primary key, up text constraint n_up references n (id), note text)"
    rig: ResolverRig = make_rig(tree, {"n": None})
    a = rig.node("a")
    one = a.write(("insert", "n", [{"id": "2", "up": "1"}, {"id": "1", "up": None}]))
    # The parent gives other columns, so that it is another statement.
    two = a.write(("insert", "n", [{"id": "3", "note": "root"}]), ("insert", "n", [{"id": "4", "up": "3"}]))
    rig.group()
    assert rig.outcome(one) == ["APPLIED"]
    assert rig.outcome(two) == ["APPLIED"] * 2


KINDS = """
create table t (
    id text primary key,
    code text constraint t_code unique,
    n integer constraint t_n check (n > 0),
    needed text not null default 'd',
    span int4range,
    constraint t_span exclude using gist (span with &&)
);
"""


@pytest.mark.parametrize(
    ("row", "constraint", "sqlstate"),
    [
        ({"code": "taken"}, "t_code", "23505"),
        ({"n": -1}, "t_n", "23514"),
        ({"needed": None}, "", "23502"),
        ({"span": "[5,7)"}, "t_span", "23P01"),
        ({"n": 2**40}, "", "22003"),
    ],
)
def test_every_kind_of_constraint_is_named(make_rig: Any, row: dict[str, Any], constraint: str, sqlstate: str) -> None:
    rig: ResolverRig = make_rig(KINDS, {"t": None})
    a, b = rig.node("a"), rig.node("b")
    a.insert("t", {"id": "1", "code": "taken", "n": 1, "span": "[1,6)"})
    rig.group()
    around = [b.insert("t", {"id": f"r{i}", "n": i + 1}) for i in range(3)]
    bad = a.insert("t", {"id": "2", **row})
    after = [b.insert("t", {"id": f"s{i}", "n": i + 1}) for i in range(3)]
    rig.group()
    assert refused(rig, bad) == ("CONSTRAINT", constraint, sqlstate)
    assert [rig.outcome(one) for one in around + after] == [["APPLIED"]] * 6


def test_a_unique_value_is_handed_over_within_a_group(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table t (id text primary key, code text constraint t_code unique)", {"t": None})
    a = rig.node("a")
    a.insert("t", {"id": "1", "code": "c"})
    rig.group()
    a.see()
    free = a.delete("t", {"id": "1"})
    take = a.insert("t", {"id": "2", "code": "c"})
    both = a.write(("delete", "t", [{"id": "2"}]), ("insert", "t", [{"id": "3", "code": "c"}]))
    rig.group()
    assert [rig.outcome(one) for one in (free, take, both)] == [["APPLIED"], ["APPLIED"], ["APPLIED"] * 2]
    assert rig.rows("t") == [("3", "c")]


def test_a_shift_of_positions_that_are_unique_needs_no_luck(make_rig: Any) -> None:
    table = "create table item (id text primary key, pos bigint constraint item_pos unique)"
    rig: ResolverRig = make_rig(table, {"item": None})
    a = rig.node("a")
    a.insert("item", *({"id": str(9 - i), "pos": i} for i in range(5)))
    rig.group()
    a.see()
    shift = a.write(
        ("delete", "item", [{"id": "7"}]),
        ("update", "item", [{"id": "6", "pos": 2}, {"id": "5", "pos": 3}]),
    )
    rig.group()
    assert rig.outcome(shift) == ["APPLIED"] * 2
    assert sorted(pos for _, pos in rig.rows("item")) == [0, 1, 2, 3]


def test_one_bad_batch_among_two_hundred(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig: ResolverRig = make_rig(BOOKS, BOOK_NAMES)
    nodes = [rig.node(f"{i}") for i in range(4)]
    sent = []
    for i in range(200):
        row = {"id": f"{i:03}", "author_id": "nobody" if i == 137 else None, "title": "t"}
        sent.append(nodes[i % 4].insert("book", row))
    calls = 0
    real = statements._send

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*arguments)

    monkeypatch.setattr(statements, "_send", counted)
    rig.group()
    assert [i for i, one in enumerate(sent) if rig.outcome(one) != ["APPLIED"]] == [137]
    assert refused(rig, sent[137])[1] == "book_author"
    assert len(rig.rows("book")) == 199
    assert calls < 30, "halves, not single batches"


def test_several_bad_batches_of_several_kinds(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        "create table t (id text primary key, n bigint constraint t_n check (n >= 0), u text constraint t_u unique)",
        {"t": None},
    )
    a, b = rig.node("a"), rig.node("b")
    sent = []
    for i in range(60):
        row: dict[str, Any] = {
            "id": f"{i:02}",
            "n": -1 if i % 20 == 7 else i,
            "u": "same" if i in (11, 44) else f"u{i}",
        }
        sent.append((a if i % 2 else b).insert("t", row))
    rig.group()
    bad = {i: refused(rig, one)[1] for i, one in enumerate(sent) if rig.outcome(one) != ["APPLIED"]}
    assert bad == {7: "t_n", 27: "t_n", 47: "t_n", 44: "t_u"}


def test_a_batch_that_depends_on_a_bad_one_is_judged_by_what_is_then_there(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(BOOKS, BOOK_NAMES)
    a = rig.node("a")
    bad = a.insert("book", {"id": "k", "author_id": "nobody", "title": "t"})
    leans = a.send(a.make(("update", "book", [{"id": "k", "title": "u"}])), prev=bad)
    parent = a.send(a.make(("insert", "author", [{"id": "p"}])), prev=leans)
    child = a.send(a.make(("insert", "book", [{"id": "k2", "author_id": "p", "title": "t"}])), prev=parent)
    rig.group()
    assert [rig.outcome(one) for one in (bad, leans, parent, child)] == [
        "CONSTRAINT",
        "ROW_NOT_FOUND",
        ["APPLIED"],
        ["APPLIED"],
    ]


def test_a_hot_row_and_what_stands_beside_it(rig: ResolverRig) -> None:
    a = rig.node("a")
    a.insert("todo", {"id": "hot", "title": "0"})
    rig.group()
    nodes = [rig.node(f"{i}") for i in range(5)]
    sent = []
    for i in range(25):
        node = nodes[i % 5]
        node.basis = rig.head
        sent.append(node.update("todo", {"id": "hot", "title": str(i)}))
        sent.append(node.insert("todo", {"id": f"{i:02}"}))
    rig.group()
    assert len(rig.rows("todo")) == 26
    order = sorted(sent[0::2])
    assert dict(rig.rows("todo", "id", "title"))["hot"] == str(sent[0::2].index(order[-1]))
    assert [rig.outcome(one) for one in sent[1::2]] == [["APPLIED"]] * 25


SWALLOW = """
create table t (id text primary key, a text);
create function swallow() returns trigger language plpgsql as $$
begin
    if coalesce(new.a, old.a) like 'gone%' then return null; end if;
    return coalesce(new, old);
end $$;
create trigger swallow before insert or update or delete on t for each row execute function swallow();
"""


def test_a_trigger_that_swallows_a_write_is_an_error_of_that_batch(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(SWALLOW, {"t": None})
    a = rig.node("a")
    good = a.insert("t", {"id": "1", "a": "x"}, {"id": "9", "a": "y"})
    bad = a.write(("insert", "t", [{"id": "2", "a": "x"}]), ("insert", "t", [{"id": "3", "a": "gone"}]))
    rig.group()
    assert rig.outcome(good) == ["APPLIED"]
    assert rig.outcome(bad) == "NO_EFFECT"
    assert rig.rows("t") == [("1", "x"), ("9", "y")]
    a.see()
    late = a.update("t", {"id": "1", "a": "gone"})
    fine = a.update("t", {"id": "9", "a": "z"})
    rig.group()
    assert (rig.outcome(late), rig.outcome(fine)) == ("NO_EFFECT", ["APPLIED"])


def test_what_a_trigger_changes_in_the_row_itself_is_the_effect(make_rig: Any) -> None:
    tables = """
    create table t (id text primary key, a text, b text, double text generated always as (a || a) stored);
    create function fill() returns trigger language plpgsql as $$ begin new.b := upper(new.a); return new; end $$;
    create trigger fill before insert or update on t for each row execute function fill();
    """
    rig: ResolverRig = make_rig(tables, {"t": None})
    a = rig.node("a")
    a.insert("t", {"id": "1", "a": "x"})
    rig.group()
    a.see()
    a.update("t", {"id": "1", "a": "y"})
    rig.group()
    assert rig.rows("t") == [("1", "y", "Y", "yy")]
    [_, (changed,)] = rig.sql("select changed from anabranch.log order by position")
    assert changed == ["a", "b", "double"]


def test_what_an_application_raises_is_a_constraint_and_a_denial_is_forbidden(make_rig: Any) -> None:
    tables = """
    create table t (id text primary key, a text);
    create function no() returns trigger language plpgsql as $$
    begin
        if new.a like 'raise %' then raise exception 'no' using errcode = substr(new.a, 7); end if;
        return new;
    end $$;
    create trigger no before insert on t for each row execute function no();
    """
    rig: ResolverRig = make_rig(tables, {"t": None})
    a = rig.node("a")
    codes = {"P0001": "CONSTRAINT", "22012": "CONSTRAINT", "ZZ123": "CONSTRAINT", "42501": "FORBIDDEN"}
    sent = {code: a.insert("t", {"id": code, "a": f"raise {code}"}) for code in codes}
    good = a.insert("t", {"id": "g", "a": "good"})
    rig.group()
    assert {code: refused(rig, one)[0] for code, one in sent.items()} == codes
    assert refused(rig, sent["22012"])[2] == "22012"
    assert rig.outcome(good) == ["APPLIED"]


def test_a_row_that_appears_between_the_locks_and_the_insert_is_seen_on_the_second_look(
    rig: ResolverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = rig.node("a")
    real = statements._send
    done: list[bool] = []

    def late(*arguments: Any) -> Any:
        if not done:
            done.append(True)
            rig.sql("insert into app.todo values ('x', 'sql', true)")
        return real(*arguments)

    monkeypatch.setattr(statements, "_send", late)
    met = a.insert("todo", {"id": "x", "title": "a"})
    good = a.insert("todo", {"id": "y", "title": "a"})
    assert rig.commit is not None
    rig.commit(rig.database.id, 100, 0)
    assert rig.outcome(met) == "ROW_EXISTS"
    assert rig.outcome(good) == ["APPLIED"]


def test_what_the_tables_do_not_know_rejects_that_batch_alone(make_rig: Any) -> None:
    tables = "create table t (id uuid primary key, n bigint, s text, g bigint generated always as (n + 1) stored)"
    rig: ResolverRig = make_rig(tables, {"t": None})
    a = rig.node("a")
    key = "0b4f5c5e-4a57-4c5e-9a6e-000000000001"
    cases: dict[str, list[tuple[str, str, list[dict[str, Any]]]]] = {
        "UNKNOWN_TABLE": [("insert", "nowhere", [{"id": key}])],
        "UNKNOWN_COLUMN": [("insert", "t", [{"id": key, "zz": "1"}])],
        "INVALID_VALUE": [("insert", "t", [{"id": "no uuid"}])],
        "NUL_IN_TEXT": [("insert", "t", [{"id": key, "s": "a\0b"}])],
        "INCOMPLETE_KEY": [("insert", "t", [{"n": 1}])],
        "INVALID_COLUMNS": [("delete", "t", [{"id": key, "n": 1}])],
        "GENERATED_COLUMN": [("insert", "t", [{"id": key, "g": 3}])],
    }
    sent = {reason: a.write(*changes) for reason, changes in cases.items()}
    null_key = a.insert("t", {"id": None})
    good = a.insert("t", {"id": key.upper(), "n": 1})
    rig.group()
    assert {reason: rig.outcome(one) for reason, one in sent.items()} == {reason: reason for reason in cases}
    assert rig.outcome(null_key) == "INCOMPLETE_KEY"
    assert rig.outcome(good) == ["APPLIED"]
    assert [(str(i), n, g) for i, n, _, g in rig.rows("t")] == [(key, 1, 2)]


def test_a_table_registered_later_is_known_at_once(rig: ResolverRig) -> None:
    a = rig.node("a")
    before = a.insert("more", {"id": "1"})
    rig.group()
    rig.sql("create table app.more (id text primary key)")
    add_table(rig.conn, "app", "more")
    after = a.insert("more", {"id": "1"})
    rig.group()
    assert (rig.outcome(before), rig.outcome(after)) == ("UNKNOWN_TABLE", ["APPLIED"])
