"""The pulled rows of a table against those that it shows: what has changed, and how many there are."""

from __future__ import annotations

from contextlib import closing

from anabranch.client.events import Change
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, quote
from anabranch.client.overlay.rebase import tell
from anabranch.client.reading import sums


def count_base(tx: Tx, table: DeviceTable) -> int:
    """Rows of the base: those shown, without the rows that pending batches touch, and their base images."""
    (count,) = tx.conn.execute(f"SELECT count(*) FROM {table.quoted}").fetchone()
    kept = dict(tx.conn.execute("SELECT key, row IS NOT NULL FROM _db_base WHERE tbl = ?", (table.name,)))
    if kept:
        with closing(sums.base_rows(tx.conn, table)) as rows:
            count = sum(1 for _ in rows)
    total: int = count
    return total


def differences(tx: Tx, table: DeviceTable, staged: str, apart: set[str]) -> None:
    """Report the rows that differ between the shown and the pulled table, without the rows ``apart``."""
    conn = tx.conn
    columns, new_name, keys = table.exact_sql, quote(staged), table.key_sql
    changed = conn.execute(f"SELECT {columns} FROM {new_name} EXCEPT SELECT {columns} FROM {table.quoted}").fetchall()
    new = {text: row for row in changed if (text := table.key_text(table.key_of(row))) not in apart}
    old = table.read_by_text(conn, {text: table.key_of(row) for text, row in new.items()}) if new else {}
    for text, row in new.items():
        tell(tx, table, old.get(text), row, "snapshot")
    gone = conn.execute(f"SELECT {keys} FROM {table.quoted} EXCEPT SELECT {keys} FROM {new_name}").fetchall()
    tx.events += [
        Change(table.sql_name, "delete", tuple(key), (), None, "snapshot")
        for key in gone
        if table.key_text(key) not in apart
    ]
