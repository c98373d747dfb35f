"""``anabranch smoke``: check from outside whether an installation works.

It makes a database of its own where there is none yet (schema ``anabranch_smoke``), has one device write a row and
another read it, compares, and removes the row. Its key ends within minutes and is revoked before, and its nodes are
forgotten, since the log would be kept for them.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from ulid import ULID

from anabranch.cli.catalog.session import catalog_session
from anabranch.cli.installation import DataDir, PostgresUrl, fail, read_endpoints
from anabranch.cli.printable import say
from anabranch.client import RemoteDb, SyncedDb
from anabranch.client.errors import CallFailed
from anabranch.client.remote import Tls
from anabranch.store.catalog import smoke
from anabranch.store.catalog.databases import load_databases
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.nodes import key_administration, known
from anabranch.store.nodes.api_keys import split_key
from anabranch.store.session.engine import Session

DATABASE = "anabranch-smoke"
KEY_MS = 10 * 60 * 1000
TIMEOUT_S = 60.0
RETRY_S = 0.5
TOLD_S = 10.0
"""How long the read side may take to store what devices have told it: some seconds are a Postgres that is busy."""
TOLD_LOOK_S = 0.1
_EVER_MS = 2**62

app = typer.Typer()
Address = Annotated[str | None, typer.Option(help="host:port. Left out: that of --data-dir.", show_default=False)]


@app.command()
def run(
    ingest: Address = None,
    snapshot: Address = None,
    resolver: Address = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="PEM of the authority of the services' certificate.")
    ] = None,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Write a row on one device and read it on another, through the services. Exit code 1 says that it failed."""
    addresses = read_endpoints(data_dir)["addresses"] if data_dir is not None else {}
    ingest = ingest or addresses.get("ingest")
    snapshot = snapshot or addresses.get("snapshot")
    # No call goes to the resolver here: the verdict shows whether it works.
    resolver = resolver or addresses.get("conflict-resolver") or ingest
    if ingest is None or snapshot is None or resolver is None:
        fail("give --ingest and --snapshot, or --data-dir")
    tls = Tls(root_certificates=ca_file.read_bytes()) if ca_file is not None else None
    with catalog_session(postgres_url, data_dir, "smoke") as conn:
        _prepare(conn)
        now_ms = time.time_ns() // 1_000_000
        key = key_administration.create(
            conn, subject="anabranch-smoke", role="device", database=DATABASE, now_ms=now_ms, expires_ms=now_ms + KEY_MS
        )
        try:
            remote = (ingest, snapshot, resolver)
            with tempfile.TemporaryDirectory(prefix="anabranch-smoke-") as folder:
                took_s, nodes = _round_trip(Path(folder), remote, key, tls)
            _forget(conn, nodes)
        finally:
            parts = split_key(key)
            assert parts is not None
            key_administration.revoke(conn, parts[0], time.time_ns() // 1_000_000)
    say(f"works: one device wrote a row and another read it, {took_s:.2f} s")


def _prepare(conn: Session) -> None:
    smoke.prepare(conn)
    with conn.transaction():
        if DATABASE not in load_databases(conn):
            create_database(conn, DATABASE, smoke.SCHEMA)
        if smoke.TABLE not in load_databases(conn)[DATABASE].tables:
            add_table(conn, DATABASE, smoke.TABLE)
    # Nodes of runs that failed, or were ended: their keys are of no use any more.
    found = known.known_nodes(conn, DATABASE)
    assert found is not None
    for node in found.nodes:
        known.forget(conn, DATABASE, node.id, found.now_ms - KEY_MS)


def _forget(conn: Session, nodes: dict[str, int]) -> None:
    """Forget nodes, given by their last cursors. The read side stores what they tell it a moment later, which would
    bring a node back that was forgotten before; so this waits for the last of it."""
    deadline = time.monotonic() + TOLD_S
    while time.monotonic() < deadline:
        found = known.known_nodes(conn, DATABASE)
        assert found is not None
        told = {node.id: node.acknowledged for node in found.nodes}
        if all(told.get(node, -1) >= cursor for node, cursor in nodes.items()):
            break
        time.sleep(TOLD_LOOK_S)
    for node in nodes:
        known.forget(conn, DATABASE, node, _EVER_MS)


def _round_trip(
    folder: Path, addresses: tuple[str, str, str], key: str, tls: Tls | None
) -> tuple[float, dict[str, int]]:
    """How long it took, in seconds, and the nodes' last cursors, in milliseconds, by their ids."""
    started = time.monotonic()
    deadline = started + TIMEOUT_S
    row = {"id": str(ULID()), "body": "written by anabranch smoke"}
    with closing(_device(folder / "writer.db", addresses, key, tls)) as writer:
        _started(writer, deadline)
        writer.table(smoke.TABLE).insert(row)
        try:
            if not writer.flush(max(0.1, deadline - time.monotonic())):
                fail("the batch got no verdict in time: does the conflict-resolver run?")
            if writer.dead_letters():
                fail(f"the batch was rejected: {writer.dead_letters()[0]}")
            with closing(_device(folder / "reader.db", addresses, key, tls)) as reader:
                _started(reader, deadline)
                reader.read()
                found = reader.execute(f"select id, body from {smoke.TABLE} where id = ?", (row["id"],)).fetchone()
                took_s = time.monotonic() - started
                writer.table(smoke.TABLE).delete(row["id"])
                writer.flush(max(0.1, deadline - time.monotonic()))
                for device in (reader, writer):
                    device.read()
                    device.read()  # which tells what the first one brought
                nodes = {status.node_id: status.cursor for status in (reader.status(), writer.status())}
        except CallFailed as error:
            fail(f"a call failed: {error}")
    if found is None or tuple(found) != (row["id"], row["body"]):
        fail(f"the second device read {found and tuple(found)}, not what the first wrote")
    return took_s, nodes


def _device(file: Path, addresses: tuple[str, str, str], key: str, tls: Tls | None) -> SyncedDb:
    ingest, snapshot, resolver = addresses
    remote = RemoteDb(
        ingest=ingest, snapshot=snapshot, resolver=resolver, token=key, tls=tls, allow_plaintext=tls is None
    )
    return SyncedDb(file, remote=remote, db_name=DATABASE, node_name="smoke")


def _started(device: SyncedDb, deadline: float) -> None:
    """Start a device. A service may need a moment until it knows the new database and its key."""
    while True:
        try:
            return device.start(background=False)
        except CallFailed as error:
            if time.monotonic() > deadline:
                fail(f"the tables could not be pulled: {error}")
            time.sleep(RETRY_S)
