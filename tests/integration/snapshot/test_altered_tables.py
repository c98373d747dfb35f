"""Pulls and comparisons of tables that others alter: neither waits for long for the other, and no row of another shape
is taken for one of the registered one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from tests.integration.snapshot.changing import change_of, commit_change, register_as
from tests.integration.snapshot.pulled import Pulled, rows

from anabranch.columnar.chunks import from_ipc
from anabranch.store.catalog.databases import load_database
from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import FailedCallError, failed
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader
from anabranch.v1 import snapshot_pb2
from anabranch.values import Column, Kind

MARK = """
insert into anabranch.captured (database_id, table_id, xid, type, depth, new)
select database_id, id, pg_current_xact_id(), 4, 0, '{}'::bytea from anabranch.synced_tables where id = %s
"""
UNMARK = "delete from anabranch.captured where table_id = %s and type = 4"
DDL_S = 2.0
"""The longest that DDL may wait here: a look at the locks, and a busy machine."""


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {"ANABRANCH_PULL_BATCH_BYTES": str(64 * 1024), "ANABRANCH_PULL_LOCK_TIMEOUT_MS": "400"}


def alter(place: Any, *statements: str) -> None:
    """Alter tables as if nothing had noticed it."""
    for statement in statements:
        place.conn.execute(statement.format(schema=place.schema).encode())
    place.conn.execute("delete from anabranch.captured where type = 4")


def refusal(call: Any) -> FailedCallError:
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    return failed(caught.value)


def compare(reader: Reader, table: str = "item") -> Iterator[snapshot_pb2.CompareResponse]:
    """A comparison that asks for nothing, and stays open."""
    call: Iterator[snapshot_pb2.CompareResponse] = reader.compare(table, iter(SimpleQueue().get, None))
    return call


@pytest.mark.slow
def test_a_marker_is_waited_for(place: Any, writer: LogWriter, reader: Reader) -> None:
    writer.insert("item", rows(3))
    number = writer.table("item").id
    place.conn.execute(MARK, (number,))
    for call in (reader.pull(), reader.pull([("item", b"")]), compare(reader)):
        refused = refusal(call)
        assert refused.reason == "UNAVAILABLE"
        assert "'item' can't be read before the log has how it was altered" in refused.details
    taking = threading.Timer(0.2, lambda: place.conn.execute(UNMARK, (number,)))
    taking.start()
    began = time.monotonic()
    assert len(Pulled().all(reader.pull()).rows["item"]) == 3
    assert time.monotonic() - began > 0.15
    taking.join()


def test_only_tables_that_are_read_are_waited_for(place: Any, writer: LogWriter, reader: Reader) -> None:
    place.add_table("create table {schema}.other (id text primary key)", "other")
    place.conn.execute(MARK, (writer.table("item").id,))
    assert Pulled().all(reader.pull([("other", b"")])).done["other"].rows_done == 0
    assert next(compare(reader, "other")).as_of is not None
    assert refusal(reader.pull()).reason == "UNAVAILABLE"


@pytest.mark.slow
@pytest.mark.parametrize(
    "ddl",
    [
        "alter table {schema}.item rename column title to subject",
        "alter table {schema}.item drop column title",
        "alter table {schema}.item alter column title type varchar(3) using left(title, 3)",
        "alter table {schema}.item drop column title, add column title text",
        "alter table {schema}.item rename to thing",
        "drop table {schema}.item",
    ],
)
def test_a_table_that_nobody_marked_is_not_read_by_what_it_was(
    place: Any, writer: LogWriter, reader: Reader, ddl: str
) -> None:
    alter(place, ddl)
    assert refusal(reader.pull()).reason == "UNAVAILABLE"
    assert refusal(compare(reader)).reason == "UNAVAILABLE"


def test_labels_that_were_renamed_without_a_mark_are_seen(place: Any, writer: LogWriter, reader: Reader) -> None:
    schema = place.schema
    place.conn.execute(f"create type {schema}.mood as enum ('good', 'bad')".encode())
    place.add_table("create table {schema}.feeling (id text primary key, mood {schema}.mood)", "feeling")
    assert Pulled().all(reader.pull()).done["feeling"].rows_done == 0
    alter(place, "alter type {schema}.mood rename value 'bad' to 'awful'")
    assert refusal(reader.pull([("feeling", b"")])).reason == "UNAVAILABLE"
    assert Pulled().all(reader.pull([("item", b"")])).done["item"].rows_done == 0


def test_columns_that_came_do_not_matter(place: Any, writer: LogWriter, reader: Reader) -> None:
    writer.insert("item", rows(2))
    alter(place, "alter table {schema}.item add column note text, alter column n set not null")
    assert len(Pulled().all(reader.pull()).rows["item"]) == 2


def test_rows_come_by_identity_from_where_they_are_by_now(place: Any, writer: LogWriter, reader: Reader) -> None:
    made = rows(2)
    writer.insert("item", made)
    before = writer.table("item")
    alter(
        place,
        "alter table {schema}.item rename column title to subject",
        "alter table {schema}.item rename column id to key",
        "alter table {schema}.item rename to thing",
    )
    key, title, *others = before.columns
    after = replace(
        before, renamed="thing", columns=(replace(key, renamed="key"), replace(title, renamed="subject"), *others)
    )
    register_as(writer, after, commit_change(writer, change_of("item"), tables=[(before, after)]))
    chunk, *_ = reader.pull([("item", b"")])
    assert chunk.table == "item"
    assert from_ipc(chunk.arrow_ipc).schema.names == ["id", "title", "n", "data"]
    assert sorted(Pulled().all(reader.pull()).rows["item"]) == sorted(made)
    assert [response.done for response in (next(compare(reader)),)] == [False]


@pytest.mark.slow
def test_ddl_waits_for_no_reader(place: Any, writer: LogWriter, reader: Reader) -> None:
    made = sorted(rows(200, 50_000))
    writer.insert("item", made)
    pulled = Pulled()
    stream, comparing = reader.pull(timeout_s=None), compare(reader)
    pulled.take(next(stream))
    next(comparing)
    with connect(place.rig.url, application_name="test", autocommit=True) as other:
        began = time.monotonic()
        other.execute(f"alter table {place.schema}.item alter column n set default 7".encode())
        assert time.monotonic() - began < DDL_S
    with pytest.raises(grpc.RpcError) as caught:
        pulled.all(stream)
    assert (failed(caught.value).reason, "waits to alter" in failed(caught.value).details) == ("UNAVAILABLE", True)
    assert refusal(comparing).reason == "UNAVAILABLE"
    assert 0 < len(pulled.rows["item"]) < 200
    # The rows that were read are not those of another table, as far as it is known: it goes on.
    place.conn.execute("delete from anabranch.captured where type = 4")
    pulled.all(reader.pull([("item", pulled.responses[-1].resume)]))
    assert [row[0] for row in pulled.rows["item"]] == [row[0] for row in made]


def test_a_pull_does_not_go_on_with_a_table_that_was_changed(place: Any, writer: LogWriter, reader: Reader) -> None:
    writer.insert("item", rows(200, 50_000))
    pulled = Pulled()
    stream = reader.pull(timeout_s=None)
    pulled.take(next(stream))
    stream.cancel()
    before = writer.table("item")
    alter(place, "alter table {schema}.item add column note text")
    note = Column("note", Kind.STRING, "text", initial=(None,), added_position=1)
    after = replace(before, columns=(*before.columns, note))
    register_as(writer, after, commit_change(writer, change_of("item"), tables=[(before, after)]))
    assert refusal(reader.pull([("item", pulled.responses[-1].resume)])).reason == "INVALID_TOKEN"
    assert len(Pulled().all(reader.pull([("item", b"")])).rows["item"]) == 200


def test_a_type_that_is_altered_while_its_table_is_read_ends_the_pull(
    place: Any, writer: LogWriter, reader: Reader
) -> None:
    schema = place.schema
    place.conn.execute(f"create type {schema}.mood as enum ('good', 'bad')".encode())
    place.add_table("create table {schema}.feeling (id text primary key, mood {schema}.mood, pad text)", "feeling")
    place.conn.execute(
        f"insert into {schema}.feeling select n, 'bad', repeat('x', 50000) from generate_series(1, 200) n".encode()
    )
    stream = reader.pull([("feeling", b"")], timeout_s=None)
    first = next(stream)
    number = load_database(place.conn, place.name).tables["feeling"].id
    place.conn.execute(f"alter type {schema}.mood rename value 'bad' to 'awful'".encode())
    place.conn.execute(MARK, (number,))
    refused = refusal(stream)
    assert (refused.reason, "altered" in refused.details) == ("UNAVAILABLE", True)
    # The log has it by now.
    place.conn.execute(UNMARK, (number,))
    place.conn.execute(
        "update anabranch.synced_tables set changed_position = 7, shape = anabranch.shape_of(%s::regclass)"
        " where id = %s",
        (f"{schema}.feeling", number),
    )
    assert refusal(reader.pull([("feeling", first.resume)])).reason == "INVALID_TOKEN"
