"""Generators that hold something - a turn, a session, a file - let go of it when they are left, not when the garbage
collector comes: whoever iterates over one closes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = (
    "services",
    "libs/anabranch/client",
    "libs/anabranch/columnar",
    "libs/anabranch/runtime",
    "libs/anabranch/store",
)
COMMANDS = {
    "run_job": "a command's job, whose process ends with the command's",
    "show_job": "as run_job",
    "base_groups": "a Spark task's file, whose process ends with the task",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def own(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function itself, without those of the functions in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Function | ast.Lambda):
            yield from own(child)


def holds(function: Function) -> bool:
    """Whether it is a generator that gives values out of a block that has an end."""
    if any("contextmanager" in ast.unparse(decorator) for decorator in function.decorator_list):
        return False
    blocks = [
        n for n in own(function) if isinstance(n, ast.With | ast.AsyncWith) or (isinstance(n, ast.Try) and n.finalbody)
    ]
    return any(isinstance(n, ast.Yield | ast.YieldFrom) for block in blocks for n in own(block))


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@pytest.fixture(scope="module")
def holders() -> frozenset[str]:
    """Names of generators that hold something; one that begins with an underscore goes with its module."""
    found = set()
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, Function) and holds(node):
                found.add(f"{path.name}:{node.name}" if node.name.startswith("_") else node.name)
    return frozenset(found)


@pytest.mark.slow
def test_there_are_such_generators(holders: frozenset[str]) -> None:
    assert {"pull", "compare", "pull_base", "follow", "serve_stream", "base_rows"} <= holders


@pytest.mark.slow
def test_no_generator_that_holds_something_is_iterated_over_without_being_closed(holders: frozenset[str]) -> None:
    left = []
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and isinstance(node.iter, ast.Call):
                name = name_of(node.iter)
                if (name in holders or f"{path.name}:{name}" in holders) and name not in COMMANDS:
                    left.append(f"{path.relative_to(ROOT)}:{node.iter.lineno} {name}")
    assert not left


@pytest.mark.slow
def test_no_asynchronous_generator_is_iterated_over_without_being_closed() -> None:
    """asyncio ends one that was left some time later, in a task of its own, whatever it holds through others."""
    left = [
        f"{path.relative_to(ROOT)}:{node.iter.lineno}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFor) and isinstance(node.iter, ast.Call)
    ]
    assert not left
