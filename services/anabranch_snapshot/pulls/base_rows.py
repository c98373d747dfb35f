"""Reads the rows of a base for one pull, in chunks: of a restricted table those that the caller sees.

A chunk has as many bytes of the caller's own rows as any other chunk: its size tells nothing of others' rows.
"""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa

from anabranch.columnar.base_reader import RowPlace
from anabranch.columnar.chunks import to_ipc
from anabranch.store.catalog.databases import Database
from anabranch.store.log.pull_reader import PullSource
from anabranch.store.session.engine import Session
from anabranch.values import Table
from anabranch_snapshot.pulls.bases import Served
from anabranch_snapshot.pulls.seen_rows import SeenRows

Chunk = tuple[pa.RecordBatch, memoryview, RowPlace]
_Read = tuple[pa.RecordBatch, RowPlace]


class BaseRows:
    """The reader of a pull's session. ``pid`` is the process of its session with Postgres, once there is one: audience
    expressions are evaluated there."""

    def __init__(self, database: Database, served: Served, seen: frozenset[str], source: PullSource) -> None:
        self._database = database
        self._served = served
        self._seen = seen
        self._source = source
        self._batches: Generator[_Read, None, None] | None = None
        self._ahead: _Read | None = None
        self._seen_rows: SeenRows | None = None
        self._session: Session | None = None
        self.pid: int | None = None

    def first(self, table: Table, after: RowPlace) -> Chunk | None:
        """The first chunk of a table after a place. Raises EvidenceError, psycopg.Error."""
        self._end_table()
        audience = self._database.restricted.get(table.name)
        if audience is not None:
            self._seen_rows = SeenRows(table, audience, self._seen, self._evaluating)
        self._batches = self._served.base.reader(table.name, self._source.options.batch_bytes).batches(after)
        return self.following()

    def following(self) -> Chunk | None:
        """The next chunk, which may have no row at the end of a restricted table; None where there is none. Raises
        EvidenceError, psycopg.Error."""
        read = self._read() if self._seen_rows is None else self._collected()
        return None if read is None else (read[0], to_ipc(read[0]), read[1])

    def close(self) -> None:
        """Close the files and the session."""
        self.pid = None
        self._end_table()
        if self._session is not None:
            self._session.close()
            self._session = None

    def _read(self) -> _Read | None:
        """The next batch of the base, with the caller's rows alone, and the place after it."""
        if self._ahead is not None:
            read, self._ahead = self._ahead, None
            return read
        found = None if self._batches is None else next(self._batches, None)
        if found is None or self._seen_rows is None:
            return found
        return self._seen_rows.of(found[0]), found[1]

    def _collected(self) -> _Read | None:
        """Batches together as one of the usual size. Where a column's type changes, the next one begins."""
        batches: list[pa.RecordBatch] = []
        place: RowPlace | None = None
        left = self._source.options.batch_bytes
        while left > 0:
            read = self._read()
            if read is None:
                break
            if batches and not read[0].schema.equals(batches[0].schema):
                self._ahead = read
                break
            batches.append(read[0])
            left -= read[0].nbytes
            place = read[1]
        return None if place is None else (pa.concat_batches(batches), place)

    def _evaluating(self) -> Session:
        if self._session is None:
            self._session = self._source.evaluating()
            self.pid = self._session.info.backend_pid
        return self._session

    def _end_table(self) -> None:
        self._seen_rows = self._ahead = None
        if self._batches is not None:
            self._batches.close()
            self._batches = None
