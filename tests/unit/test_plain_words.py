"""Docstrings and comments begin with their subject: one that begins with "what" or "who" is half a sentence."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("libs", "services", "tests", "tools", "wheels")
HALF = {"what", "who", "likewise"}
# To parse every file takes ten seconds: one of these may begin so somewhere.
SUSPECT = re.compile(r'(?:#|""")\s*\W{0,2}(?:what|who|likewise)\b', re.IGNORECASE)
OF_OTHERS = re.compile(r"node_modules|_pb2(_grpc)?\.py$")


def begins_badly(text: str) -> bool:
    """Whether the first word is one that a docstring does not begin with."""
    words = text.split()
    return bool(words) and words[0].lower().strip("\"'(,.:;") in HALF


def bad_docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Those of modules, classes and functions, and the texts that stand below a value."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if begins_badly(text):
                yield node.lineno, text


def bad_comments(source: str) -> Iterator[tuple[int, str]]:
    """Those whose first line begins so; further lines may begin with any word."""
    before = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.lstrip("#")
            if line != before + 1 and begins_badly(text):
                yield line, text
            before = line


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_and_comments_begin_with_their_subject(room: str) -> None:
    bad = []
    for file in (ROOT / room).rglob("*.py"):
        source = file.read_text()
        if SUSPECT.search(source) and not OF_OTHERS.search(str(file)):
            found = [*bad_docstrings(source), *bad_comments(source)]
            bad += [f"{file.relative_to(ROOT)}:{line}: {text}" for line, text in found]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("begin", ["What", "who", "'Who'", "Likewise,"])
def test_such_a_beginning_is_found(begin: str) -> None:
    text = f'"""{begin} it does."""\n'
    source = f"def f():\n    {text}\n\n# {begin} it does:\n# what follows.\nx = 1\n{text}"
    assert SUSPECT.search(source)
    assert [line for line, _ in bad_docstrings(source)] == [8, 2]
    assert [line for line, _ in bad_comments(source)] == [5]


def test_another_beginning_is_none() -> None:
    source = 'def f():\n    """Whole rows, and what becomes of them."""\n\n\n# The end of\n# what was begun.\nx = 1\n'
    assert not [*bad_docstrings(source), *bad_comments(source)]
