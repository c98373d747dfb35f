"""The verb of Describe: a database as its nodes have to know it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from anabranch import limits
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.sure import Sure
from anabranch.store.log.reader import Sums
from anabranch.v1 import snapshot_pb2
from anabranch.values import Column

LIMITS = snapshot_pb2.Limits(
    max_batch_bytes=limits.MAX_BATCH_BYTES,
    max_batch_mutations=limits.MAX_BATCH_MUTATIONS,
    max_batch_rows=limits.MAX_BATCH_ROWS,
    max_request_envelopes=limits.MAX_REQUEST_ENVELOPES,
    max_request_bytes=limits.MAX_REQUEST_BYTES,
    max_value_bytes=limits.MAX_VALUE_BYTES,
    max_key_bytes=limits.MAX_KEY_BYTES,
)

_NOTHING = Sure(False, "", ())


def describe(database: Database, sums: Sums, sure: Mapping[tuple[str, str], Sure]) -> snapshot_pb2.DescribeResponse:
    """Describe the database, without the server's state. ``sums`` give the numbers of rows, but for restricted
    tables; ``sure`` the values that Postgres refuses today."""
    policy = database.policy
    return snapshot_pb2.DescribeResponse(
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
    )


def _tables(
    database: Database, counts: dict[str, int], sure: Mapping[tuple[str, str], Sure]
) -> Iterator[snapshot_pb2.Table]:
    for name in database.table_order:
        table = database.tables[name]
        yield snapshot_pb2.Table(
            name=name,
            columns=[_column(column, sure.get((name, column.name), _NOTHING)) for column in table.columns],
            key_columns=table.key_columns,
            estimated_rows=counts.get(name, 0),
            every_device_sees_every_row=database.table_policies[name].every_device_sees_every_row,
            restricted=name in database.restricted,
        )


def _column(column: Column, sure: Sure) -> snapshot_pb2.Column:
    return snapshot_pb2.Column(
        name=column.name,
        kind=column.kind.value,  # type: ignore[arg-type]
        element_kind=None if column.element_kind is None else column.element_kind.value,  # type: ignore[arg-type]
        postgres_type=column.postgres_type,
        not_null=column.not_null,
        generated=column.generated,
        has_default=column.has_default,
        policy=column.policy,
        base_type=sure.base_type,
        enum_labels=sure.labels,
        # Registered so, and still so.
        refuses_null=sure.refuses_null and column.not_null and not column.generated,
    )
