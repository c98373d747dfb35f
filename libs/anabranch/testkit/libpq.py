"""A session with Postgres on libpq alone: the driver's Python is no part of the time that is measured on it.

Statements are prepared once and sent with parameters that are bytes already. Several sent together are one implicit
transaction (libpq's pipeline), which is durable when their results are back: one round trip for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from psycopg import pq
from psycopg.conninfo import make_conninfo

from anabranch.errors import AnabranchError
from anabranch.store.session.engine import SessionOptions, connection_arguments
from anabranch.values.postgres_binary import Parameter

Prepared = tuple[bytes, Sequence[Parameter]]
"""A statement with ``$1`` and its parameters."""

_DONE = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


class LibpqError(AnabranchError, RuntimeError):
    """Postgres refused the session or a statement; the message is Postgres's own."""


@dataclass(slots=True)
class LibpqSession:
    """``names``: the names of the prepared statements, by their text."""

    conn: pq.abc.PGconn
    names: dict[bytes, bytes] = field(default_factory=dict)

    def _text(self) -> str:
        return self.conn.get_error_message()

    def _prepare(self, statement: bytes, parameters: Sequence[Parameter]) -> bytes:
        name = self.names.get(statement)
        if name is None:
            name = b"s%d" % len(self.names)
            result = self.conn.prepare(name, statement, [parameter.oid for parameter in parameters])
            if result.status not in _DONE:
                raise LibpqError(self._text())
            self.names[statement] = name
        return name

    def run(self, statement: bytes, parameters: Sequence[Parameter] = ()) -> int:
        """Run one prepared statement as a transaction; return how many rows it changed. Raises LibpqError."""
        name = self._prepare(statement, parameters)
        result = self.conn.exec_prepared(name, _values(parameters), _formats(parameters), pq.Format.BINARY)
        if result.status not in _DONE:
            raise LibpqError(self._text())
        return result.command_tuples or 0

    def run_together(self, statements: Sequence[Prepared]) -> list[int]:
        """Run prepared statements in one transaction and one round trip; return how many rows each changed.

        Their results are read when all are sent, so that their parameters must fit into the socket's buffers where
        they return many rows.

        Raises:
            LibpqError: one was refused, and all are undone.
        """
        named = [(self._prepare(text, parameters), parameters) for text, parameters in statements]
        self.conn.enter_pipeline_mode()
        try:
            for name, parameters in named:
                self.conn.send_query_prepared(name, _values(parameters), _formats(parameters), pq.Format.BINARY)
            self.conn.pipeline_sync()
            return list(self._results())
        finally:
            self.conn.exit_pipeline_mode()

    def _results(self) -> Iterator[int]:
        """Rows that each statement changed, until the pipeline's end."""
        refused = ""
        ended = False
        while self.conn.status == pq.ConnStatus.OK:
            result = self.conn.get_result()
            if result is None:
                # One None separates the results of two statements. A second one ends the results.
                if ended:
                    break
                ended = True
                continue
            ended = False
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                break
            if result.status in _DONE:
                yield result.command_tuples or 0
            elif result.status != pq.ExecStatus.PIPELINE_ABORTED:
                refused = result.get_error_message()
        if refused or self.conn.status != pq.ConnStatus.OK:
            raise LibpqError(refused or self._text())


def _values(parameters: Sequence[Parameter]) -> list[bytes]:
    return [parameter.data for parameter in parameters]


def _formats(parameters: Sequence[Parameter]) -> list[pq.Format]:
    return [pq.Format.BINARY if parameter.binary else pq.Format.TEXT for parameter in parameters]


@contextmanager
def libpq_session(url: str, *, application_name: str, options: SessionOptions | None = None) -> Iterator[LibpqSession]:
    """A session with the settings of every other one.

    Raises:
        LibpqError: the server can't be reached, or refuses it.
    """
    conninfo = make_conninfo(**connection_arguments(url, application_name=application_name, options=options))
    conn = pq.PGconn.connect(conninfo.encode())
    try:
        if conn.status != pq.ConnStatus.OK:
            raise LibpqError(conn.get_error_message())
        yield LibpqSession(conn)
    finally:
        conn.finish()
