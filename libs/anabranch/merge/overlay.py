"""The rows that a device shows while its own batches are under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anabranch.merge.columns import COMPUTED, ComputeError, compute
from anabranch.merge.model import Cell, MutationType, Policy


class Pending(NamedTuple):
    """One pending change of one row: a ``RowChange`` with its mutation's type.

    ``seen``: its batch is in the log already, hence in the base, and only waits for an earlier one of the
    row."""

    type: MutationType
    values: Mapping[str, Cell]
    before: Mapping[str, Cell] | None = None
    seen: bool = False


def shown(base: Mapping[str, Cell] | None, pending: Sequence[Pending], policy: Policy) -> Mapping[str, Cell] | None:
    """The row that a device shows: its base image, and on top of it the row's pending changes in the order of their
    batches' ids (within a batch in the order made). None: no row. ``base`` is not changed, and is returned itself where
    no change lies on it.

    An insert of a row that exists shows as an update of its columns: the base already has the row, from the log, by
    this node or another. Any other change that does not fit (an update or delete of a row that is gone) is not shown;
    the server decides. ``counter``, ``max``, ``min`` and ``union`` columns of an update go by their policy, over the
    row as shown so far; a column that a function decides shows the device's own value until the server has called the
    function.

    A change that is ``seen`` shows the base's values in its columns, because the base includes the change, and all
    later ones of the log: no earlier change that is still pending will alter these. A counter keeps the shown value
    then, since earlier changes will still add to it.
    """
    policies = policy.columns
    row = base
    for change in pending:
        if change.seen:
            row = _seen(base, row, change, policy)
        elif change.type is MutationType.DELETE:
            row = None
        elif row is None:
            if change.type is MutationType.INSERT:
                row = change.values
        elif not policies:
            row = {**row, **change.values}
        else:
            row = {**row, **{c: _cell(row, c, v, change, policies) for c, v in change.values.items()}}
    return row


def _seen(
    base: Mapping[str, Cell] | None, row: Mapping[str, Cell] | None, change: Pending, policy: Policy
) -> Mapping[str, Cell] | None:
    if base is None or row is None or change.type is not MutationType.UPDATE:
        return base
    back = [c for c in change.values if policy.columns.get(c) not in COMPUTED]
    return {**row, **{c: base.get(c) for c in back}}


def _cell(row: Mapping[str, Cell], column: str, cell: Cell, change: Pending, policies: Mapping[str, str]) -> Cell:
    policy = policies.get(column)
    if policy is None or policy not in COMPUTED:
        return cell
    try:
        return compute(policy, row, column, cell, change.before)
    except ComputeError:
        return row.get(column)
