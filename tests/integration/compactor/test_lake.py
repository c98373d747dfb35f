"""What happened to a row, and a table as it was: by the command and by the documented query."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.integration.compactor.conftest import Lake
from typer.testing import CliRunner

import anabranch_compactor
from anabranch.cli.lake import app

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

README = Path(anabranch_compactor.__file__).parent / "README.md"
Rows = list[tuple[Any, ...]]


def command(lake: Lake, *arguments: str) -> list[dict[str, Any]]:
    """What a subcommand prints as JSON."""
    done = CliRunner().invoke(app, [*arguments, "--db", "app", "--table", "todo", "--json", "--postgres-url", lake.url])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.output.splitlines()]


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
    views, history, as_of = statements
    with duckdb.connect() as conn:
        conn.execute(views.replace("/data/lake/shop/01J…", str(lake.lake_folder)))
        for position, rows in found.items():
            shown = [tuple(row.values()) for row in command(lake, "rows", "--as-of", str(position))]
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
