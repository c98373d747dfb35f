"""The names of the writers that are made where the services' role is a superuser: one for each database.

A name has the number of the Postgres database, as roles belong to a server and rights to one database of it, and that
of ours, which is given to no other one.
"""

from __future__ import annotations

from typing import LiteralString

_HERE: LiteralString = (
    "(select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())::text"
)
SHARED_NAME: LiteralString = f"'anabranch_writer_' || {_HERE}"
"""SQL: the name of the one writer that older releases made for all databases."""
OWN_NAME: LiteralString = f"{SHARED_NAME} || '_' || %(database)s::int"
"""SQL: the name of the writer of the database with number ``database``."""
OWN_DATABASE: LiteralString = (
    f"pg_catalog.substring(r.rolname::text, '^anabranch_writer_' || {_HERE} || '_([0-9]{{1,9}})$')::int"
)
"""SQL: the number of the database that role ``r`` is the writer of, by its name; NULL for every other role."""
