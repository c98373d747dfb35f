"""A table over time: ``anabranch.schema_changes`` has each changed table as it was before and is after. Its rows are
never cut, so that they outlive the log, and the registrations of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from anabranch.store.log.schema_versions import table_from_json
from anabranch.store.session.engine import Session
from anabranch.values import Table

STATES: LiteralString = """
select position, tables -> %(table)s::text from anabranch.schema_changes
where database_id = %(db)s and tables ? %(table)s::text order by position
"""


@dataclass(frozen=True, slots=True)
class TableStates:
    """A registration of a table over time. ``before`` has the position of each schema change that changed it, and the
    table as it was before that; ``last`` is the table after all of them."""

    before: Sequence[tuple[int, Table]]
    last: Table

    def at(self, position: int) -> Table:
        """The table as it was when the group of a position, or the last one before it, had been committed."""
        return next((table for change, table in self.before if position < change), self.last)


def read_states(conn: Session, database_id: int, last: Table) -> TableStates:
    """A registration over time. ``last``: the table as it is now, or as it is known where it is not synced any more.

    Raises:
        psycopg.Error: the changes can't be read.
    """
    rows = conn.execute(STATES, {"db": database_id, "table": str(last.id)}).fetchall()
    told = [(position, table_from_json(last.id, one["before"])) for position, one in rows]
    before = [(position, table) for position, table in told if table is not None]
    after = table_from_json(last.id, rows[-1][1]["after"]) if rows else None
    return TableStates(before, after or (before[-1][1] if before else last))
