"""SQL scripts, taken apart into their statements as psql does it. No I/O.

Each statement is run by itself, so that a script may begin and commit as it likes. Commands of psql are none of SQL's:
those that only say how psql shows things are left out, others can't be carried out here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from anabranch.errors import ServerError

_TOKEN = re.compile(
    r"""
      (?P<comment>--[^\n]*)
    | (?P<block>/\*)
    | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*')
    | (?P<string>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<dollar>\$(?P<tag>[^\W\d]\w*)?\$)
    | (?P<word>[^\W\d][\w$]*)
    | (?P<open>[(])
    | (?P<close>[)])
    | (?P<end>;)
    | (?P<meta>\\[^\n]*)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_HARMLESS = frozenset(
    {
        "a",
        "C",
        "conninfo",
        "echo",
        "encoding",
        "errverbose",
        "f",
        "H",
        "pset",
        "q",
        "qecho",
        "r",
        "restrict",
        "set",
        "t",
    }
    | {"T", "timing", "unrestrict", "unset", "warn", "x"}
)
"""Commands of psql that change nothing but what it shows, or end it."""
_STDIN = re.compile(r"\bfrom\s+stdin\b", re.IGNORECASE)
_WRITES = frozenset(
    {"call", "copy", "delete", "do", "execute", "insert", "merge", "select", "truncate", "update", "with"}
)


class ScriptError(ServerError, ValueError):
    """The script has something that can't be run here; ``line`` is where."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(f"line {line}: {text}")
        self.line = line


@dataclass(frozen=True, slots=True)
class ScriptStatement:
    """A statement with the line where it begins. ``words`` are its first ones, in small letters."""

    line: int
    text: str
    words: tuple[str, ...]

    @property
    def writes_rows(self) -> bool:
        """Whether it may write rows, which a copy without any can't tell."""
        return bool(self.words) and self.words[0] in _WRITES


@dataclass(frozen=True, slots=True)
class Script:
    """The statements of a script, and what was left out of it, each with its line."""

    statements: tuple[ScriptStatement, ...]
    left_out: tuple[str, ...] = ()


def read_script(text: str) -> Script:
    """Take a script apart.

    Raises:
        ScriptError: it has a command of psql that can't be carried out, data of a COPY, or a text that does not end.
    """
    left_out: list[str] = []
    statements = tuple(_statements(text, left_out))
    return Script(statements, tuple(left_out))


def _statements(text: str, left_out: list[str]) -> Iterator[ScriptStatement]:
    place, start = 0, -1
    words: list[str] = []
    parentheses = blocks = 0

    def made(end: int) -> Iterator[ScriptStatement]:
        if start >= 0 and words:
            body, line = text[start:end], text.count("\n", 0, start) + 1
            if words[0] == "copy" and _STDIN.search(body):
                raise ScriptError(line, "data of a COPY can't be read here: leave it out")
            yield ScriptStatement(line, body, tuple(words[:4]))

    while place < len(text):
        found = _TOKEN.match(text, place)
        assert found is not None
        kind, place = str(found.lastgroup), found.end()
        if kind == "tag":
            kind = "dollar"
        if kind in ("comment", "block"):
            place = _comment_end(text, found.start()) if kind == "block" else place
            continue
        if kind == "meta":
            _command(text, found.start(), found[0], left_out)
            if start >= 0 and words:
                # Some of them send what was given so far.
                yield from made(found.start())
            start, words, parentheses, blocks = -1, [], 0, 0
            continue
        if kind == "end" and not parentheses and not blocks:
            yield from made(found.start())
            start, words = -1, []
            continue
        if kind == "other" and found[0].isspace():
            continue
        if start < 0:
            start = found.start()
        if kind == "dollar":
            place = _dollar_end(text, found)
        elif kind == "other" and found[0] in "'\"":
            raise ScriptError(text.count("\n", 0, found.start()) + 1, "a text or a name does not end")
        elif kind == "word":
            words.append(found[0].lower())
            blocks = _depth(words, blocks)
        else:
            parentheses = max(0, parentheses + (kind == "open") - (kind == "close"))
    yield from made(len(text))


def _command(text: str, at: int, command: str, left_out: list[str]) -> None:
    line = text.count("\n", 0, at) + 1
    name = re.match(r"\\(\S*)", command)
    if name is None or name[1] not in _HARMLESS:
        raise ScriptError(line, f"{command.strip()!r} is a command of psql, and can't be carried out here")
    left_out.append(f"line {line}: {command.strip()}")


def _comment_end(text: str, start: int) -> int:
    """The end of a comment that may have others in it."""
    depth = 0
    for found in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if found[0] == "/*" else -1
        if not depth:
            return found.end()
    raise ScriptError(text.count("\n", 0, start) + 1, "a comment does not end")


def _dollar_end(text: str, found: re.Match[str]) -> int:
    end = text.find(found["dollar"], found.end())
    if end < 0:
        raise ScriptError(text.count("\n", 0, found.start()) + 1, f"a text in {found['dollar']} does not end")
    return end + len(found["dollar"])


def _depth(words: list[str], blocks: int) -> int:
    """How many blocks are open in the body of a function in SQL, which has semicolons of its own."""
    if words[0] != "create" or not {"function", "procedure"} & set(words[:4]):
        return 0
    if words[-2:] == ["begin", "atomic"] or (blocks and words[-1] == "case"):
        return blocks + 1
    return blocks - 1 if blocks and words[-1] == "end" else blocks
