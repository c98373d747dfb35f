"""Whose an open batch is: another thread, task or generator neither joins it nor is undone with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from anabranch.client import BatchState, SyncedDb
from anabranch.client.file import device_file


def titles(device: SyncedDb) -> dict[str, str]:
    return dict(device.execute("SELECT id, title FROM todo").fetchall())


def test_a_task_does_not_join_the_batch_of_another(device: SyncedDb) -> None:
    """It is refused, and not told "saved" of what goes with the other's batch."""
    todo = device.table("todo")

    async def fails(opened: asyncio.Event, done: asyncio.Event) -> None:
        with device.batch():
            todo.insert({"id": "a", "title": "undone"})
            opened.set()
            await done.wait()
            raise ZeroDivisionError

    async def main() -> None:
        opened, done = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(fails(opened, done), name="holder")
        await opened.wait()
        for call in (lambda: todo.insert({"id": "b"}), lambda: device.batch().__enter__(), device.flush, device.verify):
            with pytest.raises(BatchState, match="the task holder"):
                call()
        assert "a" not in titles(device)
        done.set()
        with pytest.raises(ZeroDivisionError):
            await task
        todo.insert({"id": "b", "title": "saved"})

    asyncio.run(main())
    assert titles(device).get("b") == "saved"
    assert "a" not in titles(device)
    assert device.status().queued == 1


def test_two_tasks_with_a_batch_each_end_right(device: SyncedDb) -> None:
    todo = device.table("todo")

    async def save(name: str) -> str:
        with device.batch() as batch:
            todo.insert({"id": f"{name}1"})
            await asyncio.sleep(0)
            todo.insert({"id": f"{name}2"})
        return batch.id

    async def main() -> list[str | BaseException]:
        return list(await asyncio.gather(save("a"), save("b"), return_exceptions=True))

    first, second = asyncio.run(main())
    assert isinstance(first, str)
    assert isinstance(second, BatchState)
    assert {"a1", "a2"} <= set(titles(device))
    assert not {"b1", "b2"} & set(titles(device))
    assert device.status().queued == 1


def test_what_is_begun_inside_a_batch_is_not_part_of_it(device: SyncedDb) -> None:
    """A task and ``to_thread`` inherit the context; the block that waits for them could never end."""
    todo = device.table("todo")

    async def inner() -> None:
        todo.insert({"id": "inner"})

    async def main() -> None:
        with device.batch():
            todo.insert({"id": "outer"})
            with pytest.raises(BatchState):
                await asyncio.create_task(inner())
            with pytest.raises(BatchState):
                await asyncio.to_thread(todo.insert, {"id": "thread"})
            await inner()

    asyncio.run(main())
    assert {"outer", "inner"} <= set(titles(device))
    assert "thread" not in titles(device)


def test_who_asks_a_generator_for_its_next_value_does_not_join_its_batch(device: SyncedDb) -> None:
    todo = device.table("todo")

    def import_rows() -> Iterator[int]:
        with device.batch():
            for i in range(3):
                todo.insert({"id": f"g{i}"})
                yield i

    rows = import_rows()
    next(rows)
    with pytest.raises(BatchState, match=r"generator .*import_rows"):
        todo.insert({"id": "own"})
    assert "g0" not in titles(device)
    assert list(rows) == [1, 2]
    todo.insert({"id": "own"})
    assert {"g0", "g1", "g2", "own"} <= set(titles(device))
    # One that begins and ends inside a generator stays open for nobody.
    assert len([todo.insert({"id": f"h{i}"}) for i in range(2)]) == 2


def test_a_generator_closed_by_another_thread_lets_go(device: SyncedDb) -> None:
    todo = device.table("todo")

    def never_ends() -> Iterator[None]:
        with device.batch():
            todo.insert({"id": "half"})
            yield

    rows = never_ends()
    next(rows)
    closer = threading.Thread(target=rows.close)  # type: ignore[attr-defined]
    closer.start()
    closer.join(10)
    todo.insert({"id": "whole"})
    assert "half" not in titles(device)
    assert device.status().queued == 1


def test_context_managers_of_the_app_lend_their_batch(device: SyncedDb) -> None:
    @contextmanager
    def unit_of_work() -> Iterator[None]:
        with device.batch():
            yield

    with unit_of_work():
        device.table("todo").insert({"id": "a"})
        device.table("todo").insert({"id": "b"})
    with ExitStack() as stack:
        stack.enter_context(device.batch())
        device.table("todo").insert({"id": "c"})
        device.table("todo").insert({"id": "d"})
    assert device.status().queued == 2


def test_another_thread_waits_for_the_batch_to_end(device: SyncedDb) -> None:
    todo = device.table("todo")
    writer = threading.Thread(target=lambda: todo.insert({"id": "b"}))
    with device.batch():
        todo.insert({"id": "a"})
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
    writer.join(10)
    assert {"a", "b"} <= set(titles(device))
    assert device.status().queued == 2


def test_who_waits_too_long_is_told_for_whom(device: SyncedDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.client.file.device_file.WAIT_S", 0.05)
    told: list[Exception] = []

    def write() -> None:
        try:
            device.table("todo").insert({"id": "b"})
        except BatchState as error:
            told.append(error)

    writer = threading.Thread(target=write)
    with device.batch():
        writer.start()
        writer.join(10)
    assert "MainThread has had a batch open" in str(told[0])


def test_the_files_that_begin_a_block_for_the_app_are_where_they_are_said_to_be() -> None:
    assert all(Path(file).is_file() for file in device_file._OURS)
