"""``anabranch dead`` on a device's file, with nothing installed but what a device has."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anabranch.client import SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.v1 import errors_pb2, value_pb2, verdict_pb2

# The packages of the server extra can't be found, as on a device.
DEVICE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in "typer click rich psycopg psycopg_pool pydantic sqlalchemy alembic".split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from anabranch.cli.entry import main
sys.exit(main())
"""


def dead(*arguments: str | Path) -> tuple[int, str, str]:
    run = subprocess.run(
        [sys.executable, "-c", DEVICE, "dead", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    return run.returncode, run.stdout, run.stderr


@pytest.fixture
def letters(device: SyncedDb, remote: MemoryRemote) -> list[str]:
    """Two dead letters: an update of two columns, refused by a constraint, whose undo failed; and an insert."""
    update = device.table("todo").update({"id": "k0", "title": "mine", "n": 5})
    insert = device.table("todo").insert({"id": "k9", "title": "12"})
    row = value_pb2.NamedRow(
        columns=["id", "title", "n"],
        values=[
            value_pb2.Value(string_value="k0"),
            value_pb2.Value(string_value="then"),
            value_pb2.Value(int64_value=3),
        ],
    )
    key = [value_pb2.Value(string_value="k0")]
    verdicts = [
        verdict_pb2.Verdict(
            batch_id=update,
            status=verdict_pb2.VERDICT_STATUS_REJECTED,
            position=2_000,
            reason=errors_pb2.REASON_CONSTRAINT,
            message="n is too large",
            constraint="todo_n_check",
            sqlstate="23514",
            mutations=[verdict_pb2.MutationVerdict(table="todo", key=key, columns=["n"], server_row=row)],
        ),
        verdict_pb2.Verdict(
            batch_id=insert,
            status=verdict_pb2.VERDICT_STATUS_REJECTED,
            position=2_000,
            reason=errors_pb2.REASON_ROW_DELETED,
            message="another node deleted it",
            mutations=[verdict_pb2.MutationVerdict(table="todo", key=[value_pb2.Value(string_value="k9")])],
        ),
    ]
    with device._file.transaction() as tx:
        device._sender._note(tx, verdicts, remote.state())
        tx.conn.execute("UPDATE _db_mutations_queue_dead SET still_shown = 1 WHERE id = ?", (update,))
    return [update, insert]


@pytest.mark.slow
def test_list_and_show_tell_everything_and_start_no_clock(device: SyncedDb, letters: list[str]) -> None:
    file = device._file.path
    code, out, _ = dead("list", file)
    assert code == 0
    first, second = out.splitlines()
    assert first.startswith(letters[0])
    assert "CONSTRAINT: n is too large  [update todo (1)]; STILL SHOWN" in first
    assert second.endswith("ROW_DELETED: another node deleted it  [insert todo (1)]")
    code, out, _ = dead("show", file, letters[0])
    assert code == 0
    for line in (
        "why not     CONSTRAINT: n is too large",
        "constraint  todo_n_check (SQLSTATE 23514)",
        'tried       update todo: {"id": "k0", "title": "mine", "n": 5}',
        "refused     todo, key k0",
        'server then {"id": "k0", "title": "then", "n": 3}',
        'server now  {"id": "k0", "title": "title 0", "n": 0}',
        "undo        FAILED",
    ):
        assert line in out
    code, out, _ = dead("show", file, letters[1], "--json")
    shown: dict[str, Any] = json.loads(out)
    assert (shown["server_row_then"], shown["server_row_now"], shown["still_shown"]) == (None, None, False)
    code, out, _ = dead("list", file, "--json")
    assert [letter["id"] for letter in json.loads(out)] == letters
    assert device.execute("SELECT max(first_shown_ms) FROM _db_mutations_queue_dead").fetchone() == (0,)


@pytest.mark.slow
def test_a_large_letter_is_cut_with_its_lengths_said_and_whole_where_it_is_asked_for(
    device: SyncedDb, remote: MemoryRemote, tmp_path: Path
) -> None:
    megabytes = "x" * 3_000_000
    rows = [{"id": f"m{number}", "title": megabytes if number == 0 else "y" * 200} for number in range(500)]
    batch = device.table("todo").insert(rows)
    refused = verdict_pb2.Verdict(
        batch_id=batch,
        status=verdict_pb2.VERDICT_STATUS_REJECTED,
        position=2_000,
        reason=errors_pb2.REASON_CONSTRAINT,
        message="no " * 100_000,
    )
    with device._file.transaction() as tx:
        device._sender._note(tx, [refused], remote.state())
    path = device._file.path
    for arguments in (("list",), ("list", "--json"), ("show", batch), ("show", batch, "--json")):
        code, out, err = dead(arguments[0], path, *arguments[1:])
        assert (code, err) == (0, "")
        assert len(out) < 20_000, arguments
    _, out, _ = dead("show", path, batch)
    assert '"id": "m0", "title": "' + "x" * 200 + '…" (3,000,000 characters)' in out
    assert '"title": "' + "y" * 200 + '"}' in out, "what is short is whole"
    assert "insert todo: 480 more rows" in out
    assert out.splitlines()[-1].startswith("not all is shown: --full prints all of it, --out FILE")
    _, out, _ = dead("show", path, batch, "--full")
    assert megabytes in out
    assert "m499" in out
    assert "not all is shown" not in out

    whole = tmp_path / "letter.json"
    assert dead("show", path, batch, "--out", whole)[:2] == (0, f"wrote {whole}\n")
    assert json.loads(whole.read_text())["tried"][0]["rows"] == rows
    assert whole.stat().st_mode & 0o077 == 0
    code, out, err = dead("show", path, batch, "--out", whole)
    assert (code, out) == (2, "")
    assert "File exists" in err


TRICKS = "\x1b[2Jab\r\ncd\x7f\x9b31m\u202eef\u2066gh\u2069\u200f\u200e\u2028"


@pytest.mark.slow
def test_nothing_of_a_letter_moves_a_terminal_or_turns_its_text(device: SyncedDb, remote: MemoryRemote) -> None:
    """Values, names of columns and tables, and the server's words are all others' text."""
    update = device.table("todo").update({"id": "k0", "title": f"value{TRICKS}"})
    key = [value_pb2.Value(string_value=f"key{TRICKS}")]
    row = value_pb2.NamedRow(columns=[f"column{TRICKS}"], values=key)
    refused = verdict_pb2.Verdict(
        batch_id=update,
        status=verdict_pb2.VERDICT_STATUS_REJECTED,
        position=2_000,
        reason=errors_pb2.REASON_CONSTRAINT,
        message=f"message{TRICKS}",
        constraint=f"constraint{TRICKS}",
        sqlstate=f"state{TRICKS}",
        mutations=[verdict_pb2.MutationVerdict(table="todo", key=key, server_row=row)],
    )
    with device._file.transaction() as tx:
        device._sender._note(tx, [refused], remote.state())
    path = device._file.path
    for arguments in (("list", path), ("show", path, update), ("show", path, update, "--full")):
        code, out, _ = dead(*arguments)
        assert code == 0
        assert [one for line in out.splitlines() for one in line if not one.isprintable()] == []
        assert r"\x1b[2Jab" in out
        assert r"\u202eef\u2066gh\u2069\u200f\u200e" in out
    assert len(dead("list", path)[1].splitlines()) == 1
    code, out, _ = dead("show", path, update, "--json")
    assert [one for one in out if not one.isprintable() and one != "\n"] == []
    assert json.loads(out)["tried"][0]["rows"][0]["title"] == f"value{TRICKS}"
    code, out, error = dead("show", path, TRICKS)
    assert (code, out) == (2, "")
    assert error.rstrip("\n").isprintable()


@pytest.mark.slow
def test_a_letter_is_edited_and_replayed_and_goes_with_the_next_sync(
    device: SyncedDb, remote: MemoryRemote, letters: list[str]
) -> None:
    file = device._file.path
    code, out, _ = dead("replay", file, letters[0], "--set", "n=7", "--null", "title")
    assert (code, out.startswith("queued as ")) == (0, True)
    assert device.execute("SELECT title, n FROM todo WHERE id = 'k0'").fetchone() == (None, 7)
    code, out, _ = dead("replay", file, letters[1], "--set", "title=13", "--set", "n=1")
    assert code == 0
    assert device.sync()
    assert remote.server.live()["todo", "k0"] == {"id": "k0", "title": None, "n": 7}
    assert remote.server.live()["todo", "k9"] == {"id": "k9", "title": "13", "n": 1}
    assert device.dead_letters() == []


@pytest.mark.slow
def test_a_letter_is_discarded_by_the_beginning_of_its_id(device: SyncedDb, letters: list[str]) -> None:
    file = device._file.path
    code, _, error = dead("discard", file, letters[0][:2])
    assert (code, error) == (2, f"anabranch: 2 dead letters have an id that begins with '{letters[0][:2]}'\n")
    assert dead("discard", file, letters[0])[0] == 0
    assert [letter.id for letter in device.dead_letters()] == [letters[1]]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--set", "n=many"], "todo.n: takes int, not str"),
        (["--set", "nope=1"], "no table of the letter has a column 'nope'"),
        (["--set", "n"], "--set takes COLUMN=VALUE, not 'n'"),
        (["--leave-out", "nope"], "no row of the batch gives the column 'nope'"),
        (["--leave-out", "title", "--leave-out", "n"], "changes no column"),
    ],
)
def test_a_wrong_edit_says_why_and_leaves_the_letter(
    device: SyncedDb, letters: list[str], arguments: list[str], why: str
) -> None:
    code, _, error = dead("replay", device._file.path, letters[0], *arguments)
    assert code == 2
    assert why in error
    assert len(error.splitlines()) == 1
    assert len(device.dead_letters()) == 2
    assert device.status().queued == 0


@pytest.mark.slow
def test_what_is_no_devices_file_is_refused_and_made_nowhere(tmp_path: Path) -> None:
    assert dead("list", tmp_path / "none.db")[0] == 2
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "text").write_text("no database at all, but long enough to be read as one")
    with sqlite3.connect(tmp_path / "other.db") as conn:
        conn.execute("CREATE TABLE t (a)")
    for name in ("text", "other.db"):
        before = (tmp_path / name).read_bytes()
        code, _, error = dead("list", tmp_path / name)
        assert (code, "is no device's file" in error) == (2, True)
        assert (tmp_path / name).read_bytes() == before


def test_other_commands_say_what_they_need() -> None:
    run = subprocess.run([sys.executable, "-c", DEVICE, "status"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert run.stderr == (
        "anabranch: only `anabranch dead` works here: the other commands need the package anabranch-server, "
        "of the same version\n"
    )
