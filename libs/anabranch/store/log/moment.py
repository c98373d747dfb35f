"""A table at one moment: its rows and its sum, both of the moment's position.

One transaction in REPEATABLE READ: the table is locked ACCESS SHARE first, because a TRUNCATE that commits between the
transaction's snapshot and the read of the table would read as an empty one; the snapshot is taken by the next query,
which returns the head and the sums. No writer waits for it. Direct writes that are captured, but not drained, are ahead
of the head: they are undone in the result (``undrained``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from operator import itemgetter

from anabranch.ranges import KeyRange, RangeSums, in_ranges
from anabranch.store.audiences.expression import SEE, array_text
from anabranch.store.audiences.row_audiences import RowAudiences
from anabranch.store.audiences.viewing import memberships_now
from anabranch.store.capture.undrained import rows_before
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.sums import scan_rows
from anabranch.store.cells.binary_cells import Row, quote
from anabranch.store.ddl.readable import UNREADABLE, numbers_text
from anabranch.store.log.history import CHAINS
from anabranch.store.log.pull_reader import APPLICATION, PullOptions
from anabranch.store.log.reader import Sums, sums_of
from anabranch.store.log.reader_statements import SUMS
from anabranch.store.session import binary
from anabranch.store.session.binary import Connection
from anabranch.store.session.engine import Session, SessionOptions, connect
from anabranch.values import Table, key_text, postgres_binary
from anabranch.values.canonical import RowEncoder


def begin(conn: Connection, database: Database, table: Table) -> Sums:
    """Begin a transaction of one moment in a session in autocommit; return its head and all sums.

    Raises:
        UnknownDatabaseError: there is no such database any more.
        psycopg.Error: Postgres refused it.
    """
    conn.execute("begin isolation level repeatable read, read only")
    relation = f"{quote(database.schema_name)}.{quote(table.sql_name)}"
    conn.execute(f"lock table {relation} in access share mode".encode())
    return sums_of(database.id, binary.run(conn, SUMS, [postgres_binary.int8(database.id)]).fetchall())


@contextmanager
def moment(conn: Connection, database: Database, table: Table) -> Iterator[Sums]:
    """``begin`` for the block, ended with it."""
    try:
        yield begin(conn, database, table)
    finally:
        if not conn.closed:
            conn.rollback()


def rows_at(
    conn: Connection, database: Database, table: Table, seen: frozenset[str] | None = None
) -> Generator[list[Row], None, None]:
    """The rows of the table at the moment's position, in no order: of a restricted table only those of the audiences
    ``seen``, where these are given.

    Raises:
        UndrainedError: too many changes wait to be drained.
        UndecodableError: the table is no longer what it was when it was registered.
        psycopg.Error: Postgres refused it.
    """
    before = rows_before(conn, database, table)
    key = itemgetter(*table.key_index)
    single = len(table.key_index) == 1
    audience = database.restricted.get(table.name)
    condition = "true"
    if audience is not None and seen is not None:
        binary.run(conn, SEE, [postgres_binary.text(array_text(seen))])
        condition = audience.meets_seen
    with closing(scan_rows(conn, database.schema_name, table, condition=condition)) as chunks:
        for rows in chunks:
            if before:
                yield [row for row in rows if key_text((key(row),) if single else key(row)) not in before]
            else:
                yield rows
    were = [row for row in before.values() if row is not None]
    if audience is not None and seen is not None:
        whose = RowAudiences(table, audience).of_all(conn, were)
        were = [row for row, audiences in zip(were, whose, strict=True) if not seen.isdisjoint(audiences)]
    yield were


def range_sums(conn: Connection, database: Database, table: Table, seen: frozenset[str] | None = None) -> RangeSums:
    """The sums of those rows by key range; every row is read. Raises as ``rows_at``."""
    sums, encoder = RangeSums(), RowEncoder(table)
    with closing(rows_at(conn, database, table, seen)) as chunks:
        for rows in chunks:
            sums.add(encoder, rows)
    return sums


def rows_in(
    conn: Connection,
    database: Database,
    table: Table,
    ranges: Iterable[KeyRange],
    seen: frozenset[str] | None = None,
) -> Generator[list[Row], None, None]:
    """Those of the rows that are in ``ranges``; every row's key is looked at. Raises as
    ``rows_at``."""
    is_in = in_ranges(RowEncoder(table), ranges)
    with closing(rows_at(conn, database, table, seen)) as chunks:
        for rows in chunks:
            if found := list(filter(is_in, rows)):
                yield found


class MomentReader:
    """One table at one moment, in a session of its own. It blocks, and is used by one thread at a time; ``pid`` is the
    session's process in Postgres, so that it can be ended from outside (``pull_reader.end_session``).

    ``begin`` first, ``close`` last. ``unreadable``: the table was altered, and its rows can't be read now. Of a
    restricted table it reads the rows of the audiences ``seen``; none, until these are set. ``memberships``: what
    queries give the principal that ``begin`` was asked for, None where it is not known. Every method but ``close``
    raises psycopg.Error and the errors of ``rows_at``.
    """

    def __init__(self, url: str, options: PullOptions, database: Database, table: Table) -> None:
        self._url = url
        self._options = options
        self._database = database
        self._table = table
        self._conn: Session | None = None
        self.chains: dict[int, bytes] = {}
        self.unreadable = False
        self.pid: int | None = None
        self.seen: frozenset[str] = frozenset()
        self.memberships: frozenset[str] | None = None

    def begin(self, positions: Sequence[int] = (), principal: str | None = None) -> Sums:
        """Open the session and take the moment; ``chains`` are those of its history at ``positions``, as far as there
        are groups.

        Raises:
            UnknownDatabaseError: there is no such database any more.
        """
        options = SessionOptions(
            statement_timeout_ms=self._options.statement_timeout_ms,
            lock_timeout_ms=self._options.lock_timeout_ms,
            idle_in_transaction_session_timeout_ms=self._options.idle_timeout_ms,
            client_connection_check_interval_ms=1_000,
        )
        self._conn = connect(self._url, application_name=APPLICATION, autocommit=True, options=options)
        self.pid = self._conn.info.backend_pid
        moment = begin(self._conn, self._database, self._table)
        number = postgres_binary.text(numbers_text([self._table.id]))
        self.unreadable = bool(binary.run(self._conn, UNREADABLE, [number]).fetchall())
        wanted = [postgres_binary.int8(self._database.id), postgres_binary.int8_array(positions)]
        self.chains = dict(binary.run(self._conn, CHAINS, wanted).fetchall())
        if principal is not None:
            self.memberships = memberships_now(self._conn, self._database.id, principal)
        return moment

    def range_sums(self) -> RangeSums:
        """As the function of that name."""
        assert self._conn is not None
        return range_sums(self._conn, self._database, self._table, self.seen)

    def rows_in(self, ranges: Iterable[KeyRange]) -> Generator[list[Row], None, None]:
        """As the function of that name; read to its end before anything else is asked for."""
        assert self._conn is not None
        return rows_in(self._conn, self._database, self._table, ranges, self.seen)

    def close(self) -> None:
        """End the session, and the transaction with it."""
        self.pid = None
        if self._conn is not None:
            self._conn.close()
            self._conn = None
