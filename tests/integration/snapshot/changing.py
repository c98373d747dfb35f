"""Groups that begin with a schema change, as the resolver writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psycopg.types.json import Jsonb

from anabranch.store.log.schema_versions import table_to_json
from anabranch.testkit.log_writer import Logged, LogWriter
from anabranch.v1 import snapshot_pb2
from anabranch.values import Table

CHANGE = """
with next as (
    update anabranch.databases set ddl_version = ddl_version + 1, schema_version = schema_version + 1
    where id = %(database)s returning id, ddl_version
)
insert into anabranch.schema_changes (database_id, version, position, noticed_ms, change, tables)
select n.id, n.ddl_version, g.position, g.position, %(change)s, %(tables)s
from next n, (select max(position) as position from anabranch.groups where database_id = %(database)s) g
returning version, pg_notify('anabranch_catalog', database_id::text)
"""


def commit_change(
    writer: LogWriter,
    change: snapshot_pb2.SchemaChange,
    batches: Sequence[Logged] = (),
    rows: Callable[[], object] | None = None,
    tables: Sequence[tuple[Table | None, Table | None]] = (),
) -> int:
    """Commit a group that begins with ``change``, whose version is made the next one. ``tables``: those that it
    changes, each before and after. Returns its position."""
    kept = {
        str((was or now).id): {"before": table_to_json(was), "after": table_to_json(now)}  # type: ignore[union-attr]
        for was, now in tables
    }

    def store() -> None:
        (version,) = writer.conn.execute(
            "select ddl_version + 1 from anabranch.databases where id = %s", (writer.database.id,)
        ).fetchone() or (0,)
        change.version = version
        writer.conn.execute(
            CHANGE,
            {"database": writer.database.id, "change": change.SerializeToString(), "tables": Jsonb(kept)},
        )

    return writer.commit(batches, rows, before_commit=store)


def change_of(table: str, size: int = 0) -> snapshot_pb2.SchemaChange:
    """A change that names one table; ``size``: about so many bytes long."""
    columns = [snapshot_pb2.Column(name="id"), snapshot_pb2.Column(name="n", postgres_type="x" * size)]
    return snapshot_pb2.SchemaChange(tables=[snapshot_pb2.Table(name=table, columns=columns, key_columns=["id"])])


ALTER = """
update anabranch.synced_tables
set columns = %(columns)s, sql_name = %(sql_name)s, former_columns = %(former)s, changed_position = %(position)s
where id = %(id)s
"""


def register_as(writer: LogWriter, table: Table, position: int) -> None:
    """Have the catalog know a table as it is after the change at ``position``."""
    kept = table_to_json(table)
    assert kept is not None
    writer.conn.execute(
        ALTER,
        {
            "columns": Jsonb(kept["columns"]),
            "sql_name": table.renamed or None,
            "former": Jsonb(kept["former_columns"]),
            "position": position,
            "id": table.id,
        },
    )
