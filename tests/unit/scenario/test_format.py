"""A scenario file says exactly what the format knows, or is refused with a word on where and why."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path

import pytest

from anabranch.scenario.model import Expectations, Step
from anabranch.scenario.parse import parse, read_scenario
from anabranch.scenario.values import FormatError, Ids, Json, Timestamp
from anabranch.scenario.yaml_text import load

HEAD = """
name: a name
tables: [{name: todo, columns: {id: text, title: text}, key: id}]
nodes: [a, b]
"""
FILES = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))


def whole(steps: str = "[]", expect: str = "{queue: {a: 0}}", more: str = "") -> str:
    return f"{HEAD}{more}\nsteps: {steps}\nexpect: {expect}\n"


def refusal(text: str) -> str:
    with pytest.raises(FormatError) as caught:
        parse(text)
    return str(caught.value)


def test_the_shortest_file() -> None:
    scenario = parse(whole())
    assert (scenario.name, scenario.nodes, scenario.steps) == ("a name", ["a", "b"], [])
    assert scenario.expect.queue == {"a": 0}
    assert scenario.tables[0].key_columns == ["id"]


@pytest.mark.parametrize("missing", ["name", "tables"])
def test_what_must_not_be_missing(missing: str) -> None:
    text = "\n".join(line for line in whole().splitlines() if not line.startswith(missing))
    assert missing in refusal(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (whole(more="colour: red"), "colour: unknown"),
        (whole(steps="[{shout: a}]"), "steps.1.shout: unknown"),
        (whole(steps="[{sync: a}, {insert: {node: a, table: todo, row: []}}]"), "steps.2.insert.row: unknown"),
        (whole(steps="[{sync: a, read: a}]"), "steps.1: a step has one key, not 2"),
        (whole(steps="[{}]"), "steps.1: a step has one key, not 0"),
        (whole(steps="[{sync: }]"), "steps.1"),
        (whole(steps="[{compact: {}}]"), "steps.1.compact"),
        (whole(steps="[{advance: {hours: 3}}]"), "steps.1.advance.hours: unknown"),
        (whole(steps="[{resend: {node: a, batch: 0}}]"), "steps.1.resend.batch"),
        (whole(steps="[{wait_ms: soon}]"), "steps.1.wait_ms"),
        (whole(steps="[{batch: {node: a, mutations: []}}]"), "steps.1.batch.mutations"),
        (
            whole(steps="[{batch: {node: a, mutations: [{upsert: {table: todo, rows: []}}]}}]"),
            "steps.1.batch.mutations.1.upsert: unknown",
        ),
        (whole(steps="[{fails: {step: {shout: a}, error: x}}]"), "steps.1.fails.step.shout: unknown"),
        (whole(steps="[{check: {rows: []}}]"), "steps.1.check.rows: unknown"),
        (whole(steps="[{app: {node: c}}]"), "there is no node 'c'"),
        (whole(steps="[{app: {node: a, schema: 0}}]"), "steps.1.app.schema"),
        (whole(steps="[{app: {node: a, version: 1}}]"), "steps.1.app.version: unknown"),
        (whole().replace("[a, b]", "{a: {schema: today}, b: {}}"), "nodes.a.schema"),
        (whole(expect="{conflicts: [{cause: RENAMED}]}"), "expect.conflicts.1.cause"),
        (whole(steps="[{dead: {node: a}}]"), "give replay or discard"),
        (whole(steps="[{dead: {node: a, discard: 1, set: {title: x}}}]"), "set belongs to replay"),
        (whole(steps="[{crash: kettle}]"), "there is no process 'kettle'"),
        (whole(steps="[{crash_at: {process: ingest, point: after_commit}}]"), "not 'after_commit'"),
        (whole(steps="[{crash_at: {process: snapshot, point: after_commit}}]"), "'snapshot' has no fault points"),
        (whole(steps="[{rewind: {what: a, to: monday}}]"), "nothing of 'a' was saved as 'monday'"),
        (whole(steps="[{sync: c}]"), "there is no node 'c'"),
        (whole(steps="[{crash: 'node:c'}]"), "there is no node 'c'"),
        (whole(steps="[{fails: {step: {sync: c}, error: x}}]"), "there is no node 'c'"),
        (whole(steps="[{sync: c}, {fresh: c}]"), "steps.1.sync: there is no node 'c'"),
        (whole(steps="[{fresh: a}]"), "there is a node 'a' already"),
        (whole(steps="[{copy: {node: a, as: all}}]"), "no node is called 'all'"),
        (whole(expect="{nodes: {c: same}}"), "there is no node 'c'"),
        (whole(expect="{nodes: {a: alike}}"), "expect.nodes.a"),
        (whole(expect="{dead: {a: [{cause: x}]}}"), "expect.dead.a.1.cause: unknown"),
        (whole(expect="{conflicts: [{winner: x}]}"), "expect.conflicts.1.winner: unknown"),
        (whole(expect="{verdicts: {a: [FINE]}}"), "expect.verdicts.a.1"),
        (whole(expect="{log: {entries: 1}}"), "expect.log.entries: unknown"),
        (whole(expect="{sums: differ}"), "expect.sums"),
        (whole(expect="{}"), "nothing is expected"),
        (whole(expect="{as_is: true}"), "nothing is expected"),
        (whole().replace("[a, b]", "[a, a]"), "the node 'a' stands there twice"),
        (whole().replace("key: id", "key: nr"), "names 'nr', which is no column"),
        ("[1, 2]", "a mapping"),
        ("a: [", "no YAML"),
        (whole(more="name: again"), "the key 'name' stands there twice"),
        (whole(steps="[{insert: {node: a, table: todo, rows: [{id: 1, id: 2}]}}]"), "the key 'id' stands there twice"),
        (whole(steps="[{insert: {node: a, table: todo, rows: [{id: !secret x}]}}]"), "!secret"),
    ],
)
def test_refused(text: str, told: str) -> None:
    assert told in refusal(text)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    told = refusal(whole(steps="[{shout: a}, {insert: {node: a, table: todo}}]", expect="{colour: red}"))
    assert "steps.1.shout" in told
    assert "steps.2.insert.rows" in told
    assert "expect.colour" in told


def test_a_node_may_have_the_schema_of_its_app() -> None:
    scenario = parse(whole(steps="[{app: {node: b, schema: 2}}]").replace("[a, b]", "{a: {schema: 1}, b: {}}"))
    assert [spec.schema_ for spec in scenario.who.values()] == [1, None]
    assert scenario.steps[0].given.schema_ == 2


def test_a_node_may_be_named_before_it_comes() -> None:
    steps = parse(whole(steps="[{pull_cut: {node: c, after_rows: 5}}, {offline: c}, {fresh: c}]")).steps
    assert [step.name for step in steps] == ["pull_cut", "offline", "fresh"]


def test_values_that_yaml_lacks() -> None:
    row = load(
        """{b: !bytes "3q2+7wA=", d: !decimal "1.10", t: !ts "2024-01-01T00:00:00.000001Z", j: !json {"a": [null, 1]},
        n: !json null, s: !json "text", i: !json 7, r: !text-repeat [ab, 3]}"""
    )
    assert row == {
        "b": b"\xde\xad\xbe\xef\x00",
        "d": Decimal("1.10"),
        "t": Timestamp("2024-01-01T00:00:00.000001Z"),
        "j": Json({"a": [None, 1]}),
        "n": Json(None),
        "s": Json("text"),
        "i": Json(7),
        "r": "ababab",
    }


@pytest.mark.parametrize(
    "text", ['!bytes "?"', "!bytes [1]", '!decimal "ten"', "!text-repeat [x]", "!text-repeat [x, -1]"]
)
def test_values_that_are_none(text: str) -> None:
    with pytest.raises(FormatError, match="line 1"):
        load(text)


def test_plain_scalars_are_those_of_yaml_1_2() -> None:
    row = load(
        "{a: yes, b: no, c: true, d: 010, e: 0x1f, f: 1e3, g: 2024-01-01, h: 12:30, i: ~, j: , k: 5.0e-324, l: -0.0}"
    )
    assert list(row.values()) == ["yes", "no", True, 10, 31, 1000.0, "2024-01-01", "12:30", None, None, 5e-324, 0.0]
    assert math.copysign(1, row["l"]) == -1
    assert math.isnan(load(".nan"))
    assert load("-.inf") == -math.inf


def test_keys_are_text() -> None:
    assert load("{7.5: a, on: b, null: c}") == {"7.5": "a", "on": "b", "null": "c"}


def test_an_id_is_made_once() -> None:
    ids = Ids()
    x = ids.resolve("$x")
    assert len(x) == 26
    assert ids.resolve({"k": ["$x", Json({"r": "$x"}), "$y", "cost: $x"]}) == {
        "k": [x, Json({"r": x}), ids.of("y"), "cost: $x"]
    }
    assert ids.in_sql("update t set a = '$x' where b = $1 and c = $f$ '$x ' $f$") == (
        f"update t set a = '{x}' where b = $1 and c = $f$ '$x ' $f$"
    )
    assert ids.told(f"no row {x}") == "no row $x"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_our_own_files_are_in_the_format(file: Path) -> None:
    assert read_scenario(file).name


@pytest.mark.slow
def test_our_own_files_use_every_step_and_expectation() -> None:
    scenarios = [read_scenario(file) for file in FILES]
    steps = [step for scenario in scenarios for step in scenario.steps]
    assert {step.name for step in steps} == {name.rstrip("_") for name in Step.model_fields}
    expected = [s.expect for s in scenarios] + [step.check for step in steps if step.check is not None]
    assert {name for one in expected for name in one.model_fields_set} == set(Expectations.model_fields)


AUDIENCES = "audiences: {claims: {teams: team}, memberships: ['select 1'], write: {claims: {edits: team}}}"


def with_audience(nodes: str = "[a, b]", steps: str = "[]", audiences: str = AUDIENCES) -> str:
    head = HEAD.replace("key: id}", "key: id, audience: \"'team:' || title\"}").replace("[a, b]", nodes)
    return f"{head}{audiences}\nsteps: {steps}\nexpect: {{sums: agree}}\n"


def test_audiences_and_who_nodes_are() -> None:
    nodes = (
        "{a: {principal: alice, claims: {teams: [t1, 2], org: {id: x}}}, b: {tables: [todo], audiences: ['team:t1']}}"
    )
    scenario = parse(with_audience(nodes))
    assert scenario.tables[0].audience == "'team:' || title"
    assert scenario.audiences is not None
    assert scenario.audiences.given == {
        "claims": {"teams": "team"},
        "memberships": ["select 1"],
        "write": {"claims": {"edits": "team"}},
    }
    alice, b = scenario.who["a"], scenario.who["b"]
    assert (alice.principal, alice.claims) == ("alice", {"teams": ["t1", 2], "org": {"id": "x"}})
    assert (b.principal, b.claims, b.tables, b.audiences) == (None, {}, ["todo"], ["team:t1"])


def test_what_is_left_out_of_audiences_is_not_given() -> None:
    scenario = parse(with_audience(audiences="audiences: {claims: {teams: team}}"))
    assert scenario.audiences is not None
    assert scenario.audiences.given == {"claims": {"teams": "team"}}
    assert list(scenario.who) == ["a", "b"]


def test_claims_may_be_given_before_a_node_comes() -> None:
    steps = parse(with_audience(steps="[{claims: {node: c, claims: {teams: t1}}}, {fresh: c}]")).steps
    assert [step.name for step in steps] == ["claims", "fresh"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (with_audience("{a: {colour: red}}"), "nodes.a.colour: unknown"),
        (with_audience("{a: {claims: [t1]}}"), "nodes.a.claims"),
        (with_audience("{a: {claims: {t: !ts '2024-01-01'}}}"), "nodes.a.claims.t"),
        (with_audience("{a: }"), "nodes.a"),
        (with_audience("{a: {tables: [kettle]}}"), "nodes.a.tables: there is no table 'kettle'"),
        (with_audience("{all: {}}"), "no node is called 'all'"),
        (with_audience("7"), "nodes: a list of names, or nodes by name"),
        (with_audience(audiences="audiences: {claim: {teams: team}}"), "audiences.claim: unknown"),
        (with_audience(audiences="audiences: {claims: [teams]}"), "audiences.claims"),
        (with_audience(audiences="audiences: {write: {members: []}}"), "audiences.write.members: unknown"),
        (with_audience(steps="[{claims: {node: a}}]"), "steps.1.claims.claims"),
        (with_audience(steps="[{claims: {node: a, claims: {}, principal: x}}]"), "steps.1.claims.principal: unknown"),
        (with_audience(steps="[{claims: {node: c, claims: {}}}]"), "there is no node 'c'"),
        (with_audience(steps="[{login: {node: a, principal: x, claims: 1}}]"), "steps.1.login.claims"),
        (with_audience().replace("audience: \"'team", "audiences: \"'team"), "tables.1.audiences: unknown"),
    ],
)
def test_refused_of_audiences(text: str, told: str) -> None:
    assert told in refusal(text)
