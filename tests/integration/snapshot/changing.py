"""Groups that begin with a schema change, as the resolver writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from psycopg.types.json import Jsonb

from anabranch.testkit.log_writer import Logged, LogWriter
from anabranch.v1 import snapshot_pb2

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
    tables: Any = None,
) -> int:
    """Commit a group that begins with ``change``, whose version is made the next one. Returns its position."""

    def store() -> None:
        (version,) = writer.conn.execute(
            "select ddl_version + 1 from anabranch.databases where id = %s", (writer.database.id,)
        ).fetchone() or (0,)
        change.version = version
        writer.conn.execute(
            CHANGE,
            {"database": writer.database.id, "change": change.SerializeToString(), "tables": Jsonb(tables or {})},
        )

    return writer.commit(batches, rows, before_commit=store)


def change_of(table: str, size: int = 0) -> snapshot_pb2.SchemaChange:
    """A change that names one table; ``size``: about so many bytes long."""
    columns = [snapshot_pb2.Column(name="id"), snapshot_pb2.Column(name="n", postgres_type="x" * size)]
    return snapshot_pb2.SchemaChange(tables=[snapshot_pb2.Table(name=table, columns=columns, key_columns=["id"])])
