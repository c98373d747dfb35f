"""Whether a table can be synced, with every reason why not; and the error that carries the reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import psycopg

from anabranch.errors import ServerError
from anabranch.store.audiences.expression import Audience
from anabranch.store.audiences.judging import judge_expression
from anabranch.store.capture import triggers
from anabranch.store.catalog import former_tables
from anabranch.store.catalog.databases import Database, UnknownDatabaseError, load_database
from anabranch.store.catalog.identities import carried_on, new_identity
from anabranch.store.catalog.policy import PolicyError, TablePolicy, table_policy
from anabranch.store.catalog.refusals import Refused, TableRefusal, why_not
from anabranch.store.catalog.relation import relations_of
from anabranch.store.session.steps import run
from anabranch.values import Table

Connection = psycopg.Connection[Any]

_TABLES = """
select c.relname::text from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relkind in ('r', 'p') and not c.relispartition order by c.relname
"""


class RegistrationError(ServerError, ValueError):
    """Something can't be registered; ``refusals`` holds every reason, ``about`` the name of the table, where it is
    one."""

    def __init__(self, what: str, refusals: list[Refused], about: str = "") -> None:
        super().__init__(f"{what}: " + "; ".join(str(refused) for refused in refusals))
        self.what = what
        self.refusals = refusals
        self.about = about

    @property
    def reasons(self) -> list[TableRefusal]:
        """The names of the reasons."""
        return [refused.reason for refused in self.refusals]


class SeveralRefusedError(RegistrationError):
    """Tables that were to be registered together, and of which some can't be; ``errors`` has one for each of these."""

    def __init__(self, errors: list[RegistrationError]) -> None:
        ValueError.__init__(self, "\n".join(map(str, errors)))
        self.errors = errors
        self.what, self.about = "", ""
        self.refusals = [refused for error in errors for refused in error.refusals]


class Judged(NamedTuple):
    """A table that can be synced, and its audience; None where every device sees every row."""

    table: Table
    audience: Audience | None


def refuse(what: str, reason: TableRefusal, text: str) -> RegistrationError:
    """The error for one reason."""
    return RegistrationError(what, [Refused(reason, text)])


def lock_and_judge(
    conn: Connection,
    what: str,
    database: Database,
    name: str,
    policy: Mapping[str, Any],
    audience: str | None = None,
    waived: Collection[TableRefusal] = (),
    before: Table | None = None,
) -> Judged:
    """The table that SQL calls ``name`` as it is once its lock is held. ``audience``: its expression. ``waived`` are
    reasons that don't count. ``before``: the synced table that is registered anew, whose identities it keeps; it counts
    as none of the database's."""
    # Judged before the lock, too: a name that is no table can't be locked, and a refusal must keep no session waiting.
    if before is not None:
        others = {identity: one for identity, one in database.tables.items() if identity != before.name}
        database = replace(database, tables=others)
    own_policy = _may_be_added(conn, what, database, name, policy, audience, waived, before)
    triggers.lock(conn, database.schema_name, name)
    return _judge(conn, what, database, name, own_policy, audience, waived, before)


def refusals(
    conn: Connection,
    database: str,
    tables: Sequence[str],
    policy: Mapping[str, Any] | None = None,
    audience: str | None = None,
) -> list[RegistrationError]:
    """The reasons why tables can't be synced, one error for each of these tables. No lock is taken: the tables may have
    changed by the time they are registered.

    Raises:
        RegistrationError: UNKNOWN_DATABASE.
    """
    found = find_database(conn, "no table can be synced", database)
    errors = []
    for name in dict.fromkeys(tables):
        try:
            _may_be_added(conn, f'table "{name}" can\'t be synced', found, name, policy or {}, audience)
        except RegistrationError as error:
            error.about = name
            errors.append(error)
    return errors


def unsynced_tables(conn: Connection, database: str) -> list[str]:
    """The tables in a database's schema that are not synced; partitions are left out.

    Raises:
        RegistrationError: UNKNOWN_DATABASE.
    """
    found = find_database(conn, "no table can be synced", database)
    names = [name for (name,) in conn.execute(_TABLES, (found.schema_name,)).fetchall()]
    return [name for name in names if name not in found.by_sql_name]


def _may_be_added(
    conn: Connection,
    what: str,
    database: Database,
    name: str,
    policy: Mapping[str, Any],
    audience: str | None,
    waived: Collection[TableRefusal] = (),
    before: Table | None = None,
) -> TablePolicy:
    if name in database.by_sql_name:
        raise refuse(what, TableRefusal.ALREADY_SYNCED, f'table "{name}" is synced already')
    try:
        own_policy = table_policy(policy)
    except PolicyError as error:
        raise refuse(what, TableRefusal.INVALID_POLICY, str(error)) from error
    _judge(conn, what, database, name, own_policy, audience, waived, before)
    return own_policy


def _judge(
    conn: Connection,
    what: str,
    database: Database,
    name: str,
    policy: TablePolicy,
    expression: str | None,
    waived: Collection[TableRefusal],
    before: Table | None,
) -> Judged:
    found, known = run(conn, relations_of(database.schema_name, [name]))
    if name not in found:
        text = f'there is no table "{name}" in schema "{database.schema_name}"'
        raise refuse(what, TableRefusal.UNKNOWN_TABLE, text)
    relation = found[name]
    in_sql = policy if before is None else policy.in_sql(before)
    reasons = why_not(relation, known, in_sql, database.by_sql_name, restricted=expression is not None)
    found_wrong = [one for one in reasons if one.reason not in waived]
    if relation.kind == "r" and not relation.owned:
        text = f"role {relation.role} does not own the table, and could make no triggers that always fire"
        found_wrong.append(Refused(TableRefusal.NOT_OWNED, text))
    if expression is None and not policy.every_device_sees_every_row and TableRefusal.AUDIENCE_LEFT_OUT not in waived:
        found_wrong += _left_out(conn, database, name)
    audience: Audience | None = None
    if expression is not None and relation.kind == "r" and not relation.missing_privileges:
        judged = judge_expression(conn, database.schema_name, name, expression)
        if isinstance(judged, Refused):
            found_wrong.append(judged)
        else:
            audience = judged
    if found_wrong:
        raise RegistrationError(what, found_wrong)
    now = Table(name, relation.snapshot(known), relation.key_columns)
    if before is None:
        identity = new_identity(name, database.tables)
        return Judged(replace(now, name=identity, renamed=name if name != identity else ""), audience)
    by_number = relation.oid == database.relations.get(before.name)
    return Judged(carried_on(before, now, by_number=by_number), audience)


def _left_out(conn: Connection, database: Database, name: str) -> Iterator[Refused]:
    """Refuse a table that was restricted, and would be added anew for everybody."""
    row = conn.execute(former_tables.LAST_AUDIENCE, (database.id, name)).fetchone()
    if row is not None and row[0] is not None:
        text = f"when it was last synced, its audience was {row[0]}, and now every device would see every row"
        yield Refused(TableRefusal.AUDIENCE_LEFT_OUT, text)


def find_database(conn: Connection, what: str, name: str) -> Database:
    """The database of that name; ``what`` begins the error's text. Raises RegistrationError: UNKNOWN_DATABASE."""
    try:
        return load_database(conn, name)
    except UnknownDatabaseError as error:
        raise refuse(what, TableRefusal.UNKNOWN_DATABASE, str(error)) from error


def warnings(database: Database, table: str) -> Iterator[str]:
    """Warnings about a synced table, ``table`` its identity, that are no reason to refuse it."""
    for key in database.constraints[table].foreign_keys:
        if not key.synced:
            yield (
                f'foreign key "{key.name}" points to "{key.to_table}", which is not synced: '
                "devices can't see what they may refer to"
            )
    for cycle in database.order.cycles:
        if table in cycle:
            called = ", ".join(database.tables[name].sql_name for name in cycle)
            yield (
                f"foreign keys point in a circle through {called}: "
                "rows that need each other go through only where these keys are deferrable"
            )
