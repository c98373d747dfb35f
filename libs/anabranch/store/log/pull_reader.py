"""Reads whole tables of one moment, as Arrow record batches straight from Postgres.

One ``PullReader`` is one session with one transaction. It blocks, and is used by one thread at a time. A blocked call
is ended from outside by ending the session itself (``end_session``): the driver's own way to cancel must not meet a
statement that is just being closed. Steps, in order:

1. ``begin``: locks the tables ACCESS SHARE, because a TRUNCATE that commits between the transaction's snapshot and the
   read of its table would read as an empty table. In REPEATABLE READ the snapshot is taken by the first query, which
   comes after the locks; that query returns the head and the sums, so that rows, position and sums are of one moment.
   Rows that were written directly and wait to be drained are ahead of it: ``undrained`` names their tables. Tables
   that were altered, and can't be read before the log has that, are ``unreadable``. ``chains`` has the chains of its
   history at the positions that were asked for.
2. ``open_table``, then ``next_batch`` until None: rows in the order of the key, so that a later pull can go on after
   any of them. For the next table ``open_table`` again. Of a restricted table only rows of some audiences are read.
3. ``close``: when nothing else is under way, also in the middle of a table.

The session ends by itself when this process is gone (``client_connection_check_interval``), and when no batch is
fetched for too long (``tcp_user_timeout``, as far as the system honours it).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from adbc_driver_manager import dbapi as driver
from adbc_driver_postgresql import dbapi as postgres
from psycopg.conninfo import make_conninfo

from anabranch.errors import ServerError
from anabranch.store.audiences.expression import SEE, Audience, array_text
from anabranch.store.audiences.queries import for_principals
from anabranch.store.audiences.rules import Membership
from anabranch.store.audiences.viewing import MEMBERSHIPS, memberships_of
from anabranch.store.capture.undrained import NEWEST
from anabranch.store.cells.binary_cells import carried_type, quote
from anabranch.store.ddl.readable import UNREADABLE, numbers_text
from anabranch.store.group.acting import ACT, ONESELF
from anabranch.store.log.pull_columns import mender, select_list
from anabranch.store.log.reader import LoggedSum, Sums, sums_of
from anabranch.store.log.reader_statements import AUDIENCE_SUMS, SUMS
from anabranch.store.session.availability import is_passing
from anabranch.store.session.engine import (
    CONNECT_S,
    AsyncSession,
    Session,
    SessionOptions,
    connect,
    connection_arguments,
)
from anabranch.store.session.settings import PUT_RIGHT
from anabranch.store.session.told import told
from anabranch.values import Table
from anabranch.values.arrow import to_cells
from anabranch.values.postgres_text import array_printer
from anabranch.wire.audiences import AUDIENCE_COLUMN

APPLICATION = "anabranch-snapshot-pull"
END_SESSION = """
select pg_terminate_backend(pid) from pg_stat_activity where pid = %s and application_name = 'anabranch-snapshot-pull'
"""
_CHAIN = "select chain from anabranch.groups where database_id = $1 and position = $2 limit 1"
_BATCH_BYTES = "adbc.postgresql.batch_size_hint_bytes"
_BEHIND_ALL = 2**62
_NOT_THERE = ("42P01", "42703")
"""undefined_table, undefined_column"""
_SETTING = "anabranch.after_{}"
"""Session settings that hold the key after which to go on: a COPY takes no parameters."""


class PullUnavailableError(ServerError):
    """Postgres is unavailable, or a table's lock was not free in time: the same pull may succeed later."""

    REASON = "UNAVAILABLE"


class TableAlteredError(ServerError):
    """A table, or a column of one, is not there under its name: it has just been altered."""

    REASON = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class PullOptions:
    """Limits of the session of a pull, in milliseconds, and about how many bytes a batch has."""

    lock_timeout_ms: int
    statement_timeout_ms: int
    idle_timeout_ms: int
    batch_bytes: int


@dataclass(frozen=True, slots=True)
class Only:
    """The rows of a restricted table that are of some audiences. ``acting``: the role that they are read as, so that
    its policies decide, too, and the claims that these ask for, as JSON; None for the session's own."""

    audience: Audience
    audiences: frozenset[str]
    acting: tuple[str, str] | None = field(default=None, repr=False)


class PullSource:
    """Opens sessions for pulls of one Postgres. The driver reads the server's catalog once, which takes as long as the
    pull of 30,000 rows; therefore one session stays open, unused. Any thread may use it."""

    def __init__(self, url: str, options: PullOptions) -> None:
        self.options = options
        self._url = url
        self._session_options = SessionOptions(
            statement_timeout_ms=options.statement_timeout_ms,
            lock_timeout_ms=options.lock_timeout_ms,
            idle_in_transaction_session_timeout_ms=options.idle_timeout_ms,
            client_connection_check_interval_ms=1_000,
            connect_timeout_s=CONNECT_S,
            settings={"tcp_user_timeout": str(options.idle_timeout_ms)},
        )
        arguments = connection_arguments(url, application_name=APPLICATION, options=self._session_options)
        self._conninfo = make_conninfo(**arguments)
        self._first: driver.Connection | None = None
        self._turn = threading.Lock()

    def session(self) -> driver.Connection:
        """A new session, in autocommit. Raises ``adbc_driver_manager.Error``."""
        with self._turn:
            if self._first is None:
                self._first = postgres.connect(self._conninfo, autocommit=True)
            made = self._first.adbc_clone()
        made.adbc_connection.set_autocommit(True)
        with made.cursor() as cursor:
            cursor.execute(PUT_RIGHT)
            cursor.fetchall()
        return made

    def evaluating(self) -> Session:
        """A new session for statements that read no table, in autocommit. Raises psycopg.Error."""
        return connect(self._url, application_name=APPLICATION, autocommit=True, options=self._session_options)

    def close(self) -> None:
        """Forget the server. Sessions that are open stay so."""
        with self._turn:
            if self._first is not None:
                self._first.close()
                self._first = None


class PullReader:
    """Reads tables of the schema ``schema_name`` of database number ``database_id``.

    ``pid`` is the session's process in Postgres, once it is there; ``undrained`` has the tables of which the moment
    shows captured changes that no group has yet, by number, with the number of the newest; ``unreadable`` the names in
    SQL of those of its tables that can't be read now (``ddl.readable``); ``chains`` the chains at the
    positions that ``begin`` was asked for, as far as there are groups; ``memberships`` what queries give the principal
    that it was asked for, None where it is not known.

    Every method but ``close`` raises PullUnavailableError for states that pass, TableAlteredError for tables that are
    no longer what they were, and ``adbc_driver_manager.Error`` for other refusals of Postgres.
    """

    def __init__(self, source: PullSource, database_id: int, schema_name: str) -> None:
        self._source = source
        self._database_id = database_id
        self._schema_name = schema_name
        self.pid: int | None = None
        self.undrained: dict[int, int] = {}
        self.unreadable: list[str] = []
        self.chains: dict[int, bytes] = {}
        self.memberships: frozenset[str] | None = None
        self._conn: driver.Connection | None = None
        self._cursor: driver.Cursor | None = None
        self._batches: pa.RecordBatchReader | None = None
        self._table: Table | None = None
        self._only: Only | None = None

    def begin(
        self,
        tables: Sequence[Table],
        positions: Iterable[int] = (),
        principal: str | None = None,
        queries: Sequence[Membership] = (),
    ) -> Sums:
        """Open the session, lock ``tables``, and take the moment. Return its head and all sums; ``chains`` are those at
        ``positions``. ``queries``: those that give ``principal`` audiences. Where rows are ahead of the head, it has
        those that it has at the head and still has by these rows: what comes with its revocation is not for it.

        Raises:
            UnknownDatabaseError: there is no such database any more.
        """
        try:
            self._conn = self._source.session()
            with self._conn.cursor() as cursor:
                cursor.execute("select pg_backend_pid()")
                ((self.pid,),) = cursor.fetchall()
            self._run("begin isolation level repeatable read read only")
            if tables:
                names = ", ".join(f"{quote(self._schema_name)}.{quote(table.sql_name)}" for table in tables)
                self._run(f"lock table {names} in access share mode")
            with self._conn.cursor() as cursor:
                cursor.execute(SUMS.decode(), (self._database_id,))
                rows = cursor.fetchall()
            with self._conn.cursor() as cursor:
                cursor.execute(NEWEST, (self._database_id,))
                self.undrained = dict(cursor.fetchall())
            with self._conn.cursor() as cursor:
                cursor.execute(UNREADABLE.decode(), (numbers_text(table.id for table in tables),))
                self.unreadable = [name for _, name in cursor.fetchall()]
            for position in positions:
                with self._conn.cursor() as cursor:
                    cursor.execute(_CHAIN, (self._database_id, position))
                    self.chains.update((position, chain) for (chain,) in cursor.fetchall())
            if principal is not None:
                with self._conn.cursor() as cursor:
                    cursor.execute(MEMBERSHIPS.decode(), (self._database_id, principal, _BEHIND_ALL))
                    found = memberships_of(cursor.fetchall())
                    self.memberships = None if found is None else found.audiences
                if self.memberships and self.undrained:
                    self.memberships &= self._given(principal, queries)
        except driver.Error as error:
            raise _judged(error) from error
        return sums_of(self._database_id, rows)

    def _given(self, principal: str, queries: Sequence[Membership]) -> frozenset[str]:
        """The audiences that queries give by the rows of the moment, drained or not."""
        assert self._conn is not None
        given: set[str] = set()
        for one in queries:
            query = for_principals(one.printed, "$1::text")
            with self._conn.cursor() as cursor:
                cursor.execute(
                    f"{one.shadow}select q.audience from (select $1::text) p "
                    f"cross join lateral (\n{query}\n) q (audience)",
                    (principal,),
                )
                given.update(audience for (audience,) in cursor.fetchall() if audience is not None)
        return frozenset(given)

    def open_table(self, table: Table, after: Sequence[str] | None = None, only: Only | None = None) -> None:
        """Begin to read a table, after the row of the key that ``key_of_last`` returned, or all of it. Of a restricted
        table ``only`` some rows."""
        assert self._conn is not None
        self._end_table()
        key = ", ".join(f"t.{quote(name)}" for name in table.in_sql(table.key_columns))
        columns, conditions = select_list(table, "t"), []
        try:
            if only is not None:
                with self._conn.cursor() as cursor:
                    cursor.execute(SEE.decode(), (array_text(only.audiences),))
                    cursor.fetchall()
                columns += f", {only.audience.as_list} as {quote(AUDIENCE_COLUMN)}"
                conditions.append(only.audience.meets_seen)
            if after is not None:
                values = []
                for i, (name, value) in enumerate(zip(table.key_columns, after, strict=True)):
                    with self._conn.cursor() as cursor:
                        cursor.execute("select set_config($1, $2, true)", (_SETTING.format(i), value))
                        cursor.fetchall()
                    array_type = f"{carried_type(table.by_name[name])}[]"
                    values.append(f"(current_setting('{_SETTING.format(i)}')::{array_type})[1]")
                conditions.append(f"({key}) > ({', '.join(values)})")
            if only is not None and only.acting is not None:
                self._act(only.acting)
            self._table, self._only = table, only
            self._cursor = self._conn.cursor()
            self._cursor.adbc_statement.set_options(**{_BATCH_BYTES: str(self._source.options.batch_bytes)})
            self._cursor.execute(
                f"select {columns} from {quote(self._schema_name)}.{quote(table.sql_name)} t"
                f" where {' and '.join(conditions) or 'true'} order by {key}"
            )
            self._batches = self._cursor.fetch_record_batch()
        except driver.Error as error:
            raise _judged(error) from error

    def next_batch(self) -> pa.RecordBatch | None:
        """The table's next rows, as ``anabranch.values.arrow`` says; None at its end. Rows of a restricted table have
        their audiences in one more column."""
        assert self._batches is not None
        assert self._table is not None
        try:
            batch = self._batches.read_next_batch()
        except StopIteration:
            self._end_table()
            if self._only is not None and self._only.acting is not None:
                self._act(ONESELF)
            return None
        except (driver.Error, pa.ArrowException, OSError) as error:
            raise _judged(error) from error
        names, own = list(self._table.column_names), batch.columns
        if self._only is not None:
            own, names = own[:-1], [*names, AUDIENCE_COLUMN]
        columns = [mender(column)(values) for column, values in zip(self._table.columns, own, strict=True)]
        if self._only is not None:
            columns.append(batch.columns[-1].cast(pa.list_(pa.string())))
        return pa.RecordBatch.from_arrays(columns, names=names)

    def audience_sums(self, table: Table, audiences: Iterable[str]) -> list[LoggedSum]:
        """The sums of the rows of some audiences of a table; one that is not listed has none."""
        assert self._conn is not None
        try:
            with self._conn.cursor() as cursor:
                cursor.execute(AUDIENCE_SUMS.decode(), (self._database_id, array_text(audiences)))
                rows = cursor.fetchall()
        except driver.Error as error:
            raise _judged(error) from error
        return [LoggedSum(*row) for row in rows if row[0] == table.name]

    def close(self) -> None:
        """End transaction and session."""
        self.pid = None
        self._end_table()
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _act(self, acting: tuple[str, str]) -> None:
        assert self._conn is not None
        with self._conn.cursor() as cursor:
            cursor.execute(ACT.decode(), acting)
            cursor.fetchall()

    def _run(self, statement: str) -> None:
        assert self._conn is not None
        with self._conn.cursor() as cursor:
            cursor.execute(statement)

    def _end_table(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None


async def end_session(conn: AsyncSession, pid: int) -> None:
    """End the session of a reader that is not closed: its blocked call fails at once.

    Raises:
        psycopg.Error: Postgres refused it.
    """
    await conn.execute(END_SESSION, (pid,))


def key_of_last(table: Table, batch: pa.RecordBatch) -> list[str]:
    """The key of a batch's last row, for ``open_table``: each cell as the text of an array that holds it."""
    texts = []
    for name in table.key_columns:
        column = table.by_name[name]
        (cell,) = to_cells(column, batch.column(table.index[name])[-1:])
        texts.append(array_printer(column.kind)((cell,)))
    return texts


def _judged(error: Exception) -> Exception:
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate in _NOT_THERE:
        return TableAlteredError(f"a table is no longer what it was: {told(error)}")
    if is_passing(sqlstate) if sqlstate else isinstance(error, driver.OperationalError | OSError):
        return PullUnavailableError(f"the session that reads the tables failed: {told(error)}")
    return error
