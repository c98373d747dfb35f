"""The difference that DDL has made to a table, from its registration to now, by the markers that wait. No I/O.

Columns are matched by their numbers, which Postgres gives once for as long as a table is there; by their names where
the table's oid is another one, as after a dump was restored.

Identities: a column that is new, or whose type carries its values in another way now, gets a name that no column of the
table ever had; every other column keeps its own, whatever its name in SQL is.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.store.catalog.identities import column_identities, new_identity
from anabranch.store.catalog.policy import POLICY_KINDS
from anabranch.store.cells.binary_cells import bare_type
from anabranch.store.ddl.following import Followed, follow
from anabranch.store.ddl.markers import Marker
from anabranch.store.ddl.shapes import Shape, ShapeColumn
from anabranch.values import Cell, Column, Kind, Table, postgres_types
from anabranch.values.kinds import TEXT_KINDS
from anabranch.values.postgres_text import array_parser, element_parser
from anabranch.values.postgres_types import Types
from anabranch.values.table import FormerColumn, has_zone


@dataclass(frozen=True)
class Registered:
    """A table as it is registered: its columns by identity, the shape that they were read from, and the table's oid
    then (0: not known)."""

    table: Table
    shape: Shape
    relation: int


@dataclass(frozen=True)
class TableChange:
    """One table's part of a schema change. ``before``: None for a table that is new. ``after``: None for one that is
    gone. Columns go by their identities.

    ``added`` are the columns that are new, those that a retyped one became included; ``dropped`` those that are gone,
    with their successors. ``renamed``: by identity, the names in SQL before and after; "" stands for the table.
    ``rewritten``: the columns whose values, in rows that are there, are to be read from the table and sent.
    ``recount``: the table's sum has to be computed anew, since a column went.

    ``pulled``: why the table can't go on and has to be pulled anew; ``refused``: why it can't be synced as it is now,
    and is set aside as it was registered (a new table: left alone). Both "" where it goes on. ``texts`` say it for
    people, change by change.

    ``shape`` and ``relation`` are those of the last of ``markers`` that has a shape; ``shapes_before`` those by which
    images are read that are older than each of these."""

    before: Table | None
    after: Table | None
    added: tuple[Column, ...] = ()
    dropped: tuple[FormerColumn, ...] = ()
    renamed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    rewritten: frozenset[str] = frozenset()
    recount: bool = False
    pulled: str = ""
    refused: str = ""
    texts: tuple[str, ...] = ()
    shape: Shape | None = None
    relation: int = 0
    markers: tuple[Marker, ...] = ()
    shapes_before: tuple[Shape, ...] = ()

    @property
    def number(self) -> int:
        """The number of the registration that the markers name."""
        return self.markers[-1].table_id if self.markers else 0

    @property
    def is_known(self) -> bool:
        """Whether something is different in the end that the log and devices have to know."""
        return self.before != self.after or bool(self.rewritten or self.pulled)


def difference(
    registered: Registered, markers: Sequence[Marker], types: Types, *, position: int, refusals: Sequence[str] = ()
) -> TableChange:
    """The meaning of the markers of one table, in their order, at least one. ``types``: those of the columns of the
    registered shape and of the last marker's, as far as they are there, and all that they are made of. ``position``:
    that of the schema change. ``refusals``: why the table can't be synced as it is now."""
    before = registered.table
    followed = follow(registered.shape, registered.relation, markers)
    known = tuple(markers)
    if followed.gone:
        text = f'table "{before.sql_name}" was {"dropped" if markers[-1].shape is None else "moved out of its schema"}'
        return TableChange(before, None, texts=(text,), shape=followed.shape, markers=known)
    if refusals:
        text = f'table "{followed.sql_name}" can\'t be synced as it is now: {"; ".join(refusals)}'
        return TableChange(before, before, refused="; ".join(refusals), texts=(text,), markers=known)
    return _Difference(registered, followed, types, position).made(known)


def new_table(
    marker: Marker, shape: Shape, types: Types, *, name: str, markers: Sequence[Marker], refusals: Sequence[str] = ()
) -> TableChange:
    """The change that a new table is, whose last marker is ``marker``. ``name``: its identity."""
    if refusals:
        text = f'table "{marker.sql_name}" is new, and can\'t be synced: {"; ".join(refusals)}'
        return TableChange(None, None, refused="; ".join(refusals), texts=(text,), markers=tuple(markers))
    columns = tuple(_described(c, types) for c in shape.columns if c.generated != _VIRTUAL)
    key = tuple(shape.by_number[number].name for number in shape.key)
    renamed = "" if marker.sql_name == name else marker.sql_name
    table = Table(name, columns, key, marker.table_id, renamed=renamed)
    text = f'table "{marker.sql_name}" is new'
    return TableChange(
        None, table, added=columns, recount=True, texts=(text,), shape=shape, relation=marker.relation,
        markers=tuple(markers),
    )  # fmt: skip


_VIRTUAL = "v"
"""``attgenerated`` of a column that has no values in the table: none are carried."""


class _Difference:
    """The state of one comparison."""

    def __init__(self, registered: Registered, followed: Followed, types: Types, position: int) -> None:
        self.before, self.was, self.types, self.position = registered.table, registered.shape, types, position
        self.followed = followed
        by_name = {column.sql_name: column for column in self.before.columns}
        # By the number in the registered shape, the columns that are carried.
        self.carried = {c.number: by_name[c.name] for c in self.was.columns if c.name in by_name}
        self.taken = column_identities(self.before)
        self.added: list[Column] = []
        self.dropped: list[FormerColumn] = []
        self.renamed: dict[str, tuple[str, str]] = {}
        self.rewritten: set[str] = set()
        self.texts: list[str] = []

    def made(self, markers: tuple[Marker, ...]) -> TableChange:
        before, followed = self.before, self.followed
        assert followed.shape is not None
        if before.sql_name != followed.sql_name:
            self.renamed[""] = (before.sql_name, followed.sql_name)
            self.texts.append(f'table "{before.sql_name}" is called "{followed.sql_name}"')
        columns = {c.number: self._column(c) for c in followed.shape.columns if c.generated != _VIRTUAL}
        left = {followed.columns[number].was for number in columns}
        for number, gone in self.carried.items():
            if number not in left:
                self.dropped.append(FormerColumn(gone, self.position))
                self.texts.append(f'column "{gone.sql_name}" was dropped')
        key = tuple(columns[number].name for number in followed.shape.key)
        renamed = "" if followed.sql_name == before.name else followed.sql_name
        after = replace(
            before, columns=tuple(columns.values()), key_columns=key, renamed=renamed,
            former=(*before.former, *self.dropped),
        )  # fmt: skip
        pulled = self._pulled(after)
        return TableChange(
            before, after, tuple(self.added), tuple(self.dropped), self.renamed,
            frozenset() if pulled else frozenset(self.rewritten),
            recount=bool(pulled or self.dropped), pulled=pulled, texts=tuple(self.texts), shape=followed.shape,
            relation=followed.relation, markers=markers, shapes_before=tuple(followed.before),
        )  # fmt: skip

    def _pulled(self, after: Table) -> str:
        """Why the table has to be pulled anew, "" where it goes on."""
        before = self.before
        if self.followed.ambiguous:
            return self.followed.ambiguous
        if after.key_columns != before.key_columns:
            was = ", ".join(before.by_name[k].sql_name for k in before.key_columns)
            now = ", ".join(after.by_name[k].sql_name for k in after.key_columns)
            gone = {former.column.name for former in self.dropped if former.successor}
            if gone & set(before.key_columns):
                return f"its key ({was}) has another type"
            return f"its key was ({was}) and is ({now})"
        moved = sorted(self.rewritten.intersection(after.key_columns))
        return f'values of the key column "{after.by_name[moved[0]].sql_name}" were changed' if moved else ""

    def _column(self, c: ShapeColumn) -> Column:
        one = self.followed.columns[c.number]
        described = _described(c, self.types)
        was = None if one.was is None else self.carried.get(one.was)
        if was is None:
            return self._added(c, described)
        old = self.was.by_number[one.was] if one.was is not None else c
        if not _carried_alike(was, old, described, c, self.types):
            return self._retyped(was, described)
        column = replace(
            described, name=was.name, renamed="" if was.name == c.name else c.name, initial=was.initial,
            added_position=was.added_position, policy=_policy(was, described),
        )  # fmt: skip
        if was.sql_name != c.name:
            self.renamed[was.name] = (was.sql_name, c.name)
            self.texts.append(f'column "{was.sql_name}" is called "{c.name}"')
        self.texts += _told(was, column)
        if one.changed:
            self.rewritten.add(was.name)
            self.texts.append(f'values of column "{c.name}" were changed')
        return column

    def _added(self, c: ShapeColumn, described: Column) -> Column:
        one = self.followed.columns[c.number]
        name = self._identity(c.name)
        cell = None if one.computed or one.initial is None else _cell(described, one.initial, self.types, c.type_oid)
        column = replace(
            described, name=name, renamed="" if name == c.name else c.name, initial=(cell,),
            added_position=self.position,
        )  # fmt: skip
        self.added.append(column)
        held = "values of its own in each row"
        if not one.computed:
            held = "NULL" if one.initial is None else f"{one.initial!r}"
        else:
            self.rewritten.add(name)
        self.texts.append(f'column "{c.name}" ({c.type}) was added: rows that were there have {held}')
        return column

    def _retyped(self, was: Column, described: Column) -> Column:
        name = self._identity(described.name)
        column = replace(
            described, name=name, renamed="" if name == described.name else described.name, initial=(None,),
            added_position=self.position, policy=_policy(was, described),
        )  # fmt: skip
        self.added.append(column)
        self.dropped.append(FormerColumn(was, self.position, name))
        self.rewritten.add(name)
        if was.sql_name != described.name:
            self.texts.append(f'column "{was.sql_name}" is called "{described.name}"')
        self.texts.append(f'column "{described.name}" was {was.postgres_type} and is {described.postgres_type}')
        return column

    def _identity(self, name: str) -> str:
        found = new_identity(name, self.taken)
        self.taken.add(found)
        return found


def _described(c: ShapeColumn, types: Types) -> Column:
    """The column as a registration would describe it."""
    kind, element_kind = postgres_types.kinds_of(types, c.type_oid)
    by_postgres = c.generated != "" or c.identity == "a"
    default = (c.default != "" and not c.generated) or c.identity != "" or postgres_types.has_default(types, c.type_oid)
    return Column(
        name=c.name,
        kind=kind,
        element_kind=element_kind,
        postgres_type=c.type,
        not_null=c.not_null or postgres_types.not_null(types, c.type_oid),
        generated=by_postgres,
        has_default=default and not by_postgres,
        number=c.number,
    )


def _carried_alike(was: Column, old: ShapeColumn, now: Column, new: ShapeColumn, types: Types) -> bool:
    """Whether a cell of the column as it was means the same for it as it is now."""
    if (was.kind, was.element_kind) != (now.kind, now.element_kind):
        return False
    if Kind.TIMESTAMP in (now.kind, now.element_kind):
        return _zoned(was) == _zoned(now)
    if now.kind is not Kind.LITERAL or bare_type(was.postgres_type) == bare_type(now.postgres_type):
        return True
    return old.type_oid in types and (
        postgres_types.base_type(types, old.type_oid).oid == postgres_types.base_type(types, new.type_oid).oid
    )


def _zoned(column: Column) -> bool:
    return has_zone(replace(column, postgres_type=column.postgres_type.removesuffix("[]")))


def _policy(was: Column, now: Column) -> str:
    """The column's policy, where it still fits."""
    fits = now.kind in POLICY_KINDS.get(was.policy, frozenset(Kind)) and not now.generated
    return was.policy if fits else "lww"


def _told(was: Column, now: Column) -> list[str]:
    name = now.sql_name
    texts = []
    if was.postgres_type != now.postgres_type:
        texts.append(f'column "{name}" was {was.postgres_type} and is {now.postgres_type}')
    if was.not_null != now.not_null:
        texts.append(f'column "{name}" {"takes NULL no longer" if now.not_null else "takes NULL now"}')
    if was.generated != now.generated:
        texts.append(f'column "{name}" is {"now" if now.generated else "no longer"} generated')
    if was.has_default != now.has_default and not now.generated:
        texts.append(f'column "{name}" has {"a" if now.has_default else "no"} default now')
    if was.policy != now.policy:
        texts.append(f'policy {was.policy} does not fit column "{name}" any more')
    return texts


def _cell(column: Column, text: str, types: Types, type_oid: int) -> Cell:
    """The cell of a value that Postgres prints so."""
    if column.kind is Kind.ARRAY:
        cells = array_parser(column.element_kind or Kind.STRING)(text)
        base = postgres_types.base_type(types, type_oid)
        is_real = base.element in types and postgres_types.base_type(types, base.element).name == _REAL
        return _widened(cells) if is_real else cells
    if column.kind in TEXT_KINDS:
        return text
    cell = element_parser(column.kind)(text)
    return _widened(cell) if postgres_types.base_type(types, type_oid).name == _REAL else cell


_REAL = "float4"
_FOUR_BYTES = struct.Struct("f")


def _widened(cell: Cell) -> Cell:
    """A real as a cell holds it: Postgres prints the shortest text that no other real has."""
    if isinstance(cell, tuple):
        return tuple(_widened(one) for one in cell)
    return _FOUR_BYTES.unpack(_FOUR_BYTES.pack(cell))[0] if isinstance(cell, float) else cell
