from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from types import SimpleNamespace

import psycopg
import pytest
from alembic import command
from sqlalchemy import text

from anabranch.store import migrate, revisions
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.waiting import until

SCHEMA_TEXT = """
select 'column', table_name, column_name, data_type, coalesce(collation_name, ''), is_nullable,
       coalesce(column_default, ''), is_identity
from information_schema.columns where table_schema = 'anabranch'
union all
select 'index', tablename, indexname, indexdef, '', '', '', '' from pg_indexes where schemaname = 'anabranch'
union all
select 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', '', '', ''
from pg_constraint where connamespace = 'anabranch'::regnamespace
union all
select 'relation', relname, relkind::text, coalesce(array_to_string(reloptions, ','), ''), '', '', '', ''
from pg_class where relnamespace = 'anabranch'::regnamespace
union all
select 'function', oid::regprocedure::text, prosrc, pg_get_function_result(oid), coalesce(proconfig::text, ''),
       '', '', ''
from pg_proc where pronamespace = 'anabranch'::regnamespace
union all
select 'comment', objoid::regclass::text, objsubid::text, description, '', '', '', ''
from pg_description where classoid = 'pg_class'::regclass
  and objoid in (select oid from pg_class where relnamespace = 'anabranch'::regnamespace)
order by 1, 2, 3, 4
"""


def schema_text(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as conn:
        return conn.execute(SCHEMA_TEXT).fetchall()


@pytest.mark.slow
def test_five_at_once_run_it_once_and_leave_what_one_leaves(databases_pair: tuple[str, str]) -> None:
    """P05."""
    alone, together = databases_pair
    assert migrate.upgrade(alone)
    context = multiprocessing.get_context("spawn")
    with psycopg.connect(together, autocommit=True) as conn:
        # All five must be waiting before the first can begin.
        conn.execute("begin; create schema anabranch")
        with ProcessPoolExecutor(5, mp_context=context) as five:
            running = [five.submit(migrate.upgrade, together) for _ in range(5)]
            _wait_for_waiting(conn, 5)
            conn.execute("rollback")
            did = [future.result(timeout=60) for future in running]
    assert sorted(did) == [False, False, False, False, True]
    assert schema_text(together) == schema_text(alone)
    assert migrate.is_current(together)


def _wait_for_waiting(conn: psycopg.Connection[tuple[object, ...]], count: int) -> None:
    statement = """
        select count(*) from pg_stat_activity
        where wait_event_type = 'Lock' and datname = current_database() and application_name = 'anabranch-migrate'
    """
    # Bounded by the server: half a minute in steps that it sleeps through itself.
    for _ in range(600):
        # In a transaction a first look would be the last.
        conn.execute("select pg_stat_clear_snapshot()")
        if conn.execute(statement).fetchone() == (count,):
            return
        conn.execute("select pg_sleep(0.05)")
    raise AssertionError(f"no {count} processes wait for the migration's lock")


@pytest.fixture
def databases_pair(databases: TestDatabases) -> Iterator[tuple[str, str]]:
    urls = databases.fresh(), databases.fresh()
    yield urls
    for url in urls:
        databases.release(url)


def test_a_second_run_changes_nothing(database_url: str) -> None:
    assert migrate.current(database_url) is None
    assert not migrate.is_current(database_url)
    assert migrate.upgrade(database_url)
    before = schema_text(database_url)
    assert before
    assert not migrate.upgrade(database_url)
    assert schema_text(database_url) == before
    assert migrate.current(database_url) == revisions.head()


def test_one_that_fails_leaves_nothing(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("create schema anabranch create table api_keys (mine int)")
    before = schema_text(database_url)
    with pytest.raises(psycopg.errors.DuplicateTable):
        migrate.upgrade(database_url)
    assert schema_text(database_url) == before
    assert migrate.current(database_url) is None


def newer_schema(url: str, revision: str, serves: tuple[str, ...]) -> None:
    """Change the schema as a newer release's upgrade does."""
    migrate.upgrade(url)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"update anabranch.{revisions.VERSION_TABLE} set version_num = %s", (revision,))
        conn.execute(f"delete from anabranch.{revisions.CODE_TABLE}")
        for served in serves:
            conn.execute(f"insert into anabranch.{revisions.CODE_TABLE} values (%s)", (served,))


def test_a_newer_schema_is_left_alone(database_url: str) -> None:
    newer_schema(database_url, "9999", ("9998", "9999"))
    before = schema_text(database_url)
    with pytest.raises(migrate.MigrationError, match=r"revision 9999.*newer"):
        migrate.upgrade(database_url)
    assert not migrate.is_current(database_url)
    assert not migrate.fits(database_url)
    assert schema_text(database_url) == before


def test_a_newer_schema_that_serves_this_release_is_good(database_url: str) -> None:
    """As where an upgrade is rolled back whose migration only added."""
    newer_schema(database_url, "9999", (revisions.head(), "9999"))
    before = schema_text(database_url)
    assert not migrate.upgrade(database_url)
    assert not migrate.is_current(database_url)
    assert migrate.fits(database_url)
    assert schema_text(database_url) == before


def test_an_upgrade_says_which_releases_the_schema_serves(database_url: str) -> None:
    migrate.upgrade(database_url)
    with psycopg.connect(database_url) as conn:
        served = conn.execute(f"select revision from anabranch.{revisions.CODE_TABLE} order by 1 desc").fetchall()
    assert [revision for (revision,) in served] == list(migrate.code_revisions())
    assert revisions.head() in migrate.code_revisions()


@pytest.mark.parametrize(
    ("works_from", "served"),
    [
        ({"0002": "0002", "0003": "0003"}, ["0003"]),
        ({"0002": "0001", "0003": "0002"}, ["0003", "0002"]),
        ({"0002": "0001", "0003": "0001"}, ["0003", "0002", "0001"]),
        ({"0002": "0002", "0003": "0001"}, ["0003", "0002"]),
        ({"0003": "0002"}, ["0003", "0002"]),
    ],
    ids=["nothing older", "contracted", "expanded twice", "not beyond one that serves nobody older", "unsaid: its own"],
)
def test_who_is_served_goes_back_as_far_as_every_migration_allows(
    monkeypatch: pytest.MonkeyPatch, works_from: dict[str, str], served: list[str]
) -> None:
    modules = {revision: SimpleNamespace() for revision in ("0003", "0002", "0001")}
    for revision, oldest in works_from.items():
        modules[revision].works_from = oldest
    scripts = [SimpleNamespace(revision=revision, module=module) for revision, module in modules.items()]
    monkeypatch.setattr(migrate, "_scripts", lambda: SimpleNamespace(walk_revisions=lambda: iter(scripts)))
    assert list(migrate.code_revisions()) == served


@pytest.mark.slow
def test_an_upgrade_that_waits_for_a_table_stops_nobody(database_url: str) -> None:
    """The upgrade waits for a session that holds a table for long (a pull, a dump); writers behind it do not."""
    with migrate._transaction(database_url) as connection:
        connection.execute(text("create schema anabranch"))
        config = migrate._config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0006")  # 0007 alters a table that is there
    with (
        psycopg.connect(database_url) as holder,
        psycopg.connect(database_url, autocommit=True) as writer,
        ThreadPoolExecutor(1) as thread,
    ):
        holder.execute("select from anabranch.synced_tables")
        upgrading = thread.submit(migrate.upgrade, database_url)
        waits = "select count(*) from pg_locks where not granted and relation = 'anabranch.synced_tables'::regclass"
        until(lambda: writer.execute(waits).fetchone() == (1,), 30, "the upgrade doesn't come to the table", upgrading)
        # Behind the upgrade in the table's queue: it has to give up its place.
        writer.execute("set lock_timeout = '10s'")
        writer.execute("delete from anabranch.synced_tables")
        assert not upgrading.done()
        holder.rollback()
        assert upgrading.result(timeout=30)
    assert migrate.is_current(database_url)


def test_a_server_that_comes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([False, False, True])
    monkeypatch.setattr(migrate, "answers", lambda url, name: next(looks))
    migrate.await_server("host=anywhere", 30)
    assert list(looks) == []


def test_nobody_waits_unasked_or_longer_than_asked() -> None:
    nowhere = "postgresql://127.0.0.1:1/nowhere"
    for patience_s in (0, 0.2):
        migrate.await_server(nowhere, patience_s)
    with pytest.raises(psycopg.OperationalError):
        migrate.upgrade(nowhere)


def test_a_server_that_is_not_there_is_the_drivers_error() -> None:
    with pytest.raises(psycopg.OperationalError):
        migrate.upgrade("postgresql://127.0.0.1:1/nowhere")


def test_the_schema_can_be_taken_down_again(database_url: str) -> None:
    migrate.upgrade(database_url)
    with migrate._transaction(database_url) as connection:
        config = migrate._config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    left = {row[1] for row in schema_text(database_url) if row[0] == "relation"}
    assert left == {revisions.VERSION_TABLE, f"{revisions.VERSION_TABLE}_pkc"}
