"""Commands print in one way, which escapes what a terminal obeys."""

from __future__ import annotations

import ast
import json
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Column as GridColumn
from rich.table import Table as Grid

import anabranch.cli
from anabranch.cli.lake.shown import add_row
from anabranch.cli.lines import cell
from anabranch.cli.printable import json_text, printable, say
from anabranch.cli.up import _sayers
from anabranch.values import Column, Kind, Table

EVIL = "a\x1b[2J\n\u202eb\x9b\x7f\u2028[red]\U000e0041\ud800c"
SHOWN = "a\\x1b[2J\\n\\u202eb\\x9b\\x7f\\u2028[red]\\U000e0041\\ud800c"
CLI = Path(anabranch.cli.__file__).parent
PRINTERS = {"printable.py": 2, "up.py": 1, "entry.py": 1}
"""Modules that call ``print``: the one way itself, a log's file, and the entry point with a fixed text."""


def test_what_a_terminal_obeys_is_escaped() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("Ünïcödé 🦆 日本語 … → \\x") == "Ünïcödé 🦆 日本語 … → \\x"
    assert printable(printable(EVIL)) == SHOWN, "more than once does no harm"


def test_json_is_exact() -> None:
    for indent in (None, 2):
        text = json_text({EVIL: [EVIL, 1, "ü"]}, indent=indent)
        assert json.loads(text) == {EVIL: [EVIL, 1, "ü"]}
        assert all(line.isprintable() for line in text.split("\n"))
        assert "ü" in text
    assert "\n" not in json_text({EVIL: EVIL})


def test_a_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"one {EVIL}")
    say(f"two {EVIL}", err=True)
    said = capsys.readouterr()
    assert (said.out, said.err) == (f"one {SHOWN}\n", f"two {SHOWN}\n")


def test_a_grid_obeys_neither_markup_nor_names() -> None:
    table = Table("t", (Column("id", Kind.STRING, "text"), Column(EVIL, Kind.STRING, "text")), ("id",))
    grid = Grid(*(GridColumn(cell(name)) for name in table.column_names), title=cell(EVIL))
    add_row(grid, table, {"id": EVIL, EVIL: EVIL})
    output = StringIO()
    Console(file=output, width=400, force_terminal=True, color_system=None).print(grid)
    written = output.getvalue()
    assert written.count(SHOWN) == 4
    assert all(line.isprintable() for line in written.split("\n"))


def test_lines_of_up_are_escaped_and_of_several_lines_each(capsys: pytest.CaptureFixture[str]) -> None:
    log = StringIO()
    _, say_too = _sayers(log)
    say_too("it failed:\n\x1b[31mred \u202ename")
    said = capsys.readouterr().out
    assert said == log.getvalue()
    first, second = said.splitlines()
    assert first.endswith("it failed:")
    assert second == "\\x1b[31mred \\u202ename"


def test_nothing_else_prints() -> None:
    found: dict[str, int] = {}
    for file in sorted(CLI.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            if (isinstance(node.func, ast.Name) and node.func.id == "print") or (
                isinstance(node.func, ast.Attribute) and node.func.attr in ("echo", "secho")
            ):
                name = str(file.relative_to(CLI))
                found[name] = found.get(name, 0) + 1
    assert found == PRINTERS


def test_it_is_the_devices_too() -> None:
    module = sys.modules[printable.__module__]
    imported = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    names = {node.module for node in ast.walk(imported) if isinstance(node, ast.ImportFrom)}
    assert names <= {"__future__", "collections.abc", "typing"}
