"""An error in our own words, for logs, traces, metrics and people who did not send the data that it is about.

Postgres quotes values of rows in its messages (``Key (email)=(a@b.example) already exists``, ``invalid input syntax for
type integer: "1234"``), a function of the application may put anything into its own, and Python quotes what it could
not convert. So no text is passed on that this project did not write itself: of an error of Postgres its SQLSTATE and
the names that come with it are told, of any other its type. Two sorts are told as they are: the server's own errors,
and those of files and connections, which carry paths, hosts, roles and databases.
"""

from __future__ import annotations

import psycopg

from anabranch.errors import ServerError
from anabranch.store.session.errors import RAISE


def told(error: BaseException) -> str:
    """``error`` in one line, without any value of a row."""
    if isinstance(error, ServerError):
        return _one_line(error)
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate:
        return _of_postgres(error, str(sqlstate))
    # Without SQLSTATE an OperationalError is about the session: it could not be opened, or was lost.
    if isinstance(error, psycopg.OperationalError | OSError):
        return _one_line(error)
    return type(error).__name__


def _of_postgres(error: BaseException, sqlstate: str) -> str:
    parts = [f"{type(error).__name__} (SQLSTATE {sqlstate})"]
    # A function of the application gives what it likes for names.
    if isinstance(error, psycopg.Error) and error.diag.source_function != RAISE:
        names = {
            "schema": error.diag.schema_name,
            "table": error.diag.table_name,
            "column": error.diag.column_name,
            "type": error.diag.datatype_name,
            "constraint": error.diag.constraint_name,
        }
        parts += [f"{kind} {name}" for kind, name in names.items() if name]
    return ", ".join(parts)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
