"""Decides what a reader sees of the log: the one place where it is decided, without any I/O.

A reader of a passage is an ``Eye``: its audiences where the passage begins, how they change in it, and its node.

Rules, for a group at position P, with the audiences that the reader had before P and *kept*, and those that a row had
before an effect and after it:

* A row *was seen* if it had one of the kept audiences before, it *is seen* if it has one of them after. What is seen by
  an audience alone that the reader gains with P comes with what it pulls for that, at P or later, however often P
  writes it; what was seen by one alone that it loses it drops by itself.
* Was seen, is seen: the effect as it is. Only was seen: a DELETE. Only is seen: the effect, which then gives the whole
  row (an INSERT, or an UPDATE that changed the row's audiences). Neither: nothing.
* A value that lost is shown with a row that was seen and is seen, or was not there before and is seen.
* A batch of which nothing is left is left out, except for the node that made it.
* A schema change is for everybody: it says no more of tables than Describe does.
* A group of which nothing is left is left out. Where one began in an earlier passage its end is always told: a reader
  that has got a part of it waits for that.

Two readers with the same audiences among those that a passage touches get the same page (``narrowed``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from anabranch.store.catalog.databases import Database
from anabranch.store.log.stretch import GroupEnd, Loser, Scope
from anabranch.v1 import batch_pb2, change_pb2
from anabranch.values import Table, key_cells
from anabranch.values.messages import column_writer
from anabranch_snapshot.pages import add_loser, to_position
from anabranch_snapshot.passages import Passage, PassageBatch, PassageGroup

_INSERT, _UPDATE, _DELETE = (
    int(change_pb2.EFFECT_TYPE_INSERT),
    int(change_pb2.EFFECT_TYPE_UPDATE),
    int(change_pb2.EFFECT_TYPE_DELETE),
)
MOST_TOLD_CHARACTERS = 256 * 1024
"""A row with longer audiences is sent with those of the reader alone."""
_NOT_RESTRICTED = change_pb2.Audiences()


class SetChange(NamedTuple):
    """A change of a reader's audiences with the group at ``position``."""

    position: int
    gained: frozenset[str]
    lost: frozenset[str]


class Eye(NamedTuple):
    """A reader of a passage. ``audiences`` where it begins, and their ``changes`` in it, in order; ``node_id`` is ""
    for one that is no node, or has nothing of its own in the passage that others don't see."""

    audiences: frozenset[str]
    changes: tuple[SetChange, ...] = ()
    node_id: str = ""


class ShownPart(Enum):
    """The part of an effect that a reader gets."""

    NOTHING = 0
    AS_IT_IS = 1
    REMOVED = 2


def effect_shown(kind: int, before: Sequence[str], after: Sequence[str], kept: frozenset[str]) -> ShownPart:
    """The rule for an effect of a restricted table, of the type ``kind``: the row's audiences before and after it, and
    those that the reader had before its group and kept."""
    was_seen, is_seen = not kept.isdisjoint(before), not kept.isdisjoint(after)
    if is_seen:
        whole = kind == _INSERT or (kind == _UPDATE and set(before) != set(after))
        return ShownPart.AS_IT_IS if was_seen or whole else ShownPart.NOTHING
    return ShownPart.REMOVED if was_seen else ShownPart.NOTHING


def loser_shown(before: Sequence[str], after: Sequence[str], kept: frozenset[str]) -> bool:
    """The rule for a value that lost in a restricted table, with arguments as ``effect_shown`` has them."""
    return not kept.isdisjoint(after) and (not before or not kept.isdisjoint(before))


@dataclass(frozen=True, slots=True)
class Visible:
    """A reader's page. ``silent``: nodes of batches of which it shows nothing; ``is_empty``: it has no group."""

    page: change_pb2.Page
    silent: frozenset[str]

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing but the position that is reached."""
        return not self.page.groups


def narrowed(passage: Passage, eye: Eye) -> Eye:
    """The eye with what matters for the passage: readers with equal ones see the same, but for batches of which nothing
    is left to the node that made them."""
    changes = tuple(one for one in eye.changes if passage.after < one.position <= passage.up_to)
    return Eye(eye.audiences & passage.touched, changes)


def visible_page(passage: Passage, eye: Eye) -> Visible:
    """The page of a reader."""
    stretch, database = passage.stretch, passage.database
    page = change_pb2.Page(reached=to_position(database, stretch.reached, stretch.chain))
    silent: set[str] = set()
    changes = {one.position: one for one in eye.changes if passage.after < one.position <= passage.up_to}
    before = eye.audiences
    for group in _with_changes(passage, changes):
        change = changes.get(group.position)
        after = before if change is None else (before - change.lost) | change.gained
        made = change_pb2.LoggedGroup(position=group.position, incomplete=group.end is None)
        for batch in group.batches:
            if not _add_batch(made, passage, batch, before & after):
                silent.add(batch.node_id)
                if batch.node_id == eye.node_id:
                    made.batches.append(_logged(passage, batch))
        if change is not None:
            made.audience_change.gained.extend(sorted(change.gained))
            made.audience_change.lost.extend(sorted(change.lost))
        made.schema_change = group.schema_change
        is_told = bool(made.batches or made.schema_change) or change is not None
        if is_told or (group.began_before and group.end is not None):
            made.sums.extend(one for one in group.sums if not one.audience or one.audience in after)
            page.groups.append(made)
        before = after
    return Visible(page, frozenset(silent))


def _with_changes(passage: Passage, changes: Mapping[int, SetChange]) -> Iterator[PassageGroup]:
    """The passage's groups, and those that changed nothing but the reader's audiences."""
    known = {group.position for group in passage.groups}
    alone = [PassageGroup(position, False, GroupEnd(b"", ())) for position in changes if position not in known]
    if not alone:
        return iter(passage.groups)
    return iter(sorted([*passage.groups, *alone], key=lambda group: group.position))


def _logged(passage: Passage, batch: PassageBatch) -> change_pb2.LoggedBatch:
    node = batch_pb2.Node(id=batch.node_id, name=passage.names.get(batch.node_id, ""))
    return change_pb2.LoggedBatch(id=batch.id, node=node)


def _add_batch(group: change_pb2.LoggedGroup, passage: Passage, batch: PassageBatch, kept: frozenset[str]) -> bool:
    """Add what a reader sees of a batch; whether it sees anything."""
    effects: list[bytes] = []
    audiences: list[change_pb2.Audiences] = []
    losers: list[Loser] = []
    restricted = goes_on = False
    for item in batch.items:
        scope, content = item.scope, item.content
        assert scope is not None
        is_open = scope.before is None and scope.after is None
        if is_open and not _was_open(passage.database, scope):
            continue
        row_before, row_after = scope.before or (), scope.after or ()
        if isinstance(content, Loser):
            if is_open or loser_shown(row_before, row_after, kept):
                losers.append(content)
            continue
        goes_on = False
        shown = ShownPart.AS_IT_IS if is_open else effect_shown(scope.type, row_before, row_after, kept)
        if shown is ShownPart.NOTHING:
            continue
        whose = _NOT_RESTRICTED
        if shown is ShownPart.REMOVED and scope.type != _DELETE:
            removal = None if scope.goes_on else _removal(passage.database, scope)
            if removal is None:
                continue
            effects.append(removal)
        else:
            effects.append(content)
            goes_on = True
            if shown is ShownPart.AS_IT_IS and not is_open:
                whose = change_pb2.Audiences(values=_told(row_after, kept))
        audiences.append(whose)
        restricted = restricted or not is_open
    if not effects and not losers:
        return False
    logged = _logged(passage, batch)
    logged.effects.extend(effects)
    for loser in losers:
        add_loser(logged, loser, passage.database.tables_by_id)
    if restricted:
        logged.audiences.extend(audiences)
    stretch = passage.stretch
    logged.effect_incomplete = goes_on and stretch.effect_incomplete and batch.items[-1] is stretch.items[-1]
    group.batches.append(logged)
    return True


def _told(row: Sequence[str], kept: frozenset[str]) -> Sequence[str]:
    """The audiences of a row that a reader is told: all, unless these would not fit into a message beside the row."""
    return row if sum(map(len, row)) <= MOST_TOLD_CHARACTERS else sorted(kept.intersection(row))


def _was_open(database: Database, scope: Scope) -> bool:
    """Whether everybody sees an item that has no audiences: not where its table is restricted now, whatever it was when
    the item was logged."""
    table = database.tables_by_id.get(scope.table_id)
    return (_table_name(scope.head) if table is None else table.name) not in database.restricted


def _table_name(head: bytes) -> str:
    """The table's name, which an effect begins with; names have less than 128 bytes."""
    return head[2 : 2 + head[1]].decode(errors="replace") if len(head) > 1 else ""


def _removal(database: Database, scope: Scope) -> bytes | None:
    """The effect for a row that a reader sees no longer, as a serialized Effect; None where its table is not synced any
    more, so that no reader has it."""
    table = database.tables_by_id.get(scope.table_id) or database.tables.get(_table_name(scope.head))
    if table is None:
        return None
    try:
        cells = key_cells(table, scope.key)
    except ValueError:
        # Of an earlier registration, with another key: its rows are gone from devices with it.
        return None
    return _delete_of(table, cells)


def _delete_of(table: Table, cells: Sequence[object]) -> bytes:
    columns = [table.by_name[name] for name in table.key_columns]
    return change_pb2.Effect(
        table=table.name,
        type=change_pb2.EFFECT_TYPE_DELETE,
        columns=table.key_columns,
        values=[column_writer(column)(cell) for column, cell in zip(columns, cells, strict=True)],  # type: ignore[arg-type]
    ).SerializeToString()
