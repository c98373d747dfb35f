"""A program in place of the nodes: stories are its test suite, whatever it is written in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.scenario.command import app

HERE = Path(__file__).parent
# Ours, as a stranger would be started: it has nothing but its arguments, and says that it was there.
CLIENT = """#!{python}
import json, socket, sys
from pathlib import Path
from anabranch.scenario.device import serve
descriptor, options = int(sys.argv[1]), json.loads(sys.argv[2])
with Path({seen!r}).open("a") as file:
    file.write(options["name"] + "\\n")
{body}
"""
SERVES = "serve(socket.socket(fileno=descriptor), options)"
# It takes what it is told for done, and does nothing.
PRETENDS = """
peer = socket.socket(fileno=descriptor)
for line in peer.makefile("rb"):
    peer.sendall(b'{"o": {"gives": null}}\\n')
"""

Make = Callable[[str], Path]


@pytest.fixture
def client(tmp_path: Path) -> Make:
    def make(body: str) -> Path:
        program = tmp_path / "client"
        program.write_text(CLIENT.format(python=sys.executable, seen=str(tmp_path / "seen"), body=body))
        program.chmod(0o755)
        return program

    return make


def run(tmp_path: Path, program: Path, *files: str) -> tuple[int, list[dict[str, object]]]:
    report = tmp_path / "report.json"
    paths = [str(HERE / file) for file in files]
    done = CliRunner().invoke(app, ["run", *paths, "--node", str(program), "--report", str(report)])
    return done.exit_code, json.loads(report.read_text())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_client_that_does_what_it_is_told_holds(tmp_path: Path, client: Make) -> None:
    files = ("02-update-different-columns-merge.yaml", "12-lost-answer-is-harmless.yaml", "43-device-copied.yaml")
    code, results = run(tmp_path, client(SERVES), *files)
    assert [(one["ok"], one["detail"]) for one in results] == [(True, "")] * 3
    assert code == 0
    assert len((tmp_path / "seen").read_text().splitlines()) >= 6, "every node was the program"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_that_only_says_so_falls_short(tmp_path: Path, client: Make) -> None:
    code, results = run(tmp_path, client(PRETENDS), "02-update-different-columns-merge.yaml")
    assert code == 1
    assert [one["ok"] for one in results] == [False]
    assert results[0]["detail"]
    assert (tmp_path / "seen").exists()
