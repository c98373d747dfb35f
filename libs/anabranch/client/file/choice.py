"""The synced tables that a device has chosen: only these are made in its file, pulled and kept up to date.

The choice is a field of the file's state: names in SQL, as the app gave them. A table is chosen by its name in SQL, or
by its identity, so that a name which the app goes on giving means the same table after that was renamed; one that the
file has stays chosen as long as the choice is the same. Invariants, held by every commit:

* ``_db_tables`` has chosen tables alone. Everything that the log and the server bring goes by ``_db_tables``, so that a
  row of another table has no place: neither as a row, nor as a base image, nor in a sum, nor in a kept verdict.
* A change of the choice and the removal of what it gives up are one transaction.
* The queue belongs to no table: batches that touch a table which was given up stay, are sent and get their verdicts.
  ``_db_pending_rows`` keeps their rows' keys, so that the table shows them again once it has been chosen and pulled
  anew.
* ``describe_due`` is set while the server is to be asked for tables that the choice has added.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from typing import Any

from anabranch.client.errors import NotChosen, NotReady
from anabranch.client.events import State
from anabranch.client.file.believed import UNREADABLE
from anabranch.client.file.device_file import DeviceFile, Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.file.state import FileState
from anabranch.client.schema.make import give_up
from anabranch.v1 import verdict_pb2

_WITH_VERDICTS = ("_db_mutations_queue", "_db_confirmed", "_db_mutations_queue_dead")


def checked(tables: Iterable[Any] | None) -> frozenset[str] | None:
    """The names of an app's choice; None for all tables. Raises ValueError where they are no names."""
    if tables is None:
        return None
    if isinstance(tables, str | bytes):
        raise ValueError(f"the chosen tables are a list of names, not {tables!r}")
    names = frozenset(tables)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{name!r} is no table's name")
    return names


def take_up(file: DeviceFile, wanted: frozenset[str] | None) -> None:
    """Keep the choice of the process that opens the file, and close the file where that fails."""
    try:
        keep(file, wanted)
    except BaseException:
        file.close()
        raise


def keep(file: DeviceFile, wanted: frozenset[str] | None) -> None:
    """Keep a choice, where it is another one than the file's."""
    if file.current().choice == wanted:
        return
    with file.transaction() as tx:
        choose(tx, wanted)
    file.listeners.deliver()


def choose(tx: Tx, wanted: frozenset[str] | None) -> None:
    """Keep ``wanted`` as the choice, and remove what it gives up; the reader asks for what it adds."""
    if wanted == tx.state.choice:
        return
    given_up = [table for table in tx.tables.values() if not is_chosen(wanted, table.name, table.sql_name)]
    for table in given_up:
        give_up(tx, table)
    if wanted is not None and given_up:
        gone = {table.name for table in given_up}
        forget_rows(tx, lambda mutation: mutation.table not in gone and _keeps(tx.tables, wanted, mutation))
    known = [table for table in tx.tables.values() if table not in given_up]
    tx.set(
        chosen=None if wanted is None else json.dumps(sorted(wanted)),
        describe_due=int(wanted is None or bool(lacking(wanted, known))),
        **({"tables_version": tx.state.tables_version + 1} if given_up else {}),
    )
    if given_up:
        tx.events.append(State("given_up", ", ".join(table.sql_name for table in given_up)))


def is_chosen(choice: Collection[str] | None, name: str, sql_name: str) -> bool:
    """Whether a table is chosen: ``name`` is its identity."""
    return choice is None or sql_name in choice or name in choice


def lacking(choice: Collection[str], tables: Iterable[DeviceTable]) -> list[str]:
    """The names of a choice by which none of ``tables`` is chosen, in order."""
    found = {name for table in tables for name in (table.name, table.sql_name)}
    return sorted(set(choice) - found)


def forget_rows(tx: Tx, keeps: Callable[[verdict_pb2.MutationVerdict], bool]) -> None:
    """Remove the server's rows from the verdicts that the file keeps, where ``keeps`` denies them."""
    for kept in _WITH_VERDICTS:
        changed = []
        for batch_id, data in tx.conn.execute(f"SELECT id, verdict FROM {kept} WHERE verdict IS NOT NULL"):
            try:
                verdict = verdict_pb2.Verdict.FromString(data)
            except UNREADABLE:
                continue  # The reader of it says so.
            if _without(verdict, keeps):
                changed.append((verdict.SerializeToString(), batch_id))
        tx.conn.executemany(f"UPDATE {kept} SET verdict = ? WHERE id = ?", changed)


def without_others(verdicts: Iterable[verdict_pb2.Verdict], tx: Tx) -> None:
    """Remove the server's rows of tables that are not chosen from new verdicts, before these are kept or told."""
    choice = tx.state.choice
    if choice is not None:
        for verdict in verdicts:
            _without(verdict, lambda mutation: _keeps(tx.tables, choice, mutation))


def _keeps(tables: Collection[str], choice: Collection[str], mutation: verdict_pb2.MutationVerdict) -> bool:
    """Whether the row in a verdict is of a chosen table: verdicts name tables by identity."""
    return mutation.table in tables or mutation.table in choice


def _without(verdict: verdict_pb2.Verdict, keeps: Callable[[verdict_pb2.MutationVerdict], bool]) -> bool:
    """Remove the rows that ``keeps`` denies; return whether there were any."""
    gone = [m for m in verdict.mutations if m.HasField("server_row") and not keeps(m)]
    for mutation in gone:
        mutation.ClearField("server_row")
    return bool(gone)


def not_there(current: FileState, name: str) -> ValueError | NotReady:
    """The error for a synced table that the file does not have."""
    choice = current.choice
    if choice is not None and name not in choice:
        names = ", ".join(sorted(choice)) or "none"
        return NotChosen(f"{name} is not among the tables that this device has chosen: {names}")
    if not current.pulls:
        return NotReady(
            f"there is no table {name!r} yet: the first pull is not complete; start() waits for it, on_state reports it"
        )
    if current.describe_due:
        return NotReady(f"{name} has not been pulled yet: the server is asked for its tables with the next call")
    if choice is not None:
        return NotReady(f"{name} is chosen, and the server has no synced table of that name yet")
    return ValueError(f"there is no synced table {name!r}")
