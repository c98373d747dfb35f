"""A generator that reads the file piece by piece lets go of it when it is left, and not when the garbage collector
comes."""

from __future__ import annotations

import gc
import sqlite3
from contextlib import closing

import pytest

from anabranch.client import SyncedDb
from anabranch.client.queue.send_stream import Flush
from anabranch.client.reading import repair, sums
from anabranch.testkit.unseen import write_unseen
from anabranch.v1 import ingest_pb2


def readers_are_left(path: str) -> bool:
    """Whether a connection still reads an older state of the file: then its log of writes can't be taken in whole."""
    with closing(sqlite3.connect(path, timeout=2)) as conn:
        busy, *_ = conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return bool(busy)


def test_a_row_that_cannot_be_read_leaves_no_read_open(device: SyncedDb, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pull that follows on such a row would read an old state, beside a log that grows."""
    device.read()
    monkeypatch.setattr(sums, "_ROWS_AT_ONCE", 1)
    with closing(sqlite3.connect(device._file.path)) as other, other:
        write_unseen(other, "UPDATE todo SET n = 'none'")
    gc.disable()
    try:
        with pytest.raises(repair.PullInstead) as caught:
            repair._range_sums(device._file, device._file.tables()["todo"])
        assert not readers_are_left(str(device._file.path))
    finally:
        gc.enable()
    assert caught.value.__cause__ is not None


def test_rows_that_nobody_asks_for_any_more_leave_no_read_open(
    device: SyncedDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.read()
    monkeypatch.setattr(sums, "_ROWS_AT_ONCE", 1)
    conn, table = device._file.reader(), device._file.tables()["todo"]

    assert sums.verify(device._file, "todo", 1, lambda: True) is None
    with closing(sums.base_rows(conn, table)) as rows:
        next(rows)
    assert not readers_are_left(str(device._file.path))


def test_requests_that_grpc_keeps_read_nothing_after_their_end(device: SyncedDb) -> None:
    device.read()
    for number in range(3):
        device.table("todo").update({"id": "k0", "n": number})
    with device._file.private_reader() as conn:
        flush = Flush(conn, ingest_pb2.SendStreamRequest(), "~", 100)
        requests = flush.requests()
        assert next(requests).envelopes
        flush.end()
    assert all(request.envelopes for request in requests)
    assert not readers_are_left(str(device._file.path))
