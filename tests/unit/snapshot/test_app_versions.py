"""Describe for apps of earlier schema versions: what they are told, and when they need a newer one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.store.log.schema_versions import SchemaVersion
from anabranch.v1 import snapshot_pb2, value_pb2
from anabranch.values import Column, Kind, Table
from anabranch.values.table import FormerColumn
from anabranch.wire.tables import table_message
from anabranch_snapshot.app_versions import OutdatedError, describe_then, tables_then

ID = Column("id", Kind.STRING, "text", not_null=True)
TITLE = Column("title", Kind.STRING, "text", not_null=True)
MINUTES = Column("minutes", Kind.INT64, "bigint")
HOURS = Column("minutes~2", Kind.DECIMAL, "numeric", renamed="minutes")
NOTE = Column("note", Kind.STRING, "text", initial=(None,), added_position=20)
ONE = Table("job", (ID, TITLE, MINUTES), ("id",), 1)
OTHER = Table("site", (ID,), ("id",), 2)
Change = tuple[Table | None, Table | None]


def version(number: int, *changes: Change, pulled: tuple[str, ...] = ()) -> SchemaVersion:
    """The change that began version ``number``, at ten times its position."""
    tables = {(was or now).id: (was, now) for was, now in changes if was or now}  # type: ignore[union-attr]
    return SchemaVersion(number, 10 * number, 0, "", "", "", tables, pulled)


def told(today: list[Table], *since: SchemaVersion) -> dict[str, snapshot_pb2.Table]:
    response = snapshot_pb2.DescribeResponse(tables=[table_message(table, policies=True) for table in today])
    describe_then(response, tables_then(today, since))
    return {table.name: table for table in response.tables}


def names(table: snapshot_pb2.Table) -> list[tuple[str, str, bool, bool]]:
    return [(c.name, c.sql_name, c.hidden, c.gone) for c in table.columns]


def needed(today: list[Table], *since: SchemaVersion) -> int:
    with pytest.raises(OutdatedError) as caught:
        tables_then(today, since)
    return caught.value.version


def test_names_are_those_of_then_also_where_they_changed_twice() -> None:
    second = replace(ONE, renamed="task", columns=(ID, replace(TITLE, renamed="subject"), MINUTES))
    third = replace(ONE, renamed="work", columns=(ID, replace(TITLE, renamed="headline"), MINUTES))
    to_second, to_third = version(2, (ONE, second)), version(3, (second, third))
    first_app = told([third], to_second, to_third)["job"]
    assert first_app.sql_name == ""
    assert names(first_app) == [("id", "", False, False), ("title", "", False, False), ("minutes", "", False, False)]
    second_app = told([third], to_third)["job"]
    assert second_app.sql_name == "task"
    assert names(second_app)[1] == ("title", "subject", False, False)


def test_what_came_later_is_hidden_and_what_went_later_is_left_out() -> None:
    wider = replace(ONE, columns=(*ONE.columns, NOTE))
    new = Table("visit", (ID,), ("id",), 3)
    change = version(2, (ONE, wider), (OTHER, None), (None, new))
    tables = told([wider, new], change)
    assert list(tables) == ["job", "visit"]
    assert (tables["job"].hidden, tables["visit"].hidden) == (False, True)
    assert names(tables["job"])[3] == ("note", "", True, False)
    assert tables["job"].columns[3].HasField("initial")
    # The app that was built in between knows both.
    assert not any(table.hidden for table in told([wider, new]).values())


def test_a_dropped_column_is_gone_and_stands_last() -> None:
    generated = replace(TITLE, renamed="heading", generated=True)
    before = replace(ONE, columns=(ID, generated, MINUTES))
    after = replace(ONE, columns=(ID, MINUTES, NOTE), former=(FormerColumn(generated, 20),))
    (table,) = told([after], version(2, (before, after))).values()
    assert names(table) == [
        ("id", "", False, False),
        ("minutes", "", False, False),
        ("note", "", True, False),
        ("title", "heading", False, True),
    ]
    gone = table.columns[-1]
    assert (gone.kind, gone.postgres_type) == (value_pb2.COLUMN_KIND_STRING, "text")
    assert (gone.not_null, gone.has_default, gone.generated) == (False, True, True)
    assert not gone.HasField("initial")


def test_a_column_of_another_kind_needs_the_app_of_the_last_such_change() -> None:
    text = Column("minutes~3", Kind.STRING, "text", renamed="minutes")
    second = replace(ONE, columns=(ID, TITLE, HOURS), former=(FormerColumn(MINUTES, 20, "minutes~2"),))
    third = replace(second, columns=(ID, TITLE, HOURS, NOTE))
    fourth = replace(
        ONE,
        columns=(ID, TITLE, text, NOTE),
        former=(FormerColumn(MINUTES, 20, "minutes~2"), FormerColumn(HOURS, 40, "minutes~3")),
    )
    changes = [version(2, (ONE, second)), version(3, (second, third)), version(4, (third, fourth))]
    assert needed([second], changes[0]) == 2
    assert needed([third], *changes[:2]) == 2
    assert needed([fourth], *changes) == 4
    assert needed([fourth], *changes[2:]) == 4
    assert not told([fourth])["job"].columns[2].hidden


def test_a_retyped_column_that_came_later_or_is_gone_by_now_is_no_matter() -> None:
    added = Column("weight", Kind.INT64, "bigint", initial=(None,), added_position=20)
    retyped = Column("weight~2", Kind.STRING, "text", renamed="weight", initial=(None,), added_position=30)
    second = replace(ONE, columns=(*ONE.columns, added))
    third = replace(ONE, columns=(*ONE.columns, retyped), former=(FormerColumn(added, 30, "weight~2"),))
    changes = [version(2, (ONE, second)), version(3, (second, third))]
    assert names(told([third], *changes)["job"])[3] == ("weight~2", "weight", True, False)
    assert needed([third], changes[1]) == 3
    fourth = replace(
        ONE, columns=ONE.columns, former=(FormerColumn(added, 30, "weight~2"), FormerColumn(retyped, 40, ""))
    )
    changes.append(version(4, (third, fourth)))
    assert names(told([fourth], *changes[1:])["job"])[3] == ("weight", "", False, True)


def test_a_table_that_was_pulled_anew_needs_a_newer_app_unless_it_came_later() -> None:
    anew = replace(OTHER, id=4, columns=(ID, TITLE), key_columns=("title",))
    renamed = replace(anew, renamed="place")
    pulled, later = version(3, (OTHER, anew), pulled=("site",)), version(4, (anew, renamed))
    assert needed([ONE, renamed], pulled, later) == 3
    assert told([ONE, renamed], later)["site"].sql_name == ""
    assert told([ONE, renamed], version(2, (None, OTHER)), pulled, later)["site"].hidden
    # One that is no more is left out, whatever became of it before.
    assert list(told([ONE], pulled, version(4, (anew, None)))) == ["job"]


def test_a_table_of_the_same_identity_that_came_later_is_another_one() -> None:
    new = Table("site", (ID, TITLE), ("id",), 5)
    changes = [version(2, (OTHER, None)), version(3, (None, new))]
    assert told([ONE, new], *changes)["site"].hidden
    anew = replace(new, id=6, key_columns=("title",))
    assert told([ONE, anew], *changes, version(4, (new, anew), pulled=("site",)))["site"].hidden
    assert needed([ONE, anew], version(4, (new, anew), pulled=("site",))) == 4
