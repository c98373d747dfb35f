"""The table of conflict rules: the effect of one incoming change on one row.

A row is *live* (in the table), a *tombstone* (not there, and its history says deleted) or *unknown*. It is *concurrent*
for a batch when a node other than the batch's wrote it at a real position after the basis: its user had not seen that
write. A node's own writes never count, so that an own later write can't hide an unseen write of another node.

**Late arrival.** A node's batches may be decided out of the order in which they were made: one of them was held up for
longer than the park time, and later ones were accepted meanwhile. The late one still takes its place before those: rows
end as if the later batches had been undone, the late one applied, and the later ones applied again, though no write is
undone. Three rules achieve this.

* Columns are ordered by key, not by arrival (``_update``, ``_late_insert``): the late batch has the *place* of the
  first that it should have preceded (``order.place_of``), so it gets no column that a later batch has written, and
  every column that no later batch has.
* Rows are ordered by their last writer (``_late``): on a row that a later batch of the same node deleted, or inserted
  anew, or changed, an earlier change has no effect, though the rules would otherwise reject it as a change of a row
  that is gone or exists already.
* Where another node wrote the row since the basis, the late batch could overwrite that node's write, and the table
  applies as for any other batch.

Concurrency is judged by real positions throughout, of the row and of each column: a late batch does not change what
others have seen. The log, too, has the batch's entry at the position where it was decided, with the changes made there.

Two cases are not handled this way. A late insert keeps the whole value of a ``counter`` column that a later update
wrote, with the count of the row's earlier life; and with ``delete: wins`` a late delete is judged against other nodes'
writes as they stand on arrival, not as they stood at its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from anabranch.merge.columns import COMPUTED, ComputeError, compute, function_of
from anabranch.merge.equality import same
from anabranch.merge.model import (
    Batch,
    Cell,
    MutationType,
    Outcome,
    Policy,
    RejectionReason,
    RowChange,
    RowState,
    RowVersion,
    Stamp,
)
from anabranch.merge.order import Key, batch_key, key


@dataclass(slots=True)
class Loss:
    """One value that lost: ``losing`` and ``winning`` are (batch, node)."""

    column: str
    value: Cell
    losing: tuple[str, str]
    winning: tuple[str, str]


@dataclass(slots=True)
class Ruling:
    """The result for one row of a mutation that is not refused; the fields are those of ``Write`` and
    ``MutationOutcome``."""

    type: MutationType | None
    values: Mapping[str, Cell]
    outcome: Outcome = Outcome.APPLIED
    columns: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()
    late_insert: bool = False
    defaults: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    questions: tuple[tuple[str, str, Cell, Cell, Cell], ...] = ()
    """Column, function, base, stored and incoming value: until they are answered, the other fields are provisional."""


@dataclass(slots=True)
class Refusal:
    """The reason why the batch can't be accepted, and the columns that decided. ``reason`` None: the row is unknown."""

    reason: RejectionReason | None
    columns: tuple[str, ...] = ()
    sqlstate: str = ""
    text: str = ""


_NOTHING: Mapping[str, Cell] = MappingProxyType({})
_SUPERSEDED = Ruling(None, _NOTHING, outcome=Outcome.SUPERSEDED)
_UNKNOWN = Refusal(None)
_ROW_EXISTS = Refusal(RejectionReason.ROW_EXISTS)
_ROW_DELETED = Refusal(RejectionReason.ROW_DELETED)
_ALREADY_DELETED = Refusal(RejectionReason.ALREADY_DELETED)
_NEVER_TOUCHED = RowVersion(0, "", "")


def rule(
    batch: Batch,
    policy: Policy,
    type_: MutationType,
    change: RowChange,
    state: RowState | None,
    answers: Mapping[str, Cell] | None = None,
) -> Ruling | Refusal:
    """Apply the rules table to one row. ``state`` is the row as the batch's earlier changes left it; ``answers`` the
    results of functions for its columns."""
    version = state.version if state is not None else None
    if state is not None and state.values is not None:
        # A live row without a history was there before registration: version 0, behind everything.
        version = version or _NEVER_TOUCHED
        if type_ is MutationType.UPDATE:
            return _update(batch, policy, change, state.values, version, answers or _NOTHING)
        if type_ is MutationType.DELETE:
            return _delete(batch, policy, state.values, version)
        return _late_insert(batch, policy, change, state.values, version) if _late(version, batch) else _ROW_EXISTS
    if version is None or version.tombstone_batch is None:
        return Ruling(MutationType.INSERT, change.values) if type_ is MutationType.INSERT else _UNKNOWN
    if _late(version, batch) and version.tombstone_batch > batch.id:
        # The node itself deleted the row later: an earlier change has no effect.
        return _SUPERSEDED
    if type_ is MutationType.INSERT:
        return _insert_anew(batch, policy, change, version)
    if type_ is MutationType.UPDATE:
        return _ROW_DELETED
    return _SUPERSEDED if policy.delete == "wins" and _wrote_later(version, batch) else _ALREADY_DELETED


def concurrent(version: RowVersion, batch: Batch) -> bool:
    """Whether another node wrote the row after the batch's basis. Positions are real ones."""
    if version.last_node == batch.node:
        return version.other_position > batch.basis
    return version.last_position > batch.basis


def _late(version: RowVersion, batch: Batch) -> bool:
    """Whether a later batch of the same node wrote the row, and no other node did since the basis.

    It is enough to check the last writer: a write of another node after that later batch would be after this one's
    basis, too, since a batch is decided after all positions that an earlier one had seen.
    """
    return version.last_node == batch.node and version.last_batch > batch.id and version.other_position <= batch.basis


def _wrote_later(version: RowVersion, batch: Batch) -> bool:
    """Whether a later batch of the same node wrote the row, even if other nodes did since."""
    own = version.last_batch if version.last_node == batch.node else ""
    return max(own, version.overtaken.get(batch.node, "")) > batch.id


def _insert_anew(batch: Batch, policy: Policy, change: RowChange, version: RowVersion) -> Ruling | Refusal:
    """An insert over a tombstone: for a node that knew of the tombstone, a new row without any part of the old one.

    "Made itself" means by an earlier batch or this one. Over an own *later* tombstone, where another node's write since
    the basis keeps it from being simply superseded, an insert would bring a deleted row back; nor does ``resurrect``
    bring back a row that the node itself wrote later and another node deleted.
    """
    seen = version.last_position <= batch.basis
    own = version.last_node == batch.node and (version.tombstone_batch or "") <= batch.id
    if seen or own or (policy.resurrect and not _wrote_later(version, batch)):
        return Ruling(MutationType.INSERT, change.values)
    return _ROW_DELETED


def _delete(batch: Batch, policy: Policy, values: Mapping[str, Cell], version: RowVersion) -> Ruling | Refusal:
    """A delete of a live row. Where a later batch of the same node wrote it (it is there because it was inserted anew,
    or is about to be), the late delete has no effect: always if no other node wrote it, else only if ``delete`` is
    ``wins``, because the others' writes came after the delete, which is now only an intermediate step."""
    wins = policy.delete == "wins"
    if _late(version, batch) or (wins and _wrote_later(version, batch)):
        return _SUPERSEDED
    if not concurrent(version, batch):
        return Ruling(MutationType.DELETE, _NOTHING)
    unseen = [(c, s) for c in values if _foreign(s := _stamp(version, c), batch)]
    if not wins:
        return Refusal(RejectionReason.CONCURRENT_UPDATE, tuple(c for c, _ in unseen))
    guarded = tuple(c for c, _ in unseen if policy.columns.get(c) == "reject")
    if guarded:
        return Refusal(RejectionReason.CONCURRENT_UPDATE, guarded)
    losses = tuple(Loss(c, values[c], (s.batch, s.node), (batch.id, batch.node)) for c, s in unseen)
    return Ruling(
        MutationType.DELETE,
        _NOTHING,
        outcome=Outcome.OVERWROTE if losses else Outcome.MERGED,
        columns=tuple(c for c, _ in unseen),
        losses=losses,
    )


def _stamp(version: RowVersion, column: str) -> Stamp:
    """The writer of a column's stored value: the update whose stamp it has, else the row's insert."""
    return version.stamps.get(column) or Stamp(
        version.insert_place, version.insert_batch, version.insert_node, version.insert_position
    )


def _foreign(stamp: Stamp, batch: Batch) -> bool:
    """Whether another node wrote the value at a real position after the batch's basis."""
    return stamp.node != batch.node and stamp.position > batch.basis


def _stamp_key(order: str, stamp: Stamp) -> Key:
    # A row from before registration has no writer, and no id to read a time from.
    return key(order, stamp.place, stamp.batch, stamp.node) if stamp.batch else (0, "")


def _update(
    batch: Batch,
    policy: Policy,
    change: RowChange,
    values: Mapping[str, Cell],
    version: RowVersion,
    answers: Mapping[str, Cell],
) -> Ruling | Refusal:
    """An update of a live row, column by column.

    A column is written if the batch's key is later than the key of its stored value, or if that value is the batch's
    own (of two updates in one batch the second stands); else it is SUPERSEDED. A late update finds the columns that
    later own batches wrote, and those that a later own insert brought, stamped later than its place, and gets none of
    them. Where the stored value came from another node after the basis, one of the two values loses, and is recorded:
    the stored one (OVERWROTE), or the incoming one. A value that loses to an own later one is no conflict, nor are
    equal values.

    After an insert by another node after the basis, the row is no longer the one that the user changed, or never was:
    ROW_DELETED.

    ``counter``, ``max``, ``min`` and ``union`` compute from the stored value, whichever update comes first; only an
    update older than the row's insert belongs to an earlier row, and is SUPERSEDED. A function decides in the same way,
    where the stored value is neither the one that the device had seen nor the incoming one; but a value that a later
    batch of the same node wrote was made with knowledge of this change, and stands. Of the two values that the function
    got, each that differs from its answer is recorded as lost.
    """
    if version.insert_node != batch.node and version.insert_position > batch.basis:
        return _ROW_DELETED
    unseen = concurrent(version, batch)
    in_order = not unseen and not _late(version, batch)
    order, policies = policy.order, policy.columns
    # Keys are equal only where the stored value is the batch's own.
    own_key = batch_key(order, batch)
    me = (batch.id, batch.node)
    written: dict[str, Cell] = {}
    overwritten: list[str] = []
    superseded: list[str] = []
    kept: list[str] = []
    losses: list[Loss] = []
    questions: list[tuple[str, str, Cell, Cell, Cell]] = []
    for column, cell in change.values.items():
        stamp = _stamp(version, column)
        column_policy = policies.get(column)
        later = in_order or own_key >= _stamp_key(order, stamp)
        if column_policy is not None and column_policy in COMPUTED:
            stamp_of_row = _stamp(version, "")
            if later or own_key >= _stamp_key(order, stamp_of_row):
                try:
                    written[column] = compute(column_policy, values, column, cell, change.before)
                except ComputeError as error:
                    return Refusal(RejectionReason.CONSTRAINT, (column,), error.sqlstate, str(error))
                if not later:
                    kept.append(column)
                continue
            stamp = stamp_of_row
        elif column_policy == "reject" and _foreign(stamp, batch):
            return Refusal(RejectionReason.CONCURRENT_UPDATE, (column,))
        elif function := function_of(column_policy):
            stamp_of_row = _stamp(version, "")
            if own_key < _stamp_key(order, stamp_of_row):
                stamp = stamp_of_row
            elif later or stamp.node != batch.node:
                stored = values.get(column)
                base = change.before.get(column) if change.before else None
                result = cell
                if not (same(stored, cell) or (change.before and same(stored, base))):
                    if column in answers:
                        result = answers[column]
                    else:
                        questions.append((column, function, base, stored, cell))
                    unseen = True
                    if not same(result, cell):
                        losses.append(Loss(column, cell, me, (stamp.batch, stamp.node)))
                    if same(result, stored):
                        superseded.append(column)
                        continue
                    if same(result, cell):
                        overwritten.append(column)
                    if stamp.batch:
                        # Else no known node wrote it: the value is from before registration.
                        losses.append(Loss(column, stored, (stamp.batch, stamp.node), me))
                written[column] = result
                if not later:
                    kept.append(column)
                continue
        elif later:
            written[column] = cell
            if _foreign(stamp, batch) and not same(values.get(column), cell):
                overwritten.append(column)
                losses.append(Loss(column, values.get(column), (stamp.batch, stamp.node), me))
            continue
        superseded.append(column)
        if stamp.node != batch.node and not same(values.get(column), cell):
            losses.append(Loss(column, cell, me, (stamp.batch, stamp.node)))
    if superseded:
        outcome, columns = Outcome.SUPERSEDED, superseded
    elif overwritten:
        outcome, columns = Outcome.OVERWROTE, overwritten
    else:
        outcome, columns = Outcome.MERGED if unseen else Outcome.APPLIED, []
    return Ruling(
        MutationType.UPDATE if written else None,
        written,
        outcome,
        tuple(columns),
        tuple(losses),
        kept=tuple(kept),
        questions=tuple(questions),
    )


def _late_insert(
    batch: Batch, policy: Policy, change: RowChange, values: Mapping[str, Cell], version: RowVersion
) -> Ruling:
    """An insert of a row that is live, because a later batch of the node wrote it first.

    The row's earlier life, which the insert came after, ends here: columns whose stored key is older than the insert's
    take its values, or their defaults if it gives none; columns with later keys stay. The insert becomes the row's
    insert, so that an older change finds every column taken. Where the row's present insert is later, this one has no
    effect.
    """
    order = policy.order
    own_key = batch_key(order, batch)
    if own_key < _stamp_key(order, _stamp(version, "")):
        return Ruling(None, _NOTHING, outcome=Outcome.SUPERSEDED, columns=tuple(change.values))
    kept = tuple(c for c, s in version.stamps.items() if _stamp_key(order, s) > own_key)
    written = {c: v for c, v in change.values.items() if c not in kept and not same(values.get(c), v)}
    defaults = tuple(c for c in values if c not in change.values and c not in kept)
    superseded = tuple(c for c in change.values if c in kept)
    return Ruling(
        MutationType.UPDATE if written or defaults else None,
        written,
        Outcome.SUPERSEDED if superseded else Outcome.APPLIED,
        superseded,
        late_insert=True,
        defaults=defaults,
        kept=kept,
    )
