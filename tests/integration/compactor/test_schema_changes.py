"""The lake over schema changes: columns that come, go, change their names and types, between runs and within one.

Each story notes the table as Postgres has it after every step. Whatever runs there were, every reader has to tell the
same of every position, and the janitor's proof has to hold.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from tests.integration.compactor.conftest import TODO, Lake
from tests.integration.compactor.test_altered import prove_all
from tests.integration.compactor.test_every_reader import STATEMENTS
from tests.integration.compactor.test_retention import logged, sweep
from typer.testing import CliRunner

from anabranch.cli.lake.lake import app
from anabranch.cli.lake.shown import row_json
from anabranch.columnar.base_proof import BaseProver, PublishedBase
from anabranch.columnar.base_reader import RowPlace
from anabranch.columnar.evidence import EvidenceError
from anabranch.columnar.file_columns import CHANGES, CONFLICTS
from anabranch.columnar.proof import Sum
from anabranch.columnar.row_states import Row
from anabranch.store.catalog.databases import load_database
from anabranch.store.lake.source import open_lake
from anabranch.store.session.engine import connect
from anabranch.testkit import row_proof
from anabranch.testkit.log_writer import Logged, LogWriter
from anabranch.testkit.schema_changes import alter
from anabranch.v1 import value_pb2
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.arrow import arrow_schema
from anabranch.values.messages import column_writer
from anabranch.values.parquet import file_codecs

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

Rows = dict[str, dict[str, Cell]]
MARKER = """
insert into anabranch.captured (xid, database_id, table_id, type, depth, new)
select pg_current_xact_id(), id, %s, 4, 1, convert_to('{}', 'UTF8') from anabranch.databases
"""
LATEST_LOST = (
    "update anabranch.conflicts set cause = 1 where position = (select max(position) from anabranch.conflicts)"
)
OLD = "insert into todo values ('old', 'was there', true, 0), ('older', null, null, null)"


class Told:
    """A table that is written to and altered, and how it was after each position: rows by key, cells by the columns'
    names in SQL at that moment."""

    def __init__(self, lake: Lake, table: str = "todo") -> None:
        self.lake = lake
        self.name = table
        self.writer: LogWriter = lake.writer()
        self.were: dict[int, Rows] = {}
        self.names: dict[int, list[str]] = {}

    def rows(self) -> Rows:
        """The rows as Postgres has them."""
        table = self.writer.table(self.name)
        columns = ", ".join(f'"{column.sql_name}"::text' for column in table.columns)
        found = self.lake.sql(f'select {columns} from "{table.sql_name}"')
        names = [column.sql_name for column in table.columns]
        return {str(row[0]): dict(zip(names, row, strict=True)) for row in found}

    def note(self, position: int) -> None:
        self.were[position] = self.rows()
        self.names[position] = [column.sql_name for column in self.writer.table(self.name).columns]

    def insert(self, *rows: list[Cell]) -> None:
        self.note(self.writer.insert(self.name, rows))

    def update(self, key: str, **cells: Cell) -> None:
        self.note(self.writer.update(self.name, (key,), cells))

    def delete(self, key: str) -> None:
        self.note(self.writer.delete(self.name, (key,)))

    def alter(self, ddl: str, **initial: Cell) -> int:
        position = alter(self.writer, ddl, initial)
        self.note(position)
        return position


def command(lake: Lake, *arguments: str) -> list[dict[str, Any]]:
    """The JSON that a subcommand prints."""
    done = CliRunner().invoke(app, [*arguments, "--db", "app", "--json", "--postgres-url", lake.url])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def printed(rows: Rows) -> Rows:
    """Rows as commands print them: booleans as t and f."""
    short = {"true": "t", "false": "f"}
    return {key: {n: short.get(str(c), c) for n, c in row.items()} for key, row in rows.items()}


def texts(table: Table, rows: Iterable[Mapping[str, Cell]]) -> Rows:
    """Rows by identities, as commands print those of ``table``."""
    return {str(row["id"]): dict(row_json(table, dict(row))) for row in rows}


def check(told: Told, *, commands: Collection[int] = ()) -> None:
    """Every reader at every position; ``commands``: those at which the command is asked, too."""
    lake = told.lake
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        database = load_database(conn, "app")
        called = database.tables[told.name].sql_name
        source = open_lake(conn, database, told.name)
        tail, states = source.tail(conn), source.states(conn, source.lake.registrations[-1])
    for position, wanted in told.were.items():
        then = states.at(position)
        assert [column.sql_name for column in then.columns] == told.names[position], position
        assert texts(then, source.lake.as_of(position, tail).values()) == printed(wanted), position
    last = max(position for position in told.were if position <= source.upto)
    assert texts(states.at(last), base_rows(lake, told.name)) == printed(told.were[last])
    for position in commands:
        found = command(lake, "rows", "--table", called, "--as-of", str(position))
        assert {row["id"]: row for row in found} == printed(told.were[position]), position
    by_rows(lake, told.name)
    if source.upto:
        prove_all(lake)


def base_rows(lake: Lake, name: str) -> list[Row]:
    """The rows of the base, proven, as a pull would carry them."""
    base, prover = PublishedBase(lake.root, lake.manifest()), BaseProver(threading.Event())
    prover.prove(base, prover.unproven(base, [name]))
    table = lake.manifest().tables[name].columns.table
    codecs, rows = file_codecs(table.columns), list[Row]()
    for batch, _ in base.reader(name, 10_000).batches(RowPlace()):
        assert batch.schema == arrow_schema(table)
        cells = [codec.pulled_cells(values) for codec, values in zip(codecs, batch.columns, strict=True)]
        rows += [dict(zip(table.column_names, row, strict=True)) for row in zip(*cells, strict=True)]
    return rows


def by_rows(lake: Lake, name: str) -> None:
    """The files of the history, by the oracle that encodes one row after the other, against what the manifest says."""
    files = lake.manifest().tables[name]
    for what, some in ((CHANGES, files.changes), (CONFLICTS, files.conflicts)):
        held = files.columns.with_former() if what == CHANGES else files.columns
        for file in some:
            found = row_proof.file_sum(what, held, lake.lake_folder / file.path, lambda _: True)
            assert found == Sum(file.rows, int(file.total, 16)), file.path


def life(told: Told, compact: Callable[[], object]) -> list[int]:
    """All that can become of columns; ``compact`` is called between the steps. Returns the changes' positions."""
    done: list[int] = []
    compact()
    told.insert(["a", "milk", True, 1], ["b", "tea", None, 2], ["c", None, False, None])
    told.update("a", title="oats")
    compact()
    done.append(told.alter("alter table todo add column qty int default 5, add column tag text", qty=5))
    told.update("b", qty=7)
    told.update("c", qty=None, tag="explicit")
    told.insert(["d", "rye", True, 4, None, None], ["e", "malt", True, 5, 5, "x"])
    compact()
    told.update("old", tag="first change")
    done.append(told.alter("alter table todo rename column title to heading"))
    told.update("a", title="barley")
    compact()
    done.append(told.alter("alter table todo drop column n"))
    told.insert(["f", "soy", False, 6, "y"])
    told.update("b", title="green tea")
    compact()
    done.append(told.alter("alter table todo alter done type text using case when done then 'yes' else 'no' end"))
    told.update("d", **{"done~2": "maybe"})
    compact()
    done.append(told.alter("alter table todo alter qty drop default, alter qty type numeric(10,2) using qty + 0.5"))
    told.update("e", **{"qty~2": "12345678.90"})
    compact()
    done.append(told.alter("alter table todo alter qty type numeric(12,3)"))
    told.update("f", **{"qty~2": "123456789.125"})
    told.delete("c")
    compact()
    done.append(told.alter("alter table todo rename to task; alter table task add column n bigint default -1", n=-1))
    told.insert(["c", "again", "no", None, None, 8])
    told.delete("older")
    compact()
    done.append(told.alter("alter table task drop column tag"))
    compact()
    return done


@pytest.mark.long
@pytest.mark.parametrize("runs", ["each step", "first and last", "every third"])
def test_every_reader_tells_the_table_of_each_moment(make_lake: Callable[..., Lake], runs: str) -> None:
    lake = make_lake("todo", f"{TODO}; {OLD}")
    told, at = Told(lake), 0
    told.note(0)

    def compact() -> None:
        nonlocal at
        if at == 0 or runs == "each step" or (runs == "every third" and at % 3 == 0):
            lake.compact()
            if at and runs == "each step":
                check(told)
        at += 1

    changes = life(told, compact)
    # The log's tail beyond the lake is told, too, whatever changed in it.
    check(told)
    lake.compact()
    check(told, commands=[moment for position in changes for moment in (position - 1, position) if moment in told.were])
    assert all("table=todo" in file.path for file in lake.manifest().tables["todo"].all_files)


@pytest.mark.long
def test_files_are_put_together_as_ever(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none of the history across a change, since its columns are others."""
    from anabranch_compactor import base, merge

    monkeypatch.setattr(merge, "MOST_OF_A_SIZE", 1)
    monkeypatch.setattr(base, "MOST_DELTAS", 0)
    told = Told(lake)
    told.insert(["a", "milk", True, 1], ["b", None, None, 2])
    lake.compact()
    told.update("a", title="oats")
    lake.compact()
    [before] = lake.paths("todo", "changes")
    told.update("b", n=3)
    change = told.alter("alter table todo add column qty int default 5, drop column n", qty=5)
    for title in ("rye", "malt", "soy"):
        told.update("a", title=title)
        lake.compact()
        check(told)
    assert before in lake.paths("todo", "changes")
    [across, after] = [path for path in lake.paths("todo", "changes") if path != before]
    positions = [row["position"] for row in pq.read_table(after, partitioning=None, columns=["anabranch"])
                 .column("anabranch").to_pylist()]  # fmt: skip
    assert min(positions) > change
    assert len(positions) == 2
    files = lake.manifest().tables["todo"]
    assert files.base is not None
    assert not any(file.delta for file in files.base.files)
    assert [one.as_of < change for one in files.earlier] == [True]
    assert across in lake.paths("todo", "changes")


def test_values_for_columns_that_are_gone_are_carried_with_their_cause(lake: Lake) -> None:
    told = Told(lake)
    told.insert(["a", "milk", True, 1])
    null = column_writer(Column("n", Kind.INT64, "bigint"))(None)
    lost = [value.SerializeToString() for value in (value_pb2.Value(int64_value=77), null)]
    told.note(told.writer.commit([Logged("todo", losers=[("a", "n", lost[0]), ("a", "title", lost[1])])]))
    told.alter("alter table todo drop column n")
    told.note(told.writer.commit([Logged("todo", losers=[("a", "n", lost[0]), ("a", "n", lost[1])])]))
    lake.sql(
        "update anabranch.conflicts set cause = 1 where position = (select max(position) from anabranch.conflicts)"
    )
    lake.compact()
    check(told)
    # Long after the column went.
    told.note(told.writer.commit([Logged("todo", losers=[("a", "n", lost[0])])]))
    lake.sql(
        "update anabranch.conflicts set cause = 1 where position = (select max(position) from anabranch.conflicts)"
    )
    lake.compact()
    check(told)
    rows = [
        row for path in lake.paths("todo", "conflicts") for row in pq.read_table(path, partitioning=None).to_pylist()
    ]
    rows.sort(key=lambda row: (row["anabranch"]["position"], row["anabranch"]["ordinal"]))
    assert [(row["anabranch"]["column"], row["anabranch"]["cause"]) for row in rows] == [
        ("n", None), ("title", None), ("n", 1), ("n", 1), ("n", 1),
    ]  # fmt: skip
    assert [row.get("n") for row in rows] == [77, None, 77, None, None]
    assert rows[-1]["anabranch"]["untyped"] == lost[0]
    # A cause is part of what is proven.
    lake.sql("update anabranch.conflicts set cause = 0 where column_name = 'n'")
    with pytest.raises(EvidenceError, match="values that lost"):
        prove_all(lake)


def test_a_table_may_be_altered_and_dropped_between_two_runs(lake: Lake) -> None:
    told = Told(lake)
    told.insert(["a", "milk", True, 1], ["b", "tea", False, 2])
    lake.compact()
    told.update("a", n=3)
    told.alter("alter table todo add column qty int default 5; alter table todo rename n to number", qty=5)
    told.update("b", qty=6)
    told.alter("alter table todo drop column number")
    told.insert(["c", "rye", None, None])
    lake.add_table("other", "create table other (id text primary key)")
    told.writer.load()
    dropped = alter(told.writer, "drop table todo")
    writer = lake.writer()
    writer.insert("other", [["x"]])
    lake.compact()
    prove_all(lake)
    by_rows(lake, "todo")
    manifest = lake.manifest()
    assert manifest.tables["todo"].base is None
    assert manifest.tables["other"].base is not None
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        source = open_lake(conn, load_database(conn, "app"), "todo")
        states = source.states(conn, source.lake.registrations[-1])
        for position, wanted in told.were.items():
            then = states.at(position)
            assert texts(then, source.lake.as_of(position).values()) == printed(wanted), position
        assert states.at(dropped).column_names == ("id", "title", "done", "qty")
    # Another table of that name has a history of its own.
    lake.add_table("todo", "create table todo (id text primary key, n text)")
    lake.writer().insert("todo", [["a", "text"]])
    lake.compact()
    prove_all(lake)
    assert command(lake, "rows", "--table", "todo", "--as-of", "2100-01-01") == [{"id": "a", "n": "text"}]
    last = max(told.were)
    assert {row["id"]: row for row in command(lake, "rows", "--table", "todo", "--as-of", str(last))} == printed(
        told.were[last]
    )


@pytest.mark.long
def test_a_row_tells_its_history_by_the_names_of_then(lake: Lake) -> None:
    told = Told(lake)
    told.insert(["a", "milk", True, 1])
    lake.compact()
    told.alter("alter table todo rename title to heading; alter table todo rename to task")
    told.update("a", title="oats")
    told.alter("alter table task drop column heading, add column qty int default 5", qty=5)
    told.update("a", qty=6)
    lake.compact()
    told.delete("a")
    changes = command(lake, "history", "--table", "task", "--key", "a")
    assert [(one["type"], one["changed"], one["before"], one["row"]) for one in changes] == [
        ("insert", [], {}, {"id": "a", "title": "milk", "done": "t", "n": "1"}),
        ("update", ["heading"], {"heading": "milk"}, {"id": "a", "heading": "oats", "done": "t", "n": "1"}),
        ("update", ["qty"], {"qty": "5"}, {"id": "a", "done": "t", "n": "1", "qty": "6"}),
        ("delete", [], {"done": "t", "n": "1", "qty": "6"}, None),
    ]
    assert all(one["complete"] for one in changes)
    shown = CliRunner().invoke(
        app, ["rows", "--table", "task", "--as-of", "2100-01-01", "--db", "app", "--postgres-url", lake.url]
    )
    assert "task at" in shown.stdout


@pytest.mark.long
def test_a_cut_of_the_log_loses_nothing_of_what_versions_were(lake: Lake) -> None:
    told = Told(lake)
    told.insert(["a", "milk", True, 1], ["b", None, None, 2])
    lake.compact()
    told.alter("alter table todo add column qty int default 5, drop column n", qty=5)
    told.update("a", qty=None)
    lake.compact()
    assert sweep(lake).floor == max(told.were)
    assert logged(lake) == 0
    told.insert(["c", "rye", None, 5])
    lake.compact()
    assert sweep(lake).floor == max(told.were)
    for position, wanted in told.were.items():
        found = command(lake, "rows", "--table", "todo", "--as-of", str(position))
        assert {row["id"]: row for row in found} == printed(wanted), position


@pytest.mark.long
def test_an_altered_table_is_pulled_for_its_first_base_once_the_catalog_has_followed(lake: Lake) -> None:
    """Until then its rows are of another shape than the catalog's, and add up to no known sum."""
    lake.add_table("late", "create table late (id text primary key, v int)")
    writer = lake.writer()
    writer.insert("late", [["x", 1]])
    writer.insert("todo", [["a", "milk", True, 1]])
    lake.sql("alter table late add column w int default 5")
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        number = load_database(conn, "app").tables["late"].id
        conn.execute(MARKER, (number,))
    outcome = lake.compact()
    assert outcome.without_base == ("late",)
    assert outcome.changes == 2
    alter(writer, "alter table late alter w drop default", {"w": 5})
    writer.insert("late", [["y", 2, None]])
    assert lake.compact().without_base == ()
    assert [row["w"] for row in base_rows(lake, "late")] == [5, None]
    prove_all(lake)


@pytest.mark.long
def test_the_documented_macro_shows_what_rows_had_before_a_column(lake: Lake) -> None:
    told = Told(lake)
    told.insert(["a", "milk", True, 1], ["b", "tea", None, 2], ["c", None, None, 3])
    told.update("c", n=4)
    lake.compact()
    added = told.alter("alter table todo add column qty int default 5, drop column done", qty=5)
    told.update("b", qty=None)
    told.insert(["d", "rye", 7, None], ["e", "malt", 8, 5])
    lake.compact()
    views, _, _, macro = STATEMENTS
    assert "since(position, value, initial, added)" in macro
    with duckdb.connect() as conn:
        conn.execute(views.replace("/data/lake/shop/01J…", str(lake.lake_folder)))
        conn.execute(macro)
        shown = "id, title, n, since(anabranch.position, qty, 5, $added)"
        rows = conn.execute(f"select {shown} from base where not anabranch.deleted order by id", {"added": added})
        assert rows.fetchall() == lake.sql("select id, title, n, qty from todo order by id")
        changed = conn.execute(
            f"select {shown} from changes where anabranch.type = 'insert' order by 1", {"added": added}
        )
        assert [row[3] for row in changed.fetchall()] == [5, 5, 5, None, 5]
        before = conn.execute("select anabranch.before.qty from changes where list_contains(anabranch.changed, 'qty')")
        assert before.fetchall() == [(5,)]


@pytest.mark.parametrize("compacted", [False, True])
def test_a_table_that_gets_another_key_ends_as_it_was(lake: Lake, compacted: bool) -> None:
    told = Told(lake)
    told.insert(["a", "milk", True, 1], ["b", "tea", False, 2])
    told.alter("alter table todo drop column done")
    if compacted:
        lake.compact()
    told.update("a", title="oats")
    changed = told.alter(
        "alter table todo drop constraint todo_pkey, alter title set not null, add primary key (title)"
    )
    told.note(told.writer.update("todo", ("tea",), {"n": 3}))
    assert lake.compact().without_base == ()
    prove_all(lake)
    assert {row["id"]: row["n"] for row in base_rows(lake, "todo")} == {"a": 1, "b": 3}
    for position, wanted in told.were.items():
        # Changes of before the new registration had a base are not known there.
        if position != changed:
            found = command(lake, "rows", "--table", "todo", "--as-of", str(position))
            assert {row["id"]: row for row in found} == printed(wanted), position
    lake.compact()
    told.note(told.writer.delete("todo", ("oats",)))
    lake.compact()
    prove_all(lake)
    assert [row["id"] for row in base_rows(lake, "todo")] == ["b"]
