from __future__ import annotations

import psycopg
import pytest

from anabranch.store.session.engine import Session
from anabranch.store.session.errors import Remedy, read_error, violated

SETUP = """
create table app.p (id text primary key);
create table app.t (
    id text constraint "the key" primary key, n int not null constraint positive check (n > 0), u text unique,
    p text references app.p, c char(2), late text references app.p deferrable initially deferred);
create function app.no() returns trigger language plpgsql as $$ begin raise 'no' using errcode = 'ZZ001'; end $$;
create function app.never() returns trigger language plpgsql as $$ begin raise 'never'; end $$;
insert into app.t (id, n, u) values ('a', 1, 'u');
"""


@pytest.mark.parametrize(
    ("statement", "remedy", "sqlstate", "constraint"),
    [
        ("insert into app.t (id, n) values ('a', 1)", Remedy.RESTART, "23505", "the key"),
        ("insert into app.t (id, n, u) values ('b', 1, 'u')", Remedy.BLAME, "23505", "t_u_key"),
        ("insert into app.t (id, n) values ('b', 0)", Remedy.BLAME, "23514", "positive"),
        ("insert into app.t (id) values ('b')", Remedy.BLAME, "23502", ""),
        ("insert into app.t (id, n, p) values ('b', 1, 'x')", Remedy.BLAME, "23503", "t_p_fkey"),
        ("insert into app.t (id, n, c) values ('b', 1, 'long')", Remedy.BLAME, "22001", ""),
        ("insert into app.t (id, n) values ('b', 99999999999)", Remedy.BLAME, "22003", ""),
        (
            "create trigger trg before insert on app.t for each row execute function app.no();"
            "insert into app.t (id, n) values ('b', 1)",
            Remedy.BLAME,
            "ZZ001",
            "",
        ),
        (
            "create trigger trg before insert on app.t for each row execute function app.never();"
            "insert into app.t (id, n) values ('b', 1)",
            Remedy.BLAME,
            "P0001",
            "",
        ),
        ("insert into app.t (id, n, late) values ('b', 1, 'x')", Remedy.BLAME, "23503", "t_late_fkey"),
        ("insert into anabranch.api_keys (id) values ('x')", Remedy.RETRY, "23502", ""),
        ("set local statement_timeout = 10; select pg_sleep(10)", Remedy.RETRY, "57014", ""),
    ],
)
def test_what_postgres_says_is_read(
    undone: Session, statement: str, remedy: Remedy, sqlstate: str, constraint: str
) -> None:
    undone.execute(SETUP)
    with pytest.raises(psycopg.Error) as caught, undone.transaction():
        undone.execute(f"{statement}; set constraints all immediate".encode())
    fault = read_error(caught.value, primary_keys={"the key"})
    assert (fault.remedy, fault.sqlstate, fault.constraint) == (remedy, sqlstate, constraint)
    assert (fault.reason is not None) == (remedy is Remedy.BLAME)
    assert violated(caught.value) == ""


def test_our_own_constraint_has_its_name(undone: Session) -> None:
    insert = (
        "insert into anabranch.databases (name, schema_name, epoch, seal_key, created_ms) values ('d', %s, '', '', 0)"
    )
    undone.execute(insert, ("a",))
    with pytest.raises(psycopg.errors.UniqueViolation) as caught:
        undone.execute(insert, ("b",))
    assert violated(caught.value) == "databases_name_key"
    assert read_error(caught.value, primary_keys={"databases_name_key"}).remedy is Remedy.RETRY


def test_a_lost_session_blames_nobody(conn: Session, migrated_url: str) -> None:
    with psycopg.connect(migrated_url) as doomed:
        conn.execute("select pg_terminate_backend(%s)", (doomed.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError) as caught:
            doomed.execute("select 1")
    assert read_error(caught.value).remedy is Remedy.RETRY
