"""Promise 9 where snapshot reads a standby: after a rewind, one that lags knows neither what was lost nor what came
since. It proves nothing and moves nothing: whoever asks it is sent for a snapshot alone, and no other epoch ends.

Such a process never says that it is ready, since a standby lets nobody listen; but calls that are under way when their
server becomes one, or that a proxy sends there, get answers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from psycopg.conninfo import conninfo_to_dict

from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.store import migrate
from anabranch.store.catalog import registration
from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import FailedCallError
from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.snapshot_reader import Reader, whole_groups
from anabranch.testkit.snapshot_rig import SnapshotRig
from anabranch.testkit.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_PATIENCE_S = 30.0
TODO = 'create table app.todo (id text collate "C" primary key, title text)'


def copied(source: Path, target: Path) -> None:
    """A cluster's folder, whose server is stopped, with its owners and modes."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True, timeout=60)


def make_standby(primary: EmbeddedPostgres, url: str, folder: Path) -> EmbeddedPostgres:
    """A standby of a stopped primary that streams from it once both run."""
    folder.mkdir(mode=0o700)
    cluster = folder / "cluster"
    copied(primary.data_dir / "cluster", cluster)
    shutil.copy2(primary.data_dir / "password", folder / "password")
    to = conninfo_to_dict(url)
    owner = cluster.stat()
    with (cluster / "postgresql.auto.conf").open("a") as file:
        file.write(
            f"primary_conninfo = 'host={to['host']} port={to['port']} user={to['user']} password={to['password']}'\n"
        )
    signal = cluster / "standby.signal"
    signal.touch()
    os.chown(signal, owner.st_uid, owner.st_gid)
    return EmbeddedPostgres(folder)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[SnapshotRig, SnapshotRig, Reader]]:
    """Snapshot on a restored primary, snapshot on its standby, and a node that has seen what the restore lost."""
    with ExitStack() as stack:
        primary = EmbeddedPostgres(tmp_path / "primary")
        stack.callback(primary.stop)
        url = primary.start()
        migrate.upgrade(url)
        with connect(url, application_name="test", autocommit=True) as conn:
            conn.execute("create schema app")
            conn.execute(TODO)
            registration.create_database(conn, "app", "app")
            registration.add_table(conn, "app", "todo")
        writer = LogWriter(url, "app")
        writer.insert("todo", [["kept", "x"]])
        writer.close()
        primary.stop()
        kept = tmp_path / "kept"
        copied(primary.data_dir / "cluster", kept)
        assert primary.start() == url
        writer = LogWriter(url, "app")
        writer.insert("todo", [["lost", "x"]])
        writer.close()
        with SnapshotRig(url, tmp_path) as before:
            node = before.reader("app")
            node.seen = node.get().state.settled
            node.close()
        primary.stop()
        copied(kept, primary.data_dir / "cluster")
        standby = make_standby(primary, url, tmp_path / "standby")
        assert primary.start() == url
        standby_url = standby.start()
        stack.callback(standby.stop)
        rig = stack.enter_context(SnapshotRig(url, made(tmp_path / "on-primary")))
        lagging = SnapshotRig(standby_url, made(tmp_path / "on-standby"))
        [process] = lagging.children
        stack.callback(process.stop, 15.0)
        process.start()
        with grpc.insecure_channel(lagging.addresses[0]) as channel:
            grpc.channel_ready_future(channel).result(_PATIENCE_S)
        yield rig, lagging, node


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def refused(reader: Reader) -> str:
    with pytest.raises(FailedCallError) as caught:
        reader.get(reader.seen.server_timestamp_ms if reader.seen is not None else 0)
    return caught.value.reason


def test_promise_9_a_standby_that_lags_behind_a_rewound_primary_moves_nothing(
    places: tuple[SnapshotRig, SnapshotRig, Reader],
) -> None:
    rig, lagging, lost = places
    with (
        connect(rig.url, application_name="test", autocommit=True) as conn,
        connect(lagging.url, application_name="test", autocommit=True) as other,
    ):

        def epochs() -> tuple[str, int]:
            [(epoch,)] = conn.execute("select epoch from anabranch.databases").fetchall()
            [(ended,)] = conn.execute("select count(*) from anabranch.epochs").fetchall()
            return str(epoch), int(ended)

        def caught_up() -> bool:
            [(there,)] = conn.execute("select pg_current_wal_lsn()").fetchall()
            [(here,)] = other.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", (str(there),)).fetchall()
            return bool(here)

        first, _ = epochs()
        at_primary = rig.reader("app")
        until(caught_up, _PATIENCE_S)
        assert other.execute("select pg_is_in_recovery()").fetchone() == (True,)
        other.execute("select pg_wal_replay_pause()")
        at_standby = Reader(lagging.addresses[0], at_primary.key, "app", node=at_primary.node)
        at_standby.seen = at_primary.seen = lost.seen
        # The standby can't prove what it does not have: neither that it was lost nor that it is still to come.
        assert refused(at_standby) == "INVALID_POSITION"
        assert epochs() == (first, 0)
        assert refused(at_primary) == "HISTORY_REWOUND"
        second, ended = epochs()
        assert (second != first, ended) == (True, 1)
        # History goes on in the new epoch, of which the standby has nothing.
        writer = LogWriter(rig.url, "app")
        position = writer.insert("todo", [["new", "x"]])
        writer.close()
        at_primary.seen = None
        at_primary.seen = at_primary.get().state.settled
        assert (at_primary.seen.epoch, at_primary.seen.server_timestamp_ms) == (second, position)
        at_standby.seen = at_primary.seen
        assert refused(at_standby) == "INVALID_POSITION"
        assert epochs() == (second, 1)
        # The groups that fit are served meanwhile, as they were.
        at_standby.seen = None
        assert [group.position for group in whole_groups(at_standby.pages())][-1:] != [position]
        other.execute("select pg_wal_replay_resume()")
        until(caught_up, _PATIENCE_S)
        at_standby.seen = at_primary.seen
        until(lambda: at_standby.get().state.settled == at_primary.seen, _PATIENCE_S)
        assert [group.position for group in whole_groups(at_standby.pages())][-1:] == [position]
        assert epochs() == (second, 1)
        for reader in (at_primary, at_standby):
            reader.close()
