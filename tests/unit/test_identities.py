"""Identities of columns and tables: new ones are nobody else's, and a table that is registered anew keeps its own."""

from __future__ import annotations

from anabranch.store.catalog.identities import carried_on, new_identity
from anabranch.values import Column, Kind, Table
from anabranch.values.table import FormerColumn


def column(name: str, number: int, kind: Kind = Kind.STRING, renamed: str = "") -> Column:
    return Column(name, kind, "text", renamed=renamed, number=number)


def test_a_new_identity_is_nobodys_in_whatever_case() -> None:
    assert new_identity("a", ["b"]) == "a"
    assert new_identity("a", ["A"]) == "a~2"
    assert new_identity("A", ["a", "a~2", "A~3"]) == "A~4"
    assert new_identity("straße", ["STRASSE"]) == "straße~2"


def test_an_identity_is_no_longer_than_a_name() -> None:
    long = "ä" * 31 + "x"
    assert len(long.encode()) == 63
    found = new_identity(long, [long])
    assert found == "ä" * 30 + "~2"
    assert new_identity(long, [long, found]) == "ä" * 30 + "~3"


BEFORE = Table(
    "t",
    (column("id", 1), column("a", 2, renamed="b"), column("c", 3), column("gone", 4)),
    ("id",),
    renamed="now",
    former=(FormerColumn(column("b", 9), 5),),
)


def test_a_table_goes_on_by_the_numbers_of_its_columns() -> None:
    now = Table(
        "later",
        (column("key", 1), column("a", 2), column("c", 3, Kind.INT64), column("b", 5), column("gone", 6)),
        ("key",),
        7,
    )
    after = carried_on(BEFORE, now, by_number=True)
    assert (after.name, after.sql_name, after.id, after.key_columns) == ("t", "later", 7, ("id",))
    assert [(c.name, c.sql_name) for c in after.columns] == [
        ("id", "key"),
        ("a", "a"),
        ("c~2", "c"),
        ("b~2", "b"),
        ("gone~2", "gone"),
    ]
    assert [(f.column.name, f.successor) for f in after.former] == [("b", ""), ("c", "c~2"), ("gone", "")]


def test_where_the_numbers_are_of_another_table_names_tell() -> None:
    now = Table("now", (column("c", 1), column("b", 2), column("id", 3)), ("id",))
    after = carried_on(BEFORE, now, by_number=False)
    assert (after.name, after.sql_name) == ("t", "now")
    assert [(c.name, c.sql_name) for c in after.columns] == [("c", "c"), ("a", "b"), ("id", "id")]
    assert [(f.column.name, f.successor) for f in after.former] == [("b", ""), ("gone", "")]


def test_people_mean_what_is_called_so_today() -> None:
    table = Table("t", (column("a", 1, renamed="b"), column("b", 2, renamed="a"), column("c", 3)), ("a",))
    assert [table.find(name) for name in ("a", "b", "c", "d")] == [
        table.by_name["b"],
        table.by_name["a"],
        table.by_name["c"],
        None,
    ]
    assert table.in_sql(["c", "a"]) == ("c", "b")
