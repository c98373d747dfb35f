"""Rows that stay behind where a database, or a table's registration, is deleted by plain SQL, because they refer to it
by number alone. Those of the log's partitions go with their partition; those of the default one, the versions of rows,
and the changes of audiences are found here.

Numbers are never given twice, and no row refers to one before its owner exists: a row without an owner never gets one.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.store.cells.binary_cells import quote
from anabranch.store.log.partitions import DEFAULT
from anabranch.store.session.engine import Session

# From one number to the next by the key, however many rows each has.
NUMBERS = """
with recursive n as (
    (select {column} as number from anabranch.{table} order by {column} limit 1)
    union all
    select (select x.{column} from anabranch.{table} x where x.{column} > n.number order by x.{column} limit 1)
    from n where n.number is not null
)
select number from n
where number is not null and not exists (select from anabranch.{owners} o where o.id = n.number) order by number
"""
FORGET = """
delete from anabranch.{table}
where ctid = any(array(select ctid from anabranch.{table} where {column} = %(number)s limit %(limit)s))
"""


@dataclass(frozen=True, slots=True)
class OwnerlessKind:
    """Rows of ``table`` whose ``column`` has the number of a row of ``owners``."""

    table: str
    column: str
    owners: str


KINDS = (
    OwnerlessKind(DEFAULT, "database_id", "databases"),
    OwnerlessKind("audience_changes", "database_id", "databases"),
    OwnerlessKind("row_versions", "table_id", "synced_tables"),
)


def ownerless(conn: Session, kind: OwnerlessKind) -> list[int]:
    """The numbers whose owners are gone."""
    return [number for (number,) in conn.execute(_of(kind, NUMBERS)).fetchall()]


def forget(conn: Session, kind: OwnerlessKind, number: int, most: int) -> int:
    """Remove rows of a number whose owner is gone; return how many."""
    return conn.execute(_of(kind, FORGET), {"number": number, "limit": most}).rowcount


def _of(kind: OwnerlessKind, statement: str) -> bytes:
    return statement.format(table=quote(kind.table), column=quote(kind.column), owners=quote(kind.owners)).encode()
