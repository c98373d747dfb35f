"""The application's own functions work in a group as they do in its sessions, which look into its schema."""

from __future__ import annotations

from typing import Any

from anabranch.testkit.resolver_rig import ResolverRig

# Nothing is named with its schema: neither the functions nor what they use.
TABLES = """
create table allowed (word text primary key);
insert into allowed values ('good'), ('better');
create function is_allowed(word text) returns boolean language plpgsql stable as $$
begin return exists (select from allowed a where a.word = is_allowed.word); end $$;
create function public.shout(word text) returns text language plpgsql immutable as $$
begin return upper(word) || '!'; end $$;
create function louder(word text) returns text language plpgsql immutable as $$ begin return shout(word); end $$;
create sequence tickets;
create function next_ticket() returns bigint language plpgsql as $$ begin return nextval('tickets'); end $$;
create table t (
    id text primary key,
    word text constraint t_word check (is_allowed(word)),
    loud text generated always as (louder(word)) stored,
    ticket bigint default next_ticket()
);
create table seen (id text);
create function note() returns trigger language plpgsql as $$
begin insert into seen values (new.id); return null; end $$;
create constraint trigger note after insert on t deferrable initially deferred for each row execute function note();
"""


def test_names_without_a_schema_are_found_in_the_databases_own(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(TABLES, {"t": None})
    a = rig.node("a")
    good = a.insert("t", {"id": "1", "word": "good"})
    bad = a.insert("t", {"id": "2", "word": "bad"})
    also = a.insert("t", {"id": "3", "word": "better"})
    rig.group()
    assert [rig.outcome(one) for one in (good, bad, also)] == [["APPLIED"], "CONSTRAINT", ["APPLIED"]]
    verdict = rig.verdict(bad)
    assert verdict is not None
    assert verdict.constraint == "t_word"
    assert [row[:2] for row in rig.rows("t", "id", "loud", "ticket")] == [("1", "GOOD!"), ("3", "BETTER!")]
    assert rig.rows("seen") == [("1",), ("3",)]


def test_what_the_application_calls_like_the_systems_own_is_not_taken_for_it(make_rig: Any) -> None:
    shadows = """
    create function concat(word text) returns text language sql immutable as 'select ''shadow''';
    create function upper(word text) returns text language sql immutable as 'select ''shadow''';
    create function shown(word text) returns text language plpgsql immutable as $$ begin return upper(word); end $$;
    create table t (id text primary key, place inet, loud text generated always as (shown(id)) stored);
    """
    rig: ResolverRig = make_rig(shadows, {"t": None})
    sent = rig.node("a").insert("t", {"id": "x", "place": "10.0.0.1"})
    rig.group()
    assert rig.outcome(sent) == ["APPLIED"]
    assert rig.sql("select place::text, loud from app.t") == [("10.0.0.1/32", "X")]
