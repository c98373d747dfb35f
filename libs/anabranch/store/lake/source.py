"""A table of the lake as its newest manifest has it, and the log's changes beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.columnar.file_columns import KINDS
from anabranch.columnar.lake import LakeTable, Registration
from anabranch.columnar.manifest import from_json
from anabranch.columnar.row_states import Change, Key
from anabranch.errors import ServerError
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.ended_registrations import with_ended
from anabranch.store.lake import compactions
from anabranch.store.lake.compactions import TailRow
from anabranch.store.log.table_states import TableStates, read_states
from anabranch.store.session.engine import Session
from anabranch.v1 import change_pb2
from anabranch.values import Table, key_text
from anabranch.values.messages import column_reader
from anabranch.values.parquet import file_codecs

MOST_TAIL_ROWS = 1_000_000
"""Rows of the log beyond the lake; compaction is due where there are more."""


class NotCompactedError(ServerError):
    """The lake does not have the requested data yet; the message says why."""


class TailTooLongError(ServerError):
    """The log has too many changes that are not in the lake yet."""


@dataclass(frozen=True, slots=True)
class LakeSource:
    """A table of the lake, as published up to ``upto``. ``begins``: the lake knows nothing of changes up to this
    position. ``registered_anew``: whether the table is another registration's by now, whose rows the lake does not have
    yet."""

    database_id: int
    lake: LakeTable
    upto: int
    begins: int
    registered_anew: bool

    @property
    def table(self) -> Table:
        """The table as it is, or as the lake has it where it is not synced any more."""
        return self.lake.table

    def states(self, conn: Session, of: Registration) -> TableStates:
        """A registration over time: its columns, and what they and the table were called."""
        return read_states(conn, self.database_id, of.table)

    def tail(self, conn: Session, key: Key | None = None) -> list[Change]:
        """The changes in the log beyond the lake, of one row or of all, in the order of the log.

        Raises:
            TailTooLongError: there are more than ``MOST_TAIL_ROWS``.
        """
        number = self.lake.registrations[-1].table_id
        text = None if key is None else key_text(key)
        rows = compactions.read_tail(conn, self.database_id, number, self.upto, key=text, limit=MOST_TAIL_ROWS + 1)
        if len(rows) > MOST_TAIL_ROWS:
            raise TailTooLongError(
                f"the log has more than {MOST_TAIL_ROWS:,} changes since the last run: run `anabranch compact`"
            )
        return _changes(self.lake.registrations[-1].history.table, rows)


def open_lake(conn: Session, database: Database, table: str) -> LakeSource:
    """A table as the newest manifest has it. ``table``: its identity.

    Raises:
        LakeError: the lake has no such table.
        NotCompactedError: nothing is published.
    """
    published = compactions.last_published(conn, database.id, database.epoch)
    if published is None:
        raise NotCompactedError(f"nothing of {database.name} is compacted yet: run `anabranch compact`")
    manifest = with_ended(conn, database, from_json(published.manifest))
    now = database.tables.get(table)
    lake = LakeTable(published.root, manifest, table, file_codecs, now)
    begins = compactions.lake_begins(conn, database.id, database.epoch)
    anew = now is not None and now.id != lake.registrations[-1].table_id
    return LakeSource(database.id, lake, published.to_position, begins, anew)


def _changes(table: Table, rows: Sequence[TailRow]) -> list[Change]:
    readers = {c.name: column_reader(c) for c in table.columns}
    found = []
    for row in rows:
        effect = change_pb2.Effect.FromString(row.effect)
        pairs = zip(effect.columns, effect.values, strict=True)
        cells = {name: readers[name](value) for name, value in pairs if name in readers}
        key = tuple(cells[name] for name in table.key_columns)
        kind = KINDS[row.type]
        place = (row.position, row.batch_id, row.ordinal, row.node_id)
        after = None if kind == "delete" else cells
        found.append(Change(*place, kind, key, tuple(row.changed), after, {}, kind == "insert"))
    return found
