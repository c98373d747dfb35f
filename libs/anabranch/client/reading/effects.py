"""From pages of the log to changes of bases: parts are joined, effects folded row by row.

An effect on a restricted table comes with the audiences of its row. One that gives every column makes the row whatever
it was: an update that changes whose a row is says all of it, as it may be new here.

A page may split a group, a batch and an effect. Parts of a group that is not complete are kept, in memory up to a size
and on disk beyond it, and are read again, part by part, inside the one transaction that applies the group.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import IO, Any, NamedTuple

from anabranch.client.file.device_table import DeviceTable
from anabranch.client.overlay.rebase import Patch
from anabranch.client.reading.effect_values import ColumnReader, read_columns, reader_of
from anabranch.v1 import change_pb2
from anabranch.values.cells import Cell

_MEMORY_BYTES = 8 * 1024 * 1024
_LENGTH_BYTES = 8

INSERT = int(change_pb2.EFFECT_TYPE_INSERT)
UPDATE = int(change_pb2.EFFECT_TYPE_UPDATE)
DELETE = int(change_pb2.EFFECT_TYPE_DELETE)
_CHANGES = frozenset({INSERT, UPDATE, DELETE})
_NAMES_TABLE = b"\x0a"


_MOST_FORMS = 64  # That a table keeps.
_VALUES = b"\x22"  # The tag of an effect's values, which follow its other fields.


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


_Decoded = tuple[str, tuple[Any, ...], tuple[Cell, ...]]
"""An effect's key text, the stored key, and cells: of the whole row, or its form's ``changes``."""


@dataclass(eq=False, slots=True)
class _Form:
    """Effects of one table, type and list of columns: those that begin with ``head``. ``readers``: of each of these
    columns, None for one that is not here. ``key``: where the key's are. ``row``: where the table's are, None for one
    that is not given; empty where an effect does not make a whole row. ``changes``: the places of those that are here,
    in the effect and in the row."""

    head: bytes
    table: DeviceTable
    kind: int
    readers: list[ColumnReader | None]
    key: list[int]
    row: list[int | None]
    changes: list[tuple[int, int]]

    def read(self, effects: Sequence[bytes]) -> Iterator[_Decoded]:
        """Read effects. Raises ValueError where a value does not fit its column, or one of the key is lacking."""
        if len(self.key) < len(self.table.table.key_columns):
            raise ValueError("a row of the log lacks a column of the key")
        start, table = len(self.head) - len(_VALUES), self.table
        columns = read_columns([data[start:] for data in effects], self.readers)
        key = [columns[p] for p in self.key]
        keys = list(zip(*key, strict=True))
        if any(None in one for one in key):
            raise ValueError("a row of the log has no key")
        texts = map(table.key_text, keys)
        if self.row:
            given = [repeat(blank) if p is None else columns[p] for p, blank in zip(self.row, table.blank, strict=True)]
        else:
            given = [columns[p] for p, _ in self.changes]
        return zip(texts, keys, zip(*given, strict=False), strict=False)


class _Run(NamedTuple):
    """Effects of one form that follow each other in a group, at ``position``; ``whose``: the audiences of each."""

    form: _Form
    position: int
    effects: list[bytes]
    whose: list[change_pb2.Audiences | None]


@dataclass
class Folded:
    """The result of some groups, or of some parts of one. ``patches``: table to key text to patch. ``losers``: as the
    log has them. ``rows``: how many effects there were. ``misfits``: tables whose effects do not fit their columns
    here, and why: they were changed on the server since, or before. ``waiting``: effects that are still to be read."""

    patches: dict[str, dict[str, Patch]] = field(default_factory=dict)
    losers: list[change_pb2.Loser] = field(default_factory=list)
    rows: int = 0
    misfits: dict[str, str] = field(default_factory=dict)
    waiting: list[_Run] = field(default_factory=list)

    def read(self) -> None:
        """Read what is waiting, form by form, and fold it in its order. Raises google.protobuf.message.DecodeError for
        an unreadable effect."""
        waiting, self.waiting = self.waiting, []
        effects = dict[_Form, list[bytes]]()
        for run in waiting:
            effects.setdefault(run.form, []).extend(run.effects)
        read = dict[_Form, Iterator[_Decoded]]()
        for form, data in effects.items():
            try:
                read[form] = form.read(data)
            except ValueError as error:
                self.misfits[form.table.name] = str(error)
        for name in self.misfits:
            self.patches.pop(name, None)
        for run in waiting:
            if run.form.table.name not in self.misfits:
                _fold(run, read[run.form], self.patches.setdefault(run.form.table.name, {}))


def _fold(run: _Run, read: Iterator[_Decoded], patches: dict[str, Patch]) -> None:
    form, position, restricted = run.form, run.position, run.form.table.restricted
    places = [place for _, place in form.changes]
    for whose, (text, key, cells) in zip(run.whose, read, strict=False):
        audiences = frozenset(whose.values) if whose is not None and restricted else None
        if form.kind == DELETE:
            patches[text] = (key, None, None, position, None)
        elif form.row:
            patches[text] = (key, cells, None, position, audiences)
        elif (old := patches.get(text)) is None:
            patches[text] = (key, None, dict(zip(places, cells, strict=True)), position, audiences)
        elif old[1] is not None:
            row = list(old[1])
            for place, cell in zip(places, cells, strict=True):
                row[place] = cell
            patches[text] = (key, tuple(row), None, position, audiences or old[4])
        elif old[2] is not None:
            old[2].update(zip(places, cells, strict=True))
            patches[text] = (key, None, old[2], position, audiences)
        # Else the row is gone, because a pull saw a later moment: there is nothing to change.


class Folder:
    """Folds groups into ``Folded``. It carries an effect that a part left incomplete, so one is needed for each group
    that is split; ``skip`` gives the position up to which a table already has all effects. Effects of other tables than
    these are passed over unread: they are no longer synced, not yet, or not held here; Describe follows when the
    schema's version is new."""

    def __init__(self, tables: Mapping[str, DeviceTable], skip: Mapping[str, int]) -> None:
        self._tables = tables
        self._skip = skip
        self._rest = b""
        self._rest_whose: change_pb2.Audiences | None = None

    def fold(self, group: change_pb2.LoggedGroup, into: Folded) -> None:
        """Add one group, or one part of one; ``into`` is to be read when all are there. Raises
        google.protobuf.message.DecodeError for an unreadable effect."""
        run: _Run | None = None
        for batch in group.batches:
            into.losers.extend(batch.losers)
            effects, whose = list(batch.effects), self._whose(batch)
            if self._rest and effects:
                effects[0] = self._rest + effects[0]
                self._rest = b""
            if batch.effect_incomplete:
                self._rest = effects.pop()
            into.rows += len(effects)
            for data, audiences in zip(effects, whose, strict=False):
                if run is None or not data.startswith(run.form.head):
                    form, data = self._form(data)
                    run = None if form is None else _Run(form, group.position, [], [])
                    if form is None or run is None:
                        continue
                    if form.kind in _CHANGES and group.position > self._skip.get(form.table.name, 0):
                        into.waiting.append(run)
                run.effects.append(data)
                run.whose.append(audiences)

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

    def _form(self, data: bytes) -> tuple[_Form | None, bytes]:
        """The form of an effect, None for one that is passed over, and its bytes with fields in their order."""
        if not data.startswith(_NAMES_TABLE):
            data = change_pb2.Effect.FromString(data).SerializeToString()
        # Names have less than 128 bytes: one is their number.
        table = self._tables.get(data[2 : 2 + int.from_bytes(data[1:2])].decode(errors="replace"))
        if table is None:
            return None, data
        forms: list[_Form] = table.forms
        form = _that_begins(data, forms)
        if form is None:
            effect = change_pb2.Effect.FromString(data)
            # Fields that only a later release knows come last.
            data = effect.SerializeToString()
            form = _that_begins(data, forms)
            if form is None:
                before = change_pb2.Effect(table=effect.table, type=effect.type, columns=effect.columns)
                head = before.SerializeToString() + _VALUES
                form = _form_of(head, table, effect.type, effect.columns)
                if len(forms) >= _MOST_FORMS:
                    forms.clear()
                forms.append(form)
        return form, data


def _that_begins(data: bytes, forms: Iterable[_Form]) -> _Form | None:
    return next((form for form in forms if data.startswith(form.head)), None)


def _form_of(head: bytes, table: DeviceTable, kind: int, columns: Sequence[str]) -> _Form:
    index, places = table.table.index, {name: p for p, name in enumerate(columns)}
    key = [places[name] for name in table.table.key_columns if name in places]
    readers = [reader_of(table.table.by_name[name]) if name in index else None for name in columns]
    changes = [(p, index[name]) for name, p in places.items() if name in index]
    whole = kind == INSERT or tuple(columns) == table.table.column_names
    # A column that the effect does not know came after it.
    row = [places.get(name) for name in table.table.column_names]
    if not whole and not (table.restricted and None not in row):
        row = []
    return _Form(head, table, kind, readers, key, row, changes)
