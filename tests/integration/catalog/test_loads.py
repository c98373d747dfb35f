"""The fast ways to load many rows, with the tools that people use, and what a subscription brings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.embedded.binaries import PostgresUnavailableError, find_binaries
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.drift import drift
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.catalog.sums import scan_rows
from anabranch.store.session.engine import Session
from anabranch.testkit.databases import TestDatabases
from anabranch.values.canonical import RowEncoder, table_sum

TABLE = "create schema if not exists app; create table app.t (id text primary key, n int)"
FILL = "insert into app.t select 'r' || i, i from generate_series(1, 2000) i"


def program(name: str, server_version: int) -> str:
    """A program of Postgres's that fits the server: the wheel's of that version, or the machine's own where it is no
    older; skips where there is none."""
    major = server_version // 10_000
    try:
        return find_binaries(major, for_root=os.geteuid() == 0).program(name)
    except PostgresUnavailableError as error:
        found = shutil.which(name)
        told = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout if found else ""
        if found is None or int(re.search(r"(\d+)", told)[1]) < major:  # type: ignore[index]
            pytest.skip(f"{error}, and there is no {name} here that is new enough")
        return found


def done(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def agrees(conn: Session) -> None:
    table = load_database(conn, "d").tables["t"]
    with conn.transaction():
        rows = [row for chunk in scan_rows(conn, "app", table) for row in chunk]
    [(count, total)] = conn.execute(
        "select row_count, row_hash from anabranch.table_sums where table_id = %s", (table.id,)
    ).fetchall()
    assert (count, int.from_bytes(total, "big")) == table_sum(RowEncoder(table), rows)
    assert conn.execute("select count(*) from anabranch.captured").fetchone() == (0,)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["registered after", "capture off and on"])
def test_a_dump_is_restored_into_a_table(
    conn: Session, migrated_url: str, databases: TestDatabases, tmp_path: Path, when: str
) -> None:
    dump, restore = (program(name, conn.info.server_version) for name in ("pg_dump", "pg_restore"))
    source = databases.fresh()
    with psycopg.connect(source, autocommit=True) as other:
        other.execute(TABLE)
        other.execute(FILL)
    file = str(tmp_path / "dump.custom")
    subprocess.run([dump, "--format=custom", "--data-only", f"--file={file}", source], check=True, timeout=60)
    databases.release(source)
    conn.execute(TABLE.encode())
    create_database(conn, "d", "app")
    at = ("--postgres-url", migrated_url)
    if when == "capture off and on":
        conn.execute("insert into app.t values ('before', 0)")
        add_table(conn, "d", "t")
        done("table", "capture", "off", "d", "t", *at)
    subprocess.run([restore, "--data-only", f"--dbname={migrated_url}", file], check=True, timeout=60)
    if when == "capture off and on":
        assert "2001 rows" in done("table", "capture", "on", "d", "t", *at)
    else:
        assert "2000 rows" in done("table", "add", "d", "t", *at)
    agrees(conn)
    done("verify", "--db", "d", *at)


def test_a_subscription_that_comes_later_is_told_of_and_found_by_verify(
    conn: Session, migrated_url: str, databases: TestDatabases
) -> None:
    [(level,)] = conn.execute("select current_setting('wal_level')").fetchall()
    if level != "logical":
        pytest.skip("the server's wal_level is not logical")
    conn.execute(TABLE.encode())
    create_database(conn, "d", "app")
    add_table(conn, "d", "t")
    source = databases.fresh()
    slot = "anabranch_" + urlsplit(source).path.removeprefix("/")
    with psycopg.connect(source, autocommit=True) as other:
        other.execute(TABLE)
        other.execute("create publication everything for table app.t")
        other.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        try:
            conn.execute(
                f"create subscription fed connection '{source}' publication everything"
                f" with (create_slot = false, slot_name = '{slot}', copy_data = false)".encode()
            )
            told = [one for one in drift(conn, load_database(conn, "d")) if "SUBSCRIPTION" in one.text]
            assert [(one.table, one.stops) for one in told] == [("t", False)]
            other.execute("insert into app.t values ('from elsewhere', 1)")
            _until_there(conn)
            at = ("--postgres-url", migrated_url)
            captured: Any = conn.execute("select count(*) from anabranch.captured").fetchone()
            assert captured == (0,), "triggers for statements do not fire: why it is refused"
            assert "DIFFERS" in done("verify", "--db", "d", *at, code=1)
        finally:
            conn.execute("alter subscription fed disable")
            conn.execute("alter subscription fed set (slot_name = none)")
            conn.execute("drop subscription fed")
            _drop_slot(other, slot)
    databases.release(source)


def _until_there(conn: Session) -> None:
    for _ in range(3_000):
        if conn.execute("select 1 from app.t").fetchone():
            return
        conn.execute("select pg_sleep(0.01)")
    raise AssertionError("the subscription brings nothing")


def _drop_slot(conn: psycopg.Connection[Any], slot: str) -> None:
    """Once its worker has let go of it."""
    for _ in range(1_000):
        if conn.execute("select 1 from pg_replication_slots where slot_name = %s and not active", (slot,)).fetchone():
            conn.execute("select pg_drop_replication_slot(%s)", (slot,))
            return
        conn.execute("select pg_sleep(0.01)")
    raise AssertionError("the slot is in use")
