"""A command that drops thousands of tables reads the record once, and not for each of them."""

from __future__ import annotations

import pytest

from .conftest import World

TABLES, SYNCED, MARKERS = 1_500, 12, 60


@pytest.fixture
def many(world: World) -> World:
    """A world with tables that are not synced in schemas app and parts, beside synced ones whose changes wait."""
    for name in ("ddl", "drop", "rewrite"):
        world.sql(f"alter event trigger anabranch_{name} disable")
    world.sql("create schema parts; create table parts.whole (id int not null default 1) partition by range (id)")
    world.sql(
        f"""do $$ begin for n in 1..{TABLES} loop
        execute format('create table parts.p%s partition of parts.whole for values from (%s) to (%s)', n, n, n + 1);
        end loop; end $$"""
    )
    world.sql(
        f"""do $$ begin for n in 1..{TABLES} loop
        execute format('create table app.u%s (id int)', n);
        end loop; end $$"""
    )
    for number in range(SYNCED):
        world.sql(f"create table app.t{number} (id text primary key, a text)")
    for name in ("ddl", "drop", "rewrite"):
        world.sql(f"alter event trigger anabranch_{name} enable always")
    world.add(*(f"t{number}" for number in range(SYNCED)))
    for number in range(MARKERS):
        world.sql(f"alter table app.t{number % 3} add column c{number} int")
    assert len(world.markers()) == MARKERS
    return world


def reads(world: World) -> int:
    """The rows of our tables that this transaction has read."""
    [(count,)] = world.rows(
        "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int8 from pg_stat_xact_user_tables"
        " where schemaname = 'anabranch'"
    )
    return int(count)


@pytest.mark.slow
def test_of_schemas(many: World) -> None:
    for schema, gone in (("parts", 0), ("app", SYNCED)):
        with many.conn.transaction():
            before = reads(many)
            many.sql(f"drop schema {schema} cascade")
            read = reads(many) - before
        markers = many.markers()[MARKERS:]
        assert sorted(marker.sql_name for marker in markers) == sorted(f"t{number}" for number in range(gone))
        assert all(marker.dropped and marker.tag == "DROP SCHEMA" for marker in markers)
        assert read < 50 * (SYNCED + MARKERS), schema
