"""``anabranch compact``: the job as a process, its steps as they come, and one clear line for what can't be done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.integration.compactor.conftest import Lake
from typer.testing import CliRunner

from anabranch.cli.compact import app
from anabranch.columnar.manifest import Manifest, to_json
from anabranch.store.catalog import registration
from anabranch.store.catalog.databases import load_database
from anabranch.store.lake import compactions
from anabranch.store.session.engine import connect

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]


def test_a_run_tells_its_steps_and_what_it_did(lake: Lake) -> None:
    lake.writer().insert("todo", [("a", "t", None, 1), ("b", "t", None, 2)])
    arguments = ["--root", str(lake.folder), "--postgres-url", lake.url, "--master", "local[1]"]
    done = CliRunner().invoke(app, [*arguments, "--db", "app", "--json"])
    assert done.exit_code == 0, done.output
    steps = [json.loads(line) for line in done.output.splitlines()]
    named = [event["step"] for event in steps if event["step"] != "tasks"]
    assert named == ["begun", "planned", "started", "written", "proven", "outcome"]
    assert (steps[-1]["changes"], steps[-1]["run_id"]) == (2, lake.manifest().run_id)
    # Where nothing is new, Spark is not started. Without --json, over all databases, in words.
    done = CliRunner().invoke(app, [*arguments, "--json"], env={"JAVA_HOME": "/nowhere"})
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["step"] for line in done.output.splitlines()] == ["begun", "planned", "outcome"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert f"app: nothing new since {lake.manifest().to_position}" in done.output


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        (["--db", "nowhere"], {}, "UNKNOWN_DATABASE"),
        (["--db", "app"], {"JAVA_HOME": "/nowhere"}, "NO_JAVA"),
        (["--db", "app"], {"ANABRANCH_SPARK_DRIVER_MEMORY_MIB": "1"}, "INVALID_SETTINGS"),
        (["--db", "app", "--root", "/proc/version"], {}, "NO_ROOT"),
        (["--db", "app", "--root", "nowhere://bucket/lake"], {}, "NO_ROOT"),
        (["--db", "app", "--root", "file:lake"], {}, "NO_ROOT"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_its_reason(
    lake: Lake, arguments: list[str], environment: dict[str, str], reason: str
) -> None:
    all_of_them = ["--root", str(lake.folder), *arguments, "--postgres-url", lake.url]
    done = CliRunner().invoke(app, all_of_them, env=environment)
    assert done.exit_code == 2
    [line] = done.output.strip().splitlines()
    assert line.startswith("anabranch: ")
    assert line.endswith(f"({reason})")


def test_a_lake_goes_on_at_another_root_once_its_files_are_there(lake: Lake, tmp_path: Path) -> None:
    lake.writer().insert("todo", [("a", "t", None, 1)])
    lake.compact()
    lake.writer().insert("todo", [("b", "t", None, 2)])
    other = tmp_path / "other"
    arguments = ["--root", str(other), "--postgres-url", lake.url, "--master", "local[1]", "--db", "app"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    [line] = done.output.strip().splitlines()
    assert line.endswith("(LAKE_MOVED)")
    assert f"{lake.folder}/app/" in line
    shutil.copytree(lake.folder, other, dirs_exist_ok=True)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "app: 1 changes" in done.output


def test_a_database_that_cannot_be_compacted_keeps_none_of_the_others_from_it(lake: Lake) -> None:
    lake.writer().insert("todo", [("a", "t", None, 1)])
    lake.sql("create schema aaa")
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        registration.create_database(conn, "aaa", "aaa")
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        aaa = load_database(conn, "aaa")
        manifest = to_json(Manifest("R", "aaa", aaa.epoch, 0, 1, aaa.schema_version))
        run: dict[str, Any] = {"run_id": "R", "after": 0, "upto": 1, "changes": 0, "root": "file:/x", "now_ms": 1}
        compactions.publish(conn, aaa.id, epoch=aaa.epoch, manifest=manifest, **run)
    lake.sql("update anabranch.databases set floor_ms = 5 where name = 'aaa'")
    arguments = ["--root", str(lake.folder), "--postgres-url", lake.url, "--master", "local[1]"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "the log of aaa begins after 5" in done.output
    assert "LOG_CUT" in done.output
    assert "app: 1 changes" in done.output
    assert lake.manifest().database == "app"
