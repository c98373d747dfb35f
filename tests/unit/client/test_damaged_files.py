"""Files that a disk has damaged: every end has a name, and what can still be read stays."""

from __future__ import annotations

import random
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError

from anabranch.client import FileDamaged, State, SyncedDb
from anabranch.client.letters.offline import DeadQueue
from anabranch.errors import AnabranchError
from anabranch.merge.model import MutationType
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.v1 import batch_pb2, errors_pb2, verdict_pb2

Remotes = Callable[[], MemoryRemote]
QUEUED = 40
PAGE = 4096


@pytest.fixture
def whole(tmp_path: Path, new_remote: Remotes) -> Path:
    """A device's file with rows, a queue, confirmed batches and dead letters, closed."""
    path = tmp_path / "whole.db"
    remote = new_remote()
    with closing(SyncedDb(path, remote, "d", "device")) as device:
        device._file._write.execute("PRAGMA synchronous = OFF")
        device.start(background=False)
        todo = device.table("todo")
        for number in range(10):
            todo.insert([{"id": f"a{number}-{i}", "title": "t" * 60, "n": i} for i in range(20)])
        assert device.sync()
        dead = [todo.update({"id": f"k{number}", "title": "dead"}) for number in range(5)]
        refused = [
            verdict_pb2.Verdict(
                batch_id=batch,
                status=verdict_pb2.VERDICT_STATUS_REJECTED,
                position=2_000,
                reason=errors_pb2.REASON_CONSTRAINT,
            )
            for batch in dead
        ]
        with device._file.transaction() as tx:
            device._sender._note(tx, refused, remote.state())
        for number in range(QUEUED):
            todo.insert({"id": f"q{number}", "title": "queued" * 20, "n": number})
            todo.update({"id": f"a1-{number % 20}", "n": 1_000 + number})
    return path


def flip(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(0, len(data), PAGE)
    for _ in range(rng.choice([1, 4, 40])):
        data[start + rng.randrange(PAGE)] ^= 1 << rng.randrange(8)


def zero(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(0, len(data), PAGE)
    data[start : start + PAGE] = bytes(PAGE)


def overwrite(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(0, len(data), PAGE)
    data[start : start + PAGE] = rng.randbytes(PAGE)


def swap(data: bytearray, rng: random.Random) -> None:
    one, other = (PAGE * rng.randrange(len(data) // PAGE) for _ in range(2))
    data[one : one + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[one : one + PAGE]


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(1, len(data)) :]


DAMAGES = (flip, flip, flip, zero, overwrite, swap, cut)


QUEUE = "_db_mutations_queue"
EVERYWHERE = (QUEUE, "_db_mutations_queue_dead", "_db_confirmed")


def batches_in(path: Path, tables: Sequence[str]) -> dict[bytes, str] | None:
    """The bytes of the batches that can be read in these tables of the file, and the id in them; None where not all of
    the tables can be read."""
    found: dict[bytes, str] = {}
    try:
        with closing(sqlite3.connect(path)) as conn:
            for table in tables:
                for (value,) in conn.execute(f"SELECT value FROM {table} WHERE typeof(value) = 'blob'"):
                    with suppress(DecodeError):
                        found[value] = batch_pb2.DbMutationBatch.FromString(value).id
    except (sqlite3.Error, UnicodeDecodeError):
        return None  # The second, where the message of the first is damaged, too.
    return found


def uses(path: Path, remote: MemoryRemote) -> Iterator[Callable[[], object]]:
    """All that an app, and a person with the command, may do."""
    with closing(DeadQueue(path)) as queue:
        yield queue.letters
    with closing(SyncedDb(path, remote, "d")) as device:
        todo = device.table("todo")
        yield lambda: device.start(background=False)
        yield lambda: device.execute("SELECT * FROM todo ORDER BY title").fetchall()
        yield lambda: list(device.execute("SELECT * FROM todo"))
        yield lambda: device.execute("SELECT count(*) FROM todo").fetchone()
        yield lambda: todo.update({"id": "a1-3", "n": 5})
        yield lambda: todo.delete(["a2-1", "a2-2"])
        yield lambda: todo.insert([{"id": "n1"}, {"id": "n2", "title": "new"}])
        yield device.status
        yield device.table_sums
        yield device.dead_letters
        yield lambda: [device.verdict(i) for i in sorted(remote.server.verdicts)]
        yield lambda: device.verify()
        yield lambda: device.sync(timeout_s=1.0)
        yield lambda: device.repair("todo")
        yield lambda: device.sync(timeout_s=1.0)


def attack(path: Path, remote: MemoryRemote) -> None:
    """Use the file; whatever fails, it fails by name."""
    steps = uses(path, remote)
    while True:
        # Opening and closing stand between the steps.
        try:
            step = next(steps, None)
        except AnabranchError:
            return
        if step is None:
            return
        with suppress(AnabranchError):
            step()


def damaged(whole: Path, seed: int, new_remote: Remotes) -> None:
    rng = random.Random(seed)
    data = bytearray(whole.read_bytes())
    for _ in range(rng.choice([1, 1, 3])):
        if len(data) % PAGE == 0:
            rng.choice(DAMAGES)(data, rng)
    path = whole.with_name(f"damaged-{seed}.db")
    path.write_bytes(data)
    before = batches_in(path, (QUEUE,))
    remote = new_remote()
    attack(path, remote)
    after = batches_in(path, EVERYWHERE)
    if before is not None and after is not None:
        lost = [batch for value, batch in before.items() if value not in after and batch not in remote.server.verdicts]
        assert lost == [], f"seed {seed} has lost batches"
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def test_what_a_disk_has_damaged_ends_by_name(whole: Path, new_remote: Remotes) -> None:
    for seed in range(8):
        damaged(whole, seed, new_remote)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 300, 20))
def test_what_a_disk_has_damaged_ends_by_name_always(whole: Path, new_remote: Remotes, first: int) -> None:
    for seed in range(first, first + 20):
        damaged(whole, seed, new_remote)


def test_a_batch_that_is_damaged_in_the_queue_is_named_and_stops_no_other(
    device: SyncedDb, remote: MemoryRemote
) -> None:
    todo = device.table("todo")
    states: list[State] = []
    device.on_state(states.append)
    bad = {
        todo.update({"id": "k0", "title": "a"}): b"\xff\xff",
        todo.insert({"id": "new", "title": "b"}): b"",
        todo.update({"id": "k2", "title": "c"}): "a text",
    }
    good = todo.update({"id": "k1", "title": "good"})
    with device._file.transaction() as tx:
        for batch, value in bad.items():
            tx.conn.execute("UPDATE _db_mutations_queue SET value = ? WHERE id = ?", (value, batch))
    path = device._file.path
    device.close()
    with closing(SyncedDb(path, remote, "d")) as again:
        again.on_state(states.append)
        again.start(background=False)
        assert again.sync()
        assert remote.server.live()["todo", "k1"]["title"] == "good"
        assert again.verdict(good) is not None
        letters = {letter.id: letter for letter in again.dead_letters()}
        assert set(letters) == set(bad)
        assert all(letter.reason == "MALFORMED" for letter in letters.values())
        assert all("its bytes in the device's file are damaged" in letter.message for letter in letters.values())
        told = [state.detail for state in states if state.kind == "dead_letter"]
        assert all(any(batch in detail for detail in told) for batch in bad)
        assert again.status().queued == 0
        # The rows that they showed are gone: the table was pulled again.
        shown = dict(again.execute("SELECT id, title FROM todo").fetchall())
        assert shown == {key: row["title"] for (_, key), row in remote.server.live().items()}
        assert again.verify() == ()
        for batch in bad:
            with pytest.raises(ValueError, match=f"the dead letter {batch} can't be read"):
                again.replay(batch)
            again.discard(batch)


def test_a_damaged_batch_stops_no_pull_and_no_write(device: SyncedDb, remote: MemoryRemote) -> None:
    todo = device.table("todo")
    bad = todo.update({"id": "k0", "title": "a"})
    todo.update({"id": "k0", "n": 77})
    with device._file.transaction() as tx:
        tx.conn.execute("UPDATE _db_mutations_queue SET value = x'ff' WHERE id = ?", (bad,))
    path = device._file.path
    device.close()
    with closing(SyncedDb(path, remote, "d")) as again:
        again._reader.snapshot()
        assert again.execute("SELECT title, n FROM todo WHERE id = 'k0'").fetchone() == ("title 0", 77)
        todo = again.table("todo")
        todo.update({"id": "k0", "title": "later"})
        again.start(background=False)
        assert again.sync()
        assert [letter.id for letter in again.dead_letters()] == [bad]
        assert remote.server.live()["todo", "k0"] == {"id": "k0", "title": "later", "n": 77}


def test_a_damaged_letter_hides_no_other(whole: Path) -> None:
    with closing(sqlite3.connect(whole)) as conn, conn:
        ids = [i for (i,) in conn.execute("SELECT id FROM _db_mutations_queue_dead ORDER BY id")]
        conn.execute("UPDATE _db_mutations_queue_dead SET value = x'ff' WHERE id = ?", (ids[0],))
        conn.execute("UPDATE _db_mutations_queue_dead SET verdict = x'ff' WHERE id = ?", (ids[1],))
        conn.execute("UPDATE _db_mutations_queue_dead SET died_ms = 'x' WHERE id = ?", (ids[2],))
    with closing(DeadQueue(whole)) as queue:
        letters = queue.letters()
        assert [letter.id for letter in letters] == ids
        assert "the batch is damaged in the device's file" in letters[0].message
        assert (letters[0].reason, letters[0].mutations) == ("CONSTRAINT", ())
        assert "the verdict is damaged in the device's file" in letters[1].message
        assert letters[1].mutations[0][:2] == ("update", "todo")
        assert queue.letter(ids[3]).message == ""
        queue.discard(letters[0])


def test_a_damaged_verdict_is_named_and_a_damaged_row_can_be_repaired(device: SyncedDb, remote: MemoryRemote) -> None:
    batch = device.table("todo").update({"id": "k0", "title": "sent"})
    assert device.sync()
    with device._file.transaction() as tx:
        tx.conn.execute("UPDATE _db_confirmed SET verdict = x'ff' WHERE id = ?", (batch,))
        with tx.writing(tx.tables["todo"], 1):
            tx.conn.execute("UPDATE todo SET n = x'00' WHERE id = 'k1'")
    with pytest.raises(FileDamaged, match=f"the verdict on the batch {batch} can't be read"):
        device.verdict(batch)
    with pytest.raises(FileDamaged, match="a row of todo, which a repair of the table mends, can't be read"):
        device.table("todo").delete("k1")
    assert device.verify() == ("todo",)
    assert device.repair("todo").agrees
    device.table("todo").delete("k1")
    assert device.sync()


def test_damaged_pages_are_named_where_rows_are_read(whole: Path, remote: MemoryRemote) -> None:
    with closing(sqlite3.connect(whole)) as conn:
        (root,) = conn.execute("SELECT rootpage FROM sqlite_master WHERE name = 'todo'").fetchone()
    data = bytearray(whole.read_bytes())
    data[(root - 1) * PAGE : root * PAGE] = b"\xaa" * PAGE
    damaged = whole.with_name("damaged.db")
    damaged.write_bytes(data)
    with closing(SyncedDb(damaged, remote, "d")) as opened:
        for read in (
            lambda: opened.execute("SELECT title FROM todo").fetchall(),
            lambda: list(opened.execute("SELECT title FROM todo")),
            lambda: opened.table("todo").update({"id": "a1-1", "n": 1}),
        ):
            with pytest.raises(FileDamaged, match=f"{damaged} is damaged: .*malformed"):
                read()
        assert opened.status().unsent == 2 * QUEUED


def test_an_error_that_is_no_damage_stays_what_it_is(device: SyncedDb) -> None:
    for error in (KeyError("x"), struct.error("x"), DecodeError("x"), sqlite3.ProgrammingError("x")):
        with pytest.raises(type(error)) as raised, device._file.diagnosing():
            raise error
        assert raised.value is error


def test_damage_in_the_queue_is_named_by_the_sync(device: SyncedDb, remote: MemoryRemote) -> None:
    device.table("todo").update({"id": "k0", "title": "queued"})
    remote.write([("todo", MutationType.UPDATE, "k0", {"n": 50})])
    with device._file.transaction() as tx:
        tx.conn.execute("UPDATE _db_mutations_queue SET server_timestamp_ms = 'x'")
    with pytest.raises(FileDamaged, match=r"_db_mutations_queue\.server_timestamp_ms is of another type"):
        device.read()
