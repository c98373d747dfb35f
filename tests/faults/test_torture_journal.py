"""The fault run reads the journals of those who write by SQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.torture import checks, tables
from anabranch.testkit.torture.processes import Node
from anabranch.testkit.torture.registers import Step


def test_a_number_that_is_given_again_after_a_crash_is_that_of_the_transaction_that_was_committed(
    databases: TestDatabases, tmp_path: Path
) -> None:
    url = databases.fresh()
    writers = [Node("", name, tmp_path, {}) for name in ("first", "second")]
    with connect(url, application_name="test", autocommit=True) as conn:
        conn.execute(tables.SQL.encode())
        conn.execute(f"insert into {tables.WRITTEN} values ('b'), ('d')".encode())
        [(number,)] = conn.execute("select pg_current_xact_id()::text").fetchall()
        row = {"id": "s00", "title": "new"}
        kept: list[Any] = [["shared", "s00", None, row]]
        lost: list[Any] = [["shared", "s01", None, row]]
        nothing: list[Any] = [["shared", "s02", row, row]]
        lines: dict[str, list[tuple[str, str, list[Any]]]] = {
            "first": [("a", number, lost), ("b", number, kept)],
            "second": [("c", number, []), ("d", "1" + number, nothing)],
        }
        for writer in writers:
            text = [json.dumps({"mark": m, "transaction": n, "steps": s}) + "\n" for m, n, s in lines[writer.name]]
            writer.record.write_text("".join(text))
        for order in (writers, writers[::-1]):
            assert checks.journal(conn, order) == {number: [Step(("shared", "s00"), None, row)]}
    databases.release(url)
