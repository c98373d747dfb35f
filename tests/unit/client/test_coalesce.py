"""Many pending changes of one row, coalesced: the same is shown, and it costs the same however many they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.client import SyncedDb
from anabranch.client.overlay import pendings
from anabranch.client.overlay.coalesce import Coalesced
from anabranch.client.overlay.rebase import release
from anabranch.client.queue import statements
from anabranch.client.writes.payload import RowPart
from anabranch.merge.model import MutationType, Policy
from anabranch.merge.overlay import Pending, shown
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.v1 import verdict_pb2

POLICY = Policy(columns={"n": "counter", "m": "max"})
numbers = st.none() | st.integers(-2, 2)
cells = st.fixed_dictionaries({}, optional={"a": numbers, "b": numbers, "n": numbers, "m": numbers})


@st.composite
def changes(draw: st.DrawFn) -> Pending:
    kind = draw(st.sampled_from([MutationType.UPDATE] * 8 + [MutationType.INSERT, MutationType.DELETE]))
    if kind is MutationType.DELETE:
        return Pending(kind, {})
    values = draw(cells)
    before = {c: draw(numbers) for c in values if draw(st.integers(0, 9))}
    return Pending(kind, values, before if kind is MutationType.UPDATE else None)


batches = st.lists(st.lists(changes(), min_size=1, max_size=2), min_size=1, max_size=8)
bases = st.none() | st.fixed_dictionaries({"a": numbers, "b": numbers, "n": numbers, "m": numbers})


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(history=batches, base=bases, gone=st.lists(st.integers(0, 7), max_size=8))
def test_what_is_coalesced_shows_the_same_over_any_base_whoever_leaves(
    history: list[list[Pending]], base: dict[str, Any] | None, gone: list[int]
) -> None:
    kept = Coalesced(POLICY.columns)
    left: dict[str, list[RowPart]] = {}
    for number, batch in enumerate(history):
        name = f"b{number}"
        parts = [RowPart("t", "k", ("k",), change) for change in batch]
        if not kept.add(name, parts):
            return
        left[name] = parts
    for leaving in [None, *(f"b{number}" for number in gone)]:
        if leaving is not None:
            if leaving not in left:
                continue
            parts = left.pop(leaving)
            if not kept.leave(leaving, parts, leaving < min(left, default="~")):
                return
        coalesced = kept.parts()
        if coalesced is None:
            continue
        assert len(coalesced) <= 2
        whole = shown(base, [p.change for ps in left.values() for p in ps], POLICY)
        assert shown(base, [p.change for p in coalesced], POLICY) == whole


@pytest.mark.slow
def test_a_row_with_ten_thousand_pending_writes_costs_what_one_with_a_hundred_does(
    device: SyncedDb, remote: MemoryRemote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local writes, another node's changes of the row, and own writes that the log shows: counted in steps of SQLite's
    machine, and in batches that are looked at."""
    writer = device._file._write
    steps = [0]
    looked_at = [0]
    cache = device._sender._pendings._cache
    parsed = cache.get

    def count() -> int:
        steps[0] += 1
        return 0

    def get(*arguments: Any) -> Any:
        looked_at[0] += 1
        return parsed(*arguments)

    monkeypatch.setattr(cache, "get", get)
    other = SyncedDb(tmp_path / "other.db", remote, "d")
    other.start(background=False)
    todo = device.table("todo")

    def cost(action: Callable[[], object]) -> tuple[int, int]:
        steps[0] = looked_at[0] = 0
        writer.set_progress_handler(count, 1)
        action()
        writer.set_progress_handler(None, 1)
        return steps[0], looked_at[0]

    def theirs() -> None:
        other.table("todo").update({"id": "k0", "title": f"theirs {steps[0]}"})
        assert other.flush()

    def measure() -> list[tuple[int, int]]:
        theirs()
        device.read()  # the first time since the row was written counts no more
        out = [cost(lambda: todo.update({"id": "k0", "n": 7}))]
        theirs()
        out.append(cost(device.read))
        first = device.execute("SELECT min(id) FROM _db_mutations_queue").fetchone()[0]
        device._sender.flush(5.0, only=[first])
        out.append(cost(device.read))
        return out

    def write(times: int) -> None:
        writer.execute("PRAGMA synchronous = OFF")
        for n in range(times):
            todo.update({"id": "k0", "n": n})
        writer.execute("PRAGMA synchronous = FULL")

    write(100)
    measure()
    before = measure()
    write(10_000)
    after = measure()
    assert device.status().queued > 10_000
    assert before[0][0] > 50
    for (ours, batches_now), (then, batches_then) in zip(after, before, strict=True):
        assert ours <= then * 1.2, (after, before)
        assert batches_now <= batches_then + 2, (after, before)
    assert device.execute("SELECT title, n FROM todo WHERE id = 'k0'").fetchone()[1] == 7
    other.close()


@pytest.fixture
def hot(
    device: SyncedDb, remote: MemoryRemote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SyncedDb, Callable[[dict[str, Any]], None]]]:
    """A device that keeps every row coalesced, and another node's change of a row, read by it."""
    monkeypatch.setattr(pendings, "_MANY", 1)
    other = SyncedDb(tmp_path / "other.db", remote, "d")
    other.start(background=False)

    def theirs(row: dict[str, Any]) -> None:
        other.table("todo").update({"id": "k0", **row})
        assert other.flush()
        device.read()

    yield device, theirs
    other.close()


def k0(device: SyncedDb) -> tuple[Any, ...]:
    row: tuple[Any, ...] = device.execute("SELECT title, n FROM todo WHERE id = 'k0'").fetchone()
    return row


def test_a_batch_that_is_rejected_from_the_middle_shows_the_one_before_again(
    hot: tuple[SyncedDb, Callable[[dict[str, Any]], None]],
) -> None:
    device, theirs = hot
    todo = device.table("todo")
    todo.update({"id": "k0", "title": "one"})
    second = todo.update({"id": "k0", "title": "two"})
    todo.update({"id": "k0", "n": 3})
    theirs({"n": 9})
    verdict = verdict_pb2.Verdict(batch_id=second, status=verdict_pb2.VERDICT_STATUS_REJECTED, position=2)
    with device._file.transaction() as tx:
        device._sender._note(tx, [verdict], device._remote.state())  # type: ignore[attr-defined]
    assert k0(device) == ("one", 3)


def test_what_an_undone_transaction_let_go_is_shown_still(
    hot: tuple[SyncedDb, Callable[[dict[str, Any]], None]],
) -> None:
    device, theirs = hot
    first = device.table("todo").update({"id": "k0", "title": "mine"})
    device.table("todo").update({"id": "k0", "n": 3})
    theirs({"n": 9})
    with suppress(ValueError), device._file.transaction() as tx:
        release(tx, [first], device._sender._pendings)
        raise ValueError("undone")
    theirs({"n": 10})
    assert k0(device) == ("mine", 3)


def test_a_batch_that_was_seen_and_waits_shows_what_came_after_it(
    hot: tuple[SyncedDb, Callable[[dict[str, Any]], None]],
) -> None:
    device, theirs = hot
    device.table("todo").update({"id": "k0", "title": "one"})
    second = device.table("todo").update({"id": "k0", "title": "two"})
    theirs({"n": 9})
    with device._file.transaction() as tx:
        statements.mark_seen(tx.conn, [second])
    theirs({"title": "theirs"})
    assert k0(device) == ("theirs", 9)
