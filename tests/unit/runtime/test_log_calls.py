"""Errors are logged as they are, so that one place puts them into words that quote no row; nobody logs their text."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOMS = ("services", "libs/anabranch/runtime", "libs/anabranch/store")


def _caught(tree: ast.AST) -> set[str]:
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name} | {"error"}


def _texts_of_errors(tree: ast.AST) -> Iterator[int]:
    caught = _caught(tree)
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        if not (isinstance(call.func.value, ast.Name) and call.func.value.id in ("_log", "log", "logger")):
            continue
        for given in [*call.args, *(keyword.value for keyword in call.keywords)]:
            for part in ast.walk(given):
                if isinstance(part, ast.FormattedValue):
                    text_of: ast.expr | None = part.value
                elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in ("str", "repr"):
                    text_of = part.args[0] if part.args else None
                else:
                    continue
                if isinstance(text_of, ast.Name) and text_of.id in caught:
                    yield part.lineno


def test_no_call_logs_the_text_of_an_error() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}"
        for room in ROOMS
        for file in sorted((ROOT / room).rglob("*.py"))
        for line in _texts_of_errors(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_the_search_finds_them() -> None:
    code = "try:\n    pass\nexcept OSError as lost:\n    _log.error('x', detail=str(lost))\n    _log.error(f'x {lost}')"
    assert list(_texts_of_errors(ast.parse(code))) == [4, 5]


PROGRAM = """
import asyncio, gc, logging, threading
import structlog
from anabranch.runtime.logs import configure_logs, write_error_of_loop

configure_logs("program", "debug")
SECRET = "planted value"
log = structlog.get_logger()

def fail():
    try:
        int(SECRET)
    except ValueError as error:
        raise LookupError(SECRET) from error

async def loop():
    asyncio.get_running_loop().set_exception_handler(write_error_of_loop)
    async def task():
        fail()
    forgotten = asyncio.create_task(task(), name="forgotten")
    await asyncio.sleep(0)
    del forgotten
    gc.collect()
    asyncio.get_running_loop().call_soon(fail_with, SECRET)
    await asyncio.sleep(0)

def fail_with(_value):
    fail()

class Dies:
    def __del__(self):
        fail()

try:
    fail()
except LookupError as error:
    log.error("as it is", detail=error)
    log.error("with its stack", exc_info=error)
    log.exception("the one at hand")
    logging.getLogger("library").warning("%s of %s", error, SECRET.encode())
    logging.getLogger("library").exception("a library's")
try:
    raise ExceptionGroup(SECRET, [ValueError(SECRET), LookupError(SECRET)])
except ExceptionGroup as group:
    group.add_note(SECRET)
    log.error("several", exc_info=group)
asyncio.run(loop())
thread = threading.Thread(target=fail, name="thread")
thread.start()
thread.join()
Dies()
fail()
"""


def test_every_way_to_log_an_error_leaves_out_its_text() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "planted" not in done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    told = [line["event"] for line in lines if line["level"] in ("error", "warning")]
    assert told == [
        "as it is",
        "with its stack",
        "the one at hand",
        "LookupError of 13 bytes",
        "a library's",
        "several",
        "not caught in the event loop",
        "not caught in the event loop",
        "not caught",
        "not caught",
        "not caught",
    ]
    stack = next(line["exception"] for line in lines if line["event"] == "with its stack")
    assert [(one["exc_type"], one["is_cause"]) for one in stack] == [("LookupError", False), ("ValueError", True)]
    assert stack[0]["frames"][-1]["name"] == "fail", "the place in the code is told"
    group = next(line["exception"] for line in lines if line["event"] == "several")
    assert [one[0]["exc_type"] for one in group[0]["exceptions"]] == ["ValueError", "LookupError"]
