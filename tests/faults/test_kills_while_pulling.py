"""A device killed with SIGKILL again and again while it pulls 10,000 rows and applies what is written meanwhile: after
every kill its file is whole, and what it has counted is what it holds; at the end it holds exactly the server's rows.

Each kill falls a few milliseconds, drawn by a seed, behind a part of the pull or a page of the log.
ANABRANCH_TEST_KILLS sets how often at least, thirty for each device; the default is one device.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from anabranch.client import SyncedDb
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.reading.sums import of_rows
from anabranch.store.catalog import databases as catalog
from anabranch.store.catalog import registration
from anabranch.store.session.engine import connect
from anabranch.testkit.comparison import differences
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.remote import remote_of
from anabranch.testkit.stack import Stack

pytestmark = pytest.mark.slow

KILLS_IN_PULL = 15
KILLS_IN_LOG = 15
ROWS = 30_000
LATEST_S = 0.02
SEED = 7
DEVICES = -(-int(os.environ.get("ANABRANCH_TEST_KILLS", "30")) // (KILLS_IN_PULL + KILLS_IN_LOG))


@pytest.fixture
def stack(databases: TestDatabases, tmp_path: Path) -> Iterator[Stack]:
    url = databases.fresh()
    with Stack(url, folder=tmp_path / "stack") as running:
        yield running
    databases.release(url)


def check_file(file: Path, tables: dict[str, DeviceTable]) -> int:
    """Check that the file is whole and that the kept sums are those of its rows, whenever the device died. Return the
    number of rows."""
    with closing(sqlite3.connect(file)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = 0
        for name, count, digest, stage in conn.execute("SELECT name, count, hash, stage FROM _db_tables").fetchall():
            (there,) = conn.execute(f'SELECT count(*) FROM "{name}"').fetchone()
            rows += there
            if stage == "live":
                assert of_rows(conn, tables[name]) == (count, digest), f"{name}: counted, and not there"
        return rows


def killed_after(config: dict[str, str], word: str, count: int, later_s: float) -> int:
    """Start the device and kill it ``later_s`` seconds after it has said ``word`` so often, or, in a pull, has no more
    to say; how often it had."""
    log = Path(f"{config['file']}.log")
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("pulling_device.py")), json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        said = 0
        for line in process.stdout:
            said += line.startswith(word)
            if said >= count or (word == "rows" and line.startswith("pulled")):
                break
        time.sleep(later_s)  # so that the kill falls anywhere in the next part
        assert process.poll() is None, log.read_text()
        process.kill()
        return said


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(SEED, SEED + DEVICES))
def test_killed_thirty_times_while_pulling_and_applying_a_file_stays_whole_and_ends_equal(
    stack: Stack, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    writer_key, key = stack.new_key("writer"), stack.new_key("device")

    def opened(file: Path, token: str) -> SyncedDb:
        return SyncedDb(file, remote_of(stack.addresses, token), "pulled")

    with connect(stack.database_url, application_name="test", autocommit=True) as conn:
        conn.execute(b"create schema pulled")
        for name in ("first", "second"):
            conn.execute(f"create table pulled.{name} (id text primary key, body text, n bigint)".encode())
            conn.execute(
                f"insert into pulled.{name} select 'k' || lpad(g::text, 6, '0'), repeat('body ', 250) || g, g"
                f" from generate_series(0, {ROWS // 2 - 1}) g".encode()
            )
        registration.create_database(conn, "pulled", "pulled")
        for name in ("first", "second"):
            registration.add_table(conn, "pulled", name)
        database = catalog.load_database(conn, "pulled")
        tables = {name: DeviceTable(table) for name, table in database.tables.items()}
        file = tmp_path / "device.db"
        config = {"file": str(file), "db": "pulled", "key": key, **stack.addresses}

        with closing(opened(tmp_path / "writer.db", writer_key)) as writer:
            writer.start(background=False)
            rows_at: list[int] = []
            for _ in range(KILLS_IN_PULL):
                write(writer, chance)
                killed_after(config, "rows", 1, chance.uniform(0, LATEST_S))
                rows_at.append(check_file(file, tables))
            print(f"killed {KILLS_IN_PULL} times in the pull, with so many rows there: {rows_at}")
            assert sum(rows < ROWS - 1_000 for rows in rows_at) > KILLS_IN_PULL // 2, "too few kills fell into the pull"
            assert rows_at == sorted(rows_at), "a resumed pull goes on where it was"
            cursors = 0
            for _ in range(KILLS_IN_LOG):
                for _ in range(5):
                    write(writer, chance)
                cursors += killed_after(config, "cursor", 1, chance.uniform(0, LATEST_S))
                check_file(file, tables)
            print(f"killed {KILLS_IN_LOG} times behind a page of the log")
            assert cursors == KILLS_IN_LOG

        with closing(opened(file, key)) as device:
            device.start(background=False)
            assert device.sync()
            assert device.status().disagreeing == ()
            assert device.status().pulls == 1
            for table in database.tables.values():
                with closing(sqlite3.connect(file)) as here:
                    assert differences(conn, "pulled", table, here) == []
        check_file(file, tables)


def write(writer: SyncedDb, chance: random.Random) -> None:
    """Write as others do meanwhile: one batch that changes and removes rows."""
    keys = [f"k{n:06}" for n in chance.sample(range(ROWS // 2), 20)]
    with writer.batch():
        for name in ("first", "second"):
            table = writer.table(name)
            there = [k for k in keys if writer.execute(f"SELECT 1 FROM {name} WHERE id = ?", (k,)).fetchone()]
            table.update([{"id": k, "n": chance.randint(0, 1000)} for k in there[2:]])
            table.delete(there[:2])
    assert writer.flush()
