"""Tables that are altered while a resolver commits groups: what the log has of it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import change_pb2, position_pb2, snapshot_pb2, value_pb2
from anabranch.values import Column
from anabranch.values.canonical import RowEncoder, table_sum
from anabranch.values.messages import column_reader
from anabranch.wire.enum_names import enum_name

Told = tuple[str, str, str, Mapping[str, Any]]
"""Table, key, type and values of an effect, all by identities."""

JOBS = """
create table job (id text primary key, title text, n integer, colour text);
create table other (id text primary key, title text)
"""
JOB_ROWS = "insert into app.job values ('1', 'one', 1, 'red'), ('2', 'two', 2, 'blue')"
_DROP_TRIGGERS = """
do $$
declare one text;
begin
    for one in select evtname from pg_event_trigger where evtname like 'anabranch%' loop
        execute format('drop event trigger %I', one);
    end loop;
end $$
"""


def unwatched(rig: ResolverRig) -> ResolverRig:
    """The rig, in whose database no event trigger tells of DDL any more."""
    rig.sql(_DROP_TRIGGERS)
    return rig


def alter(rig: ResolverRig, *statements: str) -> None:
    """Run statements as a migration does: somebody else's, in one transaction, with the application's schema in the
    path."""
    with rig.session() as somebody:
        somebody.execute(f"set search_path to {rig.name}")
        for statement in statements:
            somebody.execute(statement.encode())


def settle(rig: ResolverRig) -> None:
    """Commit groups until none finds anything, and compare only then: what is written behind a change of tables may be
    in a later group.

    Raises:
        AssertionError: a hundred found something.
    """
    assert rig.commit is not None
    for _ in range(100):
        if not rig.commit(rig.database.id, 1_000, 0):
            rig.check()
            follow(rig)
            return
    raise AssertionError("the resolver goes round and round")


def follow(rig: ResolverRig) -> None:
    """Follow the log as a device does, from its beginning: a change of tables first, then the effects of its position.

    Raises:
        AssertionError: it does not lead to the rows.
    """
    tables = dict(rig.database.tables)
    columns = {
        name: {column.name: column for column in (*table.columns, *(one.column for one in table.former))}
        for name, table in tables.items()
    }
    rows: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in tables}
    changes = dict(
        rig.sql("select position, change from anabranch.schema_changes where database_id = %s", [rig.database.id])
    )
    effects = rig.sql(
        "select position, key, effect from anabranch.log where database_id = %s order by position, batch_id, ordinal",
        [rig.database.id],
    )
    pulled = set()
    by_position: dict[int, list[tuple[str, bytes]]] = {position: [] for position in changes}
    for position, key, raw in effects:
        by_position.setdefault(position, []).append((key, raw))
    for position in sorted(by_position):
        if position in changes:
            message = snapshot_pb2.SchemaChange.FromString(changes[position])
            pulled |= set(message.pulled)
            for altered in message.tables:
                _alter(rows.get(altered.name, {}), altered, columns.get(altered.name, {}))
        for key, raw in by_position[position]:
            effect = change_pb2.Effect.FromString(raw)
            if effect.table in tables and effect.table not in pulled:
                _apply(rows[effect.table], key, effect, columns[effect.table])
    for name in tables.keys() - pulled:
        table = tables[name]
        found = [[row[column] for column in table.column_names] for row in rows[name].values()]
        [(count, total)] = rig.sql(
            "select row_count, row_hash from anabranch.table_sums where table_id = %s", [table.id]
        )
        assert table_sum(RowEncoder(table), found) == (count, int.from_bytes(total, "big")), f"log of {name}"


def _alter(rows: dict[str, dict[str, Any]], altered: snapshot_pb2.Table, columns: Mapping[str, Column]) -> None:
    names = [column.name for column in altered.columns]
    for row in rows.values():
        for gone in row.keys() - set(names):
            del row[gone]
        for column in altered.columns:
            if column.name not in row:
                assert column.HasField("initial"), f"{column.name} came with no value for the rows that are there"
                row[column.name] = (
                    column_reader(columns[column.name])(column.initial) if column.name in columns else None
                )


def _apply(rows: dict[str, dict[str, Any]], key: str, effect: change_pb2.Effect, columns: Mapping[str, Column]) -> None:
    kind = enum_name(change_pb2.EffectType, effect.type)
    cells = {
        name: column_reader(columns[name])(value) if name in columns else None
        for name, value in zip(effect.columns, effect.values, strict=True)
    }
    if kind == "INSERT":
        rows[key] = cells
    elif kind == "UPDATE":
        assert rows[key].keys() >= cells.keys(), f"an effect names columns that its table has not: {cells}"
        rows[key].update(cells)
    elif kind == "DELETE":
        del rows[key]


def change(rig: ResolverRig) -> snapshot_pb2.SchemaChange:
    """The last change of the tables."""
    [(message,)] = rig.sql(
        "select change from anabranch.schema_changes where database_id = %s order by version desc limit 1",
        [rig.database.id],
    )
    return snapshot_pb2.SchemaChange.FromString(message)


def versions(rig: ResolverRig) -> list[tuple[int, int]]:
    """The schema versions and their positions."""
    return [
        (version, position)
        for version, position in rig.sql(
            "select version, position from anabranch.schema_changes where database_id = %s order by version",
            [rig.database.id],
        )
    ]


def told(rig: ResolverRig, after: int = 0, until: int = 2**62) -> list[Told]:
    """The log's effects of the positions behind ``after``, in its order."""
    found: list[Told] = []
    for key, raw in rig.sql(
        "select key, effect from anabranch.log where database_id = %s and position > %s and position <= %s"
        " order by position, batch_id, ordinal",
        [rig.database.id, after, until],
    ):
        effect = change_pb2.Effect.FromString(raw)
        cells = {name: plain(value) for name, value in zip(effect.columns, effect.values, strict=True)}
        kind = enum_name(change_pb2.EffectType, effect.type)
        found.append((effect.table, key, kind, cells))
    return found


def values_told(rig: ResolverRig, after: int = 0) -> list[tuple[str, Mapping[str, Any]]]:
    """Key and values beside the key of the UPDATE effects behind ``after``, by key."""
    updates = [(key, cells) for _, key, kind, cells in told(rig, after) if kind == "UPDATE"]
    return sorted((key, {n: c for n, c in cells.items() if n != "id"}) for key, cells in updates)


def plain(value: value_pb2.Value) -> Any:
    """A value as Python has it."""
    arm = value.WhichOneof("kind")
    if arm in (None, "null_value"):
        return None
    found = getattr(value, arm)
    return base64.b64encode(found) if isinstance(found, bytes) else found


def group_of(rig: ResolverRig, position: int) -> tuple[int, int, list[str]]:
    """How many batches and changes a group has, and the tables whose sums it tells."""
    [(batches, changes, sums)] = rig.sql(
        "select batches, changes, sums from anabranch.groups where database_id = %s and position = %s",
        [rig.database.id, position],
    )
    return batches, changes, [position_pb2.TableSum.FromString(raw).table for raw in sums]


def lost(rig: ResolverRig) -> list[tuple[str, str, Any, int]]:
    """Key, column, value and cause of every value that lost."""
    return [
        (key, column, plain(value_pb2.Value.FromString(raw)), cause)
        for key, column, raw, cause in rig.sql(
            "select key, column_name, losing_value, cause::int from anabranch.conflicts where database_id = %s"
            " order by position, batch_id, ordinal",
            [rig.database.id],
        )
    ]


def markers(rig: ResolverRig) -> int:
    """How many markers wait."""
    [(count,)] = rig.sql("select count(*) from anabranch.captured where type = 4")
    return int(count)
