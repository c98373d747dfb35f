"""Stretches of a log that is made up, for tests of what readers see of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from anabranch.store.audiences.expression import Audience
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.policy import database_policy
from anabranch.store.log.stretch import Cursor, GroupEnd, Item, Loser, Scope, Stretch, after
from anabranch.v1 import change_pb2, position_pb2, value_pb2
from anabranch.values import Column, Kind, Table
from anabranch_snapshot.page_tokens import Place
from anabranch_snapshot.passages import Passage, passage_of

JOB = Table("job", (Column("id", Kind.STRING, "text"), Column("title", Kind.STRING, "text")), ("id",), id=1)
NOTE = Table("note", (Column("id", Kind.STRING, "text"), Column("title", Kind.STRING, "text")), ("id",), id=2)
DATABASE = Database(
    id=1,
    name="d",
    schema_name="app",
    epoch="E",
    floor_ms=0,
    schema_version=1,
    policy=database_policy({}),
    seal_key=b"k" * 32,
    tables={"job": JOB, "note": NOTE},
    table_policies={},
    constraints={},
    first_positions={},
    restricted={"job": Audience("'team:' || team_id", ("team_id",), False)},
)
INSERT, UPDATE, DELETE, NONE = (
    change_pb2.EFFECT_TYPE_INSERT,
    change_pb2.EFFECT_TYPE_UPDATE,
    change_pb2.EFFECT_TYPE_DELETE,
    change_pb2.EFFECT_TYPE_NONE,
)


def effect(kind: int, key: str, title: str | None = None, table: str = "job") -> bytes:
    """A serialized Effect; one with a title has all columns."""
    names, texts = (["id"], [key]) if title is None else (["id", "title"], [key, title])
    values = [value_pb2.Value(string_value=one) for one in texts]
    return change_pb2.Effect(table=table, type=kind, columns=names, values=values).SerializeToString()  # type: ignore[arg-type]


@dataclass
class Change:
    """An effect of a batch, and the row's audiences before and after it (None: of an open table)."""

    kind: int
    key: str
    title: str | None = None
    before: Sequence[str] | None = ()
    after: Sequence[str] | None = ()
    table_id: int = 1
    table: str = "job"

    @property
    def data(self) -> bytes:
        """Its bytes."""
        return effect(self.kind, self.key, self.title, self.table)


@dataclass
class Lost:
    """A value that lost because of a batch, and its row's audiences before and after the batch."""

    loser: Loser
    before: Sequence[str] | None
    after: Sequence[str] | None


@dataclass
class Batch:
    """A batch of the log."""

    id: str
    node: str
    changes: list[Change] = field(default_factory=list)
    losers: list[Lost] = field(default_factory=list)


@dataclass
class Group:
    """A group of the log."""

    position: int
    batches: list[Batch]
    sums: list[position_pb2.TableSum] = field(default_factory=list)
    schema_change: bytes = b""


def passages(groups: Sequence[Group], sizes: Sequence[int], database: Database = DATABASE) -> list[Passage]:
    """The log in stretches of so many items each, the last size again and again. One that is not positive gives a
    stretch with half of what is left of one effect."""
    contents: list[tuple[Group, Batch, list[Change | Lost]]] = [
        (group, batch, [*batch.changes, *batch.losers])
        for group in groups
        for batch in sorted(group.batches, key=lambda batch: batch.id)
    ]
    rows = [(group, batch, number, content) for group, batch, of_it in contents for number, content in enumerate(of_it)]
    changed = {group.position: group.schema_change for group in groups if group.schema_change}
    made: list[Passage] = []
    place, offset, at = Place(0, after(0)), 0, 0
    while at < len(rows):
        size = sizes[min(len(made), len(sizes) - 1)]
        items: list[Item] = []
        ends: dict[int, GroupEnd] = {}
        reached, more, end = place.base, False, place.cursor
        for group, batch, number, content in rows[at : at + max(1, size)]:
            if isinstance(content, Change):
                data = content.data[offset:]
                more = size <= 0
                data = data[: (len(data) + 1) // 2] if more else data
                scope = Scope(
                    content.table_id,
                    content.key,
                    content.kind,
                    content.before,
                    content.after,
                    content.data[:65],
                    offset > 0,
                )
                items.append(Item(group.position, batch.id, batch.node, data, scope))
                if more:
                    offset += len(data)
                    end = Cursor(group.position, batch.id, number, offset)
                    break
            else:
                loser = content.loser
                scope = Scope(loser.table_id, loser.key, 0, content.before, content.after, b"", False)
                items.append(Item(group.position, batch.id, batch.node, loser, scope))
            offset = 0
            at += 1
            if at == len(rows) or rows[at][0] is not group:
                ends[group.position] = GroupEnd(b"c" * 16, [one.SerializeToString() for one in group.sums])
                reached, end = group.position, after(group.position)
            else:
                end = Cursor(group.position, rows[at][1].id, rows[at][2], 0)
        done, head = at == len(rows), rows[-1][0].position
        changes = {one.position: changed[one.position] for one in items if one.position in changed}
        moment = (head, b"c" * 16, True, (), "E", 0, 1)
        stretch = Stretch(items, ends, more, end, reached, b"c" * 16, done, done, *moment, changes)
        made.append(passage_of(database, stretch, place, {}))
        place = Place(reached, end)
    return made
