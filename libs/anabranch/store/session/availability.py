"""Distinguish a database that is unavailable for now from a program that is wrong."""

from __future__ import annotations

import psycopg
import psycopg_pool

_PASSING_CLASSES = frozenset({"08", "40", "53", "55", "57", "58"})
"""SQLSTATE classes of states that pass: connection, rollback, resources, objects in use, intervention,
system."""
_STANDBY = "25006"
"""The error of a standby that has yet to take over: it can't write, or listen. Our own sessions are never read-only."""


def is_unavailable(error: BaseException) -> bool:
    """Whether the same call may succeed later without any repair."""
    if isinstance(error, psycopg_pool.PoolTimeout | psycopg_pool.PoolClosed | psycopg_pool.TooManyRequests):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        # libpq itself reports it: the connection could not be made, or was lost.
        return isinstance(error, psycopg.OperationalError)
    return is_passing(error.sqlstate)


def is_passing(sqlstate: str) -> bool:
    """Whether an error of this SQLSTATE is of a state that passes."""
    return sqlstate[:2] in _PASSING_CLASSES or sqlstate == _STANDBY


def is_schema_missing(error: BaseException) -> bool:
    """Whether a statement failed because migrations never ran on that database."""
    return isinstance(error, psycopg.errors.InvalidSchemaName | psycopg.errors.UndefinedTable)
