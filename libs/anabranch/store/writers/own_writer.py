"""The writers that stand in for a superuser: each database has one of its own, made where the services' role is a
superuser, so that no group is committed as it, and code of one database's owners reaches no table of another one.

A writer's password follows from that of the superuser, so that every process of an installation knows it and it stands
nowhere: who has it learns nothing about the superuser's, nor about that of another database's writer.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from anabranch.store.catalog.databases import UnknownDatabaseError
from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.engine import UnfitSettingError, connect
from anabranch.store.session.settings import LATER
from anabranch.store.writers import writer
from anabranch.store.writers.names import OWN_NAME

Connection = psycopg.Connection[Any]

_APPLICATION_NAME = "anabranch-writer"
_IS_SUPERUSER: LiteralString = "select r.rolsuper from pg_catalog.pg_roles r where r.rolname = session_user"
_OURS: LiteralString = f"""
select o.name, pg_catalog.pg_is_in_recovery(), exists (select from pg_catalog.pg_roles w where w.rolname = o.name),
       exists (select from anabranch.databases d where d.id = %(database)s::int)
from (select {OWN_NAME}) o (name)
"""
_LATER: LiteralString = """
select s.name, d.datname::text
from unnest(%(names)s::text[], %(values)s::text[]) v (name, value)
join pg_catalog.pg_settings s on s.name = v.name
join pg_catalog.pg_database d on d.datname = pg_catalog.current_database()
where not exists (
    select from pg_catalog.pg_db_role_setting g join pg_catalog.pg_roles r on r.oid = g.setrole
    where g.setdatabase = d.oid and r.rolname = %(role)s and s.name || '=' || v.value = any(g.setconfig)
)
"""
# A superuser comes in where no other role does: the last sessions of a server are kept for it, and the most that a
# database takes does not bind it. The session that asks is not counted, as if the writer's came in its place.
_ROOM: LiteralString = """
select pg_catalog.count(a.pid) < pg_catalog.current_setting('max_connections')::int
           - pg_catalog.current_setting('superuser_reserved_connections')::int
           - coalesce(pg_catalog.current_setting('reserved_connections', true)::int, 0)
   and (d.datconnlimit < 0 or pg_catalog.count(a.pid) filter (where a.datid = d.oid) < d.datconnlimit)
from pg_catalog.pg_database d left join pg_catalog.pg_stat_activity a
  on a.backend_type = 'client backend' and a.pid <> pg_catalog.pg_backend_pid()
where d.datname = pg_catalog.current_database()
group by d.datconnlimit
"""


class _Ours(NamedTuple):
    role: str
    standby: bool
    there: bool
    known: bool


def is_superuser(url: str) -> bool:
    """Whether ``url`` is a superuser's. Raises psycopg.Error."""
    with connect(url, application_name=_APPLICATION_NAME, autocommit=True) as conn:
        return _is_superuser(conn)


def _is_superuser(conn: Connection) -> bool:
    return conn.execute(_IS_SUPERUSER).fetchone() == (True,)


def own_writer(url: str, database_id: int) -> str | None:
    """The URL of a database's writer for a superuser's ``url``. The role is made where there is none, and given the
    password that it lacks. None where ``url`` is no superuser's, and where the server lets no such role in.

    Raises:
        UnknownDatabaseError: there is no such database.
        psycopg.Error: the server can't be reached, or refuses something.
    """
    with connect(url, application_name=_APPLICATION_NAME, autocommit=True) as conn:
        if not _is_superuser(conn):
            return None
        ours = _ours(conn, database_id)
        if ours.standby and not ours.there:
            return None
        password = _password(conn.info.password, ours.role)
        if not ours.standby:
            _make(conn, database_id, ours.role, password)
        own = make_conninfo(url, user=ours.role, password=password or None)
        refused = _refused(own)
        if refused is not None and not ours.standby:
            # It was made when the superuser had another password.
            with conn.transaction():
                writer.alone(conn, database_id)
                _set_password(conn, ours.role, password)
            refused = _refused(own)
    if refused is None:
        return own
    if not _has_room(url):
        raise refused
    return None


def role_of(url: str) -> str:
    """The role of a URL that ``own_writer`` gave."""
    return str(conninfo_to_dict(url)["user"])


def make_own(conn: Connection, database_id: int) -> None:
    """Make the writer of a database in a session of a superuser; nothing where it is complete, or the session's role is
    no superuser.

    Raises:
        UnknownDatabaseError: there is no such database.
        psycopg.Error: the server refuses something.
    """
    if not _is_superuser(conn):
        return
    ours = _ours(conn, database_id)
    if not ours.standby:
        _make(conn, database_id, ours.role, _password(conn.info.password, ours.role))


def _ours(conn: Connection, database_id: int) -> _Ours:
    [row] = conn.execute(_OURS, {"database": database_id}).fetchall()
    ours = _Ours._make(row)
    if not ours.known:
        raise UnknownDatabaseError(f"there is no database of the number {database_id}")
    return ours


def _make(conn: Connection, database_id: int, role: str, password: str) -> None:
    """Make the role, unless it is complete: registrations give writers the rights to what they register. So nobody who
    registers, or holds one of our tables, keeps a service from working."""
    if writer.is_complete(conn, role) and not _unset(conn, role):
        return
    with conn.transaction():
        writer.alone(conn, database_id)
        if not _ours(conn, database_id).there:
            # As the superuser, it sees all rows: those that policies hide from it would be missing.
            conn.execute(f"create role {quote(role)} login bypassrls".encode())
            _set_password(conn, role, password)
        for name, database in _unset(conn, role):
            where = f"{quote(role)} in database {quote(database)}"
            conn.execute(f"alter role {where} set {name} = '{LATER[name].value}'".encode())
    writer.make(conn, role)


def _unset(conn: Connection, role: str) -> list[tuple[str, str]]:
    """Settings that the role has not, with the name of the database: some of them only a superuser may put right in a
    session of its own, whatever the database is set to."""
    wanted = {"role": role, "names": list(LATER), "values": [setting.value for setting in LATER.values()]}
    return conn.execute(_LATER, wanted).fetchall()


def _password(of_superuser: str, role: str) -> str:
    """ "" where the superuser came in without one: then the server asks for none, or for what can't be made here."""
    return hmac.new(of_superuser.encode(), role.encode(), hashlib.sha256).hexdigest() if of_superuser else ""


def _set_password(conn: Connection, role: str, password: str) -> None:
    if not password:
        return
    # Hashed here, so that it stands in no log of statements.
    hashed = conn.pgconn.encrypt_password(password.encode(), role.encode()).decode()
    conn.execute(f"alter role {quote(role)} password '{hashed}'".encode())


def _refused(url: str) -> psycopg.OperationalError | None:
    """The failure of a login; None where it is let in.

    Raises:
        psycopg.OperationalError: the login is let in, and its session is of no use; or the server is silent.
    """
    try:
        connect(url, application_name=_APPLICATION_NAME).close()
    except (UnfitSettingError, psycopg.errors.ConnectionTimeout):
        raise
    except psycopg.OperationalError as error:
        return error
    return None


def _has_room(url: str) -> bool:
    """Whether the server lets the superuser in, and has a session left for another role. A login that it refuses all
    the same is one that it lets in at no time. libpq tells no SQLSTATE of that, but a text in the server's language.

    Raises:
        psycopg.OperationalError: it does not let the superuser in.
    """
    with connect(url, application_name=_APPLICATION_NAME, autocommit=True) as conn:
        return conn.execute(_ROOM).fetchone() == (True,)
