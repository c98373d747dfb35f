"""The child process that runs the functions by which columns are merged: ``python -m … FD``.

It loads every entry point of ``GROUP`` at its start and says which of them it could not load; then it answers
questions, one at a time, until its standard input ends. Frames are a length of four bytes and a marshalled value: a
question is ``(name, base, stored, incoming)`` on standard input, an answer ``(True, value)`` or ``(False, what went
wrong)`` on the file descriptor ``FD``. The standard library only, so that it starts fast.

A function that overruns its time is not ended here (no thread can be): the process that asked kills this one. Should
that process be gone itself, a thread that reads the input sees its end and ends this process.
"""

from __future__ import annotations

import marshal
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, BinaryIO

GROUP = "anabranch.merge_functions"
"""The group of entry points whose names are those of functions."""
HEADER_BYTES = 4
_TEXT_CHARACTERS = 500
_WAITING = 16

Function = Callable[[Any, Any, Any], Any]


def names() -> frozenset[str]:
    """The functions that are installed here."""
    return frozenset(point.name for point in entry_points(group=GROUP))


def frame(content: Any) -> bytes:
    """``content`` as it travels. Raises ValueError for what can't be marshalled."""
    data = marshal.dumps(content)
    return len(data).to_bytes(HEADER_BYTES, "big") + data


def _load() -> tuple[dict[str, Function], dict[str, str]]:
    """The functions, and why others can't be had."""
    functions: dict[str, Function] = {}
    broken: dict[str, str] = {}
    for point in entry_points(group=GROUP):
        if point.name in functions:
            broken[point.name] = "two distributions have a function of this name"
            continue
        try:
            loaded = point.load()
        except Exception as error:  # whatever a module does when it is imported
            broken[point.name] = f"it can't be loaded: {_error_text(error)}"
            continue
        if callable(loaded):
            functions[point.name] = loaded
        else:
            broken[point.name] = f"it is no function but {type(loaded).__name__}"
    return functions, broken


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_TEXT_CHARACTERS]


def _plain(value: object) -> object:
    """Lists as the tuples that arrays are; subclasses of text as text."""
    if isinstance(value, list | tuple):
        return tuple(_plain(part) for part in value)
    return str(value) if isinstance(value, str) else value


def _answer(functions: Mapping[str, Function], broken: Mapping[str, str], question: tuple[str, Any, Any, Any]) -> bytes:
    name, base, stored, incoming = question
    function = functions.get(name)
    if name in broken or function is None:
        return frame((False, broken.get(name, "no such function is installed where the resolver runs")))
    try:
        value = _plain(function(base, stored, incoming))
    except Exception as error:  # whatever the function raises is its answer
        return frame((False, f"it raised {_error_text(error)}"))
    try:
        return frame((True, value))
    except ValueError:
        return frame((False, f"it returned a {type(value).__name__}, which is no value of a column"))


def _read(source: BinaryIO, questions: queue.Queue[Any]) -> None:
    while len(header := source.read(HEADER_BYTES)) == HEADER_BYTES:
        questions.put(marshal.loads(source.read(int.from_bytes(header, "big"))))
    os._exit(0)


def main() -> None:
    """Answer until the input ends."""
    functions, broken = _load()
    questions: queue.Queue[Any] = queue.Queue(_WAITING)
    threading.Thread(target=_read, args=(sys.stdin.buffer, questions), daemon=True).start()
    with open(int(sys.argv[1]), "wb", buffering=0) as out:
        out.write(frame((True, broken)))
        while True:
            out.write(_answer(functions, broken, questions.get()))


if __name__ == "__main__":
    main()
