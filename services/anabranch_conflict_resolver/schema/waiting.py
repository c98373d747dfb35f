"""A change of tables that waits: the markers, what they mean, and the captured changes that have to be taken with it.

A change is taken when it is first in line. Transactions that end before the first one that it concerns (one that made
it, or that changed an altered table before) are drained in groups of their own, without any batch: ``before`` says that
there may be some. All that it concerns, and whatever ends in between, is drained in the change's own group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from anabranch.store.capture.large import LAST, concerned
from anabranch.store.catalog.databases import Database
from anabranch.store.ddl.changes import changes_of
from anabranch.store.ddl.difference import TableChange
from anabranch.store.ddl.markers import Marker, waiting
from anabranch.store.ddl.notice import notice
from anabranch.store.session.engine import Session

_EARLIEST = 0


@dataclass(frozen=True, slots=True)
class SchemaWork:
    """A change that waits. ``changes``: by table. ``first`` and ``last``: the captured rows with which the first and
    the last transaction end that it concerns."""

    markers: Sequence[Marker]
    changes: Sequence[TableChange]
    first: int
    last: int

    @property
    def numbers(self) -> list[int]:
        """The numbers of the markers."""
        return [marker.id for marker in self.markers]

    @property
    def unknown(self) -> Mapping[int, Collection[str]]:
        """By a table's number, the columns of which captured changes say nothing that are older than the table is."""
        return {change.number: change.rewritten for change in self.changes if change.rewritten}


def is_read(change: TableChange) -> bool:
    """Whether all rows of a table are to be read because of its change: for values that no captured change says, or for
    its sum."""
    return change.after is not None and not change.refused and bool(change.rewritten or change.recount)


def look(conn: Session, database: Database, markers: Sequence[Marker], position: int) -> SchemaWork:
    """The change that ``markers``, all that wait for a database, are for a group at ``position``.

    Raises:
        AlteredMeanwhileError: tables are altered at this very moment.
        psycopg.Error: Postgres refused a statement.
    """
    changes = changes_of(conn, database, markers, position=position)
    read = [one.number for one in changes if is_read(one)]
    before: dict[int, int] = {}
    for marker in markers:
        # Where the marker came later than the change, what was captured in between must not go before it either.
        before[marker.table_id] = LAST if marker.placed else max(marker.id, before.get(marker.table_id, 0))
    found = concerned(conn, database.id, before, read)
    first, last = found or (_EARLIEST, _EARLIEST)
    return SchemaWork(markers, changes, first, last)


def is_altered(conn: Session, database: Database, known: Sequence[int]) -> bool:
    """Whether tables were altered since a group began, which is rolled back: it took them for others than they are.
    ``known``: the numbers of the markers that it found. Event triggers may have missed it. A marker that the group has
    written itself was rolled back with it: here it is written anew, and stays, so that the group which comes next finds
    the same and may be at fault for it."""
    with conn.transaction():
        notice(conn, database)
        return [marker.id for marker in waiting(conn, database.id)] != list(known)


def words(changes: Sequence[TableChange], markers: Sequence[Marker], version: int) -> str:
    """The change in words, for people: what became of the tables, and who ran which commands."""
    told = "; ".join(text for change in changes for text in change.texts)
    by: dict[tuple[str, str], list[str]] = {}
    for marker in markers:
        commands = by.setdefault((marker.role, marker.application), [])
        if marker.command and marker.command not in commands:
            commands.append(marker.command)
    who = "; ".join(
        f"by role {role or 'unknown'}{f', application {application}' if application else ''}: {' '.join(commands)}"
        for (role, application), commands in by.items()
    )
    text = f"schema version {version}: {told}; {who}"
    return text if len(text) <= MOST_WORDS else text[: MOST_WORDS - 1] + "…"


MOST_WORDS = 1_000
"""Characters of a change in words."""
