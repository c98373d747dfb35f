"""A refusal for missing rights says which role lacks them, and the grant that helps; where it may be one of several, no
one of them is blamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from anabranch.store.group.denied import missing
from anabranch.store.session.binary import Connection
from anabranch.store.writers import writer
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.strangers import login
from anabranch_conflict_resolver.blame import refusal_words

TABLES = """
create table todo (id text primary key, title text);
create schema audit;
create table audit.entries (what text);
create function note() returns trigger language plpgsql as
    $$ begin insert into audit.entries values (new.id); return null; end $$;
create trigger note after insert on todo for each row execute function note();
"""
OF_GROUPS = "as which groups are committed, lacks rights to"
OF_CODE = "as which code of the application runs, lacks rights to"


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES)
    return made


def said(rig: ResolverRig) -> str:
    """Words about the rights that a batch's trigger lacks."""
    node = rig.node(f"n{rig.head}")
    bad = node.insert("todo", {"id": f"{rig.head}"})
    rig.drain()
    assert rig.outcome(bad) == "FORBIDDEN"
    verdict = rig.verdict(bad)
    assert verdict is not None
    before, _, words = verdict.message.partition("(SQLSTATE 42501): ")
    assert before == 'the database does not allow this change of table "todo" '
    return words


def is_fine(rig: ResolverRig) -> bool:
    """Whether a batch passes."""
    made = rig.node(f"n{rig.head}").insert("todo", {"id": f"{rig.head}"})
    rig.group()
    return rig.outcome(made) == ["APPLIED"]


@contextmanager
def defined_by(rig: ResolverRig) -> Iterator[str]:
    """Another role, as which the trigger's function runs."""
    with login(rig.url, "definer") as (role, _):
        rig.sql(f'alter function app.note() security definer; alter function app.note() owner to "{role}"')
        yield role
        rig.sql("alter function app.note() owner to current_user")


def test_the_writer_is_named_where_it_lacks_them(rig: ResolverRig) -> None:
    [role] = writer.writers(rig.conn)
    grant = f'grant usage on schema "audit" to "{role}"'
    whole = f"`anabranch database writer {role} --grant audit` those to the whole schema"
    assert said(rig) == f'role "{role}", {OF_GROUPS} schema "audit"; `{grant}` gives them, {whole}'
    rig.sql(grant)
    grant = f'grant select, insert, update, delete, truncate on table "audit"."entries" to "{role}"'
    assert said(rig) == f'role "{role}", {OF_GROUPS} table "entries"; `{grant}` gives them, {whole}'
    rig.sql(grant)
    assert is_fine(rig)


def test_the_owner_of_a_function_is_named_where_it_runs_as_its_owner(rig: ResolverRig) -> None:
    [role] = writer.writers(rig.conn)
    writer.make(rig.conn, role, ["audit"])
    assert is_fine(rig)
    with defined_by(rig) as definer:
        grant = f'grant usage on schema "audit" to "{definer}"'
        assert said(rig) == f'role "{definer}", {OF_CODE} schema "audit"; `{grant}` gives them'
        rig.sql(grant)
        grant = f'grant select, insert, update, delete, truncate on table "audit"."entries" to "{definer}"'
        assert said(rig) == f'role "{definer}", {OF_CODE} table "entries"; `{grant}` gives them'
        rig.sql(grant)
        assert is_fine(rig)


@pytest.mark.slow
def test_several_are_named_where_it_may_be_each_of_them(rig: ResolverRig) -> None:
    [role] = writer.writers(rig.conn)
    with defined_by(rig) as definer:
        assert said(rig) == f'one of the roles "{role}", "{definer}" lacks rights to schema "audit"'


def test_nobody_is_named_where_it_is_a_role_that_is_not_looked_at(rig: ResolverRig) -> None:
    """As the owner of a table, as whom its foreign keys are checked."""
    [role] = writer.writers(rig.conn)
    with login(rig.url, "owner") as (owner, _):
        rig.sql(
            "drop trigger note on app.todo; create table audit.titles (title text primary key);"
            f'grant usage on schema audit to "{role}"; grant all on audit.titles to "{role}"'
        )
        rig.sql("alter table app.todo alter title set default 'one', add foreign key (title) references audit.titles")
        rig.sql(f'alter table audit.titles owner to "{owner}"')
        assert said(rig) == 'a role lacks rights to schema "audit"'
        rig.sql("alter table audit.titles owner to current_user")


@pytest.mark.parametrize("name", ["my table", 'a "quoted" name', " blank before", "table of view x"])
def test_a_name_may_have_blanks_and_quotes(rig: ResolverRig, name: str) -> None:
    [role] = writer.writers(rig.conn)
    quoted = '"' + name.replace('"', '""') + '"'
    rig.sql(f'grant usage on schema audit to "{role}"; alter table audit.entries rename to {quoted}')
    rig.sql(
        "create or replace function app.note() returns trigger language plpgsql as"
        f" $$ begin insert into audit.{quoted} values (new.id); return null; end $$"
    )
    grant = f'grant select, insert, update, delete, truncate on table "audit".{quoted} to "{role}"'
    assert said(rig).startswith(f'role "{role}", {OF_GROUPS} table "{name}"; `{grant}` gives them, ')
    rig.sql(grant)
    assert is_fine(rig)


def test_who_lacks_them_is_looked_up_once_a_group(rig: ResolverRig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(conn: Connection, kind: str, name: str) -> Any:
        asked.append((kind, name))
        return missing(conn, kind, name)

    monkeypatch.setattr(refusal_words, "missing", counted)
    node = rig.node("a")
    bad = [node.insert("todo", {"id": f"{number}"}) for number in range(5)]
    rig.group()
    messages = {verdict.message for one in bad if (verdict := rig.verdict(one)) is not None}
    assert [rig.outcome(one) for one in bad] == ["FORBIDDEN"] * 5
    assert len(messages) == 1
    assert asked == [("schema", "audit")]
