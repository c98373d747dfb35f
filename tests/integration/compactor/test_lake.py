"""The history of a row, and a table as it was: by the command and by the documented query."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.integration.compactor.conftest import Lake
from typer.testing import CliRunner

import anabranch_compactor
from anabranch.cli.lake.lake import app
from anabranch.cli.lake.positions import moment_of
from anabranch.testkit.log_writer import Logged
from anabranch.values import Cell, key_text
from anabranch.values.cells import Literal

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

README = Path(anabranch_compactor.__file__).parent / "README.md"
Rows = list[tuple[Any, ...]]


def command(lake: Lake, *arguments: str) -> list[dict[str, Any]]:
    """The JSON that a subcommand prints of table todo."""
    return command_of(lake, "todo", *arguments)


def command_of(lake: Lake, table: str, *arguments: str) -> list[dict[str, Any]]:
    """The JSON that a subcommand prints."""
    done = CliRunner().invoke(app, [*arguments, "--db", "app", "--table", table, "--json", "--postgres-url", lake.url])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def printed(cell: Any) -> str | None:
    """A cell as Postgres prints it."""
    return None if cell is None else str(cell).lower()[0] if isinstance(cell, bool) else str(cell)


def states(lake: Lake) -> dict[int, Rows]:
    """Write a history; the table's rows after each of its positions, by position. The second half stays in the log."""
    found: dict[int, Rows] = {}
    writer = lake.writer()

    def note(position: int) -> None:
        found[position] = lake.sql("select id, title, done, n from todo order by id")

    note(writer.insert("todo", [("a", "milk", False, 1), ("b", "tea", None, 2), ("stays", "x", True, 0)]))
    lake.compact()
    note(writer.update("todo", ("a",), {"title": None}))
    note(writer.delete("todo", ("b",)))
    note(writer.insert("todo", [("c", "new", False, None)]))
    note(writer.update("todo", ("c",), {"n": 7, "done": True}))
    lake.compact()
    note(writer.insert("todo", [("b", "again", False, 9)]))
    note(writer.update("todo", ("a",), {"title": "oats"}))
    note(writer.delete("todo", ("c",)))
    return found


@pytest.mark.long
def test_history_tells_every_change_with_the_values_before(lake: Lake) -> None:
    states(lake)
    told = [(c["type"], c["before"], c["row"] and c["row"]["title"]) for c in command(lake, "history", "--key", "a")]
    assert told == [
        ("insert", {}, "milk"),
        ("update", {"title": "milk"}, None),
        ("update", {"title": None}, "oats"),
    ]
    assert [(c["type"], c["before"].get("n")) for c in command(lake, "history", "--key", "c")] == [
        ("insert", None),
        ("update", None),
        ("delete", "7"),
    ]


@pytest.mark.long
def test_a_table_as_it_was_at_every_position(lake: Lake) -> None:
    found = states(lake)
    compacted = lake.manifest().to_position
    statements = re.findall(r"```sql\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    views, history, as_of, _ = statements
    macro, as_of = as_of.split(";\n")[:2]
    with duckdb.connect() as conn:
        conn.execute(views.replace("/data/lake/shop/01J…", str(lake.lake_folder)))
        conn.execute(macro)
        for position, rows in found.items():
            # A moment, and the number that it is.
            moment = moment_of(position) if position % 2 else str(position)
            shown = [tuple(row.values()) for row in command(lake, "rows", "--as-of", moment)]
            texts = [tuple(map(printed, row)) for row in rows]
            assert shown == texts, position
            if position <= compacted:
                assert conn.execute(as_of, {"as_of": position}).fetchall() == rows, position
        assert [row[2] for row in conn.execute(history).fetchall()] == ["insert", "update"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["history", "--db", "app", "--table", "nowhere", "--key", "a"], "UNKNOWN_TABLE"),
        (["history", "--db", "other", "--table", "todo", "--key", "a"], "UNKNOWN_DATABASE"),
    ],
)
def test_what_is_not_there_is_named(lake: Lake, arguments: list[str], reason: str) -> None:
    lake.writer().insert("todo", [("a", "t", None, 1)])
    done = CliRunner().invoke(
        app, ["history", "--db", "app", "--table", "todo", "--key", "a", "--postgres-url", lake.url]
    )
    assert (done.exit_code, "NOT_COMPACTED" in done.output) == (2, True)
    lake.compact()
    done = CliRunner().invoke(app, [*arguments, "--postgres-url", lake.url])
    assert (done.exit_code, reason in done.output) == (2, True), done.output


def refused(lake: Lake, *arguments: str) -> str:
    """The message of a subcommand that does nothing."""
    done = CliRunner().invoke(app, [*arguments, "--db", "app", "--table", "todo", "--postgres-url", lake.url])
    assert done.exit_code == 2, done.output
    return done.stderr


@pytest.mark.long
def test_times_nodes_and_principals_are_taken_and_shown(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    writer = lake.writer()
    lake.sql(
        "insert into anabranch.nodes (database_id, node_id, name, principal, epoch, token, last_seen_ms)"
        " values (%s, %s, 'gate-12', 'ada', %s, '', 1)",
        (writer.database.id, NODE, writer.database.epoch),
    )
    insert = writer._builders["todo"].insert(("a", "milk", None, 1))
    row = "insert into app.todo values ('a', 'milk', null, 1)"
    position = writer.commit([Logged("todo", [("a", insert)], node_id=NODE)], lambda: writer.conn.execute(row.encode()))
    update = writer.update("todo", ("a",), {"n": 2})
    lake.compact()
    first, second = command(lake, "history", "--key", "a")
    assert (first["node"], first["node_name"], first["principal"]) == (NODE, "gate-12", "ada")
    assert first["time"] == moment_of(position)
    assert (second["node_name"], second["principal"]) == (None, None), "a node that is not known any more"
    grid = CliRunner().invoke(
        app, ["history", "--db", "app", "--table", "todo", "--key", "a", "--postgres-url", lake.url]
    )
    for text in ("gate-12", "ada", moment_of(position), moment_of(update)):
        assert text in grid.output
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    local = tomorrow.astimezone(timezone(timedelta(hours=-5)))
    for moment in (f"{tomorrow:%Y-%m-%d}", local.isoformat(), str(position + 86_400_000)):
        assert [row["id"] for row in command(lake, "rows", "--as-of", moment)] == ["a"], moment
    assert command(lake, "rows", "--as-of", "2020-01-01") == []
    assert "has no time zone" in refused(lake, "rows", "--as-of", "2026-11-28T10:00:00")
    for moment in ("yesterday", "-1", "2026-13-01"):
        assert "(INVALID_TIME)" in refused(lake, "rows", "--as-of", moment)
    lake.sql("update anabranch.compactions set from_position = %s", (position - 1,))
    assert "(BEFORE_LAKE)" in refused(lake, "rows", "--as-of", "2020-01-01")


NODE = "01KB3V6Q2V9RP0HGE2HN5T9G12"
KEYS: dict[str, list[tuple[str, Cell]]] = {
    "timestamptz": [
        ("294271-06-01 00:00:00+00", Literal("294271-06-01 00:00:00+00")),
        ("0044-03-15 00:00:00+00 BC", -63_517_824_000_000_000),
        ("infinity", 2**63 - 1),
        ("-infinity", -(2**63)),
        ("1970-01-01 00:00:01+00", 1_000_000),
    ],
    "date": [("1970-01-11", 10), ("infinity", 2**31 - 1), ("0044-03-15 BC", -735_160)],
    "time": [("24:00:00", 86_400_000_000), ("00:00:00.000001", 1)],
    "bytea": [("\\x00ff", b"\x00\xff"), ("\\x", b"")],
    "boolean": [("t", True), ("f", False)],
    "bigint": [("-9223372036854775808", -(2**63)), ("0", 0)],
    "uuid": [("00000000-0000-0000-0000-00000000000a",) * 2],
    "text": [(text, text) for text in ("1", "01", "1e0", "true", "", 'quo"te', "it's", "[1]", "null", "é😀")],
}


@pytest.mark.long
def test_a_row_of_any_key_is_found(make_lake: Callable[..., Lake]) -> None:
    lake = make_lake("other", "create table other (id text primary key)")
    for number, kind in enumerate(KEYS):
        lake.add_table(f"t{number}", f"create table t{number} (k {kind} primary key, v int)")
        lake.add_table(f"c{number}", f"create table c{number} (k {kind}, v int, p text, primary key (p, k))")
    writer = lake.writer()

    def put(table: str, text: str, cells: tuple[Cell, ...]) -> None:
        known, effect = writer.table(table), writer._builders[table].insert(cells)
        row = f"insert into app.{table} values (%s::text::{known.columns[0].postgres_type}, 1, '1')"
        statement = (row if len(cells) == 3 else row.replace(", '1'", "")).encode()
        key = key_text([cells[i] for i in known.key_index])
        writer.commit([Logged(table, [(key, effect)])], lambda: writer.conn.execute(statement, (text,)))

    def write(half: int) -> None:
        for number, keys in enumerate(KEYS.values()):
            for text, cell in keys[half::2]:
                put(f"t{number}", text, (cell, 1))
                put(f"c{number}", text, (cell, 1, "1"))

    # Half of them are in files, and half in the log alone.
    write(0)
    lake.compact()
    write(1)
    for number, keys in enumerate(KEYS.values()):
        for text, cell in keys:
            for table, given in ((f"t{number}", text), (f"c{number}", json.dumps(["1", text]))):
                done = CliRunner().invoke(
                    app,
                    ["history", "--db", "app", "--table", table, "--json", "--postgres-url", lake.url, "--key", given],
                )
                assert done.exit_code == 0, (table, given, done.output)
                found = [json.loads(line)["row"]["k"] for line in done.stdout.splitlines()]
                assert found == [text], (table, given, cell)
        printed_keys = command_of(lake, f"t{number}", "rows", "--as-of", "2100-01-01")
        assert sorted(row["k"] for row in printed_keys) == sorted(text for text, _ in keys)
    assert (
        "(INVALID_KEY)"
        in CliRunner()
        .invoke(app, ["history", "--db", "app", "--table", "t6", "--key", "no uuid", "--postgres-url", lake.url])
        .stderr
    )
