"""Every reader of the lake against a model, at every position: rows as of it, a row's history, the documented query,
and the base that devices pull. Over all that can become of a row: there before its table was registered, changed before
the first base, in part, deleted and made anew, touched by batches that changed nothing, and registered anew with
another column."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest
from tests.integration.compactor.conftest import Lake
from typer.testing import CliRunner

import anabranch_compactor
from anabranch.cli.lake.lake import app
from anabranch.cli.lake.positions import moment_of
from anabranch.store.catalog import registration
from anabranch.store.catalog.databases import load_database
from anabranch.store.lake.source import open_lake
from anabranch.store.session.engine import connect
from anabranch.testkit.log_writer import Logged, LogWriter
from anabranch.values import Cell, key_text

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

README = Path(anabranch_compactor.__file__).parent / "README.md"
STATEMENTS = re.findall(r"```sql\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
TODO = 'create table todo (id text collate "C" primary key, title text, done boolean, n bigint)'
KEYS = ["1", "01", "1e0", 'quo"te', "it's", " ", "é😀", "null"]
Rows = dict[str, dict[str, Cell]]


def command(lake: Lake, *arguments: str) -> list[dict[str, Any]]:
    """The JSON that a subcommand prints."""
    done = CliRunner().invoke(app, [*arguments, "--db", "app", "--json", "--postgres-url", lake.url])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def register(lake: Lake, name: str) -> None:
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        registration.add_table(conn, "app", name)


def unregister(lake: Lake, name: str) -> None:
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        registration.remove_table(conn, "app", name)


@dataclass
class Model:
    """The rows of table todo after each position; ``told``: the changes of each row."""

    lake: Lake
    random: Random
    columns: list[str] = field(default_factory=lambda: ["title", "done", "n"])
    rows: Rows = field(default_factory=dict)
    were: dict[int, Rows] = field(default_factory=dict)
    told: dict[str, list[tuple[str, dict[str, Cell] | None, dict[str, Cell]]]] = field(default_factory=dict)
    writer: LogWriter = None  # type: ignore[assignment]

    def cells(self) -> dict[str, Cell]:
        values: dict[str, list[Cell]] = {
            "title": [None, "", "milk", "1"],
            "done": [None, True, False],
            "n": [None, 0, -(2**63), 7],
            "extra": [None, "e", "f"],
        }
        return {name: self.random.choice(values[name]) for name in self.columns}

    def note(self, position: int) -> None:
        self.were[position] = {key: dict(row) for key, row in self.rows.items()}

    def step(self) -> None:
        """One random change of one row, as one group."""
        key = self.random.choice(KEYS)
        row, table = self.rows.get(key), self.writer.table("todo")
        told = self.told.setdefault(key, [])
        if self.random.random() < 0.2:
            builder = self.writer._builders["todo"]
            position = self.writer.commit([Logged("todo", [(key_text((key,)), builder.none((key,)))])])
            told.append(("none", row, {}))
        elif row is None:
            new = {"id": key, **self.cells()}
            position = self.writer.insert("todo", [tuple(new[name] for name in table.column_names)])
            self.rows[key] = new
            told.append(("insert", new, {}))
        elif self.random.random() < 0.25:
            position = self.writer.delete("todo", (key,))
            old = self.rows.pop(key)
            told.append(("delete", None, {name: cell for name, cell in old.items() if name != "id"}))
        else:
            fresh = self.cells()
            names = [name for name in self.columns if fresh[name] != row[name]][: self.random.randrange(1, 3)]
            if not names:
                return
            position = self.writer.update("todo", (key,), {name: fresh[name] for name in names})
            self.rows[key] = {**row, **{name: fresh[name] for name in names}}
            told.append(("update", self.rows[key], {name: row[name] for name in names}))
        self.note(position)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


def agrees(where: object, found: Mapping[str, Cell], row: Mapping[str, Cell], *, whole: bool) -> None:
    """Check that a row was as it is known to have been."""
    assert {name: row[name] for name in found} == dict(found), where
    assert not whole or found.keys() == row.keys(), where


def check(model: Model, based: int, ended: int = -1) -> None:
    """Every reader, at every position. From ``based`` on everything is known; ``ended``: where the table's last
    registration but one ended."""
    lake = model.lake
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        source = open_lake(conn, load_database(conn, "app"), "todo")
        tail = source.tail(conn)
        for position, wanted in model.were.items():
            found = {key[0]: row for key, row in source.lake.as_of(position, tail).items()}
            assert found.keys() == wanted.keys(), position
            for at, known_row in found.items():
                agrees((position, at), known_row, wanted[str(at)], whole=position >= based)
        assert {key[0]: row for key, row in source.lake.rows().items()} == model.were[
            max(position for position in model.were if position <= source.upto)
        ]
    for key, told in model.told.items():
        changes = command(lake, "history", "--table", "todo", "--key", key)
        assert [change["type"] for change in changes] == [kind for kind, _, _ in told], key
        for change, (_, row, before) in zip(changes, told, strict=True):
            assert (change["row"] is None) == (row is None), (key, change)
            for name, text in (change["row"] or {}).items():
                assert text == printed((row or {})[name]), (key, change)
            for name, text in change["before"].items():
                assert text == printed(before[name]), (key, change)
            known = {*(change["row"] or {})} == {*(row or {})} and change["before"].keys() == before.keys()
            assert change["complete"] == known or change["type"] == "none", (key, change)
            assert known or change["position"] <= based, (key, change)
            assert change["time"] == moment_of(change["position"])
    views, _, as_of, _ = STATEMENTS
    with duckdb.connect() as conn_:
        conn_.execute(views.replace("/data/lake/shop/01J…", str(lake.lake_folder)))
        *before_it, query = as_of.split(";\n")[:2]
        for statement in before_it:
            conn_.execute(statement)
        for position, wanted in model.were.items():
            if not ended < position <= source.upto:
                continue
            cursor = conn_.execute(query, {"as_of": position})
            names = [one[0] for one in cursor.description or ()]
            found_rows = {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}
            assert found_rows.keys() == wanted.keys(), position
            for key, shown in found_rows.items():
                for name, cell in shown.items():
                    # NULL is also what nothing tells.
                    unknown = cell is None and position < based
                    assert unknown or cell == wanted[key][name], (position, key, name)


def printed(cell: Any) -> str | None:
    return None if cell is None else str(cell).lower()[0] if isinstance(cell, bool) else str(cell)


@pytest.mark.parametrize("seed", [1, 2])
def test_every_reader_tells_what_the_model_says(make_lake: Callable[..., Lake], seed: int) -> None:
    lake = make_lake("other", "create table other (id text primary key)")
    model = Model(lake, Random(seed))
    lake.sql(TODO)
    for key in KEYS[::2]:
        row = {"id": key, **model.cells()}
        model.rows[key] = row
        lake.sql("insert into todo values (%s, %s, %s, %s)", tuple(row.values()))
    register(lake, "todo")
    model.writer = lake.writer()
    model.note(0)
    # Changed before there is a base.
    model.steps(12)
    based = lake.compact().to_position
    check(model, based)
    model.steps(8)
    lake.compact()
    model.steps(8)
    check(model, based)
    # Registered anew with another column, with changes of before that no run has seen, and a row altered meanwhile.
    ended = max(model.were)
    unregister(lake, "todo")
    lake.sql("alter table todo add column extra text default 'd'")
    lake.sql("update todo set title = 'meanwhile' where id = (select min(id) from todo)")
    model.rows = {key: {**row, "extra": "d"} for key, row in model.rows.items()}
    model.rows[min(model.rows)]["title"] = "meanwhile"
    register(lake, "todo")
    model.columns.append("extra")
    model.writer = lake.writer()
    model.steps(6)
    again = lake.compact().to_position
    model.steps(6)
    lake.compact()
    model.steps(4)
    known = {position: rows for position, rows in model.were.items() if position <= ended}
    later = {position: rows for position, rows in model.were.items() if position > ended}
    model.were = later
    check(model, again, ended)
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        source = open_lake(conn, load_database(conn, "app"), "todo")
        for position, wanted in known.items():
            found = {key[0]: row for key, row in source.lake.as_of(position).items()}
            assert found.keys() == wanted.keys(), position
            for at, one in found.items():
                agrees((position, at), one, wanted[str(at)], whole=position >= based)
