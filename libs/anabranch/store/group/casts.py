"""Values of a column that was retyped, cast as Postgres casts them on their way into the column that it became.

An assignment in PL/pgSQL does what an INSERT does: it takes the cast for assignments where the types have one, applies
the new type's length, precision or scale as a column would, and goes by the value's text where they have none. A value
that can't be cast is undone by itself, so that one statement casts all of them and says which ones failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.store.cells.binary_cells import carried_type, read_expression, row_loader
from anabranch.store.group.rows_statements import sent_as
from anabranch.store.session import binary
from anabranch.store.session.binary import Connection
from anabranch.values import Cell, Column, Kind

_FUNCTION = "pg_temp.anabranch_cast"
_KNOWN = "select to_regtype(%s) is not null"
_VALUE = "value"
# Errors of these classes are no value's fault.
_CAST = f"""
create function {_FUNCTION}(given %(array)s) returns table (number int, {_VALUE} %(bare)s, failure text)
language plpgsql as $anabranch$
declare
    former %(former)s;
    made %(made)s;
begin
    for i in 1 .. cardinality(given) loop
        number := i;
        {_VALUE} := null;
        failure := '';
        begin
            former := given[i]%(cast)s;
            made := former;
            {_VALUE} := made;
        exception when others then
            if left(sqlstate, 2) = any (array['08', '40', '53', '55', '57', '58', 'XX']) then
                raise;
            end if;
            failure := sqlstate;
        end;
        return next;
    end loop;
end
$anabranch$
"""
_DROP = f"do $$ begin drop function {_FUNCTION}; end $$".encode()


@dataclass(frozen=True, slots=True)
class CastCell:
    """A value after its cast. ``failure`` is the SQLSTATE with which it failed; "" where it did not."""

    cell: Cell
    failure: str = ""


def cast_cells(conn: Connection, former: Column, column: Column, cells: Sequence[Cell]) -> list[CastCell]:
    """Cast values of ``former`` to the type of ``column``, which it became, in their order. A type that is gone counts
    as text: values come as Postgres had printed them. Must be called inside a transaction.

    Raises:
        psycopg.Error: Postgres refused something that is no value's fault.
    """
    if not cells:
        return []
    if conn.execute(_KNOWN, (carried_type(former),)).fetchone() != (True,):
        former = replace(former, postgres_type="text[]" if former.kind is Kind.ARRAY else "text", base_type="")
    [sent] = sent_as([former], [cells], "c")
    # The checks of a domain run where a row is written, and nowhere else.
    parts = {
        "array": sent.sender.array_type,
        "cast": sent.sender.cast,
        "former": carried_type(former),
        "bare": carried_type(column),
        "made": column.base_type or column.postgres_type,
    }
    conn.execute((_CAST % parts).encode(), prepare=False)
    read = read_expression(replace(column, name=_VALUE, renamed=""), "t")
    statement = f"select {read}, t.failure from {_FUNCTION}($1::{sent.sender.array_type}) t order by t.number"
    cursor = binary.cursor(conn)
    cursor.execute(statement.encode(), [sent.sender.build(cells)], prepare=False, binary=True)
    rows = row_loader([column])(cursor.fetchall())
    # Not as a statement that the driver recognises as a DROP: it would forget its prepared statements.
    conn.execute(_DROP, prepare=False)
    return [CastCell(cell, str(failure)) for cell, failure in rows]
