"""The names that tables get in a file, where something of the app's may have them."""

from __future__ import annotations

from anabranch.client.events import State
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, device_table
from anabranch.client.schema.make import refused_name
from anabranch.v1 import snapshot_pb2


def with_a_name(tx: Tx, old: DeviceTable, view: snapshot_pb2.Table) -> tuple[snapshot_pb2.Table, DeviceTable]:
    """The view, and the table that it describes: under the name that it has, where another table, view or index in the
    file has its new one already, which is told."""
    new = device_table(view)
    if old.sql_name.lower() == new.sql_name.lower():
        return view, new
    reason = refused_name(new.sql_name)
    if not reason:
        taken = tx.conn.execute(
            "SELECT type FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view', 'index')",
            (new.sql_name,),
        ).fetchone()
        reason = "" if taken is None else f"the file has a {taken[0]} of that name"
    if not reason:
        return view, new
    tx.events.append(State("not_renamed", f"its new name is {new.sql_name}: {reason}", old.sql_name))
    kept = snapshot_pb2.Table()
    kept.CopyFrom(view)
    kept.sql_name = "" if old.sql_name == old.name else old.sql_name
    return kept, device_table(kept)
