"""Whatever is altered in whatever transactions: the catalog follows, every image is readable, and nothing is left."""

from __future__ import annotations

import random

import psycopg
import pytest

from anabranch.store.capture.rows import fields_of
from anabranch.store.catalog.drift import drift
from anabranch.store.ddl.images import image_shapes
from anabranch.store.ddl.notice import notice
from anabranch.store.ddl.shapes import columns_of

from .conftest import World

TYPES = (
    "text", "varchar(20)", "integer", "bigint", "numeric(8,2)", "boolean", "timestamptz", "date", "jsonb", "uuid",
    "integer[]", "interval", "app.state", "app.place", "app.short",
)  # fmt: skip
DEFAULTS = ("", "default null", "not null default 'x'", "default gen_random_uuid()", "default 7", "default now()")
STEPS = 25
SEEDS = (*range(20), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20, 100)))


class Altering:
    """One table that is altered at random; what Postgres refuses is undone."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world, self.chance = world, chance
        self.table, self.names, self.rows, self.made = "job", ["title", "n"], 0, 0

    def step(self) -> None:
        chance = self.chance
        name = chance.choice(self.names) if self.names else ""
        self.made += 1
        fresh = f"{chance.choice('abcXY')}{chance.randrange(4)}"
        alter = f'alter table app."{self.table}"'
        statement, names, table = {
            "add": (f'{alter} add column "{fresh}" {chance.choice(TYPES)} {chance.choice(DEFAULTS)}', "add", None),
            "generated": (f'{alter} add column "{fresh}" integer generated always as (length(id)) stored', "add", None),
            "drop": (f'{alter} drop column "{name}"', "drop", None),
            "rename": (f'{alter} rename column "{name}" to "{fresh}"', "rename", None),
            "retype": (f'{alter} alter column "{name}" type text using null', "", None),
            "widen": (f'{alter} alter column "{name}" type {chance.choice(TYPES)}', "", None),
            "default": (f"{alter} alter column \"{name}\" set default null", "", None),
            "table": (f'{alter} rename to "t{self.made}"', "", f"t{self.made}"),
            "label": (f"alter type app.state rename value '{self.label()}' to 'l{self.made}'", "", None),
            "more": (f"alter type app.state add value 'm{self.made}'", "", None),
            "attribute": (f"alter type app.place add attribute a{self.made} text", "", None),
            "insert": (f"insert into app.\"{self.table}\" (id) values ('r{self.made}')", "", None),
            "update": (f'update app."{self.table}" set id = id || \'+\'', "", None),
            "delete": (f'delete from app."{self.table}" where id < \'r{chance.randrange(STEPS)}\'', "", None),
        }[chance.choice(KINDS)]  # fmt: skip
        try:
            with self.world.conn.transaction():
                self.world.sql(statement)
        except psycopg.Error:
            return
        if names == "add":
            self.names.append(fresh)
        elif names == "drop":
            self.names.remove(name)
        elif names == "rename":
            self.names[self.names.index(name)] = fresh
        self.table = table or self.table

    def label(self) -> str:
        labels = self.world.rows("select enumlabel from pg_enum where enumtypid = 'app.state'::regtype order by oid")
        return str(self.chance.choice(labels)[0])


KINDS = (
    "add", "add", "generated", "drop", "drop", "rename", "rename", "retype", "widen", "default", "table", "label",
    "more", "attribute", "insert", "insert", "insert", "update", "delete",
)  # fmt: skip


def readable(world: World) -> None:
    """Every image that waits has the columns that its shape says."""
    shapes = image_shapes(world.conn, world.database.id)
    for table, number, image in world.rows(
        "select table_id, id, coalesce(new, old) from anabranch.captured where type <> 4 order by id"
    ):
        shape = shapes.of(table, number)
        assert shape is not None
        assert [oid for oid, _ in fields_of(bytes(image))] == [column.oid for column in columns_of(shape)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("watched", [True, False], ids=["event triggers", "looks"])
def test_the_catalog_follows_whatever_is_altered(world: World, seed: int, watched: bool) -> None:
    world.sql(
        "create type app.state as enum ('open', 'done'); create type app.place as (city text);"
        "create domain app.short as varchar(5) default 'd';"
        "create table app.job (id text primary key, title text, n int)"
    )
    world.add("job")
    if not watched:
        world.sql("drop event trigger anabranch_ddl; drop event trigger anabranch_drop")
    chance = random.Random(seed)
    altering = Altering(world, chance)
    kinds: dict[str, object] = {}
    for _ in range(4):
        # Some transactions of some steps each, and then a group.
        for _ in range(chance.randrange(1, 4) if watched else 6):
            with world.conn.transaction():
                # A look between two steps alone tells images of a shape apart that came and went.
                for _ in range(chance.randrange(1, 5) if watched else 1):
                    altering.step()
            if not watched:
                with world.conn.transaction():
                    notice(world.conn, world.database)
        world.follow()
        database = world.database
        assert world.markers() == []
        assert not notice(world.conn, database)
        assert drift(world.conn, database) == []
        readable(world)
        table = database.tables["job"]
        assert table.sql_name == altering.table
        assert {c.sql_name for c in table.columns} == {"id", *altering.names}
        every = [*table.columns, *(former.column for former in table.former)]
        assert len({c.name.casefold() for c in every}) == len(every)
        for c in every:
            assert kinds.setdefault(c.name, (c.kind, c.element_kind)) == (c.kind, c.element_kind)
        if chance.random() < 0.5:
            world.sql("delete from anabranch.captured")
