"""Make tables of the file from the server's Describe."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping

from anabranch.client.errors import CallFailed
from anabranch.client.events import Change, State
from anabranch.client.file import guards, layout, row_audiences
from anabranch.client.file.believed import UNREADABLE
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, device_table, quote, table_of
from anabranch.client.writes.payload import parse
from anabranch.v1 import snapshot_pb2
from anabranch.values import Kind
from anabranch.values.sqlite import declared_type

_KINDS = frozenset(map(int, Kind))


def apply_description(tx: Tx, response: snapshot_pb2.DescribeResponse) -> None:
    """Make the tables that are new, change those that have changed, drop those that are no longer synced; rows that are
    no longer shown because of it are reported as changes. A new table, and one that has changed, waits to be pulled.
    Tables that the device has not chosen are passed over."""
    choice = tx.state.choice
    known: dict[str, bytes] = dict(tx.conn.execute("SELECT name, value FROM _db_tables").fetchall())
    changed = False
    created: dict[str, DeviceTable] = {}
    for ordinal, message in enumerate(response.tables):
        if choice is not None and message.name not in choice:
            continue
        if unreadable := [c.name for c in message.columns if not _is_known(c)]:
            # It stays among ``known``: the rows of before, which would not be kept up to date, are dropped below.
            reason = f"this release of the client does not know the type of: {', '.join(unreadable)}; a newer one does"
            tx.events.append(State("set_aside", reason, message.name))
            continue
        value = message.SerializeToString(deterministic=True)
        old = known.pop(message.name, None)
        if old is None:
            table = _create(tx, message, value, ordinal)
            if table is not None:
                created[message.name] = table
        elif _columns(old) != _columns(value):
            changed = True
            _change(tx, snapshot_pb2.Table.FromString(old), message, value)
        elif old != value:
            tx.conn.execute("UPDATE _db_tables SET value = ? WHERE name = ?", (value, message.name))
            changed |= snapshot_pb2.Table.FromString(old).columns != message.columns
    if created:
        changed = True
        _find_pending(tx, created)
    for name in known:
        changed = True
        give_up(tx, name)
        tx.conn.execute(f"DELETE FROM {layout.OF_QUEUE} WHERE tbl = ?", (name,))
    if choice is not None:
        lacking = sorted(choice - {message.name for message in response.tables})
        tx.events += [State("not_synced", "the server has no synced table of that name", name) for name in lacking]
    tx.set(
        schema_version=response.state.schema_version,
        limits=response.limits.SerializeToString(),
        policy=response.policy.SerializeToString(),
        describe_due=0,
        **({"tables_version": tx.state.tables_version + 1} if changed else {}),
    )


def ask(
    tx: Tx, name: str, describe: Callable[[snapshot_pb2.DescribeRequest], snapshot_pb2.DescribeResponse]
) -> DeviceTable | None:
    """Ask the server for its present description of a table and keep it if its columns are still those of the file;
    None if they are not, or if the server can't be asked. The reader notices all other changes."""
    try:
        response = describe(snapshot_pb2.DescribeRequest(db_name=tx.state.db_name, node_state=tx.state.reader_state))
    except CallFailed:
        return None
    message = next((table for table in response.tables if table.name == name), None)
    (old,) = tx.conn.execute("SELECT value FROM _db_tables WHERE name = ?", (name,)).fetchone()
    if message is None or _columns(old) != _columns(value := message.SerializeToString(deterministic=True)):
        return None
    if value != old:
        tx.conn.execute("UPDATE _db_tables SET value = ? WHERE name = ?", (value, name))
        tx.set(tables_version=tx.state.tables_version + 1)
    return device_table(message)


def _is_known(column: snapshot_pb2.Column) -> bool:
    """Whether this release can hold the column's values: a newer server may have kinds that it has not."""
    return column.kind in _KINDS and (not column.element_kind or column.element_kind in _KINDS)


def give_up(tx: Tx, name: str) -> None:
    """Remove a table's rows and all that the file keeps of it, except the keys of rows that the queue touches."""
    drop_pull(tx, name)
    report_gone(tx, name)
    tx.conn.execute(f"DROP TABLE IF EXISTS {quote(name)}")
    for ours, column in layout.OF_TABLES.items():
        if ours != layout.OF_QUEUE:
            tx.conn.execute(f"DELETE FROM {ours} WHERE {column} = ?", (name,))


def report_gone(tx: Tx, name: str) -> None:
    """Report a delete for every row of a table, before the rows are removed."""
    if tx.wants_rows:
        keys = ", ".join(quote(k) for k in tx.tables[name].table.key_columns)
        gone = tx.conn.execute(f"SELECT {keys} FROM {quote(name)}")
        tx.events += [Change(name, "delete", tuple(key), (), None, "snapshot") for key in gone]


def _columns(value: bytes) -> tuple[list[tuple[str, int, int]], list[str], bool]:
    """The parts that decide how a table is held: names, kinds, key and whether it is restricted, not policies and
    defaults."""
    message = snapshot_pb2.Table.FromString(value)
    return [(c.name, c.kind, c.element_kind) for c in message.columns], list(message.key_columns), message.restricted


def _create(tx: Tx, message: snapshot_pb2.Table, value: bytes, ordinal: int) -> DeviceTable | None:
    name = message.name
    reason = ""
    if name.lower().startswith((layout.PREFIX, "sqlite_")):
        reason = f"names that start with {layout.PREFIX} or sqlite_ are SQLite's and this file's own"
    else:
        table = DeviceTable(table_of(message))
        try:
            tx.conn.execute(table.create_sql())
        except sqlite3.OperationalError as error:
            reason = f"SQLite can't hold it: {error}"
    if reason:
        tx.events.append(State("set_aside", reason, name))
        return None
    guards.put(tx.conn, name)
    tx.conn.execute("INSERT INTO _db_tables (name, ordinal, value) VALUES (?, ?, ?)", (name, ordinal, value))
    return table


def _find_pending(tx: Tx, created: Mapping[str, DeviceTable]) -> None:
    """Note which rows of new tables the queue's batches touch: they were queued while these were here before."""
    queued = tx.conn.execute("SELECT id, value FROM _db_mutations_queue ORDER BY id")
    touched = set[tuple[str, str, str]]()
    for batch_id, value in queued:
        # A damaged batch touches nothing that is known.
        with contextlib.suppress(*UNREADABLE):
            touched.update((part.table, part.key_text, batch_id) for part in parse(value, created))
    tx.conn.executemany(f"INSERT OR IGNORE INTO {layout.OF_QUEUE} (tbl, key, batch) VALUES (?, ?, ?)", sorted(touched))


def _change(tx: Tx, before_it: snapshot_pb2.Table, message: snapshot_pb2.Table, value: bytes) -> None:
    """Added columns stay empty until the table is pulled again; for any other change the table is created anew: so also
    where it was not restricted before, as some of the rows may be for others alone."""
    old, new = DeviceTable(table_of(before_it)), DeviceTable(table_of(message))
    drop_pull(tx, new.name)
    before, after = old.table.columns, new.table.columns
    kinds = [(c.name, c.kind, c.element_kind) for c in after[: len(before)]]
    (stage,) = tx.conn.execute("SELECT stage FROM _db_tables WHERE name = ?", (new.name,)).fetchone()
    added_only = kinds == [(c.name, c.kind, c.element_kind) for c in before]
    added_only &= before_it.restricted == message.restricted
    if stage != "new" and added_only and old.table.key_columns == new.table.key_columns:
        for column in after[len(before) :]:
            declared = f"{quote(column.name)} {declared_type(column.kind)}".rstrip()
            tx.conn.execute(f"ALTER TABLE {new.quoted} ADD COLUMN {declared}")
    else:
        report_gone(tx, new.name)
        tx.conn.execute(f"DROP TABLE {new.quoted}")
        tx.conn.execute(new.create_sql())
        guards.put(tx.conn, new.name)
        for ours in ("_db_base", "_db_row_audiences", "_db_audience_sums"):
            tx.conn.execute(f"DELETE FROM {ours} WHERE tbl = ?", (new.name,))
    tx.conn.execute(
        "UPDATE _db_tables SET value = ?, stage = CASE stage WHEN 'new' THEN 'new' ELSE 'aside' END, "
        "reason = 'its columns have changed' WHERE name = ?",
        (value, new.name),
    )
    tx.events.append(State("set_aside", "its columns have changed", new.name))


def drop_pull(tx: Tx, name: str) -> None:
    """Forget a table's pull that is under way, with the rows that it brought."""
    row = tx.conn.execute("SELECT stage, pull_table FROM _db_tables WHERE name = ?", (name,)).fetchone()
    if row is None:
        return
    stage, staged = row
    if staged is not None:
        tx.conn.execute(f"DROP TABLE IF EXISTS {quote(staged)}")
        row_audiences.clear(tx.conn, staged)
    elif stage == "new":
        # The rows were reported as they came, and will be again.
        report_gone(tx, name)
        with tx.writing(name, guards.MANY):
            tx.conn.execute(f"DELETE FROM {quote(name)}")
        row_audiences.clear(tx.conn, name)
    tx.conn.execute(
        """UPDATE _db_tables SET pull_first_ms = NULL, pull_last_ms = NULL, pull_epoch = '', pull_token = x'',
           pull_resume = x'', pull_count = 0, pull_hash = x'', pull_done = 0, pull_table = NULL, pull_told = x'',
           gain = '', gain_resume = x'' WHERE name = ?""",
        (name,),
    )
