"""Enter a schema change into the catalog: the one place where registrations follow DDL.

All of it is part of the group whose transaction calls: the catalog, the entry for the log and the group are one commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

from anabranch.store.catalog.databases import Database
from anabranch.store.ddl.difference import TableChange

Connection = psycopg.Connection[Any]


class Entered(NamedTuple):
    """A schema change that is in the catalog. ``version``: the database's schema version from here on. ``message``: the
    serialized SchemaChange. ``changes``: as they were carried out, with the new numbers of those that are pulled."""

    version: int
    message: bytes
    changes: tuple[TableChange, ...]


def enter(
    conn: Connection, database: Database, changes: Sequence[TableChange], *, position: int, now_ms: int
) -> Entered | None:
    """Carry out changes, delete their markers, and publish: services and devices learn of the new catalog when the
    transaction commits. None where nothing changed: then the markers are deleted, and that is all. The caller holds the
    database's claim, loads the database anew afterwards, and has to

    * drain waiting images by ``images.image_shapes``,
    * write the values of ``rewritten`` columns, and the rows of new tables (``before`` is None), as effects of the
      group,
    * set the sum of tables with ``recount`` (that of a new table, or of a pulled one, stands at no rows).

    Raises:
        psycopg.Error: Postgres refused it.
    """
    raise NotImplementedError
