"""A database ``d`` over schema app, and what audiences need of its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.catalog.sums import sum_to_bytes
from anabranch.store.cells.binary_cells import Row
from anabranch.store.session.engine import Session, connect
from anabranch.values.canonical import RowEncoder, table_sum

TABLES = """
create schema app;
create table app.membership (id text primary key, user_id text not null, team_id text);
create table app.job (id text primary key, team_id text, title text, tags text[], n int, big bigint,
                      at timestamptz, day date, code char(4), price numeric(8,2));
create table app.unsynced (id text primary key, user_id text);
"""


@pytest.fixture
def conn(migrated_url: str) -> Iterator[Session]:
    """A session with the database, in which no table is synced yet."""
    with connect(migrated_url, application_name="test", autocommit=True) as session:
        session.execute(TABLES)
        create_database(session, "d", "app")
        yield session


@pytest.fixture
def synced(conn: Session) -> Database:
    """The database with both of its tables synced, both open."""
    add_table(conn, "d", "membership")
    add_table(conn, "d", "job")
    return load_database(conn, "d")


def kept_sums(conn: Session, table: str) -> dict[str, tuple[int, bytes]]:
    """The sums of a table's audiences as they are kept."""
    rows = conn.execute(
        "select s.audience, s.row_count, s.row_hash from anabranch.audience_sums s"
        " join anabranch.synced_tables t on t.id = s.table_id where t.name = %s",
        (table,),
    ).fetchall()
    return {audience: (count, total) for audience, count, total in rows}


def expected_sums(conn: Session, table: str, rows: Mapping[str, Sequence[Row]]) -> dict[str, tuple[int, bytes]]:
    """The sums of these rows by audience."""
    encoder = RowEncoder(load_database(conn, "d").tables[table])
    sums = {audience: table_sum(encoder, of_it) for audience, of_it in rows.items()}
    return {audience: (count, sum_to_bytes(total)) for audience, (count, total) in sums.items()}
