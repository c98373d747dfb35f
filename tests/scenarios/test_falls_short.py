"""A scenario that is wrong about anything falls short, and says about what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.scenario import expectations, steps, syncing
from anabranch.scenario.parse import read_scenario
from anabranch.scenario.run import Runner
from anabranch.scenario.world import FellShortError, World

STORY = """
name: b overwrites what a wrote, and a batch of b is refused
tables: [{{name: todo, columns: {{id: text, title: text, n: bigint, f: double precision}}, key: id,
          constraints: ["constraint todo_n check (n < 100)"]}}]
nodes: [a, b]
steps:
  - insert: {{node: a, table: todo, rows: [{{id: $x, title: milk, n: 1, f: -0.0}}]}}
  - sync: all
  - offline: b
  - update: {{node: b, table: todo, rows: [{{id: $x, title: from b}}]}}
  - insert: {{node: b, table: todo, rows: [{{id: $y, n: 100}}]}}
  - update: {{node: a, table: todo, rows: [{{id: $x, title: from a}}]}}
  - sync: a
  - online: b
  - sync: all
{more}
expect: {expect}
"""
TRUE = """{
  server: {todo: [{id: $x, title: from b, n: 1, f: -0.0}]},
  nodes: {a: same, b: {todo: [{title: from b, f: -0.0}]}},
  dead: {a: [], b: [{reason: CONSTRAINT, table: todo, constraint: todo_n, sqlstate: "23514", key: $y}]},
  queue: {a: 0, b: 0},
  conflicts: [{table: todo, key: $x, column: title, loser: from a}],
  verdicts: {a: [APPLIED, APPLIED], b: [APPLIED, REJECTED]},
  outcomes: {a: [[APPLIED], [APPLIED]], b: [[OVERWROTE], []]},
  log: {batches: 3},
  pulls: {a: 1, b: 1},
  sums: agree}"""
WRITE_OFFLINE = """
  - offline: b
  - update: {node: b, table: todo, rows: [{id: $x, n: 2}]}
"""


def story(folder: Path, expect: str, more: str = "") -> Path:
    file = folder / "story.yaml"
    file.write_text(STORY.format(expect=expect, more=more))
    return file


def run(runner: Runner, tmp_path: Path, expect: str, more: str = "") -> str:
    file = story(tmp_path, expect, more)
    result = runner.run(file)
    assert result.ok is (result.detail == "")
    assert result.file == str(file)
    return result.detail


@pytest.fixture(scope="module")
def told_world(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The story's world when its steps are done and all nodes have synced."""
    folder = tmp_path_factory.mktemp("told")
    scenario = read_scenario(story(folder, TRUE))
    world = World(runner.ground(), scenario, folder / "nodes")
    with closing(world):
        world.make_database()
        steps.start_nodes(world, scenario.nodes)
        for step in scenario.steps:
            steps.take(world, step)
        syncing.sync_all(world)
        expectations.check(world, scenario.expect)
        yield world


@pytest.mark.slow
def test_what_is_true_holds(runner: Runner, tmp_path: Path) -> None:
    assert run(runner, tmp_path, TRUE) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expect", "told"),
    [
        ("{server: {todo: []}}", "server: todo: not expected"),
        ("{server: {todo: [{id: $x, title: from a}]}}", "server: todo: no row"),
        ("{server: {todo: [{id: $x}, {id: $x}]}}", "server: todo: no row"),
        ("{server: {todo: [{id: $x, f: 0.0}]}}", "server: todo: no row"),
        ("{server: {todo: [{id: $x, colour: red}]}}", "server: todo: the server's todo has no column colour"),
        ("{server: {nothing: []}}", "server: nothing: the server has no table nothing"),
        ("{nodes: {a: {todo: [{title: from a}]}}}", "nodes: a: todo: no row"),
        ("{nodes: {a: {todo: []}}}", "nodes: a: todo: not expected"),
        ("{nodes: {a: {todo: [{f: 0.0}]}}}", "nodes: a: todo: no row"),
        ("{nodes: {a: {nothing: []}}}", "nodes: a: nothing: there is no synced table nothing"),
        ("{dead: {b: []}}", "dead: b: 1 dead letters, not 0"),
        ("{dead: {a: [{reason: CONSTRAINT}]}}", "dead: a: 0 dead letters, not 1"),
        ("{dead: {b: [{reason: ROW_EXISTS}]}}", "dead: b: letter 1: its reason is 'CONSTRAINT'"),
        ("{dead: {b: [{key: $x}]}}", "dead: b: letter 1: its key is"),
        ("{dead: {b: [{constraint: other}]}}", "dead: b: letter 1: its constraint is"),
        ("{dead: {b: [{server_row: {n: 1}}]}}", "dead: b: letter 1: its server row is"),
        ("{queue: {a: 1}}", "queue: a: 0 batches left, not 1"),
        ("{conflicts: []}", "conflicts: not expected"),
        ("{conflicts: [{table: todo, key: $x, column: title, loser: from b}]}", "conflicts: no conflict"),
        ("{conflicts: [{key: $y}]}", "conflicts: no conflict"),
        ("{verdicts: {b: [APPLIED, APPLIED]}}", "verdicts: b: APPLIED, REJECTED (CONSTRAINT), not APPLIED, APPLIED"),
        ("{verdicts: {b: [APPLIED]}}", "verdicts: b: APPLIED, REJECTED"),
        ("{outcomes: {b: [[MERGED], []]}}", "outcomes: b: [['OVERWROTE'], []]"),
        ("{outcomes: {a: [[APPLIED], [APPLIED, APPLIED]]}}", "outcomes: a:"),
        ("{log: {batches: 2}}", "log: 3 accepted batches, not 2"),
        ("{pulls: {a: 2}}", "pulls: a: 1 snapshots taken, not 2"),
    ],
)
def test_what_is_not_true_falls_short(told_world: World, tmp_path: Path, expect: str, told: str) -> None:
    with pytest.raises(FellShortError) as caught:
        expectations.check(told_world, read_scenario(story(tmp_path, expect)).expect)
    assert told in told_world.ids.told(str(caught.value))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "expect", "told"),
    [
        (WRITE_OFFLINE, "{nodes: {b: same}}", "nodes: b: todo"),
        (WRITE_OFFLINE, "{queue: {b: 0}}", "queue: b: 1 batches left, not 0"),
        (WRITE_OFFLINE, "{verdicts: {b: [APPLIED, REJECTED, APPLIED]}}", "PENDING"),
        (
            "  - sql: update anabranch.table_sums set row_count = row_count + 1",
            "{sums: agree}",
            "sums: the server's kept",
        ),
        ("  - check: {queue: {a: 3}}", "{queue: {a: 0}}", "step 10 (check): queue: a"),
        ("  - fails: {step: {sync: a}, error: x}", "{queue: {a: 0}}", "sync did not fail"),
        (
            "  - fails: {step: {insert: {node: a, table: todo, rows: [{id: $x}]}}, error: NUL}",
            "{queue: {a: 0}}",
            "does not say 'NUL'",
        ),
        ("  - insert: {node: a, table: todo, rows: [{id: $x}]}", "{queue: {a: 0}}", "RowExists"),
        ("  - sql: select nonsense", "{queue: {a: 0}}", "nonsense"),
        ("  - send: {node: a, order: [1]}", "{queue: {a: 0}}", "a has 0 unsent batches, not 1"),
        ("  - resend: {node: a, batch: 9}", "{queue: {a: 0}}", "a has made 2 batches, not 9"),
        ("  - dead: {node: a, replay: 1}", "{queue: {a: 0}}", "a has 0 dead letters, not 1"),
        ("  - restore: {node: a, conflict: 2}", "{queue: {a: 0}}", "there are 1 conflicts, not 2"),
        (
            "  - crash_at: {process: ingest, point: before_append}",
            "{queue: {a: 0}}",
            "armed, and never reached: ingest: before_append",
        ),
    ],
)
def test_what_does_not_happen_falls_short(runner: Runner, tmp_path: Path, more: str, expect: str, told: str) -> None:
    assert told in run(runner, tmp_path, expect, more)


BEHIND_THE_TRIGGERS = """
  - sql: alter table todo disable trigger user; update todo set n = 5; alter table todo enable trigger user
"""


@pytest.mark.slow
@pytest.mark.xdist_group("lake")
@pytest.mark.timeout(900)
def test_a_lake_that_is_not_the_server_falls_short(runner: Runner, tmp_path: Path) -> None:
    detail = run(runner, tmp_path, "{parquet: same}", BEHIND_THE_TRIGGERS)
    # The base is proven by the table's sum before it is published, and this one can't be.
    assert "the compactor ended with 2" in detail
    assert "with the sum" in detail


def test_a_file_that_is_not_in_the_format_falls_short(runner: Runner, tmp_path: Path) -> None:
    assert run(runner, tmp_path, "{colour: red}") == "expect.colour: unknown"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "1.yaml").write_text(STORY.format(expect=TRUE, more=""))
    (folder / "2.yaml").write_text(STORY.format(expect="{log: {batches: 7}}", more=""))
    (folder / "3.yaml").write_text("name: x")
    report = tmp_path / "report.json"
    shown = CliRunner().invoke(app, ["scenario", "run", str(folder), "--report", str(report)])
    assert shown.exit_code == 1, shown.output
    found = json.loads(report.read_text())
    assert [set(one) for one in found] == [{"file", "name", "ok", "detail"}] * 3
    assert [one["ok"] for one in found] == [True, False, False]
    assert [Path(one["file"]).name for one in found] == ["1.yaml", "2.yaml", "3.yaml"]
    assert found[0]["detail"] == ""
    assert found[0]["name"] == found[1]["name"] == "b overwrites what a wrote, and a batch of b is refused"
    assert found[1]["detail"] == "expect: log: 3 accepted batches, not 7"
    assert "1 of 3 hold" in shown.output
    assert CliRunner().invoke(app, ["scenario", "run", str(folder / "1.yaml")]).exit_code == 0
    assert CliRunner().invoke(app, ["scenario", "run", str(tmp_path / "nowhere")]).exit_code == 2
