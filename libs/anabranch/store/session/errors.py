"""The meaning of an error of Postgres: which SQLSTATE and constraint call for which remedy. Its text is
never read, but for the name in a refusal by Postgres's own check of rights (``DENIED``).

Three things can be done about a statement that failed. BLAME: one of the batches in the wave is at fault;
replay them one by one, and reject the one that fails alone. RESTART: the view that was decided on is out of
date; start again from the locks. RETRY: no batch's data is at fault; roll back and try again.

* 22, 23, 42, 44, 54 (data, constraint, access rule, check option, program limit): BLAME.
* P0, and any class that Postgres does not have: BLAME; a function of the application raised it.
* 23505 on a primary key: RESTART; the row was not there when it was looked for, so another session wrote in between.
* 08, 40, 53, 55, 57, 58 and the rest (connection, deadlock, resources, operator): RETRY.
* Any error on our own tables: RETRY; an error in schema ``anabranch`` is a fault of this product, never of a batch.

Classes: Appendix A of the Postgres manual.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType

import psycopg

OWN_SCHEMA = "anabranch"


class Remedy(Enum):
    """The action that a failed statement calls for."""

    BLAME = "blame"
    RESTART = "restart"
    RETRY = "retry"


class BatchReason(IntEnum):
    """Why a batch to blame is rejected; the numbers are those of ``anabranch.v1.Reason``."""

    CONSTRAINT = 6
    FORBIDDEN = 10


@dataclass(frozen=True, slots=True)
class Fault:
    """An error, read. ``reason`` is set for BLAME only. ``constraint``, ``table``, ``column`` and ``data_type`` are
    "" where Postgres names none; ``sqlstate`` is "" where the error did not come from the server. ``raised``: a
    function in PL/pgSQL raised it, whatever its SQLSTATE says. ``denied``: the kind and the name of the object that
    a role lacks rights to: that of the session, or one as which a function or a view of the application runs."""

    remedy: Remedy
    sqlstate: str
    reason: BatchReason | None = None
    constraint: str = ""
    table: str = ""
    column: str = ""
    data_type: str = ""
    raised: bool = False
    denied: tuple[str, str] = ("", "")


_BLAMED_CLASSES = frozenset({"22", "23", "42", "44", "54", "P0"})
# Success and warnings are no errors to the driver, which knows all others.
_POSTGRES_CLASSES = frozenset({"00", "01"}) | {
    known.sqlstate[:2]
    for known in vars(psycopg.errors).values()
    if isinstance(known, type) and issubclass(known, psycopg.Error) and known.sqlstate
}
_REASONS: Mapping[str, BatchReason] = MappingProxyType({"42501": BatchReason.FORBIDDEN})
_UNIQUE_VIOLATION = "23505"
# Postgres names the place in its own source: that of RAISE.
RAISE = "exec_stmt_raise"
_RIGHTS = "aclcheck_error"
_KINDS = (
    "database|domain|foreign-data wrapper|foreign server|foreign table|function|language|large object"
    "|materialized view|parameter|procedure|routine|schema|sequence|table|tablespace|type|view"
)
DENIED = re.compile(rf"permission denied for ({_KINDS}) (.+)", re.DOTALL)
"""The message of that place in Postgres, which fills no field. It has a kind that is one of these, and a name of the
catalog as it is, with its blanks and without quotes, and no function of the application's words. In another language of
the server's nothing is found."""


def read_error(error: psycopg.Error, *, primary_keys: Collection[str] = (), own_statement: bool = False) -> Fault:
    """Return the meaning of ``error``.

    ``primary_keys`` are the names of the primary keys of the tables that the statement wrote.
    ``own_statement``: it was on our own tables, for errors in which Postgres names no schema.
    """
    diag = error.diag
    sqlstate = error.sqlstate or ""
    constraint, table, column = diag.constraint_name or "", diag.table_name or "", diag.column_name or ""
    remedy = _remedy(sqlstate)
    if own_statement or diag.schema_name == OWN_SCHEMA:
        remedy = Remedy.RETRY
    elif sqlstate == _UNIQUE_VIOLATION and constraint in primary_keys:
        remedy = Remedy.RESTART
    reason = _REASONS.get(sqlstate, BatchReason.CONSTRAINT) if remedy is Remedy.BLAME else None
    raised = diag.source_function == RAISE
    return Fault(remedy, sqlstate, reason, constraint, table, column, diag.datatype_name or "", raised, _denied(diag))


def _denied(diag: psycopg.errors.Diagnostic) -> tuple[str, str]:
    found = DENIED.fullmatch(diag.message_primary or "") if diag.source_function == _RIGHTS else None
    return (found[1], found[2]) if found is not None else ("", "")


def _remedy(sqlstate: str) -> Remedy:
    if not sqlstate:
        return Remedy.RETRY
    if sqlstate[:2] in _BLAMED_CLASSES or sqlstate[:2] not in _POSTGRES_CLASSES:
        return Remedy.BLAME
    return Remedy.RETRY


_NOBODYS_CLASSES = frozenset({"", "08", "25", "40", "53", "55", "57", "58"})


def is_nobodys(error: psycopg.Error) -> bool:
    """Whether an error says nothing about the data of the statement that failed: a lost session, a deadlock, a full
    disk, another session's lock, an operator, a time limit."""
    return (error.sqlstate or "")[:2] in _NOBODYS_CLASSES


def violated(error: psycopg.Error) -> str:
    """The name of our own constraint that an error in schema ``anabranch`` is about, else "".
    ``registration`` and others turn the names that they expect into reasons."""
    if error.diag.schema_name != OWN_SCHEMA:
        return ""
    return error.diag.constraint_name or ""


PostgresError = psycopg.Error
"""The error that any statement may raise, for modules that may not import the driver."""
UnreachableError = psycopg.OperationalError
"""The error that opening a session raises when the server can't be reached or refuses it."""


def is_conninfo_error(error: psycopg.Error) -> bool:
    """Whether a connection string could not be parsed: an error that no server has sent."""
    return isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None
