"""Tables that this release can't hold: a newer server may have kinds of columns that it does not know."""

from __future__ import annotations

from anabranch.client.events import State
from anabranch.client.file.device_table import table_of
from anabranch.v1 import snapshot_pb2
from anabranch.values import Kind

_KINDS = frozenset(map(int, Kind))


def unreadable(message: snapshot_pb2.Table) -> State | None:
    """The state to tell of a table that can't be held; None where it can."""
    sql_name = message.sql_name or message.name
    unknown = [c.sql_name or c.name for c in message.columns if not _is_known(c)]
    if unknown:
        reason = f"this release of the client does not know the type of: {', '.join(unknown)}; a newer one does"
        return State("set_aside", reason, sql_name)
    try:
        table_of(message)
    except (ValueError, LookupError) as error:
        return State("set_aside", f"this release of the client can't read its description: {error!r}", sql_name)
    return None


def _is_known(column: snapshot_pb2.Column) -> bool:
    return column.kind in _KINDS and (not column.element_kind or column.element_kind in _KINDS)
