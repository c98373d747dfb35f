"""Batches of the node "server": the changes that one transaction by SQL made to synced rows, as the log keeps them.

Such a batch has one row of the log for each change, its histories are carried forward by the rules' own ``applied``,
and it has a verdict, whose message says where it came from. Its id is a ULID of the time 0, made from the position and
the batch's number in it: smaller than every device's, and in the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

from ulid import ULID

from anabranch.merge import SERVER_NODE, Batch, MutationType, RowState, Write, applied
from anabranch.store.audiences.affected import ChangedRows
from anabranch.store.capture.large_images import LargeImage
from anabranch.store.group.chain import Joined
from anabranch.store.group.records import FIRST_BYTES, PART_BYTES, BatchRow, LogRow
from anabranch.store.group.rows import Row
from anabranch.v1 import verdict_pb2
from anabranch.values import Cell
from anabranch.values.pieces import Pieces
from anabranch.wire import effects
from anabranch.wire.effects import Effect, EffectBuilder
from anabranch.wire.large_effects import LargeEffect, LargeEffectBuilder
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.shown import AudienceChanges, Shown, add_sums, shown
from anabranch_conflict_resolver.captured.order import Link
from anabranch_conflict_resolver.group.table import SyncedTable

PRINCIPAL = "sql:"
"""The prefix of the role in the principal of such a batch."""
_APPLIED = int(verdict_pb2.VERDICT_STATUS_APPLIED)
_INSERT, _UPDATE, _DELETE = MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE
_NOTHING: Mapping[str, Cell] = MappingProxyType({})


def server_batch_id(position: int, number: int) -> str:
    """The id of the server's batch ``number`` (from 0) at ``position``."""
    return str(ULID.from_bytes(bytes(6) + position.to_bytes(6, "big") + number.to_bytes(4, "big")))


def schema_batch_id(position: int) -> str:
    """The id of the server's batch of the schema change at ``position``: behind all others of the server there."""
    return server_batch_id(position, 2**32 - 1)


@dataclass(frozen=True, slots=True)
class Step:
    """A change of one row: the row before and after, None where there is none. ``link``: the same as captured;
    ``depth``: how deep inside other statements it was made; ``rekeyed``: whether it is half of an update of the key.
    ``era``: 0 for a change of the table as it is, another number for those of each older shape of it."""

    table: SyncedTable
    at: RowKey
    before: Row | None
    after: Row | None
    link: Link
    depth: int
    rekeyed: bool = False
    era: int = 0

    @property
    def of(self) -> tuple[RowKey, int]:
        """The row, and the era: a row's images are compared with others of the same era only."""
        return self.at, self.era


def rows_of(steps: Iterable[Step]) -> Iterator[tuple[str, Row | None]]:
    """The rows before and after changes, each with its table's name."""
    for step in steps:
        yield step.at[0], step.before
        yield step.at[0], step.after


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a transaction: its number, its role and its application."""

    xid: int
    role: str
    application: str

    @property
    def text(self) -> str:
        """In words."""
        application = f", application {self.application}" if self.application else ""
        return f"written by SQL: role {self.role}{application}, transaction {self.xid}"


@dataclass(frozen=True, slots=True)
class SchemaOrigin:
    """The origin of a schema change: the role that made it, and ``text``, the change in words."""

    role: str
    text: str


class Histories(Protocol):
    """The histories of a view: each row's state as the rules see it, and the rows whose history has changed."""

    states: dict[RowKey, RowState]
    changed: set[RowKey]

    def note_audiences(self, at: RowKey, changed: Shown | None, *, there: bool) -> None:
        """Note whom a row is for."""


@dataclass(slots=True)
class ServerBatch:
    """The records of one transaction, or of a schema change. ``sum_changes``, ``audience_changes``, ``changed`` and
    ``came`` as in ``Records``. ``heartbeat`` is called between the hashes of large rows, so that the session is not
    idle for as long as they take together."""

    id: str
    origin: Origin | SchemaOrigin
    position: int
    log: list[LogRow] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    sum_changes: dict[str, tuple[int, int]] = field(default_factory=dict)
    audience_changes: AudienceChanges = field(default_factory=dict)
    changed: ChangedRows = field(default_factory=ChangedRows)
    came: list[tuple[int, str]] = field(default_factory=list)
    ordinal: int = 0
    gone: list[bytes] = field(default_factory=list)
    """The hashes of changes that were written and let go, end to end, by pieces."""
    heartbeat: Callable[[], None] = lambda: None

    @property
    def link(self) -> Sequence[bytes] | Joined:
        """Its effects' hashes, for the chain."""
        return self.hashes if not self.gone else Joined(self.ordinal, [*self.gone, *self.hashes])

    def let_go(self) -> None:
        """Keep nothing of the rows that were logged so far but their hashes."""
        self.gone.append(b"".join(self.hashes))
        self.log, self.hashes, self.came = [], [], []

    def cut_large(self) -> list[LogRow]:
        """The rows to be logged whose effects are too large for one statement; ``log`` has the first part of them. No
        effect in it is in pieces then."""
        large = [row for row in self.log if len(row.effect) > PART_BYTES]
        for place, row in enumerate(self.log):
            if len(row.effect) > PART_BYTES:
                self.log[place] = replace(row, effect=row.effect[:FIRST_BYTES])
            elif isinstance(row.effect, Pieces):
                self.log[place] = replace(row, effect=bytes(row.effect))
        return large

    def add(self, histories: Histories, steps: Iterable[Step], remembering: Mapping[str, bool]) -> None:
        """Log ``steps``, in the order in which they were made, and carry ``histories`` forward, which hold those that
        are known already. The audiences of their rows are learned. ``remembering``: whether a table's rules ask for
        overtaken writers."""
        states, changed = histories.states, histories.changed
        log, hashes, sums, came = self.log, self.hashes, self.sum_changes, self.came
        batch, batch_id, ordinal = self._batch(), self.id, self.ordinal
        for step in steps:
            table, at, before, after = step.table, step.at, step.before, step.after
            name, key = at
            values: Mapping[str, Cell] = _NOTHING
            effects_of = self._effects_of(step)
            effect: Effect | LargeEffect
            if after is None:
                if before is None:
                    continue
                kind, effect = _DELETE, effects_of.delete(before)
            elif before is None:
                kind, effect = _INSERT, effects_of.insert(after)
                came.append((table.table.id, key))
            else:
                kind, effect = _UPDATE, effects_of.update(before, after)
                if effect.type == effects.NONE:
                    continue
                index = table.table.index
                values = {column: after[index[column]] for column in effect.changed}
            effect, seen = shown(table.audiences, effects_of, before, after, effect)
            histories.note_audiences(at, seen, there=after is not None)
            add_sums(self.audience_changes, name, seen, effect)
            if seen is not None and before is not None and seen.after and seen.before != seen.after:
                # Batches may wait for a row that they have not seen, and see now.
                came.append((table.table.id, key))
            if table.gives_audiences:
                self.changed.add(name, before, after)
            old = states.get(at)
            if kind is _UPDATE and (old is None or old.values is None):
                old = RowState(_NOTHING, old.version if old is not None else None)
            write = Write(name, key, kind, values, 0, ordinal, remember=remembering[name])
            states[at] = applied(old, batch, write)
            changed.add(at)
            log.append(
                LogRow(
                    batch_id,
                    ordinal,
                    SERVER_NODE,
                    table.table.id,
                    key,
                    effect.type,
                    effect.data,
                    effect.changed,
                    effect.hash,
                    seen.before if seen is not None else None,
                    seen.after if seen is not None else None,
                )
            )
            hashes.append(effect.hash)
            count, total = sums.get(name, (0, 0))
            sums[name] = (count + effect.count_change, total + effect.hash_change)
            ordinal += 1
        self.ordinal = ordinal

    def _effects_of(self, step: Step) -> EffectBuilder | LargeEffectBuilder:
        if type(step.link[0]) is LargeImage or type(step.link[1]) is LargeImage:
            return LargeEffectBuilder(step.table.table, self.heartbeat)
        return step.table.effects

    def _batch(self) -> Batch:
        # It has seen all changes before it: it was written on top of them.
        return Batch(self.id, SERVER_NODE, self.position - 1, 0, self.position, self.position, ())

    def record(self) -> BatchRow:
        """Its verdict."""
        verdict = verdict_pb2.Verdict(
            batch_id=self.id,
            status=verdict_pb2.VERDICT_STATUS_APPLIED,
            position=self.position,
            message=self.origin.text,
        )
        return BatchRow(
            self.id,
            SERVER_NODE,
            PRINCIPAL + self.origin.role,
            b"",
            _APPLIED,
            0,
            self.position,
            verdict.SerializeToString(),
        )


@dataclass(frozen=True, slots=True)
class Drained:
    """The changes that a group has drained: its batches in their order; the numbers of the captured rows that are still
    to be deleted; and the greatest number that was read."""

    batches: Sequence[ServerBatch]
    ids: Sequence[int]
    up_to: int

    @property
    def changes(self) -> int:
        """The number of changes that were taken."""
        return max(len(self.ids), sum(batch.ordinal for batch in self.batches))
