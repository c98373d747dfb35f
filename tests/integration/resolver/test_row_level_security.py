"""Where the rules name a role, batches are applied as it, with their principal's claims: the team's policies decide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from anabranch.store.session.engine import connect
from anabranch.testkit.resolver_rig import ResolverRig, RigNode

ROLE = "anabranch_test_app_user"
TABLES = f"""
create table doc (id text primary key, owner text, org text, body text);
alter table doc enable row level security;
create function who() returns text stable language sql as
    $$ select current_setting('request.jwt.claims', true)::json ->> 'sub' $$;
create policy own on doc to {ROLE} using (owner = who()) with check (owner = who() and body is distinct from 'bad');
create policy of_org on doc for select to {ROLE}
    using (org = current_setting('request.jwt.claims', true)::json ->> 'org');
create table child (id text primary key, doc_id text references doc (id) on delete cascade);
alter table child enable row level security;
create policy all_of_it on child to {ROLE} using (true) with check (true);
grant usage on schema app to {ROLE};
grant select, insert, update, delete on all tables in schema app to {ROLE};
"""
AUDIENCES = {"doc": "array['user:' || owner, 'org:' || org]", "child": "'doc'::text"}
RULES = {
    "claims": {"org": "org"},
    "memberships": ["select 'user:' || :principal", "select 'doc'"],
    "rls": ROLE,
}


@pytest.fixture
def role(migrated_url: str) -> Iterator[None]:
    """The role that policies are written for; roles are the server's, so that another test's may be there."""
    with connect(migrated_url, application_name="test", autocommit=True) as conn:
        conn.execute(f"drop role if exists {ROLE}".encode())
        conn.execute(f"create role {ROLE}".encode())
        yield
        conn.execute(f"drop owned by {ROLE}".encode())
        conn.execute(f"drop role {ROLE}".encode())


@pytest.fixture
def rig(role: None, make_rig: Any) -> ResolverRig:
    """A rig whose tables have policies, and whose batches wait for unknown rows for a moment only."""
    names = {"doc": None, "child": None}
    made: ResolverRig = make_rig(TABLES, names, policy={"park_ms": 0}, audiences=AUDIENCES, rules=RULES)
    return made


def _node(rig: ResolverRig, name: str, org: str) -> RigNode:
    node = rig.node(name, name, [f"org:{org}"])
    node.claims = json.dumps({"sub": name, "org": org})
    return node


def test_policies_decide_each_batch_by_its_own_principal(rig: ResolverRig) -> None:
    alice, bob = _node(rig, "alice", "1"), _node(rig, "bob", "1")
    mine = [node.insert("doc", {"id": node.name, "owner": node.name, "org": "1"}) for node in (alice, bob)]
    others = alice.insert("doc", {"id": "x", "owner": "bob", "org": "1"})
    bad = bob.insert("doc", {"id": "y", "owner": "bob", "org": "1", "body": "bad"})
    rig.drain()
    assert [rig.outcome(one) for one in mine] == [["APPLIED"], ["APPLIED"]]
    assert [rig.outcome(one) for one in (others, bad)] == ["FORBIDDEN", "FORBIDDEN"]
    alice.see()
    bob.see()
    fine = alice.update("doc", {"id": "alice", "body": "mine"})
    # Its organisation lets her read it, and no policy lets her write it.
    hidden = alice.update("doc", {"id": "bob", "body": "not mine"})
    rig.drain()
    bob.see()
    gone = bob.delete("doc", {"id": "alice"})
    rig.drain()
    assert [rig.outcome(one) for one in (fine, hidden, gone)] == [["APPLIED"], "FORBIDDEN", "FORBIDDEN"]
    assert rig.rows("doc", "id", "body") == [("alice", "mine"), ("bob", None)]


def test_a_hundred_principals_share_a_group(rig: ResolverRig) -> None:
    nodes = [_node(rig, f"user{i}", "1") for i in range(100)]
    made = [node.insert("doc", {"id": node.name, "owner": node.name, "org": "1"}) for node in nodes]
    assert rig.group() == 100
    assert {str(rig.outcome(one)) for one in made} == {"['APPLIED']"}
    assert rig.sql("select count(*) from anabranch.groups") == [(1,)]


def test_the_session_is_itself_again_behind_a_batch(rig: ResolverRig) -> None:
    alice = _node(rig, "alice", "1")
    alice.insert("doc", {"id": "a", "owner": "alice", "org": "1"})
    alice.insert("child", {"id": "c", "doc_id": "a"})
    rig.drain()
    alice.see()
    # The cascade is captured, and its records are written by the session's own role.
    cut = alice.delete("doc", {"id": "a"})
    rig.drain()
    assert rig.outcome(cut) == ["APPLIED"]
    assert rig.rows("child") == []
    assert rig.sql("select count(*) from anabranch.log where type = 3") == [(2,)]


def test_a_batch_without_claims_has_its_principal_alone(rig: ResolverRig) -> None:
    bare = rig.node("alice", "alice")
    made = bare.insert("doc", {"id": "a", "owner": "alice"})
    rig.drain()
    assert rig.outcome(made) == ["APPLIED"]
