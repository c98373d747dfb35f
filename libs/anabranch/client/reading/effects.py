"""From pages of the log to changes of bases: parts are joined, effects folded row by row.

An effect on a restricted table comes with the audiences of its row. One that gives every column makes the row whatever
it was: an update that changes whose a row is says all of it, as it may be new here.

A page may split a group, a batch and an effect. Parts of a group that is not complete are kept, in memory up to a size
and on disk beyond it, and are read again, part by part, inside the one transaction that applies the group.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import IO

from anabranch.client.file.device_table import DeviceTable
from anabranch.client.overlay.rebase import Patch
from anabranch.v1 import change_pb2
from anabranch.values.messages import Reader

_MEMORY_BYTES = 8 * 1024 * 1024
_LENGTH_BYTES = 8

INSERT = int(change_pb2.EFFECT_TYPE_INSERT)
UPDATE = int(change_pb2.EFFECT_TYPE_UPDATE)
DELETE = int(change_pb2.EFFECT_TYPE_DELETE)


_NAMES_TABLE = change_pb2.Effect(table="x").SerializeToString()[:1]
"""The first byte of an effect whose first field is its table."""


def _beginning(table: str) -> bytes:
    """The first bytes of an effect on ``table``, as every serializer writes it that writes fields in their order."""
    return change_pb2.Effect(table=table).SerializeToString()


class Spool:
    """The parts so far of a group that was split."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115
        self.position = 0
        """The position of the group whose parts are here; 0 while there are none."""
        self.batches: list[str] = []
        """The ids of the batches in them."""
        self.change: change_pb2.AudienceChange | None = None
        """How the group changes the reader's audiences, where it does."""
        self.schema_change = b""
        """The schema change with which the group begins, serialized; empty where it begins with none."""

    def add(self, part: change_pb2.LoggedGroup) -> None:
        """Keep one more part."""
        data = part.SerializeToString()
        self._file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        self.position = part.position
        self.batches += [b.id for b in part.batches]
        self.change = part.audience_change if part.HasField("audience_change") else None
        self.schema_change = part.schema_change

    def parts(self) -> Iterator[change_pb2.LoggedGroup]:
        """The parts in order."""
        self._file.seek(0)
        while head := self._file.read(_LENGTH_BYTES):
            yield change_pb2.LoggedGroup.FromString(self._file.read(int.from_bytes(head, "big")))

    def clear(self) -> None:
        """Forget the parts."""
        if self.position:
            self._file.close()
            self._file = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115
            self.position = 0
            self.batches = []
            self.change = None
            self.schema_change = b""


@dataclass
class Folded:
    """The result of some groups, or of some parts of one. ``patches``: table to key text to patch. ``losers``: as the
    log has them. ``rows``: how many effects were read. ``misfits``: tables whose effects do not fit their columns here,
    and why: they were changed on the server since, or before."""

    patches: dict[str, dict[str, Patch]] = field(default_factory=dict)
    losers: list[change_pb2.Loser] = field(default_factory=list)
    rows: int = 0
    misfits: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The way to read effects of one table with one list of columns. ``readers``: place in the effect, place in the
    row. ``key``: the readers of the key's columns, in the key's order. ``whole``: the readers of all columns where an
    effect gives every one, in the table's order; else empty."""

    table: DeviceTable
    readers: list[tuple[int, int, Reader]]
    key: list[tuple[int, Reader]]
    whole: list[Reader]


class Folder:
    """Folds groups into ``Folded``. It carries an effect that a part left incomplete, so one is needed for each group
    that is split; ``skip`` gives the position up to which a table already has all effects. ``alone``: most effects are
    likely to be of other tables than these, and are passed over unread."""

    def __init__(self, tables: Mapping[str, DeviceTable], skip: Mapping[str, int], alone: bool = False) -> None:
        self._tables = tables
        self._others = alone
        self._beginnings = tuple(_beginning(name) for name in tables) if alone else ()
        self._skip = skip
        self._plans: dict[tuple[str, tuple[str, ...]], _Plan | None] = {}
        self._rest = b""
        self._rest_whose: change_pb2.Audiences | None = None

    def fold(self, group: change_pb2.LoggedGroup, into: Folded) -> None:
        """Add one group, or one part of one. Raises google.protobuf.message.DecodeError for an unreadable effect."""
        position = group.position
        parse = change_pb2.Effect.FromString
        for batch in group.batches:
            into.losers.extend(batch.losers)
            effects, whose = list(batch.effects), self._whose(batch)
            if self._rest and effects:
                effects[0] = self._rest + effects[0]
                self._rest = b""
            if batch.effect_incomplete:
                self._rest = effects.pop()
            for data, audiences in zip(effects, whose, strict=False):
                if self._others and data.startswith(_NAMES_TABLE) and not data.startswith(self._beginnings):
                    continue
                effect = parse(data)
                try:
                    self._effect(effect, audiences, position, into)
                except ValueError as error:
                    into.misfits[effect.table] = str(error)
                    into.patches.pop(effect.table, None)

    def _whose(self, batch: change_pb2.LoggedBatch) -> Iterable[change_pb2.Audiences | None]:
        """The audiences of a batch's effects, or None for each of them. Those of an effect that is split may come with
        any of its parts."""
        if not batch.audiences and self._rest_whose is None:
            return repeat(None)
        whose: list[change_pb2.Audiences | None] = list(batch.audiences) or [None] * len(batch.effects)
        if self._rest and whose and self._rest_whose is not None and not (whose[0] and whose[0].values):
            whose[0] = self._rest_whose
        if whose:
            self._rest_whose = whose[-1] if batch.effect_incomplete else None
        return chain(whose, repeat(None))

    def _plan(self, name: str, columns: tuple[str, ...]) -> _Plan | None:
        table = self._tables.get(name)
        if table is None:
            return None
        index = table.table.index
        places = {c: p for p, c in enumerate(columns)}
        readers = [(p, index[c], table.readers[index[c]]) for c, p in places.items() if c in index]
        key = [(places[c], table.readers[index[c]]) for c in table.table.key_columns if c in places]
        if len(key) < len(table.table.key_columns):
            raise ValueError("a row of the log lacks a column of the key")
        return _Plan(table, readers, key, table.readers if columns == table.table.column_names else [])

    def _effect(
        self, effect: change_pb2.Effect, whose: change_pb2.Audiences | None, position: int, into: Folded
    ) -> None:
        name = effect.table
        kind = effect.type
        if kind not in (INSERT, UPDATE, DELETE) or position <= self._skip.get(name, 0) or name in into.misfits:
            return
        shape = (name, tuple(effect.columns))
        try:
            plan = self._plans[shape]
        except KeyError:
            plan = self._plans[shape] = self._plan(*shape)
        if plan is None:
            # No longer synced, not yet, or not held here: Describe follows when the schema's version is new.
            return
        table = plan.table
        values = effect.values
        into.rows += 1
        key = tuple([read(values[p]) for p, read in plan.key])
        text = table.key_text(key)
        patches = into.patches.setdefault(name, {})
        old = patches.get(text)
        if kind == DELETE:
            patches[text] = Patch(key, None, None, position)
            return
        audiences = frozenset(whose.values) if whose is not None and table.restricted else None
        if plan.whole:
            row = tuple([read(value) for read, value in zip(plan.whole, values, strict=True)])
            patches[text] = Patch(key, row, None, position, audiences)
            return
        cells = {i: read(values[p]) for p, i, read in plan.readers}
        if kind == INSERT or (table.restricted and len(cells) == len(table.readers)):
            # A column that the effect does not know came after it.
            row = tuple([cells.get(i, blank) for i, blank in enumerate(table.blank)])
            patches[text] = Patch(key, row, None, position, audiences)
        elif old is None:
            patches[text] = Patch(key, None, cells, position, audiences)
        elif old.row is not None:
            changed = list(old.row)
            for i, cell in cells.items():
                changed[i] = cell
            patches[text] = Patch(key, tuple(changed), None, position, audiences or old.audiences)
        elif old.changes is not None:
            old.changes.update(cells)
            old.position, old.audiences = position, audiences
        # Else the row is gone, because a pull saw a later moment: there is nothing to change.
