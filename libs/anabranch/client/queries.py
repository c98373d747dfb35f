"""Queries of the app, and what may be asked of a file before its first pull is complete."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.client.errors import BatchState, NotReady
from anabranch.client.file import choice
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.file.device_table import DeviceTable

_ENDS_TRANSACTION = re.compile(
    r"(?:[\s;]|--[^\n]*\n|/\*.*?\*/)*(?:begin|commit|end|rollback|savepoint|release)\b", re.IGNORECASE | re.DOTALL
)

_LACKING = re.compile(r"no such table: (?:main\.)?(.+)", re.DOTALL)


def execute(file: DeviceFile, sql: str, parameters: Sequence[Any] | Mapping[str, Any]) -> sqlite3.Cursor:
    """Run a query for an app; ``SyncedDb.execute`` says what it raises."""
    conn = file.app_reader()
    if not file.in_transaction:
        try:
            return conn.execute(sql, parameters)
        except sqlite3.OperationalError as error:
            try:
                _require_pulled(file, error)
            except NotReady as early:
                raise early from error
            raise
    if _ENDS_TRANSACTION.match(sql):
        raise BatchState("a batch begins and ends with its block; SQL can't do it")
    conn.execute("PRAGMA query_only = ON")
    try:
        return conn.execute(sql, parameters)
    finally:
        # The batch goes on writing.
        conn.execute("PRAGMA query_only = OFF")


def require_table(file: DeviceFile, name: str) -> DeviceTable:
    """The table of that name in SQL. Raises ValueError where there is none, or (NotChosen) none that the device has
    chosen, and NotReady where it may yet come."""
    table = file.tables().named(name)
    if table is None:
        raise choice.not_there(file.current(), name)
    return table


def _require_pulled(file: DeviceFile, error: sqlite3.OperationalError) -> None:
    """Raise NotReady before the first pull is complete: which tables and rows there are is not known; and where the
    ``error`` is the lack of a table that may yet be pulled."""
    current = file.current()
    if current.pulls == 0:
        said = "the first pull is not complete; start() waits for it, on_state reports it"
        raise NotReady(f"the query failed ({error}): {said}")
    lacking = _LACKING.fullmatch(str(error))
    if lacking and file.tables().named(lacking[1]) is None:
        why = choice.not_there(current, lacking[1])
        if isinstance(why, NotReady):
            raise why
