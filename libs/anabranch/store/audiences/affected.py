"""The principals whose audiences a group changed: those are found by the rows that it changed, and evaluated anew.

A membership query is asked which principals it gives anything where one of its tables holds the changed rows alone, as
they were before and after. Its other tables are as they are now, with the rows that the group changed as they were
before: a row that is gone may have joined one that is gone, too. So the cost follows the changed rows and those whom
they concern. A table that is not *traced* (see ``Membership``) tells nothing, and every principal is evaluated; so is
everybody where a group changed more rows than are worth looking at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.store.audiences.expression import array_text
from anabranch.store.audiences.our_path import our_path
from anabranch.store.audiences.principals import Change, Given, current, evaluate
from anabranch.store.audiences.queries import PRINCIPAL, PRINCIPALS, for_principals
from anabranch.store.audiences.rules import Membership
from anabranch.store.catalog.databases import Database
from anabranch.store.cells.binary_cells import quote
from anabranch.store.group.rows_statements import sent_as
from anabranch.store.session import steps
from anabranch.store.session.at_once import execute
from anabranch.store.session.binary import Connection, run
from anabranch.values import Cell, Column, Table
from anabranch.values.pieces import whole
from anabranch.values.postgres_binary import Parameter, int8, text_array

MOST_ROWS = 20_000
"""Changed rows of one table, before and after, that are looked at; beyond, every principal is evaluated."""
AT_ONCE = 2_000
"""Principals that are evaluated by one statement."""

_MISSED = b"select from anabranch.audiences_missed where database_id = $1::int8::int"
_MISS = b"insert into anabranch.audiences_missed values ($1::int8::int) on conflict do nothing"
_MISS_NOTHING = b"delete from anabranch.audiences_missed where database_id = $1::int8::int"
_ALL = b"select principal from anabranch.principals where database_id = $1::int8::int order by 1"
_STORE = b"""
update anabranch.principals p
set memberships = v.memberships::text[], write_memberships = v.write_memberships::text[]
from unnest($2::text[], $3::text[], $4::text[]) v (principal, memberships, write_memberships)
where p.database_id = $1::int8::int and p.principal = v.principal
"""
_NOTE = b"""
insert into anabranch.audience_changes (database_id, position, principal, gained, lost)
select $1::int8::int, $2::int8, v.principal, v.gained::text[], v.lost::text[]
from unnest($3::text[], $4::text[], $5::text[]) v (principal, gained, lost)
"""


@dataclass(slots=True)
class ChangedRows:
    """The rows that a group changed in tables that membership queries read: by table, as they were before and as they
    are after; None where they are too many."""

    before: dict[str, list[Sequence[Cell]] | None] = field(default_factory=dict)
    after: dict[str, list[Sequence[Cell]] | None] = field(default_factory=dict)

    def add(self, table: str, before: Sequence[Cell] | None, after: Sequence[Cell] | None) -> None:
        """Note the change of one row."""
        for rows, row in ((self.before, before), (self.after, after)):
            noted = rows.setdefault(table, [])
            if noted is None or row is None:
                continue
            if len(noted) >= MOST_ROWS:
                rows[table] = None
            else:
                noted.append(row)

    def update(self, other: ChangedRows) -> None:
        """Note all that ``other`` has noted."""
        for into, found in ((self.before, other.before), (self.after, other.after)):
            for table, rows in found.items():
                noted = into.setdefault(table, [])
                if noted is None or rows is None or len(noted) + len(rows) > MOST_ROWS:
                    into[table] = None
                else:
                    noted.extend(rows)

    def __bool__(self) -> bool:
        return bool(self.before)


def affected(conn: Connection, database: Database, changed: ChangedRows) -> list[str]:
    """The principals that the changes may concern. Raises psycopg.Error."""
    if any(_concerns_all(one, changed) for one in database.audience_rules.memberships):
        return everybody(conn, database)
    wanted = [
        (one, table)
        for one in dict.fromkeys(database.audience_rules.memberships)
        for table in one.tables
        if changed.before.get(table) or changed.after.get(table)
    ]
    if not wanted:
        return []
    found: set[str] = set()
    # Nothing in another schema can take the place of what a query names: its tables are named by what stands before it.
    with our_path(conn):
        for membership, table in wanted:
            statement, parameters = _traced(database, membership, table, changed)
            found.update(principal for (principal,) in run(conn, statement, parameters).fetchall())
    return sorted(found)


def everybody(conn: Connection, database: Database) -> list[str]:
    """All principals that are known. Raises psycopg.Error."""
    return [principal for (principal,) in run(conn, _ALL, [int8(database.id)]).fetchall()]


def is_missed(conn: Connection, database: Database) -> bool:
    """Whether principals may have other audiences than their queries give, because these failed for a group. Raises
    psycopg.Error."""
    return run(conn, _MISSED, [int8(database.id)]).rowcount > 0


def note_missed(conn: Connection, database: Database, missed: bool) -> None:
    """Note whether that is so. Raises psycopg.Error."""
    execute(conn, _MISS if missed else _MISS_NOTHING, [int8(database.id)])


def _concerns_all(membership: Membership, changed: ChangedRows) -> bool:
    for table in membership.tables:
        before, after = changed.before.get(table, []), changed.after.get(table, [])
        if before is None or after is None or ((before or after) and table not in membership.traced):
            return True
    return False


def _traced(
    database: Database, membership: Membership, table: str, changed: ChangedRows
) -> tuple[bytes, list[Parameter]]:
    """The statement that gives the principals for which a query gives anything by the changed rows of ``table``."""
    parameters: list[Parameter] = [int8(database.id)]
    shadows = []
    for name in membership.tables:
        synced, before = database.tables.get(name), changed.before.get(name) or []
        if synced is None:
            # It is not synced any more, and Postgres finds it under the name that the query has for it.
            called = membership.then[name].table if name in membership.then else name
            selected = f"select * from {quote(database.schema_name)}.{quote(called)}"
        else:
            called, columns = membership.called(synced)
            if name == table:
                selected = _rows(columns, synced, [*before, *(changed.after.get(name) or [])], parameters)
            else:
                listed = ", ".join(f"{quote(column.sql_name)} as {quote(then)}" for column, then in columns)
                selected = f"select {listed} from {quote(database.schema_name)}.{quote(synced.sql_name)}"
                if before:
                    selected += f" union all {_rows(columns, synced, before, parameters)}"
        # Not materialized: where the query names it twice, all of the table would be read for it.
        shadows.append(f"{quote(called)} as not materialized ({selected})")
    statement = (
        f"with {', '.join(shadows)} select {PRINCIPAL} from anabranch.principals as {PRINCIPALS} "
        f"where {PRINCIPALS}.database_id = $1::int8::int "
        f'and exists (select from (\n{for_principals(membership.query)}\n) as "_DB_given")'
    )
    return statement.encode(), parameters


def _rows(
    named: Sequence[tuple[Column, str]], table: Table, rows: Sequence[Sequence[Cell]], parameters: list[Parameter]
) -> str:
    """A select that gives ``rows`` of a table, whose cells are added to ``parameters``, with some names for columns."""
    turned: list[Sequence[Cell]] = list(zip(*map(whole, rows), strict=True))
    columns = [turned[table.index[column.name]] for column, _ in named]
    sent = sent_as([column for column, _ in named], columns, "c")
    arrays = ", ".join(f"${i}::{one.sender.array_type}" for i, one in enumerate(sent, len(parameters) + 1))
    parameters += [one.sender.build(cells) for one, cells in zip(sent, columns, strict=True)]
    selected = ", ".join(f"{one.typed} as {quote(then)}" for one, (_, then) in zip(sent, named, strict=True))
    return f"select {selected} from unnest({arrays}) as v ({', '.join(one.alias for one in sent)})"


def evaluate_known(conn: Connection, database: Database, principals: Sequence[str]) -> dict[str, tuple[Given, Given]]:
    """Of ``principals`` that are known: what queries gave them, and give them now. Those are left out for whom it is
    the same; ``AT_ONCE`` at most. Raises psycopg.Error."""
    before = steps.run(conn, current(database.id, principals))
    now = steps.run(conn, evaluate(database, list(before)))
    return {one: (before[one], given) for one, given in now.items() if given != before[one]}


def store_changes(
    conn: Connection, database: Database, position: int, changes: Mapping[str, tuple[Given, Given]]
) -> dict[str, Change]:
    """Store what queries give principals now, and as of ``position`` how that changed for reading; gives the latter.
    Raises psycopg.Error."""
    if not changes:
        return {}
    names = sorted(changes)
    given = [changes[name][1] for name in names]
    apart = database.audience_rules.write is not None
    read = [array_text(one.read) for one in given]
    write = [array_text(one.write) if apart else None for one in given]
    who = text_array(names, "principal")
    execute(conn, _STORE, [int8(database.id), who, text_array(read, "audience"), text_array(write, "audience")])
    noted = {
        name: Change(now.read - before.read, before.read - now.read)
        for name, (before, now) in sorted(changes.items())
        if now.read != before.read
    }
    if noted:
        parameters = [
            int8(database.id),
            int8(position),
            text_array(list(noted), "principal"),
            text_array([array_text(one.gained) for one in noted.values()], "audience"),
            text_array([array_text(one.lost) for one in noted.values()], "audience"),
        ]
        execute(conn, _NOTE, parameters)
    return noted
