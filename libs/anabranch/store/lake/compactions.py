"""The compactor's reads and writes in Postgres: the moment of a run, the sums that prove it, its publication.

A run sees one moment: a transaction in REPEATABLE READ in which the head, the table sums, the sums of the log and,
where a table gets its first base, the table's rows are read; executors join it by its exported snapshot. Publishing is
one statement in a transaction of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.columnar.proof import Sum
from anabranch.errors import ServerError
from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.engine import Session

BEGIN = "begin isolation level repeatable read read only"
SNAPSHOT = "select pg_export_snapshot()"
HEAD = """
select coalesce((select position from anabranch.groups where database_id = %(db)s order by position desc limit 1), 0)
"""
TABLE_SUMS = """
select s.table_id, s.row_count, s.row_hash
from anabranch.table_sums s join anabranch.synced_tables t on t.id = s.table_id where t.database_id = %(db)s
"""
CUTS = """
select max(position)
from (select position, (sum(changes) over (order by position) - changes) / %(size)s as part
      from anabranch.groups where database_id = %(db)s and position > %(after)s and position <= %(upto)s) g
group by part order by 1
"""
"""The last position of each part of the log with about ``size`` changes. No group is cut."""

# A sum for each byte of a hash, since that costs least; Python puts them together.
_BYTE_SUMS = ", ".join(f"sum(get_byte(hash, {at}))" for at in range(16))
NEVER_SORT = "set local enable_sort = off"
"""Groups are few. Where statistics are old, Postgres would sort the whole log by table to add it up."""
LOG_SUMS = f"""
select table_id, count(*), coalesce(sum(bytes), 0), {_BYTE_SUMS}
from (select table_id, effect_hash as hash, octet_length(effect) as bytes from anabranch.log
      where database_id = %(db)s and position > %(after)s and position <= %(upto)s) l
group by table_id
"""
CONFLICT_SUMS = f"""
select table_id, count(*), coalesce(sum(bytes), 0), {_BYTE_SUMS}
from (select table_id, octet_length(losing_value) + octet_length(key) as bytes, sha256(
          convert_to(concat_ws(chr(31), position, batch_id, ordinal, key, column_name, losing_batch, losing_node,
                               winning_batch, winning_node, nullif(cause, 0)), 'UTF8') || losing_value) as hash
      from anabranch.conflicts
      where database_id = %(db)s and position > %(after)s and position <= %(upto)s) c
group by table_id
"""
"""Conflicts have no hash of their own: the first 128 bits of SHA-256 over their fields (CONFLICT_FIELDS of
``columnar.file_columns``, in that order, and the cause where there is one) and their value."""

PUBLISHED = """
select run_id, epoch, from_position, to_position, changes, root, manifest, published_ms
from anabranch.compactions where database_id = %(db)s order by published_ms, to_position
"""
RECENT = """
select run_id, epoch, from_position, to_position, changes, root, manifest, published_ms
from anabranch.compactions c
where database_id = %(db)s and epoch = %(epoch)s
      and to_position >= coalesce((select max(to_position) from anabranch.compactions n
                                   where n.database_id = %(db)s and n.epoch = %(epoch)s and n.published_ms < %(since)s),
                                  -1)
order by to_position
"""
"""Readers follow a run until the next one is published, however long that takes: so the last one from before, too."""
FORGET_FILES = """
update anabranch.compactions c
set manifest = jsonb_set(c.manifest, '{tables}', coalesce(
        (select jsonb_object_agg(t.key, t.value || '{"changes": [], "conflicts": [], "base": null, "ended": [],
                                                     "earlier": []}')
         from jsonb_each(c.manifest -> 'tables') t), '{}')) || '{"forgotten": true}'
where c.database_id = %(db)s and not c.manifest ? 'forgotten'
      and exists (select from anabranch.compactions later where later.database_id = c.database_id
                  and later.epoch = c.epoch and later.to_position > c.to_position and later.published_ms < %(since)s)
"""
"""Each manifest names every file of the lake, so that all of them together would grow with the square of the runs. The
tables' columns stay (``run_shapes``). Runs that are already marked as forgotten are left out."""
LAST = """
select run_id, epoch, from_position, to_position, changes, root, manifest, published_ms
from anabranch.compactions where database_id = %(db)s and epoch = %(epoch)s order by to_position desc limit 1
"""
PUBLISH = """
insert into anabranch.compactions
    (database_id, run_id, epoch, from_position, to_position, changes, root, manifest, published_ms)
select d.id, %(run)s, d.epoch, %(after)s, %(upto)s, %(changes)s, %(root)s, %(manifest)s::jsonb, %(now)s
from anabranch.databases d where d.id = %(db)s and d.epoch = %(epoch)s
on conflict do nothing
"""
BEGINS = """
select coalesce(min(from_position), 0) from anabranch.compactions where database_id = %(db)s and epoch = %(epoch)s
"""
WHOSE = """
select c.run_id from anabranch.compactions c
where c.database_id = %(db)s and c.epoch = %(epoch)s and c.from_position = %(after)s
"""
TAIL = """
select position, batch_id, ordinal, node_id, type, key, changed, effect from anabranch.log
where database_id = %(db)s and table_id = %(table)s and position > %(after)s
      and (%(key)s::text is null or key = %(key)s)
order by position, batch_id, ordinal limit %(limit)s
"""
PAGES = """
select pg_relation_size(t) / current_setting('block_size')::int, pg_table_size(t) from (select %s::regclass as t) o
"""


class NotPublishedError(ServerError):
    """Another run has published the same stretch, or the database's epoch has moved: this run's files are unused."""


@dataclass(frozen=True, slots=True)
class LogSum:
    """``effects``: number and sum of the hashes of effects, or of conflicts. ``bytes``: their size."""

    effects: Sum
    bytes: int


@dataclass(frozen=True, slots=True)
class Published:
    """A published run."""

    run_id: str
    epoch: str
    from_position: int
    to_position: int
    changes: int
    root: str
    manifest: Mapping[str, Any]
    published_ms: int


def begin_moment(conn: Session) -> None:
    """Begin the transaction of a run, in a session in autocommit. The next query takes the moment."""
    conn.execute(BEGIN)
    conn.execute(NEVER_SORT)


def lock_rows(conn: Session, schema_name: str, tables: Iterable[str]) -> None:
    """Lock tables, by their names in SQL, ACCESS SHARE, before the moment is taken: a TRUNCATE that commits in between
    would read as an empty table."""
    for name in tables:
        conn.execute(f"lock table {quote(schema_name)}.{quote(name)} in access share mode".encode())


def export_snapshot(conn: Session) -> str:
    """The name by which other sessions see the same moment, while the transaction lasts."""
    return str(_one(conn, SNAPSHOT, {})[0])


def read_head(conn: Session, database_id: int) -> int:
    """The last group's position; 0 where there is none."""
    return int(_one(conn, HEAD, {"db": database_id})[0])


def read_table_sums(conn: Session, database_id: int) -> dict[int, Sum]:
    """Number of rows and sum of their hashes, by table."""
    rows = conn.execute(TABLE_SUMS, {"db": database_id}).fetchall()
    return {number: Sum(count, int.from_bytes(digest, "big")) for number, count, digest in rows}


def read_cuts(conn: Session, database_id: int, after: int, upto: int, size: int) -> list[int]:
    """The last position of each part of (``after``, ``upto``] with about ``size`` changes."""
    rows = conn.execute(CUTS, {"db": database_id, "after": after, "upto": upto, "size": size}).fetchall()
    return [position for (position,) in rows]


def read_log_sums(conn: Session, database_id: int, after: int, upto: int) -> dict[int, LogSum]:
    """The sums of (``after``, ``upto``] by table, from the stored hashes."""
    rows = conn.execute(LOG_SUMS, {"db": database_id, "after": after, "upto": upto}).fetchall()
    return {number: LogSum(_sum(count, sums), int(size)) for number, count, size, *sums in rows}


def read_conflict_sums(conn: Session, database_id: int, after: int, upto: int) -> dict[int, LogSum]:
    """Number of conflicts of (``after``, ``upto``] and the sum of their hashes, by table; the size of their values."""
    rows = conn.execute(CONFLICT_SUMS, {"db": database_id, "after": after, "upto": upto}).fetchall()
    return {number: LogSum(_sum(count, sums), int(size)) for number, count, size, *sums in rows}


def _sum(count: int, sums: Sequence[int]) -> Sum:
    total = 0
    for one in sums:
        total = (total << 8) + one
    return Sum() + Sum(count, total)


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a table. ``pages``: a row that the moment shows is in one of them. ``bytes``: the space of the table,
    long values included."""

    pages: int
    bytes: int


def read_extent(conn: Session, schema_name: str, table: str) -> Extent:
    """How large a table (by its name in SQL) is."""
    [(pages, size)] = conn.execute(PAGES, (f"{quote(schema_name)}.{quote(table)}",)).fetchall()
    return Extent(int(pages), int(size))


@dataclass(frozen=True, slots=True)
class TailRow:
    """A row of the log that is in no file yet. ``effect`` is a serialized ``anabranch.v1.Effect``."""

    position: int
    batch_id: str
    ordinal: int
    node_id: str
    type: int
    key: str
    changed: Sequence[str]
    effect: bytes


def read_tail(
    conn: Session, database_id: int, table_id: int, after: int, *, key: str | None, limit: int
) -> list[TailRow]:
    """The log of a table after a position, in its order: of the row ``key`` (its key text), or of all; ``limit`` rows
    at the most."""
    values = {"db": database_id, "table": table_id, "after": after, "key": key, "limit": limit}
    return [TailRow(*row) for row in conn.execute(TAIL, values).fetchall()]


def lake_begins(conn: Session, database_id: int, epoch: str) -> int:
    """The position up to which an epoch's lake has no changes."""
    return int(_one(conn, BEGINS, {"db": database_id, "epoch": epoch})[0])


def last_published(conn: Session, database_id: int, epoch: str) -> Published | None:
    """The newest published run of an epoch; None where there is none."""
    row = conn.execute(LAST, {"db": database_id, "epoch": epoch}).fetchone()
    return None if row is None else Published(*row)


def all_published(conn: Session, database_id: int) -> list[Published]:
    """Every published run, oldest first."""
    return [Published(*row) for row in conn.execute(PUBLISHED, {"db": database_id}).fetchall()]


def recently_published(conn: Session, database_id: int, epoch: str, since_ms: int) -> list[Published]:
    """The runs of an epoch that a reader may have followed since then; oldest first."""
    values = {"db": database_id, "epoch": epoch, "since": since_ms}
    return [Published(*row) for row in conn.execute(RECENT, values).fetchall()]


def forget_files(conn: Session, database_id: int, before_ms: int) -> int:
    """Remove the files' names from the manifests of runs that no reader has followed since then, because later ones
    were published before; return the number of runs. The runs stay: they prove the compacted stretches."""
    return conn.execute(FORGET_FILES, {"db": database_id, "since": before_ms}).rowcount


def publish(
    conn: Session,
    database_id: int,
    *,
    run_id: str,
    epoch: str,
    after: int,
    upto: int,
    changes: int,
    root: str,
    manifest: Mapping[str, Any],
    now_ms: int,
) -> None:
    """Publish a run. Publishing the same run again changes nothing.

    Raises:
        NotPublishedError: another run has the stretch, or the epoch is another one by now.
    """
    values = {
        "db": database_id,
        "run": run_id,
        "epoch": epoch,
        "after": after,
        "upto": upto,
        "changes": changes,
        "root": root,
        "manifest": json.dumps(manifest),
        "now": now_ms,
    }
    if conn.execute(PUBLISH, values).rowcount == 1:
        return
    row = conn.execute(WHOSE, values).fetchone()
    if row is None:
        raise NotPublishedError(f"the database's epoch is no longer {epoch}")
    if row[0] != run_id:
        raise NotPublishedError(f"run {row[0]} has already published the stretch after {after}")


def _one(conn: Session, statement: str, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
    row = conn.execute(statement.encode(), parameters).fetchone()
    assert row is not None
    return row
