"""Describe after schema changes: today's names beside identities, and for apps of earlier versions those of then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import pytest
from tests.integration.snapshot.changing import change_of, commit_change, register_as

from anabranch.store.catalog.databases import load_database
from anabranch.testkit.ingest_rig import FailedCallError
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader
from anabranch.v1 import snapshot_pb2
from anabranch.values import Column, Kind
from anabranch.values.table import FormerColumn


def names(table: snapshot_pb2.Table) -> list[tuple[str, str, bool, bool]]:
    return [(c.name, c.sql_name, c.hidden, c.gone) for c in table.columns]


def failure(reader: Reader, app_version: int) -> FailedCallError:
    with pytest.raises(FailedCallError) as caught:
        reader.describe(app_version)
    return caught.value


@pytest.mark.slow
def test_names_initial_values_and_versions(place: Any, writer: LogWriter, reader: Reader) -> None:
    assert reader.describe().version == 1
    before = writer.table("item")
    schema = place.schema
    place.conn.execute("create type mood as enum ('good', 'bad')")
    place.conn.execute(f"alter table {schema}.item rename column title to subject".encode())
    place.conn.execute(f"alter table {schema}.item rename to thing".encode())
    place.conn.execute(f"alter table {schema}.thing add column mood mood not null default 'good'".encode())
    place.conn.execute(f"alter table {schema}.thing drop column data".encode())
    loaded = load_database(place.conn, place.name).tables["item"]
    mood = Column("mood", Kind.STRING, "mood", not_null=True, has_default=True, initial=("good",), added_position=7)
    identity, title, number, data = loaded.columns
    after = replace(
        loaded,
        renamed="thing",
        columns=(identity, replace(title, renamed="subject"), number, mood),
        former=(FormerColumn(data, 7),),
    )
    position = commit_change(writer, change_of("item"), tables=[(before, after)])
    register_as(writer, after, position)

    described = reader.describe()
    assert described.version == 2
    (table,) = described.tables
    assert (table.name, table.sql_name, table.changed_position) == ("item", "thing", position)
    assert names(table) == [
        ("id", "", False, False),
        ("title", "subject", False, False),
        ("n", "", False, False),
        ("mood", "", False, False),
    ]
    assert [column.HasField("initial") for column in table.columns] == [False, False, False, True]
    assert table.columns[3].initial.string_value == "good"
    assert list(table.columns[3].enum_labels) == ["good", "bad"], "asked for by the names in SQL"
    assert table.columns[3].refuses_null

    (then,) = reader.describe(1).tables
    assert (then.name, then.sql_name, then.changed_position) == ("item", "", position)
    assert names(then) == [
        ("id", "", False, False),
        ("title", "", False, False),
        ("n", "", False, False),
        ("mood", "", True, False),
        ("data", "", False, True),
    ]
    assert reader.describe(2).tables == described.tables
    assert reader.describe(1).version == 2


def test_an_app_that_can_not_be_told_is_told_the_version_that_it_needs(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    before = writer.table("item")
    identity, title, number, data = before.columns
    retyped = Column("n~2", Kind.STRING, "text", renamed="n")
    after = replace(before, columns=(identity, title, retyped, data), former=(FormerColumn(number, 7, "n~2"),))
    place.conn.execute(f"alter table {place.schema}.item alter column n type text".encode())
    register_as(writer, after, commit_change(writer, change_of("item"), tables=[(before, after)]))
    refused = failure(reader, 1)
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "APP_OUTDATED")
    assert refused.metadata["needed_version"] == "2"
    assert "version 2" in refused.details
    assert [column.name for column in reader.describe(2).tables[0].columns] == ["id", "title", "n~2", "data"]


@pytest.mark.parametrize("version", [-1, 2, 2**40])
def test_a_version_that_is_not_there_is_refused(reader: Reader, version: int) -> None:
    refused = failure(reader, version)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
