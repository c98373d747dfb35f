"""A type that was altered while the rows of a table's first base were read.

ALTER TYPE waits for no lock of a table, and Postgres prints a label as it is called by then, whatever the moment whose
rows are read. So rows may have other values than the table's sum of that moment says.
"""

from __future__ import annotations

from anabranch.errors import ServerError
from anabranch.store.catalog.databases import Database
from anabranch.store.ddl.readable import was_altered
from anabranch.store.session.engine import connect


class AlteredWhileReadError(ServerError):
    """A type of a table was altered while its rows were read. Nothing is published; the next run reads them anew."""


def require_unaltered(url: str, database: Database, name: str) -> None:
    """Check that a table is as ``database``, loaded before its rows were read, has it; ``name`` is its identity.

    Raises:
        AlteredWhileReadError: it is not.
        psycopg.Error: it can't be looked at.
    """
    table = database.tables[name]
    with connect(url, application_name="anabranch-compactor", autocommit=True) as conn:
        if was_altered(conn, table, database.changed_positions[name]):
            raise AlteredWhileReadError(
                f"a type of table {table.sql_name} of {database.name} was altered while its rows were read: nothing is "
                "published, run the job again"
            )
