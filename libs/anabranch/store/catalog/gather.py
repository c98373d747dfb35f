"""Registration of tables with foreign writers: these wait twice for a moment, and never while the rows are read.

Three steps, each with transactions of its own:

1. *gathering begins*: under the table's lock its triggers are made, and capture for the registration alone.
2. *the rows are read* at one moment, without any lock that keeps writers out. Changes gathered from transactions that
   the moment does not see are added to the sum, and deleted, again and again until few are left.
3. *the table is entered*: under its lock and the database's claim the rest is added. So the sum is that of the rows of
   this moment; from it on the triggers capture for the log.

A table that is synced already, whose capture was off, goes the same way. Meanwhile it stays registered as it was: the
resolver goes on writing to it. The resolver's own writes are not gathered, but change the table's old sum: its
difference since the moment is added, too. The changes captured of the table for the log before are deleted when
gathering begins, as the log lacks changes of such a table anyway.

A registration that fails removes its triggers. One that is killed leaves them, and the changes that they gather: the
next registration of the table, its removal, or the janitor (``cut_off``) clears that up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import psycopg

from anabranch.store.audiences.expression import Audience
from anabranch.store.audiences.row_audiences import RowAudiences
from anabranch.store.capture import triggers
from anabranch.store.capture.rows import UndecodableError, decode
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.catalog.judging import (
    Judged,
    RegistrationError,
    SeveralRefusedError,
    find_database,
    lock_and_judge,
    refusals,
    refuse,
    warnings,
)
from anabranch.store.catalog.refusals import TableRefusal
from anabranch.store.catalog.registration import (
    ATTEMPT_LOCK_MS,
    Added,
    Connection,
    RegistrationLimits,
    claim,
    enter,
    leave,
    limit_attempt,
    new_number,
    not_for_a_row,
    patiently,
    tell,
)
from anabranch.store.catalog.sums import RowSums, kept_audience_sums, scan_sums
from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.own_locks import begin_registration, end_registration
from anabranch.store.session.steps import run
from anabranch.values import Table
from anabranch.values.canonical import RowEncoder

_R = TypeVar("_R")

_CHUNK = 2_000
_CHUNKS = 1_000
"""The most chunks of gathered changes that one pass adds, however fast writers are."""
_FEW = 200
"""So many gathered changes may be left for the moment in which writers wait."""
_PASSES = 50
"""After so many passes the rest is added while writers wait, however much it is."""

_KNOWN_BEFORE = frozenset({TableRefusal.ROW_SECURITY_OF_OTHERS, TableRefusal.AUDIENCE_LEFT_OUT})
"""Reasons that do not refuse a table that is synced already: its rows are on devices, and ``drift`` reports them."""

_MOMENT = "select pg_current_snapshot()::text"
_KEPT = "select row_count, row_hash from anabranch.table_sums where table_id = %s"
_OFF = """
update anabranch.synced_tables set capture_off_ms = coalesce(capture_off_ms, %s) where id = %s
"""
_TAKE = """
delete from anabranch.captured c using (
    select id from anabranch.captured
    where database_id = %(database)s and table_id = %(number)s order by id limit %(most)s
) first_ones
where c.database_id = %(database)s and c.id = first_ones.id
returning c.old, c.new, pg_visible_in_snapshot(c.xid, %(moment)s::pg_snapshot)
"""


@dataclass(slots=True)
class _Gathering:
    """A registration under way. ``was``: the number and the policy of the registration before, where there is one.
    ``moment``: the snapshot in which the rows of ``sum`` were read; ``kept``: the sum that the log carried then."""

    what: str
    database: Database
    judged: Judged
    policy: Mapping[str, Any]
    number: int
    was: int | None
    moment: str = ""
    sum: RowSums = field(default_factory=RowSums)
    kept: RowSums = field(default_factory=RowSums)

    @property
    def table(self) -> Table:
        """The table as it was judged."""
        return self.judged.table

    @property
    def audience(self) -> Audience | None:
        """Its audience."""
        return self.judged.audience


def add_tables(
    conn: Connection,
    database: str,
    tables: Sequence[str],
    policy: Mapping[str, Any] | None = None,
    *,
    audience: str | None = None,
    now_ms: int,
    limits: RegistrationLimits | None = None,
) -> list[Added]:
    """Sync tables from now on, all or none, each with the audience expression ``audience`` where one is given. The
    session must be in autocommit, outside of a transaction.

    Raises:
        RegistrationError: with every reason why one can't be synced, see ``TableRefusal``; BUSY also where its table
            was changed meanwhile, or another process registers it.
    """
    return _register(conn, database, tables, policy or {}, audience, now_ms, limits, anew=False)


def restart_captures(
    conn: Connection, database: str, tables: Sequence[str], *, now_ms: int, limits: RegistrationLimits | None = None
) -> list[Added]:
    """Register synced tables anew, all or none, with the policies and audiences that they have: their triggers work
    again, their sums are those of the rows that are there now, and the history of the rows begins. As ``add_tables``.

    Raises:
        RegistrationError: NOT_SYNCED, or as ``add_tables``.
    """
    return _register(conn, database, tables, {}, None, now_ms, limits, anew=True)


def _register(
    conn: Connection,
    database: str,
    tables: Sequence[str],
    policy: Mapping[str, Any],
    audience: str | None,
    now_ms: int,
    limits: RegistrationLimits | None,
    *,
    anew: bool,
) -> list[Added]:
    chosen = limits or RegistrationLimits()
    begun: list[_Gathering] = []
    if anew:
        synced = find_database(conn, "no capture can be turned on", database)
        tables = [name if (known := synced.find(name)) is None else known.sql_name for name in tables]
    with _alone(conn, database, tables):
        # All reasons are reported at once, before any session waits for a lock.
        if not anew and (errors := refusals(conn, database, tables, policy, audience)):
            raise errors[0] if len(errors) == 1 else SeveralRefusedError(errors)
        try:
            for name in dict.fromkeys(tables):
                work = partial(_begin, conn, database, name, policy, audience, now_ms, chosen, anew)
                begun.append(patiently(chosen, name, work))
            for one in begun:
                patiently(chosen, one.table.sql_name, partial(_read, conn, one, chosen))
            for _ in range(_PASSES):
                if sum(_add(conn, one, _CHUNKS) for one in begun) < _FEW:
                    break
            patiently(chosen, begun[-1].table.sql_name, partial(_enter, conn, begun, now_ms, chosen))
        except BaseException as error:
            if not conn.closed:
                _undo_all(conn, begun, chosen, error)
            raise
    after = load_database(conn, database)
    return [Added(after.tables[one.table.name], one.sum.count, tuple(warnings(after, one.table.name))) for one in begun]


def _begin(
    conn: Connection,
    database: str,
    name: str,
    policy: Mapping[str, Any],
    audience: str | None,
    now_ms: int,
    limits: RegistrationLimits,
    anew: bool,
) -> _Gathering:
    what = f'capture of table "{name}" can\'t be turned on' if anew else f'table "{name}" can\'t be synced'
    with conn.transaction(), _clear(what, restricted=False):
        limit_attempt(conn, limits)
        found = find_database(conn, what, database)
        before = found.find(name) if anew else None
        if anew:
            if before is None:
                raise refuse(what, TableRefusal.NOT_SYNCED, f'"{name}" is no synced table of "{database}"')
            policy = found.table_policies[before.name].given()
            audience = found.restricted[before.name].expression if before.name in found.restricted else None
        judged = _judged(conn, what, found, name, policy, audience, before)
        triggers.forget_gathered(conn, found.schema_name, name, found.id)
        if before is not None:
            claim(conn, found.id)
            conn.execute(triggers.DELETE_CAPTURED, (found.id, before.id))
            conn.execute(_OFF, (now_ms, before.id))
            tell(conn, found.id)
        number = new_number(conn)
        triggers.install(conn, found.schema_name, name, -found.id, number)
    return _Gathering(what, found, judged, policy, number, None if before is None else before.id)


def _judged(
    conn: Connection,
    what: str,
    database: Database,
    name: str,
    policy: Mapping[str, Any],
    audience: str | None,
    before: Table | None,
) -> Judged:
    """The table, locked. ``before``: as it was registered, where it is registered anew."""
    waived = _KNOWN_BEFORE if before is not None else ()
    return lock_and_judge(conn, what, database, name, policy, audience, waived, before)


def _read(conn: Connection, one: _Gathering, limits: RegistrationLimits) -> None:
    """The sum of the rows at one moment. The lock comes first, before any query: rows that a TRUNCATE removed after the
    moment would be missing."""
    schema_name, table = one.database.schema_name, one.table
    with conn.transaction(), _clear(one.what, restricted=one.judged[1] is not None):
        conn.execute("set transaction isolation level repeatable read, read only")
        conn.execute(f"set local lock_timeout = {min(ATTEMPT_LOCK_MS, limits.lock_timeout_ms)}".encode())
        conn.execute(f"set local statement_timeout = {limits.statement_timeout_ms}".encode())
        conn.execute(f"lock table {quote(schema_name)}.{quote(table.sql_name)} in access share mode".encode())
        [(one.moment,)] = conn.execute(_MOMENT).fetchall()
        one.kept = _kept(conn, one)
        one.sum = scan_sums(conn, schema_name, *one.judged)


def _kept(conn: Connection, one: _Gathering) -> RowSums:
    """The sums that the log carries of the registration before."""
    rows = conn.execute(_KEPT, (one.was,)).fetchall() if one.was is not None else []
    if not rows:
        return RowSums()
    kept = kept_audience_sums(conn, one.was) if one.audience is not None else {}
    of_audiences = {audience: (count, int.from_bytes(total, "big")) for audience, (count, total) in kept.items()}
    return RowSums(rows[0][0], int.from_bytes(rows[0][1], "big"), of_audiences)


def _add(conn: Connection, one: _Gathering, chunks: int | None = None) -> int:
    """Add the changes gathered since the moment to the sum, and delete them; return how many they were. ``chunks``: the
    most chunks of them; where it is None, the caller keeps writers out, so that there is an end."""
    schema_name, table, audience = one.database.schema_name, one.table, one.audience
    row_hash = RowEncoder(table).hash
    of_table = None if audience is None else RowAudiences(table, audience)
    parameters = {"database": -one.database.id, "number": one.number, "most": _CHUNK, "moment": one.moment}
    added = 0
    turns: Iterable[int] = itertools.count() if chunks is None else range(chunks)
    for _ in turns:
        with conn.transaction(), _clear(one.what, restricted=one.judged[1] is not None):
            taken = conn.execute(_TAKE, parameters).fetchall()
            for sign, place in ((-1, 0), (1, 1)):
                images = [bytes(row[place]) for row in taken if row[place] is not None and not row[2]]
                rows = decode(conn, schema_name, table, images)
                of_rows: Iterable[Iterable[str]] = itertools.repeat(())
                if of_table is not None:
                    of_rows = of_table.of_all(conn, rows)
                for cells, audiences in zip(rows, of_rows, strict=False):
                    one.sum.add(row_hash(cells), audiences, sign)
        added += len(taken)
        if len(taken) < _CHUNK:
            break
    return added


def _enter(conn: Connection, begun: Sequence[_Gathering], now_ms: int, limits: RegistrationLimits) -> None:
    sums = [one.sum.copy() for one in begun]
    try:
        with conn.transaction():
            limit_attempt(conn, limits)
            for one in begun:
                _enter_one(conn, one, now_ms)
    except BaseException:
        # The rollback restores the changes that this transaction took.
        for one, before in zip(begun, sums, strict=True):
            one.sum = before
        raise


def _enter_one(conn: Connection, one: _Gathering, now_ms: int) -> None:
    name, schema_name = one.table.sql_name, one.database.schema_name
    found = find_database(conn, one.what, one.database.name)
    expression = None if one.audience is None else one.audience.expression
    before = found.by_sql_name.get(name)
    now = _judged(conn, one.what, found, name, one.policy, expression, None if one.was is None else before)
    number = None if before is None else before.id
    faults = run(conn, triggers.trigger_faults(schema_name, -found.id, {name: one.number}))
    if now != one.judged or number != one.was or faults:
        raise refuse(one.what, TableRefusal.BUSY, "it was changed while its rows were read; try again")
    claim(conn, found.id)
    _add(conn, one)
    if one.was is not None:
        kept = _kept(conn, one)
        one.sum.count += kept.count - one.kept.count
        one.sum.total += kept.total - one.kept.total
        for sums, sign in ((kept, 1), (one.kept, -1)):
            for audience, (count, total) in sums.audiences.items():
                one.sum.add_to(audience, sign * count, sign * total)
        leave(conn, found, one.table.name)
        # Also where the old table has another name now.
        triggers.remove(conn, found.id, one.was)
    enter(conn, one.what, found, one.judged, one.policy, one.number, one.sum, now_ms=now_ms)


def _undo_all(conn: Connection, begun: Sequence[_Gathering], limits: RegistrationLimits, error: BaseException) -> None:
    """Undo each registration, also where another undo fails. Failures are noted at ``error``, for the janitor."""
    for one in begun:
        try:
            patiently(limits, one.table.sql_name, partial(_undo, conn, one, limits))
        except (psycopg.Error, RegistrationError) as failure:
            error.add_note(f'table "{one.table.sql_name}" goes on gathering until the janitor clears it up: {failure}')


def _undo(conn: Connection, one: _Gathering, limits: RegistrationLimits) -> None:
    """Remove the triggers; those of a registration before are installed again, and disabled."""
    with conn.transaction():
        limit_attempt(conn, limits)
        schema_name, name = one.database.schema_name, one.table.sql_name
        if one.number not in triggers.gathering(conn, schema_name, name, one.database.id):
            return
        if one.was is None:
            triggers.remove(conn, -one.database.id, one.number)
        else:
            triggers.lock(conn, schema_name, name)
            triggers.forget_gathered(conn, schema_name, name, one.database.id)
            triggers.install(conn, schema_name, name, one.database.id, one.was)
            triggers.switch(conn, schema_name, name, on=False)


@contextmanager
def _clear(what: str, *, restricted: bool) -> Iterator[None]:
    """Turn the errors of a table that is dropped or changed meanwhile into refusals, and where it is ``restricted``
    those of its audience expression."""
    try:
        yield
    except psycopg.errors.UndefinedTable as error:
        raise refuse(what, TableRefusal.UNKNOWN_TABLE, "the table no longer exists") from error
    except UndecodableError as error:
        raise refuse(what, TableRefusal.BUSY, f"{error}: it was changed while its rows were read; try again") from error
    except psycopg.DataError as error:
        if not restricted:
            raise
        raise not_for_a_row(what, error) from error


@contextmanager
def _alone(conn: Connection, database: str, tables: Sequence[str]) -> Iterator[None]:
    """Keep other processes from registering one of the tables in this way meanwhile."""
    names = [f"{database} {table}" for table in sorted(set(tables))]
    held: list[int] = []
    try:
        for name in names:
            number = begin_registration(conn, name)
            if number is None:
                what = f"tables of {database} can't be registered"
                raise refuse(what, TableRefusal.BUSY, "another process is registering one of them")
            held.append(number)
        yield
    finally:
        if not conn.closed:
            for number in held:
                end_registration(conn, number)
