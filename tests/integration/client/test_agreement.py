"""One value flipped on a device, one bit on the wire, one value in Postgres behind the triggers' back: each is found
and mended, and nothing else is touched."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from typing import Any

import pytest
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.client import CallFailed, Change, Repaired, State, SyncedDb
from anabranch.testkit.damage import BitFlip
from anabranch.testkit.exposition import shown
from anabranch.testkit.unseen import write_unseen
from anabranch.testkit.waiting import until
from anabranch.v1 import snapshot_pb2

ITEMS = {
    "items": "id bigint primary key, title text, price numeric, seen timestamptz, tags text[], ok boolean, "
    "weight double precision, raw bytea, info jsonb"
}
COUNT = 3_000
FILL = (
    "insert into items select i, 'title ' || i, i / 7.0, to_timestamp(i), array['a', null, i::text], i % 3 = 0, "
    "case when i % 50 = 0 then 'NaN' else i * 0.5 end, decode(lpad(to_hex(i), 8, '0'), 'hex'), "
    f"jsonb_build_object('n', i) from generate_series(1, {COUNT}) i"
)


def rows(device: SyncedDb) -> list[Any]:
    return device.execute("SELECT * FROM items ORDER BY id").fetchall()


def counted(here: Any) -> float:
    return shown(here.stack.metrics_addresses["snapshot"], "anabranch_sums_disagreed_total", database=here.name)


def run_verify(here: Any, *options: str) -> tuple[int, str]:
    arguments = ["verify", "--db", here.name, "--postgres-url", here.stack.database_url, *options]
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.output


@pytest.fixture
def here(place: Any) -> Any:
    return place(ITEMS, setup=[FILL])


@pytest.mark.slow
def test_a_value_flipped_on_a_device(here: Any) -> None:
    a = here.device("a")
    a.start(background=False)
    a.read()
    before, states, changes = rows(a), list[State](), list[Change]()
    a.on_state(states.append)
    a.on_change(changes.append)
    with closing(sqlite3.connect(here.folder / "a.db")) as conn, conn:
        write_unseen(conn, "UPDATE items SET price = '0.1' WHERE id = 1234")
    code, told = run_verify(here, "--device", str(here.folder / "a.db"))
    assert (code, told.splitlines()[1:]) == (
        1,
        ["  1234: price '0.1' on the device, '176.2857142857142857' on the server"],
    )
    assert a.verify() == ("items",)
    assert [(s.kind, s.table) for s in states] == [("sums_disagree", "items")]
    a.read()
    assert counted(here) == 1
    a.read()
    assert counted(here) == 1
    logged = [json.loads(line) for line in here.stack.log("snapshot").splitlines() if "a node's rows are not" in line]
    found = [(line["table"], line["position"]) for line in logged if line["database"] == here.name]
    assert found == [("items", states[0].position or 1)]
    assert a.repair("items") == Repaired(rows=1, pulled=False, agrees=True)
    assert rows(a) == before
    assert [(c.key, c.columns) for c in changes] == [((1234,), ("price",))]
    assert a.verify() == ()
    assert run_verify(here, "--device", str(here.folder / "a.db"))[0] == 0
    assert run_verify(here)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["/Get", "/Pull"])
def test_a_bit_flipped_on_the_wire(here: Any, method: str) -> None:
    wire = BitFlip()
    a, b = here.device("a", remote=here.remote(interceptors=[wire])), here.device("b")
    b.start(background=False)
    if method == "/Pull":
        wire.arm(method, b"title 777")
    a.start(background=False)
    if method == "/Get":
        wire.arm(method, b"from b")
        b.table("items").update([{"id": 776, "title": "from b"}, {"id": 777, "title": "from b, too"}])
        assert b.sync()
    a.read()
    until(lambda: not a._reader.verify_is_due())
    assert wire.flipped
    assert a.status().disagreeing == ("items",)
    assert sum(x != y for x, y in zip(rows(a), rows(b), strict=True)) == 1
    assert a.repair("items") == Repaired(rows=1, pulled=False, agrees=True)
    b.read()
    assert rows(a) == rows(b)
    assert a.verify() == ()
    # The repair's own call has told of it.
    assert counted(here) == 1


@pytest.mark.slow
def test_a_background_tells_app_and_operator_at_once(here: Any) -> None:
    wire = BitFlip()
    a, b = here.device("a", remote=here.remote(interceptors=[wire])), here.device("b")
    states: list[State] = []
    a.on_state(states.append)
    a.start()
    b.start(background=False)
    until(lambda: "online" in [s.kind for s in states])
    wire.arm("/Subscribe", b"from b")
    b.table("items").update({"id": 9, "title": "from b"})
    assert b.sync()
    until(lambda: "sums_disagree" in [s.kind for s in states])
    until(lambda: counted(here) == 1)
    assert a.repair("items") == Repaired(rows=1, pulled=False, agrees=True)
    b.table("items").update({"id": 9, "title": "once more"})
    assert b.sync()
    until(lambda: a.execute("SELECT title FROM items WHERE id = 9").fetchone() == ("once more",))
    assert a.status().disagreeing == ()


@pytest.mark.slow
def test_a_repair_under_writes_on_both_sides_finds_the_faults_alone(here: Any) -> None:
    a, b = here.device("a"), here.device("b")
    a.start(background=False)
    b.start(background=False)
    a.read()
    a.table("items").update({"id": 10, "title": "pending"})
    a.table("items").delete(11)
    a.table("items").insert({"id": 9_999, "title": "pending"})
    with closing(sqlite3.connect(here.folder / "a.db")) as conn, conn:
        write_unseen(conn, "UPDATE items SET title = 'flipped' WHERE id IN (20, 30)")
        write_unseen(conn, "DELETE FROM items WHERE id = 40")
        write_unseen(conn, "INSERT INTO items (id, title) VALUES (8888, 'nobody wrote it')")
    stop, wrote = threading.Event(), threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            b.table("items").update([{"id": i, "title": f"b {n}"} for i in range(1_000 + n % 7, 2_000, 97)])
            assert b.flush()
            if n == 3:
                wrote.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert wrote.wait(30)
    repaired = [a.repair("items") for _ in range(3)]
    stop.set()
    writer.join()
    assert repaired[0] == Repaired(rows=4, pulled=False, agrees=True)
    # Whatever b wrote in the meantime is no fault.
    assert repaired[1:] == [Repaired(rows=0, pulled=False, agrees=True)] * 2
    shown = {row[0]: row[1] for row in rows(a)}
    assert (shown[10], shown[20], shown[30], shown[40], shown[9_999]) == (
        "pending",
        "title 20",
        "title 30",
        "title 40",
        "pending",
    )
    assert 11 not in shown
    assert 8888 not in shown
    assert a.sync()
    b.read()
    assert a.verify() == b.verify() == ()
    assert rows(a) == rows(b)
    assert run_verify(here)[0] == 0


@pytest.mark.slow
def test_a_value_changed_in_postgres_behind_the_triggers_back(here: Any) -> None:
    a, b = here.device("a"), here.device("b")
    a.start(background=False)
    # The log has these whole, that one in part, and the others not at all.
    a.table("items").insert([{"id": 5_001, "title": "new"}, {"id": 5_002, "title": "new"}])
    a.table("items").update({"id": 50, "title": "updated"})
    assert a.sync()
    assert run_verify(here, "--table", "items")[0] == 0
    here.sql("alter table items disable trigger all")
    here.sql("update items set title = 'behind' where id in (50, 5001)")
    here.sql("delete from items where id = 5002")
    code, told = run_verify(here)
    assert code == 1
    assert told.splitlines()[1:] == [
        "  50: title 'behind' in the table, 'updated' in the log",
        "  5001: title 'behind' in the table, 'new' in the log",
        "  5002: only in the log has it",
    ]
    assert run_verify(here, "--adopt")[0] == 0
    b.start(background=False)
    until(lambda: (a.read(), a.execute("SELECT title FROM items WHERE id = 50").fetchone() == ("behind",))[1])
    assert a.execute("SELECT title FROM items WHERE id > 5000").fetchall() == [("behind",)]
    b.read()
    assert a.verify() == b.verify() == ()
    assert rows(a) == rows(b)
    assert (a.status().disagreeing, b.status().disagreeing) == ((), ())
    assert run_verify(here)[0] == 0


@pytest.mark.slow
def test_a_row_that_the_log_never_had_is_adopted_into_the_sum_and_repaired_on_devices(here: Any) -> None:
    a = here.device("a")
    a.start(background=False)
    a.read()
    here.sql("alter table items disable trigger all")
    here.sql("update items set title = 'behind' where id = 60")
    code, told = run_verify(here)
    assert (code, "rows that the log has never had" in told) == (1, True)
    code, told = run_verify(here, "--device", str(here.folder / "a.db"))
    assert (code, told.splitlines()[1:]) == (1, ["  60: title 'title 60' on the device, 'behind' on the server"])
    assert run_verify(here, "--adopt")[0] == 0
    a.read()
    assert a.status().disagreeing == ("items",)
    assert a.repair("items") == Repaired(rows=1, pulled=False, agrees=True)
    assert a.execute("SELECT title FROM items WHERE id = 60").fetchone() == ("behind",)
    assert run_verify(here, "--device", str(here.folder / "a.db"))[0] == 0


@pytest.mark.slow
def test_verify_refuses_what_it_cannot_tell(here: Any, place: Any) -> None:
    assert run_verify(here, "--table", "nothing")[0] == 2
    other = place({"items": "id bigint primary key"})
    b = other.device("b")
    b.start(background=False)
    code, told = run_verify(here, "--device", str(other.folder / "b.db"))
    assert (code, "NOT_COMPARABLE" in told) == (2, True)
    no_file = here.folder / "text.db"
    no_file.write_text("this is no SQLite file, whatever it is called")
    code, told = run_verify(here, "--device", str(no_file))
    assert (code, "INVALID_FILE" in told) == (2, True)
    with pytest.raises(CallFailed, match="there is no synced table"):
        _compare_nothing(here)


def _compare_nothing(here: Any) -> None:
    with closing(here.remote()) as remote:
        next(remote.compare(iter([snapshot_pb2.CompareRequest(db_name=here.name, table="nothing")])))


@pytest.mark.slow
def test_direct_writes_that_wait_for_the_resolver_are_no_faults(here: Any) -> None:
    a, b = here.device("a"), here.device("b")
    states: list[State] = []
    b.on_state(states.append)
    a.start(background=False)
    a.read()
    before = rows(a)
    pull = threading.Thread(target=lambda: b.start(background=False))
    here.stack.kill("conflict-resolver")
    try:
        here.sql("update items set title = 'direct' where id <= 5")
        here.sql("update items set title = 'direct, again' where id = 1")
        here.sql("update items set title = 'title 2' where id = 2")
        here.sql("delete from items where id = 6")
        here.sql("insert into items (id, title) values (6, 'anew')")
        here.sql("update items set id = 7000 where id = 7")
        here.sql("insert into items (id, title) values (7001, 'direct')")
        here.sql("delete from items where id = 8")
        assert here.sql("select count(*) > 0 from anabranch.captured") == [(True,)]
        assert run_verify(here)[0] == 0
        assert run_verify(here, "--device", str(here.folder / "a.db"))[0] == 0
        with closing(sqlite3.connect(here.folder / "a.db")) as conn, conn:
            write_unseen(conn, "UPDATE items SET title = 'flipped' WHERE id IN (3, 100)")
        assert a.repair("items") == Repaired(rows=2, pulled=False, agrees=True)
        assert rows(a) == before
        pull.start()
        # Everything has come but the end of the table, which waits for the drain.
        until(lambda: b.execute("SELECT count(*) FROM sqlite_master WHERE name = 'items'").fetchone() == (1,))
        until(lambda: b.execute("SELECT count(*) FROM items").fetchone() == (COUNT,))
        assert b.status().pulls == 0
    finally:
        here.stack.restart("conflict-resolver")
    pull.join()
    assert b.status().pulls == 1
    b.read()
    a.read()
    assert rows(a) == rows(b) != before
    assert a.execute("SELECT title FROM items WHERE id IN (1, 2, 6, 7000, 7001) ORDER BY id").fetchall() == [
        ("direct, again",),
        ("title 2",),
        ("anew",),
        ("title 7",),
        ("direct",),
    ]
    assert a.verify() == b.verify() == ()
    assert "sums_disagree" not in [state.kind for state in states]
    assert run_verify(here)[0] == 0


@pytest.mark.slow
def test_adoption_counts_where_a_resolver_has_kept_the_sums_of_its_last_group(here: Any) -> None:
    a = here.device("a")
    a.start(background=False)
    for n in range(3):
        # The resolver knows the sum after this group, and keeps it for the next one.
        a.table("items").insert({"id": 6_000 + n, "title": "logged"})
        assert a.sync()
        here.sql(
            "begin; alter table items disable trigger all;"
            f"update items set title = 'behind {n}' where id = {6_000 + n};"
            f"insert into items (id, title) values ({7_000 + n}, 'the log never had it');"
            "alter table items enable trigger all; commit"
        )
        assert run_verify(here, "--adopt")[0] == 0
        until(lambda: here.sql("select count(*) from anabranch.captured") == [(0,)])
        code, told = run_verify(here)
        assert code == 0, told
    a.read()
    assert a.repair("items") == Repaired(rows=3, pulled=False, agrees=True)
