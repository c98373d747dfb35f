"""The event triggers that notice DDL: whether they are there, and making them."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg

Connection = psycopg.Connection[Any]

_INSTALLED: LiteralString = """
select count(*) = 3 from pg_catalog.pg_event_trigger e join pg_catalog.pg_proc p on p.oid = e.evtfoid
join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname = 'anabranch' and e.evtenabled in ('O', 'A')
"""
_INSTALL: LiteralString = "select anabranch.install_event_triggers()"


def installed(conn: Connection) -> bool:
    """Whether event triggers tell of DDL. Raises psycopg.Error."""
    return conn.execute(_INSTALLED).fetchone() == (True,)


def install(conn: Connection) -> bool:
    """Make the event triggers that are missing, where the session's role may: a superuser, or what a host gives in its
    place. Whether all are there now. Raises psycopg.Error."""
    return installed(conn) or conn.execute(_INSTALL).fetchone() == (True,)
