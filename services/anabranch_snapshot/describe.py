"""The verb of Describe: a database as its nodes have to know it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from anabranch import limits
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.sure import Sure
from anabranch.store.log.reader import Sums
from anabranch.store.log.schema_versions import SchemaVersion
from anabranch.v1 import snapshot_pb2
from anabranch.values import Table
from anabranch.wire.tables import ColumnFacts, table_message
from anabranch_snapshot.app_versions import describe_then, tables_then

LIMITS = snapshot_pb2.Limits(
    max_batch_bytes=limits.MAX_BATCH_BYTES,
    max_batch_mutations=limits.MAX_BATCH_MUTATIONS,
    max_batch_rows=limits.MAX_BATCH_ROWS,
    max_request_envelopes=limits.MAX_REQUEST_ENVELOPES,
    max_request_bytes=limits.MAX_REQUEST_BYTES,
    max_value_bytes=limits.MAX_VALUE_BYTES,
    max_key_bytes=limits.MAX_KEY_BYTES,
)


def describe(
    database: Database, sums: Sums, sure: Mapping[tuple[str, str], Sure], since: Sequence[SchemaVersion] = ()
) -> snapshot_pb2.DescribeResponse:
    """Describe the database, without the server's state, as an app knows it that was built before the changes
    ``since``. ``sums`` give the numbers of rows, but for restricted tables; ``sure`` the values that Postgres refuses
    today, by names in SQL.

    Raises:
        OutdatedError: these changes can't be told to such an app.
    """
    policy = database.policy
    response = snapshot_pb2.DescribeResponse(
        tables=_tables(database, {row.table: row.count for row in sums.open_rows}, sure),
        policy=snapshot_pb2.DatabasePolicy(
            order=policy.order,
            resurrect=policy.resurrect,
            delete=policy.delete,
            park_ms=policy.park_ms,
            retention_days=policy.retention_days,
            max_absence_days=policy.absence_days,
            on_rewind=policy.on_rewind,
        ),
        limits=LIMITS,
        version=database.ddl_version,
    )
    if since:
        describe_then(response, tables_then(database.tables.values(), since))
    return response


def _tables(
    database: Database, counts: dict[str, int], sure: Mapping[tuple[str, str], Sure]
) -> Iterator[snapshot_pb2.Table]:
    for name in database.table_order:
        table = database.tables[name]
        message = table_message(
            table, _facts(table, sure), changed_position=database.changed_positions.get(name, 0), policies=True
        )
        message.estimated_rows = counts.get(name, 0)
        message.every_device_sees_every_row = database.table_policies[name].every_device_sees_every_row
        message.restricted = name in database.restricted
        yield message


def _facts(table: Table, sure: Mapping[tuple[str, str], Sure]) -> Mapping[str, ColumnFacts]:
    found = {column.name: sure.get((table.sql_name, column.sql_name)) for column in table.columns}
    return {name: ColumnFacts(one.base_type, one.labels, one.refuses_null) for name, one in found.items() if one}
