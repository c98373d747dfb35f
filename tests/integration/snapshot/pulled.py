"""The answer to a pull, for tests of pulls."""

from __future__ import annotations

import itertools
from typing import Any

from ulid import ULID

from anabranch.columnar.chunks import from_ipc
from anabranch.testkit.snapshot_reader import Reader
from anabranch.v1 import change_pb2, snapshot_pb2

MIB = 1024 * 1024


def rows(count: int, size: int = 20) -> list[tuple[Any, ...]]:
    return [(str(ULID()), f"title {i}", i, bytes([i % 256]) * size) for i in range(count)]


class Pulled:
    """The answer to a pull: rows by table, its chunks' tables and parts in order, and the last response."""

    def __init__(self) -> None:
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        self.responses: list[snapshot_pb2.PullResponse] = []
        self._ipc = b""

    def take(self, response: snapshot_pb2.PullResponse) -> None:
        self._ipc += response.arrow_ipc
        if response.arrow_ipc_incomplete:
            return
        found = self.rows.setdefault(response.table, [])
        if self._ipc:
            columns = [column.to_pylist() for column in from_ipc(self._ipc).columns]
            found.extend(zip(*columns, strict=True))
        self._ipc = b""
        response.arrow_ipc = b""
        self.responses.append(response)

    def all(self, stream: Any) -> Pulled:
        for response in stream:
            assert response.ByteSize() < 4 * MIB
            self.take(response)
        return self

    @property
    def done(self) -> dict[str, snapshot_pb2.PullResponse]:
        return {response.table: response for response in self.responses if response.done}


def jobs_of(pulled: Pulled) -> dict[str, tuple[Any, ...]]:
    """The rows of ``job`` by id, without their audiences."""
    return {row[0]: row[:-1] for row in pulled.rows.get("job", [])}


def apply(held: dict[str, Any], group: change_pb2.LoggedGroup) -> None:
    for batch in group.batches:
        for data in batch.effects:
            effect = change_pb2.Effect.FromString(data)
            key = effect.values[0].string_value
            if effect.type == change_pb2.EFFECT_TYPE_DELETE:
                del held[key]
                continue
            row = list(held.get(key, (None,) * 4))
            for name, value in zip(effect.columns, effect.values, strict=True):
                row[("id", "title", "n", "data").index(name)] = getattr(value, str(value.WhichOneof("kind")))
            held[key] = tuple(row)


def pull_and_cut(reader: Reader, pulled: Pulled, resume: bytes) -> snapshot_pb2.PullResponse:
    """Go on with a pull of ``item`` for two responses, and break it off; gives the last one."""
    stream = reader.pull([("item", resume)])
    response: snapshot_pb2.PullResponse
    for response in itertools.islice(stream, 2):
        pulled.take(response)
        if response.done:
            break
    stream.cancel()
    return response
