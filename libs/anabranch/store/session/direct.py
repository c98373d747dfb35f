"""A blocking session whose statements go through libpq itself: many in one *send*, with one wait for all of them.

The driver owns the connection, and what is not said here it does as on every session. Its own way costs several times
what a small statement does in Postgres: cursors, conversions, a poll for each message. So statements that take
parameters are put to libpq's pipeline, and a send ends with a single Sync.

States of a session:

* *free*: nothing is under way; the driver may use the connection.
* *open* (inside ``pipeline``): statements are put, without a wait. Outside of a pipeline each is a send of its own.
* *under way* (``flush``, until the answers are there): a Sync went out, and Postgres works.

The first question to any answer, the end of the pipeline, and whatever the driver does itself wait for all answers
(``settle``). Postgres skips what follows a statement that failed, up to the Sync; the failed one's error is raised by
that wait, and the answers behind it are none (``PipelineAborted``). After a Sync the session counts as idle in its
transaction, so that its limits run.

Prepared statements are kept here, by text and types; the driver prepares none (``prepare_threshold``), as it would have
all of them forgotten. A plan may rest on a table that was altered since: so all are forgotten at a ROLLBACK, and when
Postgres finds a plan that no longer fits.
"""

from __future__ import annotations

import select
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from anabranch.store.session.engine import PlainConnection
from anabranch.store.session.numbered import numbered
from anabranch.values.postgres_binary import Parameter

_PLAN_DOES_NOT_FIT = "0A000"
_BEGIN, _COMMIT = b"BEGIN", b"COMMIT"
_OK = frozenset({ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.EMPTY_QUERY})
_BOTH = select.POLLIN | select.POLLOUT


class Reply:
    """The answer to a statement. The first question to it waits for all that was sent; each row is given once."""

    __slots__ = ("_at", "_conn", "_result", "_rows")

    def __init__(self, conn: DirectConnection) -> None:
        self._conn = conn
        self._result: PGresult | None = None
        self._rows: list[tuple[Any, ...]] | None = None
        self._at = 0

    def came(self, result: PGresult) -> None:
        """Postgres has answered."""
        self._result = result

    def _answered(self) -> PGresult:
        if self._result is None:
            self._conn.settle()
        result = self._result
        if result is None or result.status not in _OK:
            raise psycopg.errors.PipelineAborted("a statement before this one failed, or the session was lost")
        return result

    @property
    def refused(self) -> bool:
        """Whether Postgres refused this very statement; False while that is not known."""
        return self._result is not None and self._result.status == ExecStatus.FATAL_ERROR

    @property
    def rowcount(self) -> int:
        """How many rows the statement gave or changed; -1 where it does neither. Raises as ``fetchall``."""
        count = self._answered().command_tuples
        return -1 if count is None else count

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows that were not given yet.

        Raises:
            psycopg.Error: a statement of the send failed, or the session is lost.
        """
        if self._rows is None:
            self._rows = self._conn.load(self._answered())
        rows = self._rows[self._at :] if self._at else self._rows
        self._at = len(self._rows)
        return rows

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None where there is none. Raises as ``fetchall``."""
        if self._rows is None:
            self._rows = self._conn.load(self._answered())
        if self._at >= len(self._rows):
            return None
        self._at += 1
        return self._rows[self._at - 1]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchall())


class _Prepared(Reply):
    """The answer to a Parse: where it failed, the statement is not prepared."""

    __slots__ = ("_key",)

    def __init__(self, conn: DirectConnection, key: _Key) -> None:
        super().__init__(conn)
        self._key = key

    def came(self, result: PGresult) -> None:
        if result.status not in _OK:
            self._conn.forget_one(self._key)


class _Forgotten(Reply):
    """The answer to the command that has Postgres forget all prepared statements."""

    __slots__ = ()

    def came(self, result: PGresult) -> None:
        if result.status not in _OK:
            self._conn.forget()


_Key = tuple[bytes, tuple[int, ...]]


class DirectConnection(PlainConnection):
    """A session for one thread. ``prepared_most``: so many statements stay prepared."""

    prepared_most = 100

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaited: list[Reply] = []
        self._syncs = 0
        self._unsynced = False
        self._ended = False
        self._depth = 0
        self._names: OrderedDict[_Key, bytes] = OrderedDict()
        self._number = 0
        self._stale = False
        self._dump, self._load = Transformer(self), Transformer(self)
        self._readable = select.poll()
        self._readable.register(self.pgconn.socket, select.POLLIN)
        self._either = select.poll()
        self._either.register(self.pgconn.socket, _BOTH)

    @classmethod
    def connect(cls, conninfo: str = "", *, autocommit: bool = False, **kwargs: Any) -> Self:
        """Open it, as every session."""
        return super().connect(conninfo, autocommit=autocommit, prepare_threshold=None, **kwargs)

    # Statements.

    def ask(self, statement: bytes, parameters: Sequence[Parameter]) -> Reply:
        """Put a statement with binary parameters (``$1``) and binary results.

        Raises:
            psycopg.Error: outside of a pipeline: Postgres refused it; always: the session is lost.
        """
        if not parameters:
            return self._put((statement, ()), None, None, Format.BINARY)
        oids, values, formats = zip(*parameters, strict=True)
        return self._put((statement, oids), values, formats, Format.BINARY)

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool = False) -> Any:
        """As the driver's: a statement with parameters (``%s``, ``%(name)s``) is put, what has none is the driver's."""
        if params is None or prepare is False or not isinstance(query, (str, bytes)):
            return super().execute(query, params, prepare=prepare, binary=binary)
        statement, names = numbered(query)
        given = [params[name] for name in names] if isinstance(params, Mapping) else list(params)
        dump = self._dump
        values = dump.dump_sequence(given, [PyFormat.AUTO] * len(given))
        form = Format.BINARY if binary else Format.TEXT
        return self._put((statement, tuple(dump.types or ())), values, dump.formats, form)

    def _put(self, key: _Key, values: Any, formats: Any, form: Format) -> Reply:
        if self._ended:
            raise psycopg.ProgrammingError("the send ends with its COMMIT")
        if not self._unsynced:
            self._begin()
        name = self._names.get(key)
        if name is None:
            name = self._prepare(key)
        else:
            self._names.move_to_end(key)
        self.pgconn.send_query_prepared(name, values, formats, form)
        answer = Reply(self)
        self._awaited.append(answer)
        if not self._depth:
            self.settle()
        return answer

    def _begin(self) -> None:
        """Begin a send, and the transaction where there is none."""
        pgconn = self.pgconn
        self.require_trust()
        self._check_open()
        if pgconn.pipeline_status == PipelineStatus.OFF:
            pgconn.enter_pipeline_mode()
        self._unsynced = True
        if not self._awaited and not self.autocommit and pgconn.transaction_status == TransactionStatus.IDLE:
            self._simple(_BEGIN, Reply(self))
        if self._stale and pgconn.transaction_status != TransactionStatus.INERROR:
            self._stale = False
            self._simple(b"deallocate all", _Forgotten(self))

    def _check_open(self) -> None:
        if self.pgconn.status == ConnStatus.BAD:
            raise psycopg.OperationalError("the connection is closed")

    def _simple(self, command: bytes, answer: Reply) -> None:
        self.pgconn.send_query_params(command, None)
        self._awaited.append(answer)

    def _prepare(self, key: _Key) -> bytes:
        while len(self._names) >= self.prepared_most:
            _, oldest = self._names.popitem(last=False)
            self._simple(b"deallocate " + oldest, Reply(self))
        self._number += 1
        name = self._names[key] = b"direct_%d" % self._number
        self.pgconn.send_prepare(name, *key)
        self._awaited.append(_Prepared(self, key))
        return name

    def load(self, result: PGresult) -> list[tuple[Any, ...]]:
        """The rows of a result.

        Raises:
            psycopg.ProgrammingError: it is that of a statement without any.
        """
        if result.status != ExecStatus.TUPLES_OK:
            raise psycopg.ProgrammingError("the statement gave no rows")
        self._load.set_pgresult(result)
        return self._load.load_rows(0, result.ntuples, tuple)

    # Plans.

    def forget(self) -> None:
        """Forget all prepared statements: here at once, in Postgres with the next send."""
        self._names.clear()
        self._stale = True

    def forget_one(self, key: _Key) -> None:
        """A statement was not prepared after all."""
        self._names.pop(key, None)

    # Sends.

    @contextmanager
    def pipeline(self) -> Iterator[Any]:
        """Put the statements of the body without a wait between them; wait for their answers at its end."""
        self._depth += 1
        try:
            yield self
        except BaseException:
            self._depth -= 1
            self._abandon()
            raise
        self._depth -= 1
        self.settle()

    def flush(self) -> None:
        """Have Postgres begin with what was put, while this thread does something else."""
        if self._unsynced:
            self._unsynced = False
            self._syncs += 1
            self.pgconn.pipeline_sync()

    def settle(self) -> None:
        """Wait for the answers to all that was put; the session is free then.

        Raises:
            psycopg.Error: the error of the first statement that failed, or the loss of the session.
        """
        if self._syncs or self._unsynced:
            failed = self._receive()
            if failed is not None:
                error = error_from_result(failed)
                if error.sqlstate == _PLAN_DOES_NOT_FIT:
                    self.forget()
                raise error

    def _abandon(self) -> None:
        """``settle`` for one who has an error already."""
        try:
            self.settle()
        except psycopg.Error:
            # That of a statement, behind the one that is raised; where the session is lost, its next use says so.
            return

    def _receive(self) -> PGresult | None:
        """Wait for all answers, and give them out; the result of the first statement that failed."""
        failed: PGresult | None = None
        pgconn = self.pgconn
        try:
            self.flush()
            answers = iter(self._awaited)
            while pgconn.flush():
                if self.await_server(self._either) & select.POLLIN:
                    pgconn.consume_input()
            while self._syncs:
                while pgconn.is_busy():
                    self.await_server(self._readable)
                    pgconn.consume_input()
                result = pgconn.get_result()
                if result is None:
                    self._check_open()
                elif result.status == ExecStatus.PIPELINE_SYNC:
                    self._syncs -= 1
                else:
                    if result.status == ExecStatus.FATAL_ERROR and failed is None:
                        failed = result
                    next(answers).came(result)
            self._pass_on()
            pgconn.exit_pipeline_mode()
        except psycopg.OperationalError:
            self.close()
            if failed is None:
                raise
        except BaseException:
            # Interrupted: what is still under way would be taken for the answers to later statements.
            try:
                self.cancel_safe()
            finally:
                self.close()
            raise
        finally:
            self._awaited.clear()
            self._syncs, self._unsynced, self._ended = 0, False, False
        return failed

    # Notifications.

    def await_notifications(self, timeout_s: float) -> None:
        """Wait until the server has sent something, ``timeout_s`` seconds at most, and give the handlers
        (``add_notify_handler``) the notifications that have come.

        Raises:
            psycopg.OperationalError: the session is lost, or was given up.
        """
        self.settle()
        self.require_trust()
        self._check_open()
        if not self._readable.poll(timeout_s * 1000):
            return
        try:
            self.pgconn.consume_input()
        except psycopg.OperationalError:
            self.close()
            raise
        self._pass_on()

    def _pass_on(self) -> None:
        pgconn = self.pgconn
        while notify := pgconn.notifies():
            if pgconn.notify_handler is not None:
                pgconn.notify_handler(notify)

    # The driver's own calls.

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """As every session's, once the connection is free. Raises as ``settle``, too."""
        self.settle()
        return super().wait(*args, **kwargs)

    def commit(self) -> None:
        """As every session's."""
        self.settle()
        if self.pgconn.transaction_status != TransactionStatus.IDLE:
            self.commit_behind()
            self.settle()

    def commit_behind(self) -> None:
        """Put COMMIT, which Postgres skips where a statement before it in the send fails. Nothing more can be put until
        the answers are there: it would not be part of the transaction."""
        self._put((_COMMIT, ()), None, None, Format.TEXT)
        self._ended = self._depth > 0

    def rollback(self) -> None:
        """As every session's. The prepared statements are forgotten: one of them may be why."""
        self._abandon()
        super().rollback()
        self.forget()
