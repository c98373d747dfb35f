"""``anabranch status --watch`` in a terminal of its own: it shows what is there, and what has changed since."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.janitor.conftest import make_database

from anabranch.cli.status import read, shown
from anabranch.cli.status_lines import SHOWN_NODES
from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.store import migrate
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.log_writer import LogWriter

PATIENCE_S = 40.0
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """The output of a program on its terminal."""

    def __init__(self, command: list[str]) -> None:
        self._own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self.raw = ""

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        os.close(self._own)

    def wait_for(self, *wanted: str) -> str:
        """Read on until one screen has all of these; gives it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            # Each refresh begins at the screen's corner.
            for screen in reversed(self.raw.split("\x1b[H")[-3:]):
                text = CONTROL.sub("", screen)
                if all(re.search(one, text) for one in wanted):
                    return text
            assert time.monotonic() < deadline, (wanted, CONTROL.sub("", self.raw[-4_000:]))
            self.read(0.5)

    def read(self, timeout_s: float) -> None:
        if select.select([self._own], [], [], timeout_s)[0]:
            try:
                self.raw += os.read(self._own, 65_536).decode(errors="replace")
            except OSError:
                # The other side is closed: the program has ended.
                assert self.process.wait(10) is not None


@contextmanager
def watching(url: str) -> Iterator[Terminal]:
    arguments = ["status", "--watch", "--every-s", "0.2", "--postgres-url", url]
    terminal = Terminal([sys.executable, "-m", "anabranch.cli.entry", *arguments])
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.slow
def test_what_changes_is_shown(migrated_url: str) -> None:
    with connect(migrated_url, application_name="test", autocommit=True) as conn:
        make_database(conn, "app")
        writer = LogWriter(migrated_url, "app")
        with watching(migrated_url) as terminal:
            terminal.wait_for(r"database app ", r"tables +1, 0 rows  head none", r"Ctrl-C ends")
            writer.insert("todo", [["a", "x"], ["b", "y"]])
            terminal.wait_for(r"tables +1, 2 rows  head .* ago", r"log +all kept  held by window, 30\.0 d back")
            conn.execute(
                "insert into anabranch.nodes "
                "(database_id, node_id, name, principal, epoch, token, last_seen_ms, acknowledged) "
                "select id, 'N1', 'gate [7]', 'p', 'e', '', (extract(epoch from now()) * 1000)::bigint, 5 "
                "from anabranch.databases"
            )
            terminal.wait_for(r"N1  gate \[7\]  p  seen", r"log +all kept  held by node, .* back")
            terminal.process.send_signal(signal.SIGINT)
            while terminal.process.poll() is None:
                terminal.read(0.2)
            terminal.read(0.2)
            assert terminal.process.returncode == 0
            assert "\x1b[?1049l" in terminal.raw, "the terminal is given back"
            assert "Traceback" not in terminal.raw
        writer.close()


@pytest.mark.slow
def test_it_outlives_a_postgres_that_is_away(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "postgres") as postgres:
        migrate.upgrade(postgres.url)
        with connect(postgres.url, application_name="test", autocommit=True) as conn:
            make_database(conn, "app")
        with watching(postgres.url) as terminal:
            there = r"database app  schema app"
            terminal.wait_for(there, r"Z  Ctrl-C")
            postgres.stop("immediate")
            terminal.wait_for(there, "Postgres is not available")
            postgres.start()
            terminal.raw = ""
            terminal.wait_for(r"(?s)\A(?!.*not available).*" + there, r"Z  Ctrl-C")


def test_many_nodes_are_cut_short(databases: TestDatabases) -> None:
    url = databases.fresh()
    migrate.upgrade(url)
    with connect(url, application_name="test", autocommit=True) as conn:
        make_database(conn, "app")
        conn.execute(
            "insert into anabranch.nodes "
            "(database_id, node_id, name, principal, epoch, token, last_seen_ms, acknowledged) "
            "select d.id, 'N' || n, 'gate', 'p', 'e', '', (extract(epoch from now()) * 1000)::bigint, 0 "
            "from anabranch.databases d, generate_series(1, 10000) n"
        )
    facts = read(url, {})
    lines = [line.plain for line in shown(facts, 80)]
    assert f"    {10_000 - SHOWN_NODES} more; `anabranch node list app` has them" in lines
    assert len(lines) < SHOWN_NODES + 30
    assert max(map(len, lines)) <= 80
    assert facts.databases[0].nodes_seen["hour"] == 10_000
    databases.release(url)


@pytest.mark.slow
def test_it_goes_with_no_json(migrated_url: str) -> None:
    command = [
        sys.executable,
        "-m",
        "anabranch.cli.entry",
        "status",
        "--watch",
        "--json",
        "--postgres-url",
        migrated_url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "don't go together" in done.stderr
