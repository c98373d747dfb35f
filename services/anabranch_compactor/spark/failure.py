"""A failure of Spark's in one sentence.

Spark tells of a failure by the stacks of all threads that it went through, on both sides of its gateway: hundreds of
lines, of which the innermost cause is the one that says something. Java's and Spark's own words are told; of what
failed in a Python process of a task only its type, since its text may quote values of rows.
"""

from __future__ import annotations

import re

_PYTHON = re.compile(r"org\.apache\.spark\.api\.python\.PythonException|^An exception was thrown from the Python ")
"""Of a task's Python process, in Java's words and, where a query failed at once, in PySpark's."""
_CAUSE = re.compile(r"^\s*(?:Caused by: |: )?((?:[A-Za-z_][\w$]*\.)+[A-Z][\w$]*)(?:: (.*))?$")
"""A line that begins a Java exception: its class, and the first line of its message."""
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")
"""The line that ends a traceback of Python's: the exception's type."""
_LOST = re.compile(r"ExecutorLostFailure.*?Reason: (.*)")
_MOST = 300


def sentence(error: BaseException) -> str | None:
    """The failure in one line; None where the error is not one of Spark's, or of the way to it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not isinstance(error, Py4JError | PySparkException):
        return None
    return f"Spark ended the run: {reason(str(error)) or type(error).__name__}"


def reason(text: str) -> str:
    """The innermost cause that Spark's text of a failure tells of; "" where it tells of none."""
    raised = _raised_in_task(text)
    if raised:
        return f"{raised} in a task"
    lost = _LOST.search(text)
    if lost:
        return _short(f"executors were lost: {lost[1]}")
    causes = [found for line in text.splitlines() if (found := _CAUSE.match(line))]
    if causes:
        kind, message = causes[-1][1].rpartition(".")[2], causes[-1][2] or ""
        return _short(f"{kind}: {message}" if message else kind)
    return _short(next((line.strip() for line in text.splitlines() if line.strip()), ""))


def _raised_in_task(text: str) -> str:
    """The type of the exception that ended a task's Python process, if one did."""
    if not _PYTHON.search(text):
        return ""
    traceback = text.rpartition("Traceback (most recent call last):")[2]
    for line in traceback.splitlines()[1:]:
        # Lines of the stack and of the code are indented.
        if line and not line[0].isspace():
            found = _RAISED.match(line)
            return found[1] if found else "an error"
    return "an error"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST else f"{line[:_MOST]}…"
