"""The cost of a table's changes, for those who are about to make them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from anabranch.store.ddl.difference import TableChange


class CostKind(StrEnum):
    """The kinds of costs, the dearest last."""

    FREE = "free"
    """A few bytes in the log: names, columns with a constant, constraints and defaults."""
    RECOUNTS = "recounts"
    """The rows are read once for their sum, in the group that has the change."""
    NEW = "new"
    """Its rows go to every device."""
    SENDS = "sends"
    """Values of some columns of all rows go to every device."""
    GONE = "gone"
    """The table leaves the devices; batches for it that are queued become dead letters."""
    PULL = "pull"
    """Every device pulls the table anew."""
    STOPS = "stops"
    """The table can't be synced as it then is, and is set aside."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost, and the sentence that says it."""

    kind: CostKind
    text: str


def costs_of(change: TableChange, rows: int | None) -> list[Cost]:
    """The costs of a change, the dearest first. ``rows``: how many the table has, None where that is not known."""
    before, after = change.before, change.after
    many = "all rows" if rows is None else "one row" if rows == 1 else f"{rows:,} rows"
    if change.refused:
        what = "it is set aside, and no other table is" if before is not None else "it is not synced"
        return [Cost(CostKind.STOPS, f"{what}: {change.refused}")]
    if after is None:
        text = "it leaves the devices; what is queued for it becomes dead letters, which can be exported"
        return [Cost(CostKind.GONE, text)] if before is not None else []
    if change.pulled:
        return [Cost(CostKind.PULL, f"every device pulls it anew, {many}, and keeps its queue: {change.pulled}")]
    if before is None:
        return [Cost(CostKind.NEW, "it is synced by itself, and its rows go to every device")]
    found: list[Cost] = []
    if change.rewritten:
        names = ", ".join(f'"{after.by_name[name].sql_name}"' for name in sorted(change.rewritten))
        found.append(Cost(CostKind.SENDS, f"values of {names} go to every device, of {many}"))
    elif change.recount:
        found.append(Cost(CostKind.RECOUNTS, f"the table is read once, {many}, for its sum without what goes"))
    return found or [Cost(CostKind.FREE, "a few bytes in the log")]


def warnings_of(change: TableChange, rows: int | None) -> list[str]:
    """Doubts: a change may be meant otherwise, or go wrong with rows that a copy does not have."""
    found = []
    if rows != 0 and change.before is not None:
        for column in change.added:
            retyped = any(former.successor == column.name for former in change.dropped)
            if column.not_null and not (column.has_default or column.generated or retyped):
                name = column.sql_name
                found.append(
                    f'Postgres refuses column "{name}" where there are rows: it takes no NULL and has no default'
                )
    gone = [former.column.sql_name for former in change.dropped if not former.successor]
    found += [f'apps that still write column "{name}" go on: such values are kept as lost ones' for name in gone]
    if any(former.successor for former in change.dropped) or change.pulled:
        found.append("apps that were built for an earlier schema version and name it need an update")
    return found
