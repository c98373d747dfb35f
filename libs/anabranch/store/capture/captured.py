"""Captured changes as a resolver handles them: it reads the waiting ones, takes those that its own statements caused,
and deletes those that it has drained. ``store.capture.triggers`` describes how they are captured, and their content.

``id`` grows with the order of capture. The reader holds the database's claim: no other session deletes there. Markers
(``ddl.markers``) stand among the changes and are none: nothing here reads or takes one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from anabranch.merge import MutationType
from anabranch.store.capture.large_images import CARRIED_BYTES, LARGE_BYTES, image_size
from anabranch.store.capture.older_images import OlderImages, decode_older
from anabranch.store.capture.rows import UndecodableError, decode
from anabranch.store.catalog.databases import Database
from anabranch.store.ddl.shapes import Shape
from anabranch.store.session.binary import Connection, Cursor, run
from anabranch.values import Cell, Table
from anabranch.values.postgres_binary import int8, int8_array

__all__ = [
    "CHANGE",
    "COLUMNS",
    "MOST_BYTES",
    "OWN",
    "UNKNOWN_MARKER",
    "Captured",
    "UndecodableError",
    "ask_between",
    "ask_for_own",
    "captured_of",
    "count",
    "databases",
    "delete",
    "images",
    "read",
    "read_arrived",
    "read_depended_on",
    "size",
    "tables_with_code",
    "take_own",
]


class Captured(NamedTuple):
    """A captured change. ``old`` and ``new`` are the row's bytes, None where there is none; ``depth`` says how deep
    inside other statements it was made; ``xid`` is the transaction, ``role`` and ``application`` its session's."""

    id: int
    xid: int
    table_id: int
    old: bytes | None
    new: bytes | None
    depth: int
    role: str
    application: str


MOST_BYTES = 16 * 2**20
"""The bytes of images that are read at once; one more change is read, which may be larger."""
CHANGE = "type <> 4"
"""SQL: a captured row is a change, and no marker."""
COLUMNS = "id, xid::text::int8, table_id, old, new, depth::int8, role, application"
SLIM_COLUMNS = f"""id, xid::text::int8, table_id,
       case when octet_length(old) <= {LARGE_BYTES} then old end,
       case when octet_length(new) <= {LARGE_BYTES} then new end,
       depth::int8, role, application, octet_length(old)::int8, octet_length(new)::int8"""
"""The columns of a captured change without its large images, and then the sizes in bytes of both images."""


def as_many_as_fit(where: str, most: str, most_bytes: str, columns: str = COLUMNS) -> bytes:
    """The first ``most`` changes, as far as those before each have no more than ``most_bytes``. Sizes are known without
    reading values that are stored out of line."""
    return f"""
select {columns} from (
    select c.*, sum(coalesce(octet_length(old), 0) + coalesce(octet_length(new), 0))
                    over (order by id rows between unbounded preceding and 1 preceding) as before
    from (select * from anabranch.captured where {where} and {CHANGE} order by id limit {most}) c
) s where coalesce(before, 0) <= {most_bytes} order by id
""".encode()


READ = as_many_as_fit("database_id = $1::int8::int", "$2::int8", "$3::int8", SLIM_COLUMNS)

READ_ARRIVED = as_many_as_fit(
    "database_id = $1::int8::int and not (id = any($2::int8[])) and xid <> pg_current_xact_id()", "$3::int8", "$4::int8"
)

READ_DEPENDED_ON = as_many_as_fit(
    "database_id = $1::int8::int and not (id = any($4::int8[])) and xid <> pg_current_xact_id()"
    " and (type <> 3 and table_id = any($2::int8[]) or type <> 1 and table_id = any($3::int8[]))",
    "$5::int8",
    "$6::int8",
)

# Ids that are given out later are greater: the changes that this transaction causes stand behind all that it had read
# before. One more than is wanted shows that there are more; then none is taken.
TAKE_OWN = f"""
with found as materialized (
    select id as number, coalesce(octet_length(old), 0) + coalesce(octet_length(new), 0) as bytes
    from anabranch.captured
    where database_id = $1::int8::int and id > $2::int8 and xid = pg_current_xact_id_if_assigned() and {CHANGE}
    order by id limit $3::int8 + 1
),
few as materialized (select count(*) <= $3::int8 and coalesce(sum(bytes), 0) <= $4::int8 as few from found),
taken as (
    delete from anabranch.captured
    where database_id = $1::int8::int and (select few from few) and id = any(array(select number from found))
    returning *
)
select few.few, {COLUMNS} from few left join taken on true order by id
""".encode()

# A marker of another transaction shows that a table was altered since the group began; ``known`` are those that it knew
# then. One of this transaction is that of a table that code of the application has made.
UNKNOWN_MARKER = """(
    select true from anabranch.captured marker
    where marker.database_id = $1::int8::int and marker.type = 4 and marker.id <> all ({known})
      and marker.xid is distinct from pg_current_xact_id_if_assigned() limit 1
)"""
OWN = f"""(
    select true from anabranch.captured
    where database_id = $1::int8::int and id > $2::int8 and xid = pg_current_xact_id_if_assigned() and {CHANGE} limit 1
)"""

ANY_OWN = f"select true where {OWN} is not null".encode()

ANY_OWN_OR_MARKER = f"""
select true where {OWN} is not null or {UNKNOWN_MARKER.format(known="$3::int8[]")} is not null
""".encode()

ANY_OR_MARKER = f"""
select true
where (select true from anabranch.captured where database_id = $1::int8::int and {CHANGE} limit 1) is not null
   or {UNKNOWN_MARKER.format(known="$2::int8[]")} is not null
""".encode()

DATABASES = b"""
select d.id from anabranch.databases d
where (select true from anabranch.captured c where c.database_id = d.id limit 1) is not null
"""

COUNT = b"""
select count(*) from (select from anabranch.captured where database_id = $1::int8::int limit $2::int8) a
"""

DELETE = b"""
delete from anabranch.captured where database_id = $1::int8::int and id = any($2::int8[])
"""

# Our own triggers are those whose functions are ours.
TABLES_WITH_TRIGGERS = """
select c.relname::text, bit_or(t.tgtype)::int8 from pg_catalog.pg_trigger t
join pg_catalog.pg_class c on c.oid = t.tgrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join pg_catalog.pg_proc p on p.oid = t.tgfoid
join pg_catalog.pg_namespace f on f.oid = p.pronamespace
where n.nspname = %(schema)s and not t.tgisinternal and f.nspname <> 'anabranch'
group by c.relname
"""

# The system's own objects have no entries in pg_depend. A type of the application's own may have functions of its own,
# save for an enumeration. A table too many costs a look at a group's end; a missing one is found there as well.
TABLES_WITH_CODE = """
with made_with (relation, classid, objid) as (
    select d.adrelid, 'pg_catalog.pg_attrdef'::pg_catalog.regclass, d.oid from pg_catalog.pg_attrdef d
    union all
    select k.conrelid, 'pg_catalog.pg_constraint'::pg_catalog.regclass, k.oid from pg_catalog.pg_constraint k
    where k.contype in ('c', 'x')
    union all
    select i.indrelid, 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid from pg_catalog.pg_index i
)
select c.relname::text from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = %(schema)s and c.relkind in ('r', 'p') and (
    exists (
        select from made_with m join pg_catalog.pg_depend d on d.classid = m.classid and d.objid = m.objid
        where m.relation = c.oid and d.refclassid = any(array[
            'pg_catalog.pg_proc'::pg_catalog.regclass, 'pg_catalog.pg_operator'::pg_catalog.regclass,
            'pg_catalog.pg_opclass'::pg_catalog.regclass, 'pg_catalog.pg_opfamily'::pg_catalog.regclass])
    ) or exists (
        select from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.atttypid >= 16384 and t.typtype <> 'e'
    )
)
"""
_EVENTS = ((4, MutationType.INSERT), (8, MutationType.DELETE), (16, MutationType.UPDATE))
"""Bits of ``pg_trigger.tgtype``."""


def tables_with_code(conn: Connection, schema_name: str) -> dict[str, frozenset[MutationType]]:
    """The tables of a schema that have code of the application's (in triggers or in defaults, checks, indexes and
    types), with the kinds of changes that run it."""
    parameters = {"schema": schema_name}
    rows = conn.execute(TABLES_WITH_TRIGGERS, parameters)
    found = {name: frozenset(kind for bit, kind in _EVENTS if bits & bit) for name, bits in rows}
    for (name,) in conn.execute(TABLES_WITH_CODE, parameters):
        found[name] = found.get(name, frozenset()) | {MutationType.INSERT, MutationType.UPDATE}
    return found


def read(conn: Connection, database_id: int, most: int, most_bytes: int = MOST_BYTES) -> list[Captured]:
    """The first ``most`` changes that wait, in order; fewer where they have more than ``most_bytes``, and then one more
    than fits. Both images are left out where one has more than ``LARGE_BYTES``."""
    changes = []
    for *fields, old_size, new_size in run(conn, READ, [int8(database_id), int8(most), int8(most_bytes)]).fetchall():
        change = Captured._make(fields)
        if max(old_size or 0, new_size or 0) > LARGE_BYTES:
            change = change._replace(old=None, new=None)
        changes.append(change)
    return changes


def size(rows: Sequence[Captured]) -> int:
    """How many bytes the images of changes have."""
    return sum(image_size(image) for row in rows for image in (row.old, row.new) if image is not None)


def read_arrived(conn: Connection, database_id: int, but: Sequence[int], most: int) -> list[Captured]:
    """The first ``most`` changes of other transactions, those of the numbers ``but`` left out; fewer where they have
    more than ``MOST_BYTES``, and then one more than fits."""
    return captured_of(run(conn, READ_ARRIVED, [int8(database_id), int8_array(but), int8(most), int8(MOST_BYTES)]))


def read_depended_on(
    conn: Connection,
    database_id: int,
    bringing: Collection[int],
    removing: Collection[int],
    but: Sequence[int],
    most: int,
) -> list[Captured]:
    """The first ``most`` changes of other transactions, those of the numbers ``but`` left out, that a group may depend
    on: those that may have added a value to the tables ``bringing``, or taken one from the tables ``removing``. Fewer
    where they have more than ``MOST_BYTES``, and then one more than fits."""
    tables = [int8_array(sorted(bringing)), int8_array(sorted(removing))]
    parameters = [int8(database_id), *tables, int8_array(but), int8(most), int8(MOST_BYTES)]
    return captured_of(run(conn, READ_DEPENDED_ON, parameters))


def take_own(
    conn: Connection, database_id: int, after: int, most: int, most_bytes: int = MOST_BYTES
) -> list[Captured] | None:
    """Take out of the table the changes that this transaction's own statements have caused, behind the number
    ``after``; None, and nothing is taken, where these are more than ``most`` changes, or ``most_bytes``."""
    rows = run(conn, TAKE_OWN, [int8(database_id), int8(after), int8(most), int8(most_bytes)]).fetchall()
    if not rows[0][0]:
        return None
    return [Captured._make(row[1:]) for row in rows if row[1] is not None]


def ask_for_own(conn: Connection, database_id: int, after: int) -> Cursor:
    """Ask for any change that this transaction's own statements have caused; the answer is a row, or none."""
    return run(conn, ANY_OWN, [int8(database_id), int8(after)])


def ask_between(conn: Connection, database_id: int, after: int | None, markers: Sequence[int] = ()) -> Cursor:
    """Ask for what a group may not be committed behind: a change that its own statements have caused, behind the number
    ``after`` (None: any change at all), or a marker but ``markers``; the answer is a row, or none."""
    if after is None:
        return run(conn, ANY_OR_MARKER, [int8(database_id), int8_array(markers)])
    return run(conn, ANY_OWN_OR_MARKER, [int8(database_id), int8(after), int8_array(markers)])


def databases(conn: Connection) -> list[int]:
    """The numbers of the databases in which changes wait."""
    return [row[0] for row in run(conn, DATABASES, ())]


def count(conn: Connection, database_id: int, most: int) -> int:
    """How many changes wait, counted no further than ``most``."""
    [(number,)] = run(conn, COUNT, [int8(database_id), int8(most)]).fetchall()
    return int(number)


def delete(conn: Connection, database_id: int, ids: Sequence[int]) -> Cursor:
    """Delete changes."""
    return run(conn, DELETE, [int8(database_id), int8_array(ids)])


def captured_of(cursor: Cursor) -> list[Captured]:
    """The changes that a statement with ``COLUMNS`` returns."""
    return [Captured._make(row) for row in cursor.fetchall()]


Row = list[Cell]


def check_carried(database: Database, changes: Sequence[Captured], unreadable: Collection[str] = ()) -> None:
    """Check that changes have their images.

    Raises:
        UndecodableError: one has none, since it is of a row that is too large.
    """
    for change in changes:
        if change.old is None and change.new is None:
            table = database.tables_by_id.get(change.table_id)
            if table is not None and table.name not in unreadable:
                raise UndecodableError(table, f"a row has more than {CARRIED_BYTES // 2**20} MiB")


def images(
    conn: Connection,
    database: Database,
    changes: Sequence[Captured],
    unreadable: Collection[str] = (),
    older: OlderImages | None = None,
    altered: Callable[[Table], None] | None = None,
) -> tuple[list[Row | None], list[Row | None]]:
    """The rows before and after each change, as cells in the order of their tables' columns; None where there is none,
    and for changes of tables that are not synced any more or ``unreadable``. ``older`` reads those that are older than
    their tables are; ``altered`` is called with a table where it or its images have other columns than are registered.

    Raises:
        UndecodableError: a table is no longer what it was when it was registered; the transaction may have failed.
    """
    before: list[Row | None] = [None] * len(changes)
    after: list[Row | None] = [None] * len(changes)
    shapes: dict[tuple[int, int], Shape | None] = {}
    wanted: dict[tuple[int, int], list[tuple[list[Row | None], int, bytes]]] = {}
    for place, change in enumerate(changes):
        if change.old is None and change.new is None:
            check_carried(database, [change], unreadable)
        shape = None if older is None else older.shape_of(change.table_id, change.id)
        shapes[change.table_id, id(shape)] = shape
        of_table = wanted.setdefault((change.table_id, id(shape)), [])
        if change.old is not None:
            of_table.append((before, place, change.old))
        if change.new is not None:
            of_table.append((after, place, change.new))
    for (number, named), of_table in wanted.items():
        shape = shapes[number, named]
        table = database.tables_by_id.get(number)
        if table is None or table.name in unreadable:
            continue
        rows = _decoded(conn, database, table, shape, [raw for _, _, raw in of_table], older, altered)
        for (into, place, _), row in zip(of_table, rows, strict=True):
            into[place] = row
    return before, after


def _decoded(
    conn: Connection,
    database: Database,
    table: Table,
    shape: Shape | None,
    raws: Sequence[bytes],
    older: OlderImages | None,
    altered: Callable[[Table], None] | None,
) -> list[Row]:
    """The rows of images of one table, which had ``shape``, None where that is its present one."""
    if older is not None and shape is not None:
        return decode_older(conn, table, shape, raws, older)
    look = None if altered is None else partial(altered, table)
    if older is None or not older.may_be_older(table.id):
        return decode(conn, database.schema_name, table, raws, altered=look)
    try:
        with conn.transaction():
            return decode(conn, database.schema_name, table, raws, altered=look)
    except UndecodableError:
        # A writer may have gone on with a type as it was before.
        return decode_older(conn, table, older.shapes.current[table.id], raws, older)
