"""Statements of SQLAlchemy's Core, run on a session like any other.

SQLAlchemy makes a statement's text, once; what goes in and what comes out is the driver's, as with a statement that is
text from the start. Whoever imports this loads SQLAlchemy: commands do, services do not.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import psycopg
from sqlalchemy import URL, SelectBase, UpdateBase
from sqlalchemy.sql.compiler import SQLCompiler

CoreStatement: TypeAlias = SelectBase | UpdateBase
"""Reads, or inserts, updates and deletes."""

_DIALECT = URL.create("postgresql+psycopg").get_dialect()()


def execute(conn: psycopg.Connection[Any], statement: CoreStatement, /, **parameters: Any) -> psycopg.Cursor[Any]:
    """Run a statement that a module keeps as a constant: its text is made at its first use. ``parameters`` are the
    values of its ``bindparam``.

    Raises:
        psycopg.Error: Postgres refused it.
        sqlalchemy.exc.InvalidRequestError: a parameter has no value.
    """
    compiled = _compiled(statement)
    return conn.execute(str(compiled).encode(), compiled.construct_params(parameters))


@lru_cache(maxsize=128)
def _compiled(statement: CoreStatement) -> SQLCompiler:
    return statement.compile(dialect=_DIALECT)
