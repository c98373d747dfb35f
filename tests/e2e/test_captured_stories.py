"""Changes that others make by SQL, and that cascades and triggers make, come to devices: in order, judged, equal at the
end."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from anabranch.store.session.engine import connect
from anabranch.store.session.errors import PostgresError
from anabranch.testkit.story import Story, Teller, new_id

TODO = {"todo": "id text primary key, title text, done boolean"}
LISTS = {
    "list": "id text primary key, name text, touched bigint",
    "todo": "id text primary key, list_id text references @list (id) on delete cascade, title text",
    "pin": "id text primary key, list_id text references @list (id) on delete set null, label text",
}
TOUCH = [
    "create function @touch() returns trigger language plpgsql as $f$ begin"
    " update @list set touched = coalesce(touched, 0) + 1 where id = new.list_id;"
    " new.title := upper(new.title); return new; end $f$",
    "create trigger touch before insert or update on @todo for each row execute function @touch()",
]


@pytest.mark.slow
def test_what_the_backend_writes_by_sql_reaches_every_node_and_takes_part_in_conflicts(story: Teller) -> None:
    told = story(TODO)
    a, b, x, y = told.node("a"), told.node("b"), new_id(), new_id()
    a.insert("todo", {"id": x, "title": "milk", "done": False}, {"id": y, "title": "eggs", "done": False})
    told.sync()
    b.offline()
    b.update("todo", {"id": x, "done": True})
    b.delete("todo", y)
    told.sql(f"update {told.name}.todo set title = title || ' (backend)'")
    told.sql(f"insert into {told.name}.todo (id, title, done) values ('from-sql', 'bread', true)")
    told.drained()
    b.online()
    told.sync()
    expected = sorted([(x, "milk (backend)", True), (y, "eggs (backend)", False), ("from-sql", "bread", True)])
    assert told.server("todo") == expected
    assert [row[0] for row in b.rows("todo")] == [row[0] for row in expected]
    assert [reason for reason, _ in b.dead] == ["CONCURRENT_UPDATE"]
    assert b.outcomes[0] == ["MERGED"]


@pytest.mark.slow
def test_rows_of_cascades_and_triggers_reach_every_node(story: Teller) -> None:
    told = story(LISTS, setup=TOUCH)
    a, b = told.node("a"), told.node("b")
    ell, em, t, u, p = (new_id() for _ in range(5))
    with a.batch() as db:
        db.table("list").insert([{"id": ell, "name": "l", "touched": 0}, {"id": em, "name": "m", "touched": 0}])
        db.table("todo").insert([{"id": t, "list_id": ell, "title": "milk"}, {"id": u, "list_id": em, "title": "eggs"}])
        db.table("pin").insert([{"id": p, "list_id": ell, "label": "p"}])
    told.sync()
    b.delete("list", ell)
    told.sync()
    assert told.server("list") == [(em, "m", 1)]
    assert told.server("todo") == [(u, em, "EGGS")]
    assert told.server("pin") == [(p, None, "p")]
    assert (a.outcomes, b.outcomes) == ([["APPLIED"] * 3], [["APPLIED"]])


@pytest.mark.slow
def test_truncate_reaches_devices_and_what_comes_after_it_too(story: Teller) -> None:
    """O13. More rows than a page of the log has."""
    told = story(TODO)
    told.sql(f"insert into {told.name}.todo select 'n' || i, 'title', false from generate_series(1, 5000) i")
    told.drained()
    a, b = told.node("a"), told.node("b")
    assert len(a.rows("todo")) == 5_000
    late = connect(told.stack.database_url, application_name="late")
    late.execute(f"insert into {told.name}.todo values ('early', 'x', true)".encode())
    late.commit()
    late.execute(f"truncate {told.name}.todo".encode())
    late.execute(f"insert into {told.name}.todo values ('late', 'x', true)".encode())
    a.read()
    late.commit()
    late.close()
    told.sync()
    assert [row[0] for row in a.rows("todo")] == [row[0] for row in b.rows("todo")] == ["late"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_large_rows_of_one_transaction_travel_in_pages_by_their_bytes(story: Teller) -> None:
    """L01, L03: 500 rows of 9 kB, and rows of a MiB, more than any message or piece takes, changed and deleted."""
    told = story(TODO)
    a = told.node("a")
    statements = (
        "insert into {0}.todo select 'n' || i, repeat('x', 9000), false from generate_series(1, 500) i",
        "insert into {0}.todo select 'm' || i, repeat(chr(64 + i), 1048576), false from generate_series(1, 20) i",
        "update {0}.todo set title = lower(title), done = true where id like 'm%'",
        "delete from {0}.todo where id like 'n%' or id < 'm15'",
    )
    for statement in statements:
        told.sql(statement.format(told.name))
        told.drained(60.0)
        a.read()
        assert told.server("todo") == [(key, title, bool(done)) for key, title, done in a.rows("todo")]
    assert len(a.rows("todo")) == 14


@pytest.mark.slow
@pytest.mark.parametrize("delete", ["rejects", "wins"])
def test_update_by_sql_against_delete_of_a_device(story: Teller, delete: str) -> None:
    """M05: the whole row or no row, the same everywhere."""
    told = story(TODO, policy={"delete": delete})
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk", "done": False})
    told.sync()
    b.offline()
    b.delete("todo", x)
    told.sql(f"update {told.name}.todo set title = 'by sql'")
    told.drained()
    b.online()
    told.sync()
    if delete == "wins":
        assert told.server("todo") == []
        assert told.conflicts == [("todo", x, "title", "by sql")]
    else:
        assert told.server("todo") == [(x, "by sql", False)]
        assert [reason for reason, _ in b.dead] == ["CONCURRENT_UPDATE"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_sql_and_devices_at_the_same_time_end_equal(story: Teller, seed: int) -> None:
    told = story(LISTS, setup=TOUCH)
    draw = random.Random(seed)
    nodes = [told.node(name) for name in "abc"]
    ids = [f"k{i}" for i in range(6)]
    stop = threading.Event()
    written: list[int] = []
    writers = [threading.Thread(target=_write, args=(told, seed * 10 + i, ids, stop, written)) for i in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(40):
            node = draw.choice(nodes)
            _change(node, draw, ids)
            if draw.random() < 0.5:
                node.sync()
            elif draw.random() < 0.3:
                node.read()
    finally:
        stop.set()
        for writer in writers:
            writer.join(30)
    assert sum(written) > 20
    told.sync()


def _write(told: Story, seed: int, ids: list[str], stop: threading.Event, written: list[int]) -> None:
    """Somebody who writes by SQL until told to stop."""
    draw, s, done = random.Random(seed), told.name, 0
    with connect(told.stack.database_url, application_name="backend") as conn:
        conn.execute("set lock_timeout = '2s'")
        conn.commit()
        while not stop.is_set():
            k, other = draw.choice(ids), draw.choice(ids)
            statement = draw.choice(
                [
                    f"insert into {s}.list values ('{k}', 'sql', 0) on conflict (id) do update set name = '{seed}'",
                    f"insert into {s}.todo values ('{k}', '{other}', 'sql') on conflict do nothing",
                    f"insert into {s}.pin values ('{k}', '{other}', 'sql') on conflict do nothing",
                    f"update {s}.todo set title = 'sql {done}' where id >= '{k}'",
                    f"update {s}.list set name = name || '.' where id <= '{k}'",
                    f"delete from {s}.list where id = '{k}'",
                    f"delete from {s}.todo where id = '{k}'",
                ]
            )
            try:
                conn.execute(statement.encode())
                if draw.random() < 0.6:
                    conn.commit()
                    done += 1
                elif draw.random() < 0.2:
                    conn.rollback()
            except PostgresError:
                conn.rollback()
            stop.wait(0.005)
        conn.commit()
    written.append(done)


def _change(node: Any, draw: random.Random, ids: list[str]) -> None:
    """A batch of whatever the device shows."""
    shown = {table: [row[0] for row in node.rows(table, "id")] for table in LISTS}
    table = draw.choice(list(LISTS))
    column = {"list": "name", "todo": "title", "pin": "label"}[table]
    free = [k for k in ids if k not in shown[table]]
    verb = draw.choice(["insert", "update", "update", "delete"])
    if verb == "insert" and free:
        row = {"id": draw.choice(free), column: "device"}
        if table != "list" and shown["list"]:
            row["list_id"] = draw.choice(shown["list"])
        node.insert(table, row)
    elif verb == "update" and shown[table]:
        node.update(table, {"id": draw.choice(shown[table]), column: f"device {draw.randrange(100)}"})
    elif verb == "delete" and shown[table]:
        node.delete(table, draw.choice(shown[table]))
