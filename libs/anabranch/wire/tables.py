"""Tables as the contract describes them: in Describe, and in the schema changes of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from anabranch.v1 import snapshot_pb2
from anabranch.values import Column, Table
from anabranch.values.messages import column_writer


class ColumnFacts(NamedTuple):
    """The facts of a column beyond its registration, as Postgres's catalog has them. ``base_type``: of a domain the
    type under it, with its modifiers. ``labels``: of an enum, or of an array of one, in their order.
    ``refuses_null``: a NULL is refused from any writer."""

    base_type: str = ""
    labels: Iterable[str] = ()
    refuses_null: bool = False


_NOTHING = ColumnFacts()
_NO_FACTS: Mapping[str, ColumnFacts] = {}


def table_message(
    table: Table,
    facts: Mapping[str, ColumnFacts] = _NO_FACTS,
    *,
    changed_position: int = 0,
    policies: bool = False,
) -> snapshot_pb2.Table:
    """The description of a table. ``facts``: of its columns, by identity. ``policies``: with the rules of its columns,
    which a schema change does not tell."""
    return snapshot_pb2.Table(
        name=table.name,
        sql_name=table.sql_name if table.sql_name != table.name else "",
        columns=[_column(column, facts.get(column.name, _NOTHING), policies) for column in table.columns],
        key_columns=table.key_columns,
        changed_position=changed_position,
    )


def _column(column: Column, facts: ColumnFacts, policies: bool) -> snapshot_pb2.Column:
    return snapshot_pb2.Column(
        name=column.name,
        sql_name=column.sql_name if column.sql_name != column.name else "",
        kind=column.kind.value,  # type: ignore[arg-type]
        element_kind=None if column.element_kind is None else column.element_kind.value,  # type: ignore[arg-type]
        postgres_type=column.postgres_type,
        not_null=column.not_null,
        generated=column.generated,
        has_default=column.has_default,
        policy=column.policy if policies else "",
        base_type=facts.base_type,
        enum_labels=facts.labels,
        # Registered so, and still so.
        refuses_null=facts.refuses_null and column.not_null and not column.generated,
        initial=column_writer(column)(column.initial[0]) if column.initial else None,
    )
