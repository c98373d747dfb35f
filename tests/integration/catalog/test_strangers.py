"""A role that may connect, and nothing more, holds up no registration, no sweep and no migration by its locks."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from alembic import command

from anabranch.store import migrate
from anabranch.store.catalog.cut_off import dead_upto
from anabranch.store.catalog.gather import add_tables
from anabranch.store.catalog.registration import RegistrationLimits, create_database, remove_table
from anabranch.store.retention import floor
from anabranch.store.session.engine import Session, connect
from anabranch.store.session.own_locks import begin_registration, end_registration
from anabranch.testkit.strangers import stranger

SOON = RegistrationLimits(lock_timeout_ms=2_000)
NAME = "d t"


@pytest.fixture
def conn(migrated_url: str) -> Iterator[Session]:
    with connect(migrated_url, application_name="test", autocommit=True) as session:
        session.execute("create table app.t (id text primary key)")
        yield session


def test_locks_that_were_once_waited_for_hold_up_nothing(conn: Session, migrated_url: str) -> None:
    database = create_database(conn, "d", "app")
    with stranger(migrated_url) as nobody:
        # Of a claim, of janitors, of a registration and of migrations.
        nobody.execute("select pg_advisory_lock(%s, %s)", (0x616E6162, database.id))
        nobody.execute("select pg_advisory_lock(%s, 0)", (0x616E616A,))
        nobody.execute("select pg_advisory_lock(%s, hashtext(%s))", (0x616E6172, NAME))
        nobody.execute("select pg_advisory_lock(%s)", (0x616E61626D696772,))
        assert len(add_tables(conn, "d", ["t"], now_ms=1, limits=SOON)) == 1
        assert dead_upto(conn) > 0
        remove_table(conn, "d", "t", limits=SOON)
        with floor.lead(conn) as leads:
            assert leads is not None
        assert not migrate.upgrade(migrated_url)


def test_a_registration_that_others_hold_is_none_of_ours(conn: Session, migrated_url: str) -> None:
    with connect(migrated_url, application_name="registers", autocommit=True) as registers:
        number = begin_registration(registers, NAME)
        assert number is not None
        assert dead_upto(conn) == 0
        end_registration(registers, number)
    create_database(conn, "d", "app")
    add_tables(conn, "d", ["t"], now_ms=1, limits=SOON)
    with stranger(migrated_url) as nobody:
        # The number of one that has ended, and was there for all to see.
        nobody.execute("select pg_advisory_lock(%s)", (number,))
        assert dead_upto(conn) > 0


@pytest.mark.parametrize("for_transaction", [False, True])
def test_of_two_registrations_of_a_table_one_begins(conn: Session, migrated_url: str, *, for_transaction: bool) -> None:
    with connect(migrated_url, application_name="registers", autocommit=True) as registers:
        with conn.transaction():
            number = begin_registration(conn, NAME, for_transaction=for_transaction)
            assert number is not None
            assert begin_registration(registers, NAME) is None
            assert begin_registration(registers, "d other") is not None
            if not for_transaction:
                end_registration(conn, number)
        assert begin_registration(registers, NAME) is not None


def test_one_of_the_release_before_counts(conn: Session, migrated_url: str) -> None:
    with connect(migrated_url, application_name="registers", autocommit=True) as registers:
        registers.execute("select pg_advisory_lock(%s, hashtext(%s))", (0x616E6172, NAME))
        assert begin_registration(conn, NAME) is None
        assert dead_upto(conn) == 0


def test_databases_that_were_there_have_claims_and_their_groups_stay(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as session:
        session.execute("create schema anabranch")
        with migrate._transaction(database_url) as connection:
            config = migrate._config()
            config.attributes["connection"] = connection
            command.upgrade(config, "0017")
        session.execute(
            "insert into anabranch.databases (name, schema_name, epoch, seal_key, created_ms)"
            " values ('d', 'app', '', '', 0)"
        )
        session.execute("insert into anabranch.groups select id, 7, 1, 1, '', '{}' from anabranch.databases")
        assert migrate.upgrade(database_url)
        assert session.execute("select count(*) from anabranch.claims").fetchone() == (1,)
        assert session.execute("select position, claimed from anabranch.groups").fetchone() == (7, True)
