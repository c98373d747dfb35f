"""The embedded server starts anywhere, keeps what was committed and leaves nothing behind."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest

from anabranch.embedded import binaries
from anabranch.embedded.binaries import find_binaries
from anabranch.embedded.postgres import EmbeddedPostgres, PostgresUnavailableError
from anabranch.embedded.process import account_for, data_argument, environment, recorded_pid
from anabranch.ports import free_port
from anabranch.store import migrate
from anabranch.testkit.databases import TestDatabases, create_database

Owner = tuple[subprocess.Popen[str], str]

AS_ROOT = os.geteuid() == 0
END_S = 30
OWNER = """
import sys
from pathlib import Path
from anabranch.embedded.postgres import EmbeddedPostgres
with EmbeddedPostgres(Path(sys.argv[1])) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""
"""Starts a server, says its URL and holds it until its input is closed."""


def write(url: str, text: str) -> None:
    """Commit one row."""
    with psycopg.connect(url, connect_timeout=5) as connection:
        connection.execute("create table if not exists kept (line text)")
        connection.execute("insert into kept values (%s)", [text])


def read(url: str) -> list[str]:
    """Every row committed so far."""
    with psycopg.connect(url, connect_timeout=5) as connection:
        return [line for (line,) in connection.execute("select line from kept order by line")]


def show(url: str, name: str) -> str:
    """A server setting."""
    with psycopg.connect(url, connect_timeout=5) as connection:
        row = connection.execute("select current_setting(%s)", [name]).fetchone()
        assert row is not None
        return str(row[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder that doesn't exist yet, with a space in its path, below one that only we may enter."""
    private = tmp_path / "only mine"
    private.mkdir(mode=0o700)
    return private / "data here"


@pytest.fixture
def owner(folder: Path) -> Iterator[Owner]:
    """Another process that owns a running server in `folder`, and the server's URL."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("postgresql://")
        yield process, url
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("major", [16, 18])
def test_a_second_start_continues_with_the_same_version(folder: Path, major: int) -> None:
    with EmbeddedPostgres(folder, major=major) as server:
        assert show(server.url, "server_version_num").startswith(str(major))
        write(server.url, "first")
    with EmbeddedPostgres(folder) as server:
        assert show(server.url, "server_version_num").startswith(str(major))
        write(server.url, "second")
        assert read(server.url) == ["first", "second"]


@pytest.mark.slow
def test_start_is_idempotent_and_restart_keeps_the_address(folder: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        url, pid = server.url, server.pid
        assert server.start() == url
        assert server.pid == pid
        server.restart()
        assert server.url == url
        assert server.pid != pid
    with pytest.raises(RuntimeError, match="not started"):
        _ = server.url


@pytest.mark.slow
def test_it_commits_durably_and_listens_on_loopback_with_a_password(folder: Path) -> None:
    with EmbeddedPostgres(folder, settings={"work_mem": "7MB"}) as server:
        assert show(server.url, "fsync") == "on"
        assert show(server.url, "synchronous_commit") == "on"
        assert show(server.url, "listen_addresses") == "127.0.0.1"
        assert show(server.url, "work_mem") == "7MB"
        wrong = server.url.replace(":", ":wrong", 2).replace("postgresql:wrong", "postgresql:")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong, connect_timeout=5)
    assert stat.S_IMODE((folder / "password").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "cluster").stat().st_mode) == 0o700


@pytest.mark.slow
def test_folders_above_keep_their_modes(folder: Path) -> None:
    parents = [parent for parent in folder.parents if parent.owner() == folder.parent.owner()]
    before = [parent.stat().st_mode for parent in parents]
    with EmbeddedPostgres(folder) as server:
        write(server.url, "kept")
    assert [parent.stat().st_mode for parent in parents] == before


@pytest.mark.slow
def test_a_killed_server_starts_again_with_what_was_committed(folder: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        write(server.url, "committed")
        killed = server.pid
        server.kill()
        assert recorded_pid(folder / "cluster") == killed
        assert read(server.start()) == ["committed"]
        assert server.pid != killed


@pytest.mark.slow
def test_the_server_ends_with_its_killed_owner(owner: Owner, folder: Path) -> None:
    process, url = owner
    write(url, "committed")
    pid = recorded_pid(folder / "cluster")
    assert pid is not None
    postmaster = psutil.Process(pid)
    process.kill()
    _, alive = psutil.wait_procs([postmaster], timeout=END_S)
    assert not alive
    with EmbeddedPostgres(folder) as server:
        assert read(server.url) == ["committed"]


@pytest.mark.slow
def test_it_lives_on_when_the_thread_that_started_it_ends(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        assert not psutil.wait_procs([psutil.Process(server.pid)], timeout=0.5)[0]
        write(server.url, "alive")
    finally:
        server.stop()


def test_a_folder_has_one_owner(owner: Owner, folder: Path) -> None:
    process, url = owner
    with pytest.raises(PostgresUnavailableError, match=f"in use by process {process.pid}$"):
        EmbeddedPostgres(folder).start()
    write(url, "the first is unharmed")


@pytest.mark.slow
def test_a_server_that_an_owner_left_behind_is_ended(folder: Path) -> None:
    with EmbeddedPostgres(folder) as server:
        write(server.url, "committed")
    cluster = folder / "cluster"
    account = account_for(cluster)
    switch = {} if account.uid == -1 else {"user": account.uid, "group": account.gid, "extra_groups": []}
    postgres = find_binaries(for_root=AS_ROOT).program("postgres")
    with subprocess.Popen(
        [postgres, f"-D{data_argument(cluster)}", f"-p{free_port()}", "-cunix_socket_directories="],
        cwd=cluster,
        env=environment(),
        stderr=subprocess.PIPE,
        **switch,  # type: ignore[call-overload]
    ) as orphan:
        try:
            assert any(b"ready to accept connections" in line for line in orphan.stderr)
            with EmbeddedPostgres(folder) as server:
                assert orphan.wait(END_S) == 0
                assert read(server.url) == ["committed"]
        finally:
            orphan.kill()


@pytest.mark.slow
def test_an_interrupted_initdb_is_done_again(folder: Path) -> None:
    (folder / "cluster.new").mkdir(parents=True)
    (folder / "cluster.new" / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(folder) as server:
        write(server.url, "made")
    assert not (folder / "cluster.new").exists()


@pytest.mark.slow
def test_a_taken_port_is_named(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = EmbeddedPostgres(folder, port=port)
        with pytest.raises(PostgresUnavailableError, match=f"port {port} is taken"):
            server.start()
    assert server.start().endswith(f":{port}/postgres")
    server.stop()


@pytest.mark.slow
def test_a_bad_setting_is_reported_with_the_servers_words(folder: Path) -> None:
    with pytest.raises(PostgresUnavailableError, match="no_such_setting"):
        EmbeddedPostgres(folder, settings={"no_such_setting": "1"}).start()


def test_a_version_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(PostgresUnavailableError, match="no Postgres 9 in"):
        EmbeddedPostgres(folder, major=9).start()


@pytest.mark.slow
@pytest.mark.skipif(not AS_ROOT, reason="only root can become another user; we are one ourselves")
def test_an_ordinary_user_needs_nothing_of_root() -> None:
    user = pwd.getpwnam("nobody")
    # That user may have no way to this checkout's Python; the capability is that way, and nothing else.
    switch = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    switch += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv of util-linux")
    try:
        subprocess.run(
            [find_binaries(for_root=False).program("postgres"), "--version"],
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            cwd="/",
            check=True,
        )
    except PermissionError:
        pytest.skip("this checkout lies below a folder that no other user may enter")
    home = Path(tempfile.mkdtemp())
    try:
        os.chown(home, user.pw_uid, user.pw_gid)
        done = subprocess.run(
            [*switch, sys.executable, "-c", OWNER, str(home / "data")],
            cwd="/",
            env={"HOME": str(home), "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.startswith("postgresql://")
        assert (home / "data" / "cluster").stat().st_uid == user.pw_uid
    finally:
        shutil.rmtree(home)


@pytest.mark.slow
@pytest.mark.skipif(not AS_ROOT, reason="only root needs a copy of the binaries")
def test_the_copy_for_an_unprivileged_user_is_made_once_and_whole(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    cache = Path(tempfile.mkdtemp())
    request.addfinalizer(lambda: shutil.rmtree(cache))
    monkeypatch.setattr(binaries, "ROOT_CACHE", cache)
    (cache / "partial" / "left").mkdir(parents=True)
    with ThreadPoolExecutor(4) as starts:
        found = set(starts.map(lambda _: find_binaries(for_root=True), range(4)))
    assert len(found) == 1
    assert sorted(path.name[:9] for path in cache.iterdir()) == ["lock", "postgres-"]
    user = pwd.getpwnam("nobody")
    for program in ("initdb", "postgres", "pg_ctl"):
        subprocess.run(
            [found.copy().pop().program(program), "--version"],
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            cwd="/",
            check=True,
        )


def test_names_of_databases_are_quoted(postgres_server: str, databases: TestDatabases) -> None:
    url = create_database(postgres_server, 'Übung "1" %41/x')
    try:
        write(url, "here")
        assert show(url, "server_version_num") != ""
        with psycopg.connect(url) as connection:
            assert connection.info.dbname == 'Übung "1" %41/x'
    finally:
        databases.release(url)


@pytest.mark.slow
def test_a_prepared_database_is_prepared_once_and_its_copies_are_apart(databases: TestDatabases) -> None:
    calls: list[str] = []

    def prepare(url: str) -> None:
        calls.append(url)
        write(url, "prepared")

    one, two = databases.prepared("test", prepare), databases.prepared("test", prepare)
    write(one, "zzz")
    assert read(one) == ["prepared", "zzz"]
    assert read(two) == ["prepared"]
    assert len(calls) == 1
    databases.release(one)
    databases.release(two)


def test_a_migrated_database_is_current(migrated_url: str) -> None:
    assert migrate.is_current(migrated_url)


def test_a_database_is_empty_and_goes_when_released(postgres_server: str, database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("select count(*) from pg_stat_user_tables").fetchone()
    assert row == (0,)
    run = TestDatabases(postgres_server)
    with psycopg.connect(run.fresh()) as left_open:
        name = left_open.info.dbname
        run.release(left_open.info.dsn)
        run.release(f"postgresql://127.0.0.1/{name}")
        run.close()
    with psycopg.connect(postgres_server) as connection:
        assert connection.execute("select 1 from pg_database where datname = %s", [name]).fetchone() is None
