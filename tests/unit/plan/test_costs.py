"""The costs of a change, and the sentences that say them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.store.ddl.difference import TableChange
from anabranch.store.plan.costs import Cost, CostKind, costs_of, warnings_of
from anabranch.values import Column, Kind, Table
from anabranch.values.table import FormerColumn

ID = Column("id", Kind.STRING, "text", not_null=True)
MINUTES = Column("minutes", Kind.INT64, "integer")
HOURS = Column("minutes~2", Kind.DECIMAL, "numeric", renamed="minutes", initial=(None,))
JOB = Table("job", (ID, MINUTES), ("id",), 1)
RETYPED = replace(JOB, columns=(ID, HOURS))


@pytest.mark.parametrize(
    ("change", "rows", "kinds", "words"),
    [
        (TableChange(JOB, replace(JOB, renamed="task")), 5, [CostKind.FREE], "a few bytes"),
        (
            TableChange(JOB, RETYPED, rewritten=frozenset({"minutes~2"}), recount=True),
            1_234_567,
            [CostKind.SENDS],
            'values of "minutes" go to every device, of 1,234,567 rows',
        ),
        (
            TableChange(JOB, replace(JOB, columns=(ID,)), recount=True),
            1,
            [CostKind.RECOUNTS],
            "read once, one row, for",
        ),
        (TableChange(JOB, replace(JOB, columns=(ID,)), recount=True), None, [CostKind.RECOUNTS], "all rows"),
        (TableChange(JOB, JOB, pulled="its key was (id) and is (a)", recount=True), 5, [CostKind.PULL], "5 rows, and"),
        (
            TableChange(JOB, JOB, refused="no primary key"),
            5,
            [CostKind.STOPS],
            "it is set aside, and no other table is",
        ),
        (TableChange(None, None, refused="no primary key"), None, [CostKind.STOPS], "it is not synced: no primary key"),
        (TableChange(JOB, None), 5, [CostKind.GONE], "dead letters"),
        (TableChange(None, JOB, recount=True), None, [CostKind.NEW], "every device"),
        (TableChange(None, None), None, [], ""),
    ],
)
def test_a_change_costs(change: TableChange, rows: int | None, kinds: list[CostKind], words: str) -> None:
    costs: list[Cost] = costs_of(change, rows)
    assert [cost.kind for cost in costs] == kinds
    assert words in "".join(cost.text for cost in costs)


def test_what_a_copy_without_rows_does_not_show_is_warned_of() -> None:
    late = Column("late", Kind.INT64, "integer", not_null=True, initial=(None,))
    added = TableChange(JOB, replace(JOB, columns=(*JOB.columns, late)), added=(late,))
    [warning] = warnings_of(added, None)
    assert "takes no NULL and has no default" in warning
    assert warnings_of(added, 0) == []
    assert warnings_of(replace(added, added=(replace(late, has_default=True),)), 5) == []
    retyped = replace(HOURS, not_null=True)
    change = TableChange(JOB, RETYPED, added=(retyped,), dropped=(FormerColumn(MINUTES, 1, "minutes~2"),))
    assert warnings_of(change, 5) == ["apps that were built for an earlier schema version and name it need an update"]
    [gone] = warnings_of(TableChange(JOB, replace(JOB, columns=(ID,)), dropped=(FormerColumn(MINUTES, 1),)), 5)
    assert '"minutes"' in gone
