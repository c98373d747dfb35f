"""Statements that do not depend on one another, sent together (``together``), and where they are small as one.

For a few rows the overhead of a statement costs more than its work: its parameters, a message there and one back, a
start and an end of the executor. So the statements of a small group become the parts of one (``with a as (insert …)``),
which Postgres carries out on one snapshot, in no particular order. A part is an INSERT, UPDATE or DELETE without
RETURNING, or a SELECT.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import psycopg

from anabranch.store.session.binary import Connection, Cursor, run, was_refused
from anabranch.values.postgres_binary import Parameter, int8

_NUMBER = re.compile(rb"\$(\d+)")
_WRITES = re.compile(rb"\s*(insert|update|delete)\b")
# A cast that fails: Postgres's log has the sentence, and that of a subquery is not cast when the statement is planned.
_FEWER = b"(select 'Anabranch undoes a group: fewer records are there than were named'::text)::date - date '2000-01-01'"


class _Part(NamedTuple):
    """A statement with placeholders from ``$1`` on, and its parameters."""

    statement: bytes
    parameters: Sequence[Parameter]


def _as_one(conn: Connection, parts: Sequence[_Part], counts: Sequence[int | None] = ()) -> Cursor:
    """Execute all parts as one statement. The answer is one row: how many rows each of them has named. ``counts``: how
    many each must name; where one names another number, the statement fails (psycopg's InvalidDatetimeFormat).

    Raises:
        psycopg.Error: Postgres refused a part; nothing was done.
    """
    checked = tuple([place for place, count in enumerate(counts) if count is not None])
    statement = _joined(tuple([(part.statement, len(part.parameters)) for part in parts]), checked)
    parameters = [parameter for part in parts for parameter in part.parameters]
    if checked:
        parameters += [int8(count) for count in counts if count is not None]
    return run(conn, statement, parameters)


def _shifted(before: int, found: re.Match[bytes]) -> bytes:
    return b"$%d" % (int(found[1]) + before)


@lru_cache(maxsize=256)
def _joined(parts: tuple[tuple[bytes, int], ...], checked: tuple[int, ...]) -> bytes:
    bodies, before = [], 0
    for number, (statement, parameters) in enumerate(parts):
        body = _NUMBER.sub(partial(_shifted, before), statement)
        if _WRITES.match(statement):
            body += b" returning true"
        bodies.append(b"p%d as (%b)" % (number, body))
        before += parameters
    counts = b", ".join(b"(select count(*) from p%d)" % number for number in range(len(parts)))
    if checked:
        right = b" and ".join(
            [b"(select count(*) from p%d) = $%d::int8" % (place, before + n) for n, place in enumerate(checked, 1)]
        )
        # All are counted: a SELECT that nothing reads would not be carried out.
        counts += b", case when %b then 0 else %b end" % (right, _FEWER)
    return b"with " + b",\n".join(bodies) + b"\nselect " + counts


@dataclass(slots=True)
class _Together:
    """The statements that a ``together`` has sent and must still check, and those that it holds back to send as one."""

    holds_back: bool
    checked: bool
    parts: list[_Part] = field(default_factory=list)
    named: list[int | None] = field(default_factory=list)
    counted: Cursor | None = None
    sent: list[tuple[int, Cursor]] = field(default_factory=list)


_together: WeakKeyDictionary[Connection, _Together] = WeakKeyDictionary()


@contextmanager
def together(conn: Connection, *, few: bool = False, checked: bool = False) -> Iterator[Callable[[], None]]:
    """Send the statements of the body without waiting for answers between them: nothing in the body may need one. The
    error of a statement may be raised by a later one or at the end. ``few``: they have few rows, and are held back
    until the end, or until the yielded function is called; then they are sent as one. ``checked``: these must find as
    many rows as they name for what is sent behind them to be carried out.

    Raises:
        RuntimeError: a statement found another number of rows than it names.
        psycopg.Error: Postgres refused one.
    """
    state = _together[conn] = _Together(few, checked and few)

    def send() -> None:
        if state.parts and state.holds_back:
            state.counted = _as_one(conn, state.parts, state.named if state.checked else ())
        state.holds_back = False

    try:
        try:
            with conn.pipeline():
                yield send
                send()
        except psycopg.errors.InvalidDatetimeFormat as error:
            if state.checked and state.counted is not None and was_refused(state.counted):
                raise RuntimeError("fewer records are there than were named") from error
            raise
        for named, cursor in state.sent:
            _compare(named, cursor.rowcount)
        if state.counted is not None and not state.checked:
            for expected, found in zip(state.named, state.counted.fetchall()[0], strict=True):
                if expected is not None:
                    _compare(expected, found)
    finally:
        del _together[conn]


def execute(conn: Connection, statement: bytes, parameters: Sequence[Parameter], *, named: int | None = None) -> None:
    """Execute a statement that returns nothing, now or when ``together`` sends it. ``named``: how many rows it must
    find.

    Raises:
        RuntimeError: it found another number of rows.
        psycopg.Error: Postgres refused it.
    """
    state = _together.get(conn)
    if state is not None and state.holds_back:
        state.parts.append(_Part(statement, parameters))
        state.named.append(named)
        return
    cursor = run(conn, statement, parameters)
    if named is not None and state is not None:
        state.sent.append((named, cursor))
    elif named is not None:
        _compare(named, cursor.rowcount)


def _compare(named: int, there: int) -> None:
    if named != there:
        raise RuntimeError(f"{named} records named, {there} there")
