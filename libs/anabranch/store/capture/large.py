"""Captured changes of more than a process should hold: backlogs and large transactions, measured first and then read in
pieces.

One scan of all waiting changes measures the transactions (``first_to_end``, ``own``). It has a time limit of its own:
it takes longer the more changes wait, and where it failed, every later group would begin with it again. The changes of
a transaction are then read in the order of their capture, behind a number and no further than its last, so that none is
looked at twice; or, where those of one row have to come together, by the numbers that a first reading has sorted.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from anabranch.store.capture.captured import (
    CHANGE,
    COLUMNS,
    MOST_BYTES,
    SLIM_COLUMNS,
    Captured,
    as_many_as_fit,
    captured_of,
)
from anabranch.store.capture.large_images import CARRIED_BYTES, read_image
from anabranch.store.inbox.claim import longer
from anabranch.store.session.binary import Connection, Cursor, run
from anabranch.values.postgres_binary import Parameter, int8, int8_array

SCAN_MS = 600_000
"""How long one scan of all waiting changes may take, in milliseconds: enough for some hundreds of millions of them."""
_INSERT, _DELETE = 1, 3
_INTEGERS = frozenset({20, 21, 23})
_INTEGER_BYTES = 8
_field_of = struct.Struct(">Ii").unpack_from

# A transaction of markers alone has no changes.
_EXTENT = f"""xid::text::int8, count(*) filter (where {CHANGE}), min(id), max(id),
       coalesce(sum(coalesce(octet_length(old), 0) + coalesce(octet_length(new), 0)) filter (where {CHANGE}), 0)::int8,
       max(depth)::int8, coalesce(min(type) filter (where {CHANGE}), 0)::int8,
       coalesce(max(type) filter (where {CHANGE}), 0)::int8,
       coalesce(bit_or(1::int8 << table_id % 63) filter (where type = 2), 0) &
       coalesce(bit_or(1::int8 << table_id % 63) filter (where type = 3), 0)"""

FIRST_TO_END = f"""
select {_EXTENT} from anabranch.captured
where database_id = $1::int8::int group by xid having max(id) <= $3::int8 order by max(id) limit $2::int8
""".encode()

# ``$2`` and ``$3``: tables, each with the number before which its changes count; ``$4``: those of which all count.
CONCERNED = b"""
select min(last), max(last) from (
    select max(c.id) as last, bool_or(c.type = 4 or c.table_id = any($4::int8[]) or c.id < m.marker) as concerned
    from anabranch.captured c left join unnest($2::int8[], $3::int8[]) m (table_id, marker) on m.table_id = c.table_id
    where c.database_id = $1::int8::int group by c.xid
) t where concerned
"""

OWN = f"""
select {_EXTENT} from anabranch.captured
where database_id = $1::int8::int and id > $2::int8 and xid = pg_current_xact_id_if_assigned() and {CHANGE} group by xid
""".encode()

READ_WHOLE = f"""
select {COLUMNS} from anabranch.captured
where database_id = $1::int8::int and id between $2::int8 and $3::int8 and xid = any($4::int8[]::text[]::xid8[])
  and {CHANGE}
order by id
""".encode()

READ_OF = as_many_as_fit(
    "database_id = $1::int8::int and id > $2::int8 and id <= $3::int8 and xid = $4::int8::text::xid8",
    "$5::int8",
    "$6::int8",
    SLIM_COLUMNS,
)

READ_IDS = as_many_as_fit("database_id = $1::int8::int and id = any($2::int8[])", "$3::int8", "$4::int8", SLIM_COLUMNS)

FIRST_OF = f"""
select id, xid::text::int8, table_id, null::bytea, null::bytea, depth::int8, role, application
from anabranch.captured
where database_id = $1::int8::int and id >= $2::int8 and id <= $3::int8 and xid = $4::int8::text::xid8 and {CHANGE}
order by id limit 1
""".encode()

TABLES_OF = f"""
select distinct table_id::int8 from anabranch.captured
where database_id = $1::int8::int and id between $2::int8 and $3::int8 and xid = $4::int8::text::xid8 and {CHANGE}
order by 1
""".encode()

DELETE_OF = f"""
delete from anabranch.captured
where database_id = $1::int8::int and id > $2::int8 and id <= $3::int8 and xid = $4::int8::text::xid8 and {CHANGE}
""".encode()


class Transaction(NamedTuple):
    """A transaction whose changes wait. ``changes``: how many; ``first`` and ``last``: the least and the greatest
    number among them, and among the markers of tables that it altered; ``size``: the bytes of their images; ``depth``:
    how deep inside other statements the deepest was made; ``least`` and ``greatest``: 1 insert, 2 update, 3 delete;
    ``both``: not 0 where a table had updates and deletes, and seldom also where one table had updates and another one
    deletes."""

    xid: int
    changes: int
    first: int
    last: int
    size: int
    depth: int
    least: int
    greatest: int
    both: int

    @property
    def once(self) -> bool:
        """Whether no row can have been changed twice: all were inserted, or all deleted."""
        return self.least == self.greatest and self.least in (_INSERT, _DELETE)

    @property
    def one_by_one(self) -> bool:
        """Whether rows were changed in the order of their capture, unless keys were updated. A statement captures its
        changes of a table when it ends, its updates in their order and its deletes in theirs. So no trigger may have
        run a statement inside another one (``depth``). The deletes and updates of foreign keys belong to the statement
        that caused them, so no table may have both: the names of the constraints decide which of the two is captured
        first, and a row may have been updated before it was deleted."""
        return self.once or (self.depth <= 1 and not self.both)


LAST = 2**63 - 1
"""A number behind all that are captured."""


def first_to_end(conn: Connection, database_id: int, most: int, up_to: int = LAST) -> list[Transaction]:
    """The ``most`` transactions whose last changes were captured first, in this order, none of them behind the number
    ``up_to``; fewer where fewer wait."""
    return _scan(conn, FIRST_TO_END, [int8(database_id), int8(most), int8(up_to)])


def concerned(
    conn: Connection, database_id: int, before: Mapping[int, int], whole: Collection[int] = ()
) -> tuple[int, int] | None:
    """The transactions that a change of tables concerns, since they made it, or captured changes before it; also those
    that changed tables which are ``whole`` read for it. Gives the ends (the numbers of their last captured rows) of
    those of them that end first and last; None where none waits. ``before``: by table, the number before which its
    changes are concerned."""
    tables = sorted(before)
    parameters = [int8_array(tables), int8_array([before[one] for one in tables]), int8_array(sorted(whole))]
    with longer(conn, SCAN_MS):
        [(first, last)] = run(conn, CONCERNED, [int8(database_id), *parameters]).fetchall()
    return None if first is None else (first, last)


def own(conn: Connection, database_id: int, after: int) -> Transaction | None:
    """The changes that this transaction's own statements caused behind the number ``after``; None where it has none."""
    found = _scan(conn, OWN, [int8(database_id), int8(after)])
    return found[0] if found else None


def _scan(conn: Connection, statement: bytes, parameters: Sequence[Parameter]) -> list[Transaction]:
    with longer(conn, SCAN_MS):
        found = run(conn, statement, parameters).fetchall()
    return [Transaction._make(row) for row in found]


def read_whole(conn: Connection, database_id: int, transactions: Sequence[Transaction]) -> list[Captured]:
    """All changes of some transactions, in the order of their capture."""
    first, last = min(t.first for t in transactions), max(t.last for t in transactions)
    xids = int8_array(sorted(t.xid for t in transactions))
    return captured_of(run(conn, READ_WHOLE, [int8(database_id), int8(first), int8(last), xids]))


def tables_of(conn: Connection, database_id: int, transaction: Transaction) -> list[int]:
    """The numbers of the tables that a transaction has changed."""
    numbers = [database_id, transaction.first, transaction.last, transaction.xid]
    return [number for (number,) in run(conn, TABLES_OF, [int8(number) for number in numbers])]


def first_of(conn: Connection, database_id: int, transaction: Transaction) -> list[Captured]:
    """The first change of a transaction, without its images; none where it has been drained."""
    numbers = [database_id, transaction.first, transaction.last, transaction.xid]
    return captured_of(run(conn, FIRST_OF, [int8(number) for number in numbers]))


def read_of(
    conn: Connection, database_id: int, transaction: Transaction, after: int, most: int, most_bytes: int = MOST_BYTES
) -> list[Captured]:
    """The first ``most`` changes of a transaction behind the number ``after``, in order; fewer as in
    ``captured.read``. Changes behind the transaction's last one are not looked at."""
    numbers = [database_id, after, transaction.last, transaction.xid, most, most_bytes]
    return _with_large(conn, database_id, run(conn, READ_OF, [int8(number) for number in numbers]))


def _with_large(conn: Connection, database_id: int, cursor: Cursor) -> list[Captured]:
    """The changes that a statement with ``SLIM_COLUMNS`` returns, with their large images. A change of a row that is
    too large to be carried has none."""
    changes = []
    for *fields, old_size, new_size in cursor.fetchall():
        change = Captured._make(fields)
        if max(old_size or 0, new_size or 0) > CARRIED_BYTES:
            change = change._replace(old=None, new=None)
        else:
            if change.old is None and old_size is not None:
                change = change._replace(old=read_image(conn, database_id, change.id, "old", old_size))
            if change.new is None and new_size is not None:
                change = change._replace(new=read_image(conn, database_id, change.id, "new", new_size))
        changes.append(change)
    return changes


def read_ids(
    conn: Connection, database_id: int, ids: Sequence[int], after: int, most: int, most_bytes: int = MOST_BYTES
) -> list[Captured]:
    """The first ``most`` of the changes ``ids``, which stand in their order, behind the number ``after``; fewer as in
    ``captured.read``."""
    start = bisect_right(ids, after)
    wanted = ids[start : start + most]
    if not wanted:
        return []
    parameters = [int8(database_id), int8_array(wanted), int8(most), int8(most_bytes)]
    return _with_large(conn, database_id, run(conn, READ_IDS, parameters))


def delete_of(conn: Connection, database_id: int, xid: int, after: int, up_to: int) -> None:
    """Delete the changes of a transaction with numbers behind ``after``, up to ``up_to``."""
    run(conn, DELETE_OF, [int8(database_id), int8(after), int8(up_to), int8(xid)])


def key_bytes(image: bytes, places: Sequence[int]) -> tuple[bytes, ...]:
    """The bytes of a captured row's key columns (see ``capture.rows``), not decoded: equal where the keys are equal.
    ``places``: the key's places among the row's columns. An integer may have become a wider one between two images."""
    found: dict[int, bytes] = {}
    at = 4
    for place in range(max(places) + 1):
        oid, size = _field_of(image, at)
        at += 8
        if place in places:
            data = image[at : at + size]
            if oid in _INTEGERS:
                data = int.from_bytes(data, "big", signed=True).to_bytes(_INTEGER_BYTES, "big", signed=True)
            found[place] = data
        at += max(size, 0)
    return tuple([found[place] for place in places])
