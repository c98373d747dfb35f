"""``_db_state``: the file's node and how far it has come, read at the start of every transaction."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import product
from operator import itemgetter
from typing import Any, TypeAlias

from anabranch.client.errors import FileDamaged
from anabranch.v1 import batch_pb2, position_pb2

Seen: TypeAlias = tuple[str, int, bytes]
"""A position: its epoch, its milliseconds, its token."""
NOTHING_SEEN: Seen = ("", 0, b"")


@dataclass(frozen=True, slots=True)
class FileState:
    """One row; ``layout`` says what each field means. Times and positions are in milliseconds."""

    db_name: str
    node_id: str
    node_name: str
    node_token: bytes
    principal: str | None
    credential: bytes | None
    last_id: str
    cursor_ms: int
    greatest_epoch: str
    greatest_ms: int
    greatest_token: bytes
    seen_ms: int
    schema_version: int
    tables_version: int
    limits: bytes
    policy: bytes
    pulls: int
    snapshot_due: int
    pruned_ms: int
    chosen: str | None
    describe_due: int
    audience_choice: str | None
    held_digest: bytes
    gains_due: int
    app_version: int
    needs_version: int
    ddl_version: int
    describe_at: int

    @property
    def choice(self) -> frozenset[str] | None:
        """The names of the tables that the device has chosen; None for all."""
        return None if self.chosen is None else _names(self.chosen, "tables")

    @property
    def chosen_audiences(self) -> frozenset[str] | None:
        """The audiences that the device has chosen; None for all."""
        return None if self.audience_choice is None else _names(self.audience_choice, "audiences")

    @property
    def node(self) -> batch_pb2.Node:
        """The node as calls and batches name it."""
        return batch_pb2.Node(id=self.node_id, name=self.node_name)

    @property
    def greatest_seen(self) -> Seen:
        """The greatest position that the file has ever seen, or NOTHING_SEEN."""
        return self.greatest_epoch, self.greatest_ms, self.greatest_token

    @property
    def node_state(self) -> position_pb2.NodeState:
        """The node's report on itself, part of every call."""
        return position_pb2.NodeState(
            node=self.node,
            greatest_seen=position_pb2.Position(
                epoch=self.greatest_epoch, server_timestamp_ms=self.greatest_ms, token=self.greatest_token
            ),
            acknowledged=self.cursor_ms,
        )

    @property
    def reader_state(self) -> position_pb2.NodeState:
        """``node_state`` with what the file holds: part of every call that reads."""
        choice = self.chosen_audiences
        node_state = self.node_state
        node_state.app_version = self.app_version
        node_state.held.digest = self.held_digest
        if choice is not None:
            node_state.held.chosen = True
            node_state.held.choice.extend(sorted(choice))
        return node_state


@lru_cache(maxsize=16)
def _names(chosen: str, what: str) -> frozenset[str]:
    names = json.loads(chosen)
    if type(names) is not list or not all(type(name) is str for name in names):
        raise FileDamaged(f"the {what} that it has chosen are no list of names")
    return frozenset(names)


_HOUR_MS = 3600 * 1000
_FIELDS = tuple(f.name for f in fields(FileState))
_SELECT = f"SELECT {', '.join(_FIELDS)} FROM _db_state"
_NONE = type(None)
_KINDS = {
    "str": (str,),
    "int": (int,),
    "bytes": (bytes,),
    "str | None": (str, _NONE),
    "bytes | None": (bytes, _NONE),
}
_TYPES = frozenset(product(*(_KINDS[str(f.type)] for f in fields(FileState))))
"""The types that the fields of a state may have together."""
_numbers = itemgetter(*(place for place, f in enumerate(fields(FileState)) if f.type == "int"))


def load(conn: sqlite3.Connection) -> FileState:
    """The state as ``conn``'s transaction sees it. Raises FileDamaged where it is missing, or can't be one."""
    row = conn.execute(_SELECT).fetchone()
    if row is None:
        raise FileDamaged("the row of its state is missing")
    if tuple(map(type, row)) not in _TYPES or min(_numbers(row)) < 0:
        raise FileDamaged("a value of its state can't be one")
    return FileState(*row)


def store(conn: sqlite3.Connection, state: FileState, changes: dict[str, Any]) -> FileState:
    """Change fields of the state; return the new one. Only fields that differ are written."""
    changes = {name: value for name, value in changes.items() if getattr(state, name) != value}
    if not changes:
        return state
    conn.execute(f"UPDATE _db_state SET {', '.join(f'{n} = ?' for n in changes)}", list(changes.values()))
    return replace(state, **changes)


def time_seen(state: FileState, server_ms: int) -> dict[str, Any]:
    """The changes to ``state`` that come from the server's clock, hourly: ids that are made offline are no older than
    that time, however far the device's clock is behind."""
    return {"seen_ms": server_ms} if server_ms > state.seen_ms + _HOUR_MS else {}


def greatest(state: FileState, position: position_pb2.Position) -> dict[str, Any]:
    """The changes to ``state`` that come from having seen ``position``."""
    changes: dict[str, Any] = {}
    if position.server_timestamp_ms > state.seen_ms:
        changes["seen_ms"] = position.server_timestamp_ms
    if position.token and (not state.greatest_token or position.server_timestamp_ms > state.greatest_ms):
        changes["greatest_epoch"] = position.epoch
        changes["greatest_ms"] = position.server_timestamp_ms
        changes["greatest_token"] = position.token
    return changes
