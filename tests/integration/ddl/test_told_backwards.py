"""The catalog keeps enough of schema changes to tell an app the tables of its version."""

from __future__ import annotations

import pytest

from anabranch.store.log.schema_versions import SchemaVersion, schema_versions
from anabranch.store.log.version_log import version_log
from anabranch.store.session.steps import run
from anabranch_snapshot.app_versions import OutdatedError, TableThen, tables_then

from .conftest import NAME, World


@pytest.fixture(autouse=True)
def tables(world: World) -> None:
    world.sql("create table app.job (id text primary key, title text, minutes integer)")
    world.sql("create table app.site (id text primary key, city text)")
    world.add("job", "site")


def since(world: World, version: int) -> list[SchemaVersion]:
    database = world.database
    return run(world.conn, schema_versions(database.id, version, database.ddl_version))


def then(world: World, version: int) -> dict[str, TableThen]:
    return tables_then(world.database.tables.values(), since(world, version))


def needed(world: World, version: int) -> int:
    with pytest.raises(OutdatedError) as caught:
        then(world, version)
    return caught.value.version


def test_names_are_told_for_each_version(world: World) -> None:
    world.sql("alter table app.job rename title to subject; alter table app.job add note text")
    world.follow()
    world.sql("alter table app.job rename to task; alter table app.task drop column minutes; drop table app.site")
    world.follow()
    first, second = then(world, 1), then(world, 2)
    assert set(first) == set(second) == {"job"}
    assert (first["job"].sql_name, second["job"].sql_name) == ("job", "job")
    assert first["job"].names == {"id": "id", "title": "title", "minutes": "minutes"}
    assert second["job"].names == {"id": "id", "title": "subject", "minutes": "minutes", "note": "note"}
    assert [column.name for column in first["job"].gone] == ["minutes"]
    assert then(world, 3)["job"].sql_name == "task"


def test_what_can_not_be_told_says_since_when(world: World) -> None:
    world.sql("alter table app.site add x int")
    world.follow()
    world.sql("alter table app.job alter minutes type text")
    world.follow()
    assert needed(world, 1) == needed(world, 2) == 3
    assert set(then(world, 3)) == {"job", "site"}
    world.sql("alter table app.site drop constraint site_pkey, add primary key (city)")
    world.follow()
    [change] = since(world, 3)
    assert change.pulled == ("site",)
    assert needed(world, 1) == needed(world, 3) == 4
    assert set(then(world, 4)) == {"job", "site"}


def test_people_are_told_what_changed_and_by_whom(world: World) -> None:
    world.sql("alter table app.job rename title to subject")
    world.follow()
    newest, first = version_log(world.conn, NAME).versions
    assert (newest.version, first.version, first.change) == (2, 1, None)
    assert newest.change is not None
    assert newest.change.texts == ('column "title" is called "subject" of table "job"',)
    assert newest.change.application == "alembic"
    assert newest.change.command == "alter table app.job rename title to subject"
