"""The one way by which commands print: names and values from a database, a file or a server can't move a terminal's
cursor, colour it, answer for it or turn its text around.

Only the standard library is imported: a device's commands use it, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def printable(text: str) -> str:
    """``text`` on one line, safe to show: control characters, ends of lines, and marks that turn the direction of
    writing or are not seen at all are written as escapes (``\\x1b``, ``\\n``, ``\\u202e``)."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def say(line: str, *, err: bool = False) -> None:
    """Print one line."""
    print(printable(line), file=sys.stderr if err else sys.stdout, flush=True)


def json_text(
    content: Any,
    *,
    indent: int | None = None,
    sort_keys: bool = False,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """``content`` as JSON that is exact and safe to show: what ``printable`` escapes is escaped as JSON does it, which
    Python's ``ensure_ascii=False`` leaves out for all but the oldest control characters."""
    text = json.dumps(content, indent=indent, sort_keys=sort_keys, ensure_ascii=False, default=default)
    if text.isprintable():
        return text
    # Outside of strings there are no such characters, but the ends of lines that ``indent`` makes.
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


def say_json(content: Any, **options: Any) -> None:
    """Print ``content`` as ``json_text`` makes it with these options: in one line, unless ``indent`` is given."""
    print(json_text(content, **options), flush=True)
