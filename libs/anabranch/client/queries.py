"""Queries of the app, and what may be asked of a file before its first pull is complete."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.client.errors import BatchState, NotReady
from anabranch.client.file.device_file import DeviceFile

_ENDS_TRANSACTION = re.compile(
    r"(?:[\s;]|--[^\n]*\n|/\*.*?\*/)*(?:begin|commit|end|rollback|savepoint|release)\b", re.IGNORECASE | re.DOTALL
)


def execute(file: DeviceFile, sql: str, parameters: Sequence[Any] | Mapping[str, Any]) -> sqlite3.Cursor:
    """Run a query for an app; ``SyncedDb.execute`` says what it raises."""
    conn = file.app_reader()
    if not file.in_transaction:
        try:
            return conn.execute(sql, parameters)
        except sqlite3.OperationalError as error:
            try:
                require_pulled(file, f"the query failed ({error})")
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


def require_table(file: DeviceFile, name: str) -> None:
    """Raise ValueError where there is no such table, and NotReady where it may yet come."""
    if name not in file.tables():
        require_pulled(file, f"there is no table {name!r} yet")
        raise ValueError(f"there is no table {name!r}")


def require_pulled(file: DeviceFile, what: str) -> None:
    """Raise NotReady before the first pull is complete: which tables and rows there are is not known."""
    if file.current().pulls == 0:
        raise NotReady(f"{what}: the first pull is not complete; start() waits for it, on_state reports it")
