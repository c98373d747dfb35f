"""Groups whose changes may cause others are run together, in hope, and apart only where something was caused."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.group import statements

TABLES = """
create table list (id text primary key, title text, items bigint not null default 0);
create table item (id text primary key, list_id text constraint item_list references list (id) on delete cascade,
                   title text);
create table audit (id bigint generated always as identity primary key, word text);
create function note() returns trigger language plpgsql as
    $$ begin insert into app.audit (word) values (new.title); return null; end $$;
create trigger note after insert on item for each row execute function note();
create function tally() returns trigger language plpgsql as
    $$ begin
        update app.list set items = items + 1 where id = new.list_id and new.title = 'counted';
        return null;
    end $$;
create trigger tally after update on item for each row execute function tally();
insert into list (id) select 'l' || n from generate_series(1, 40) n;
insert into item (id, list_id) select 'i' || n, 'l' || n from generate_series(1, 40) n;
"""
NAMES: dict[str, Any] = {"list": None, "item": None}


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES, NAMES)
    return made


@pytest.fixture
def waves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each wave that was written had."""
    sizes: list[int] = []
    real = statements._send

    def counted(conn: Any, tables: Any, jobs: Any) -> Any:
        if jobs:
            sizes.append(len(jobs))
        return real(conn, tables, jobs)

    monkeypatch.setattr(statements, "_send", counted)
    return sizes


def _batches_of(rig: ResolverRig, table: str, kind: int) -> dict[str, str]:
    """The batch of each log entry of a table and type, by key."""
    rows = rig.sql(
        "select g.key, g.batch_id from anabranch.log g join anabranch.synced_tables t on t.id = g.table_id"
        " where t.name = %s and g.type = %s",
        [table, kind],
    )
    return dict(rows)


def test_triggers_that_cause_nothing_synced_cost_no_waves(rig: ResolverRig, waves: list[int]) -> None:
    nodes = [rig.node(f"{i}") for i in range(4)]
    sent = [nodes[i % 4].insert("item", {"id": f"n{i}", "list_id": "l1", "title": "t"}) for i in range(60)]
    rig.group()
    assert [rig.outcome(one) for one in sent] == [["APPLIED"]] * 60
    assert waves == [60]


def test_updates_of_a_table_that_only_deletes_cascade_from_share_their_wave(rig: ResolverRig, waves: list[int]) -> None:
    nodes = [rig.node(f"{i}") for i in range(4)]
    sent = [nodes[i % 4].update("list", {"id": f"l{i + 1}", "title": "new"}) for i in range(30)]
    gone = rig.node("other").delete("list", {"id": "l40"})
    rig.group()
    assert [rig.outcome(one) for one in [*sent, gone]] == [["APPLIED"]] * 31
    assert _batches_of(rig, "item", 3) == {"i40": gone}, "what the cascade removed belongs to who removed its list"
    assert waves[0] == 31, "in hope first"
    assert sorted(waves[1:]) == [1, 30], "then the one that cascades apart, and only that one"


def test_what_several_batches_caused_belongs_to_each_of_them(rig: ResolverRig, waves: list[int]) -> None:
    nodes = [rig.node(f"{i}") for i in range(3)]
    sent = [nodes[i].update("item", {"id": f"i{i + 1}", "title": "counted"}) for i in range(3)]
    quiet = nodes[0].update("list", {"id": "l9", "title": "beside"})
    rig.group()
    assert [rig.outcome(one) for one in [*sent, quiet]] == [["APPLIED"]] * 4
    caused = _batches_of(rig, "list", 2)
    assert {key: caused[key] for key in ("l1", "l2", "l3")} == dict(zip(("l1", "l2", "l3"), sent, strict=True))
    assert rig.rows("list", "id", "items")[0] == ("l1", 1)


def test_hope_is_given_up_while_things_are_caused_and_comes_back(rig: ResolverRig, waves: list[int]) -> None:
    nodes = [rig.node(f"{i}") for i in range(4)]

    def group(title: str) -> list[int]:
        waves.clear()
        for i, node in enumerate(nodes):
            node.see()
            node.update("item", {"id": f"i{i + 1}", "title": title})
        rig.group()
        return list(waves)

    assert group("counted") == [4, 1, 1, 1, 1]
    assert group("counted") == [1, 1, 1, 1], "nothing is hoped for right after"
    assert group("plain") == [1, 1, 1, 1], "nothing was caused, and so"
    assert group("plain") == [4], "it is hoped again"
    assert {row[1] for row in rig.rows("list", "id", "items")} == {0, 2}


def test_a_bad_batch_among_loud_ones_is_found(rig: ResolverRig) -> None:
    nodes = [rig.node(f"{i}") for i in range(4)]
    sent = [
        nodes[i % 4].insert("item", {"id": f"n{i}", "list_id": "nowhere" if i == 5 else "l2", "title": "t"})
        for i in range(12)
    ]
    gone = nodes[0].delete("list", {"id": "l7"})
    rig.group()
    assert [i for i, one in enumerate(sent) if rig.outcome(one) != ["APPLIED"]] == [5]
    assert rig.outcome(gone) == ["APPLIED"]
    assert _batches_of(rig, "item", 3) == {"i7": gone}
