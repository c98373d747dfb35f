"""Keys that SQL has written and no index of ours could hold: rows as any others, for rules, log and conflicts."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anabranch.limits import MAX_KEY_BYTES
from anabranch.store.cells.index_keys import index_key, index_keys
from anabranch.store.log import conflicts
from anabranch.store.log.conflicts import WantedConflicts
from anabranch.testkit.oracle import read_server, replay
from anabranch.testkit.resolver_rig import ResolverRig

TABLES = "create table t (id bytea primary key, a text, b text)"
LONG = random.Random(7).randbytes(2_600)


def test_devices_and_sql_meet_on_a_row_with_a_long_key(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(TABLES, {"t": None})
    a, b = rig.node("a"), rig.node("b")
    rig.sql("insert into app.t values (%s, 'one', 'one'), ('\\x01', 'one', 'one')", [LONG])
    rig.drain()
    a.see()
    b.see()
    rig.sql("update app.t set a = 'by sql'")
    late = a.update("t", {"id": LONG, "a": "late"})
    rig.drain()
    assert rig.outcome(late) == ["OVERWROTE"], "its history is known"
    [(table, key, column, value)] = rig.losers()
    assert (table, key, column, value) == ("t", LONG.hex(), "a", "by sql")
    number = rig.database.tables["t"].id
    for one, found in ((LONG, 1), (LONG[:-1], 0), (b"\x01", 0)):
        wanted = WantedConflicts(rig.database.id, [number], key=one.hex())
        assert len(conflicts.page(rig.conn, wanted, None, items=10, max_bytes=1_000_000).lost) == found
    unseen = b.delete("t", {"id": LONG})
    b.see()
    gone = b.delete("t", {"id": LONG})
    rig.drain()
    assert [rig.outcome(one) for one in (unseen, gone)] == ["CONCURRENT_UPDATE", ["APPLIED"]]
    again = a.delete("t", {"id": LONG})
    rig.drain()
    assert rig.outcome(again) == "ALREADY_DELETED", "its tombstone is known"
    server = read_server(rig.conn, rig.database)
    assert replay(server, {}) == server.rows


def test_a_batch_waits_for_a_row_with_a_long_key(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(TABLES, {"t": None})
    a = rig.node("a")
    missing = a.make(("insert", "t", [{"id": b"\x02"}]))
    a.send(a.make(("insert", "t", [{"id": b"\x03"}])), prev=missing.id)
    late = a.update("t", {"id": LONG, "a": "x"})
    rig.group()
    assert rig.outcome(late) == "PENDING"
    assert rig.sql("select octet_length(waits_for_key) from anabranch.inbox where batch_id = %s", [late]) == [
        (MAX_KEY_BYTES + 64,)
    ]
    rig.sql("insert into app.t values (%s)", [LONG])
    rig.drain()
    assert rig.outcome(late) == "ROW_DELETED", "the row came, though not from its own node"


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)))
def test_no_key_is_taken_for_another(ends: list[str]) -> None:
    keys = sorted({"k" * length + end for end in ends for length in (0, 600, MAX_KEY_BYTES - len(end.encode()), 2_600)})
    stored = index_keys(keys)
    stored_again = [index_key(key) for key in stored]
    assert list(stored) == [index_key(key) for key in keys]
    assert len(set(stored) | {index_key(key) for key in stored}) >= len(set(keys))
    for key, as_stored, again in zip(keys, stored, stored_again, strict=True):
        assert (as_stored == key) == (len(key.encode()) <= MAX_KEY_BYTES)
        assert len(as_stored.encode()) <= MAX_KEY_BYTES + 64
        assert again == as_stored or len(as_stored) > MAX_KEY_BYTES
