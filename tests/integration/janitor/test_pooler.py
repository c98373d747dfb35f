"""P09: janitors behind PgBouncer in transaction mode, where a session's locks and settings are another one's."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from tests.integration.janitor.conftest import Ground
from tests.integration.janitor.test_process import Rig

from anabranch.ports import free_port
from anabranch.store.retention import floor

PATIENCE_S = 90.0
CONFIG = """
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
auth_type = any
pool_mode = transaction
default_pool_size = 2
pidfile =
logfile =
unix_socket_dir =
ignore_startup_parameters = {ignored}
"""


@contextmanager
def pooler(url: str, folder: Path, ignored: str) -> Iterator[str]:
    """A real PgBouncer before ``url``; gives the URL through it."""
    program = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
    if program is None:
        pytest.skip("pgbouncer not found (Debian: apt-get install pgbouncer)")
    parts = urlsplit(url)
    listen = free_port()
    config = folder / "pgbouncer.ini"
    config.write_text(
        CONFIG.format(
            host=parts.hostname,
            port=parts.port,
            user=parts.username,
            password=unquote(parts.password or ""),
            listen=listen,
            ignored=ignored,
        )
    )
    # It does not run as root, and reads its file before it is somebody else.
    command = [program, str(config)]
    if os.geteuid() == 0:
        command[1:1] = ["-u", "nobody"]
    with (folder / "pgbouncer.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            through = parts._replace(netloc=f"{parts.username}@127.0.0.1:{listen}").geturl()
            _wait_for(through, process, folder / "pgbouncer.log")
            yield through
        finally:
            process.terminate()
            process.wait(20)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        assert process.poll() is None, log.read_text()
        try:
            with psycopg.connect(url, connect_timeout=5) as conn:
                conn.execute("select 1")
                return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)


def test_the_lead_is_held_by_one_behind_a_pooler(ground: Ground, tmp_path: Path) -> None:
    """It is a transaction's: two who share the pooler's sessions can't both have it, and who lets it go lets it go."""
    with (
        pooler(ground.url, tmp_path, "") as through,
        psycopg.connect(through, autocommit=True) as one,
        psycopg.connect(through, autocommit=True) as other,
    ):
        with floor.lead(one) as first, floor.lead(other) as second:
            assert first is not None
            assert second is None
            first()
        with floor.lead(other) as second:
            assert second is not None


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("ignored", "reason"),
    [
        ("options", "a pooler between here and Postgres drops them"),
        ("", "unsupported startup parameter"),
    ],
    ids=["that drops settings", "that refuses settings"],
)
def test_janitors_refuse_to_start_behind_a_pooler(ground: Ground, tmp_path: Path, ignored: str, reason: str) -> None:
    ground.write(3)
    with pooler(ground.url, tmp_path, ignored) as through:
        rigs = []
        for name in ("one", "other"):
            folder = tmp_path / name
            folder.mkdir()
            rig = Rig(ground, folder, 40, {"ANABRANCH_POSTGRES_URL": through})
            rig.child.start()
            rigs.append(rig)
        for rig in rigs:
            try:
                rig.child.wait_died(0, PATIENCE_S)
            finally:
                rig.child.stop(15)
            assert "can't start" in rig.child.log_tail()
            assert reason in rig.child.log_tail()
    assert ground.floor == 0
