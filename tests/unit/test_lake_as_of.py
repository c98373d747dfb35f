"""A table as it was, from changes and the newest rows: a batch that left a row as it was tells nothing of it."""

from __future__ import annotations

from anabranch.columnar.lake import Change, Key, Row, as_of
from anabranch.schema import Column, Kind, Table

TABLE = Table("t", (Column("id", Kind.STRING, "text"), Column("v", Kind.INT64, "bigint")), ("id",))


def change(position: int, kind: str, key: str, v: int | None, before: int | None = None) -> Change:
    row: Row | None = None if kind == "delete" else {"id": key, "v": v}
    old: Row = {} if kind in ("insert", "none") else {"v": before}
    return Change(position, "B", 0, "N", kind, (key,), ("v",) if kind == "update" else (), row, old, True)


def test_a_batch_that_changed_nothing_makes_no_row_and_takes_none() -> None:
    changes = [
        change(1, "none", "never there", None),
        change(2, "insert", "a", 1),
        change(3, "none", "a", 1),
        change(4, "delete", "a", None, 1),
        change(5, "none", "a", None),
        change(6, "none", "old", 7),
        change(7, "update", "old", 8, 7),
    ]
    base: dict[Key, Row] = {("old",): {"id": "old", "v": 8}, ("older",): {"id": "older", "v": 9}}
    older, old = {"id": "older", "v": 9}, {"id": "old", "v": 7}

    def at(position: int) -> list[object]:
        return sorted(as_of(TABLE, base, changes, position).values(), key=repr)

    assert at(0) == at(1) == [old, older]
    assert at(2) == at(3) == [{"id": "a", "v": 1}, old, older]
    assert at(4) == at(5) == at(6) == [old, older]
    assert at(7) == [{"id": "old", "v": 8}, older]
