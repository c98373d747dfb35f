from __future__ import annotations

import psycopg
import pytest

from anabranch.store.catalog.judging import RegistrationError
from anabranch.store.catalog.refusals import TableRefusal
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.session.engine import Session, connect

OK = "id text primary key"

REFUSED: list[tuple[str, str, list[TableRefusal], str]] = [
    ("no key", "create table app.t (id text)", [TableRefusal.NO_PRIMARY_KEY], "no primary key"),
    (
        "unique is no key",
        "create table app.t (id text not null unique)",
        [TableRefusal.NO_PRIMARY_KEY],
        "no primary key",
    ),
    *(
        (f"key {kind}", f"create table app.t (id {kind} primary key)", [TableRefusal.KEY_TYPE], 'key column "id" is')
        for kind in (
            "real",
            "double precision",
            "numeric",
            "numeric(10,0)",
            "public.citext",
            "char(3)",
            "int[]",
            "jsonb",
            "interval",
            "inet",
            "timestamp(0)",
            "time(3)",
            "timetz",
            "int4range",
            "bit(3)",
        )
    ),
    (
        "second key column",
        "create table app.t (a text, b float, primary key (a, b))",
        [TableRefusal.KEY_TYPE],
        'key column "b"',
    ),
    (
        "domain over citext",
        "create domain app.d as public.citext; create table app.t (id app.d primary key)",
        [TableRefusal.KEY_TYPE],
        "citext",
    ),
    (
        "domain over char",
        "create domain app.d as char(3); create table app.t (id app.d primary key)",
        [TableRefusal.KEY_TYPE],
        "char(n)",
    ),
    (
        "domain over timestamp(3)",
        "create domain app.d as timestamp(3); create table app.t (id app.d primary key)",
        [TableRefusal.KEY_TYPE],
        "rounded",
    ),
    (
        "nondeterministic key",
        # Only builds with ICU make such a collation; the catalog says the same of this one.
        "create collation app.ci (locale = 'C');"
        "update pg_collation set collisdeterministic = false where collname = 'ci';"
        "create table app.t (id text collate app.ci primary key)",
        [TableRefusal.KEY_TYPE],
        "nondeterministic",
    ),
    (
        "identity key",
        "create table app.t (id int generated always as identity primary key)",
        [TableRefusal.KEY_NOT_WRITABLE],
        "always generated",
    ),
    (
        "generated key",
        "create table app.t (a int, id int generated always as (a + 1) stored primary key)",
        [TableRefusal.KEY_NOT_WRITABLE],
        "always generated",
    ),
    (
        "columns by case",
        f'create table app.t ({OK}, "Name" text, name text)',
        [TableRefusal.NAME_CLASH],
        'columns "Name" and "name"',
    ),
    (
        "reserved column",
        f'create table app.t ({OK}, "_DB_audience" text)',
        [TableRefusal.RESERVED_NAME],
        "_DB_audience",
    ),
    ("view", "create view app.t as select 'a'::text as id", [TableRefusal.NOT_A_TABLE], "a view"),
    (
        "materialized view",
        "create materialized view app.t as select 'a'::text as id",
        [TableRefusal.NOT_A_TABLE],
        "a materialized view",
    ),
    ("sequence", "create sequence app.t", [TableRefusal.NOT_A_TABLE], "a sequence"),
    ("unlogged", f"create unlogged table app.t ({OK})", [TableRefusal.NOT_PERMANENT], "unlogged"),
    ("partitioned", f"create table app.t ({OK}) partition by hash (id)", [TableRefusal.PARTITIONED], "partitioned"),
    (
        "a partition",
        f"create table app.whole ({OK}) partition by hash (id);"
        "create table app.t partition of app.whole for values with (modulus 1, remainder 0)",
        [TableRefusal.PARTITIONED],
        "a partition of app.whole",
    ),
    (
        "parent",
        f"create table app.t ({OK}); create table app.u () inherits (app.t)",
        [TableRefusal.INHERITANCE],
        "app.u",
    ),
    (
        "child",
        f"create table app.u (x int); create table app.t ({OK}) inherits (app.u)",
        [TableRefusal.INHERITANCE],
        "app.u",
    ),
    (
        "other schema",
        "create schema other; create table other.p (id text primary key);"
        f'create table app.t ({OK}, p text constraint "to p" references other.p)',
        [TableRefusal.FOREIGN_KEY_OUTSIDE],
        'foreign key "to p" points outside the schema, to other.p',
    ),
    (
        "instead rule",
        f"create table app.t ({OK}); create rule skip as on delete to app.t do instead nothing",
        [TableRefusal.RULES],
        "skip",
    ),
    (
        "also rule",
        f"create table app.t ({OK}); create rule more as on insert to app.t do also notify x",
        [TableRefusal.RULES],
        "more",
    ),
    (
        "forced row security",
        f"create table app.t ({OK}); alter table app.t enable row level security, force row level security",
        [TableRefusal.ROW_SECURITY],
        "row-level security",
    ),
    (
        "all at once",
        'create unlogged table app.t (id float primary key, p float, "P" int)',
        [TableRefusal.NOT_PERMANENT, TableRefusal.KEY_TYPE, TableRefusal.NAME_CLASH],
        "unlogged",
    ),
]


@pytest.mark.parametrize(("setup", "reasons", "told"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_a_table_that_cant_be_synced_is_refused_by_name(
    undone: Session, setup: str, reasons: list[TableRefusal], told: str
) -> None:
    create_database(undone, "d", "app")
    undone.execute(setup.encode())
    with pytest.raises(RegistrationError) as caught:
        add_table(undone, "d", "t")
    assert caught.value.reasons == reasons
    assert told in str(caught.value)
    assert 'table "t" can\'t be synced' in str(caught.value)
    assert undone.execute("select count(*) from anabranch.synced_tables").fetchone() == (0,)
    assert undone.execute("select schema_version from anabranch.databases").fetchone() == (1,)


@pytest.mark.parametrize("name", ["_db_base", "sqlite_stat1", "SQLite_x", "_DB_x"])
def test_names_of_the_device_are_refused(undone: Session, name: str) -> None:
    create_database(undone, "d", "app")
    undone.execute(f'create table app."{name}" ({OK})'.encode())
    with pytest.raises(RegistrationError) as caught:
        add_table(undone, "d", name)
    assert caught.value.reasons == [TableRefusal.RESERVED_NAME]


def test_a_table_that_differs_only_in_case_from_a_synced_one_is_refused(undone: Session) -> None:
    create_database(undone, "d", "app")
    undone.execute(
        f'create table app."Order" ({OK}); create table app."order" ({OK}); create table app."ÄRGER" ({OK});'
        f'create table app."ärger" ({OK})'.encode()
    )
    add_table(undone, "d", "Order")
    with pytest.raises(RegistrationError) as caught:
        add_table(undone, "d", "order")
    assert caught.value.reasons == [TableRefusal.NAME_CLASH]
    # SQLite folds A to Z and nothing else.
    add_table(undone, "d", "ÄRGER")
    add_table(undone, "d", "ärger")


def test_virtual_columns_are_refused(undone: Session) -> None:
    if undone.info.server_version < 180000:
        pytest.skip("the server has no virtual columns: they came with Postgres 18")
    create_database(undone, "d", "app")
    undone.execute(f"create table app.t ({OK}, v int generated always as (1) virtual)".encode())
    with pytest.raises(RegistrationError) as caught:
        add_table(undone, "d", "t")
    assert caught.value.reasons == [TableRefusal.VIRTUAL_COLUMN]


def test_a_foreign_table_is_refused(undone: Session) -> None:
    create_database(undone, "d", "app")
    undone.execute(
        "create foreign data wrapper w; create server s foreign data wrapper w;"
        "create foreign table app.t (id text) server s"
    )
    with pytest.raises(RegistrationError) as caught:
        add_table(undone, "d", "t")
    assert caught.value.reasons == [TableRefusal.NOT_A_TABLE]


def test_a_role_without_rights_is_told_which(migrated_url: str, conn: Session) -> None:
    create_database(conn, "d", "app")
    role = f"anabranch_test_{conn.info.dbname}"
    conn.execute(f"create table app.t ({OK})".encode())
    conn.execute(
        f'create role "{role}"; grant usage on schema anabranch, app to "{role}";'
        f'grant all on all tables in schema anabranch to "{role}"; grant select on app.t to "{role}"'.encode()
    )
    try:
        with connect(migrated_url, application_name="test", autocommit=True) as poor:
            poor.execute(f'set role "{role}"'.encode())
            with pytest.raises(RegistrationError) as caught:
                add_table(poor, "d", "t")
    finally:
        conn.execute(f'drop owned by "{role}"; drop role "{role}"'.encode())
    assert caught.value.reasons == [TableRefusal.MISSING_PRIVILEGE, TableRefusal.NOT_OWNED]
    assert "lacks INSERT, UPDATE, DELETE" in str(caught.value)


@pytest.mark.parametrize(
    ("setup", "policy"),
    [
        (f"create table app.t ({OK}, n numeric)", {"columns": {"n": "counter"}}),
        (f"create table app.t ({OK}, n text)", {"columns": {"n": "max"}}),
        (f"create table app.t ({OK})", {"columns": {"nope": "lww"}}),
        (f"create table app.t ({OK})", {"columns": {"id": "reject"}}),
        (f"create table app.t ({OK}, g int generated always as (1) stored)", {"columns": {"g": "max"}}),
        (f"create table app.t ({OK})", {"sort": "edit"}),
        (f"create table app.t ({OK})", {"columns": {"id": "sum"}}),
    ],
)
def test_a_policy_that_does_not_fit_is_refused(undone: Session, setup: str, policy: dict[str, object]) -> None:
    create_database(undone, "d", "app")
    undone.execute(setup.encode())
    with pytest.raises(RegistrationError) as caught:
        add_table(undone, "d", "t", policy)
    assert caught.value.reasons == [TableRefusal.INVALID_POLICY]


@pytest.mark.parametrize(
    ("name", "schema", "policy", "reason"),
    [
        ("", "app", {}, TableRefusal.INVALID_NAME),
        ("a/b", "app", {}, TableRefusal.INVALID_NAME),
        (".hidden", "app", {}, TableRefusal.INVALID_NAME),
        ("x" * 64, "app", {}, TableRefusal.INVALID_NAME),
        ("d\n", "app", {}, TableRefusal.INVALID_NAME),
        ("d", "nowhere", {}, TableRefusal.UNKNOWN_SCHEMA),
        ("d", "anabranch", {}, TableRefusal.RESERVED_SCHEMA),
        ("d", "pg_catalog", {}, TableRefusal.RESERVED_SCHEMA),
        ("d", "information_schema", {}, TableRefusal.RESERVED_SCHEMA),
        ("d", "app", {"park": 1}, TableRefusal.INVALID_POLICY),
        ("taken", "app", {}, TableRefusal.DATABASE_EXISTS),
        ("d", "public", {}, TableRefusal.SCHEMA_TAKEN),
    ],
)
def test_a_database_that_cant_be_is_refused(
    undone: Session, name: str, schema: str, policy: dict[str, object], reason: TableRefusal
) -> None:
    create_database(undone, "taken", "public")
    with pytest.raises(RegistrationError) as caught:
        create_database(undone, name, schema, policy)
    assert caught.value.reasons == [reason]
    assert undone.execute("select count(*) from anabranch.databases").fetchone() == (1,)


def test_unknown_names_are_refused(undone: Session) -> None:
    with pytest.raises(RegistrationError) as caught:
        add_table(undone, "nowhere", "t")
    assert caught.value.reasons == [TableRefusal.UNKNOWN_DATABASE]
    create_database(undone, "d", "app")
    with pytest.raises(RegistrationError) as caught:
        add_table(undone, "d", "'; drop schema app; --")
    assert caught.value.reasons == [TableRefusal.UNKNOWN_TABLE]


def test_twice_is_refused(undone: Session) -> None:
    create_database(undone, "d", "app")
    undone.execute(f"create table app.t ({OK})".encode())
    add_table(undone, "d", "t")
    with pytest.raises(RegistrationError) as caught:
        add_table(undone, "d", "t")
    assert caught.value.reasons == [TableRefusal.ALREADY_SYNCED]


@pytest.mark.parametrize(
    "action",
    [
        "delete cascade",
        "delete set null",
        "delete set default",
        "update cascade",
        "update set null",
        "update set default",
    ],
)
def test_keys_that_change_rows_are_no_reason(undone: Session, action: str) -> None:
    create_database(undone, "d", "app")
    undone.execute(
        f"create table app.p ({OK}); create table app.t ({OK}, p text default 'x' references app.p on {action},"
        f"self text references app.t on {action})".encode()
    )
    add_table(undone, "d", "t")


@pytest.mark.parametrize(
    ("kind", "each"),
    [
        ("trigger trg before insert", "for each row"),
        ("trigger trg after update", ""),
        ("constraint trigger trg after delete", "deferrable initially deferred for each row"),
    ],
)
def test_triggers_are_no_reason(undone: Session, kind: str, each: str) -> None:
    create_database(undone, "d", "app")
    undone.execute(
        "create function app.f() returns trigger language plpgsql as 'begin return new; end';"
        f"create table app.t ({OK}); create {kind} on app.t {each} execute function app.f()".encode()
    )
    add_table(undone, "d", "t")


def test_a_table_that_a_subscription_feeds_is_refused(undone: Session) -> None:
    create_database(undone, "d", "app")
    undone.execute(f"create table app.t ({OK})".encode())
    undone.execute(
        "create subscription s connection 'host=127.0.0.1' publication p with (connect = false, slot_name = none);"
        "insert into pg_subscription_rel (srrelid, srsubid, srsubstate)"
        " select 'app.t'::regclass, oid, 'r' from pg_subscription where subname = 's'"
    )
    with pytest.raises(RegistrationError) as caught:
        add_table(undone, "d", "t")
    assert caught.value.reasons == [TableRefusal.SUBSCRIPTION]
    assert "subscriptions feed the table (s)" in str(caught.value)


def test_errors_are_values_that_programs_can_tell_apart() -> None:
    assert len({r.value for r in TableRefusal}) == len(TableRefusal)
    assert not issubclass(RegistrationError, psycopg.Error)
