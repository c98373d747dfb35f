"""A small group's records are written by one statement, a large one's by many: the same records either way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from anabranch.store.session import at_once
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.group import records

OF_DATABASE = {
    "log": "ordinal, key, type, effect, changed, effect_hash",
    "batches": "principal, payload_sha256 is null, status, reason",
    "conflicts": "ordinal, key, column_name, losing_value",
    "groups": "batches, changes",
    "inbox": "principal",
    "nodes": "name, last_accepted is null",
}
OF_TABLE = {
    "row_versions": "key, tombstone_batch is null, insert_place is null",
    "table_sums": "row_count, row_hash",
}


def _story(rig: ResolverRig) -> dict[str, list[str]]:
    """The records of inserts, updates that merge and that lose, rejections and a delete."""
    a, b = rig.node("a"), rig.node("b")
    a.insert("todo", {"id": "1", "title": "one", "done": False}, {"id": "2", "title": "two", "done": False})
    rig.drain()
    a.see()
    b.see()
    a.update("todo", {"id": "1", "title": "of a"})
    b.update("todo", {"id": "1", "title": "of b"})
    b.insert("todo", {"id": "2", "title": "twice", "done": True})
    rig.drain()
    a.see()
    a.write(("delete", "todo", [{"id": "2"}]))
    rig.drain()
    of = {"database_id": rig.database.id, "table_id": rig.database.tables["todo"].id}
    return {
        name: sorted(map(repr, rig.sql(f"select {columns} from anabranch.{name} where {by} = %s", [of[by]])))
        for by, tables in (("database_id", OF_DATABASE), ("table_id", OF_TABLE))
        for name, columns in tables.items()
    }


def test_one_statement_or_many_write_the_same(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    as_one = at_once._as_one

    def counting(conn: Any, parts: Sequence[Any], *counts: Any) -> Any:
        sizes.append(len(parts))
        return as_one(conn, parts, *counts)

    monkeypatch.setattr(at_once, "_as_one", counting)
    monkeypatch.setattr(records, "FEW", 0)
    many = _story(make_rig())
    assert not sizes
    monkeypatch.setattr(records, "FEW", 64)
    one = _story(make_rig(database="other"))
    assert max(sizes) >= 8
    assert one == many
    assert one["conflicts"]
    assert one["log"]
    assert not one["inbox"]
