"""One batch's turn before the judge: the rules, in the form of their prose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anabranch.errors import AnabranchError
from anabranch.testkit.torture.registers import At, Line, Lost, Order, Register, Row, Rules, Sent, Written
from anabranch.v1 import batch_pb2
from anabranch.values import Cell, key_text
from anabranch.values.messages import column_reader

if TYPE_CHECKING:
    from anabranch.testkit.torture.judge import Judge

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
APPLIED, MERGED, OVERWROTE, SUPERSEDED = "APPLIED", "MERGED", "OVERWROTE", "SUPERSEDED"
_STRENGTH = (APPLIED, MERGED, OVERWROTE, SUPERSEDED)
_INSERT, _UPDATE, _DELETE = 1, 2, 3
_FUNCTION = "function:"


class _RefusedError(AnabranchError):
    """The rules refuse the batch."""


def _time_ms(ulid: str) -> int:
    time = 0
    for digit in ulid[:10]:
        time = time * 32 + _DIGITS.index(digit)
    return time


def _stronger(one: str, other: str) -> str:
    return max(one, other, key=_STRENGTH.index)


@dataclass
class Turn:
    """``after``: the rows as the batch leaves them, which count once all of it is accepted; ``stages``: the rows after
    each of its mutations. ``asked``: whether a function was called."""

    judge: Judge
    position: int
    sent: Sent
    place: int
    basis: int
    after: dict[At, Line] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)
    stages: list[dict[At, dict[str, Cell] | None]] = field(default_factory=list)
    asked: bool = False
    _failed: bool = False

    @property
    def node(self) -> str:
        """The node that sent the batch."""
        return self.sent.node

    def take(self, *, stages: bool) -> tuple[str, list[str]]:
        """Return why the batch is refused ("": it is not), and the outcomes of its mutations. Where a function fails,
        the rest is decided as if the batch's own value were stored: any other reason takes precedence over that one."""
        batch = batch_pb2.DbMutationBatch.FromString(self.sent.payload)
        outcomes = []
        try:
            for mutation in batch.mutations:
                found = [self._row(mutation, number) for number in range(len(mutation.rows))]
                outcomes.append(max(found, key=_STRENGTH.index))
                if stages:
                    # A stage counts also where a later mutation would repair it: each mutation is a statement.
                    self.stages.append({at: line.row for at, line in self.after.items()})
        except _RefusedError as refused:
            return str(refused), []
        return "MERGE_FUNCTION" if self._failed else "", outcomes

    def _row(self, mutation: batch_pb2.DbMutation, number: int) -> str:
        """The outcome of one row. Raises _RefusedError."""
        table = self.judge.tables[mutation.table]
        given: dict[str, Cell] = {}
        for name, value in zip(mutation.columns, mutation.rows[number].values, strict=True):
            if value.WhichOneof("kind") is not None:
                given[name] = column_reader(table.by_name[name])(value)
        at = (table.name, key_text([given[name] for name in table.key_columns]))
        stands = self.after.get(at) or self.judge.lines.get(at)
        line = None if stands is None else stands.copy()
        if mutation.type == _INSERT:
            defaults = self.judge.defaults.get(table.name, {})
            handed_out = self.judge.beside.handed_out(self.sent.id, at)
            full = {**dict.fromkeys(table.column_names), **defaults, **handed_out, **given}
            return self._insert(at, line, full, given)
        if line is None or (line.cells is None and line.buried_by is None):
            raise _RefusedError("ROW_NOT_FOUND")
        if mutation.type == _DELETE:
            return self._delete(at, line)
        if line.cells is None:
            if self._behind_own_grave(line):
                return SUPERSEDED
            raise _RefusedError("ROW_DELETED")
        before: dict[str, Cell] = {}
        if mutation.HasField("undo"):
            for name, value in zip(mutation.undo.columns, mutation.undo.rows[number].values, strict=True):
                if value.WhichOneof("kind") is not None:
                    before[name] = column_reader(table.by_name[name])(value)
        changes = {name: cell for name, cell in given.items() if name not in table.key_columns}
        return self._update(at, line, line.cells, changes, before)

    # Writers of rows and values

    def _rules(self, at: At) -> Rules:
        return self.judge.rules[at[0]]

    def _others_since(self, line: Line) -> bool:
        return any(w.node != self.node and w.position > self.basis for w in line.history)

    def _wrote_later(self, line: Line) -> bool:
        return any(w.node == self.node and w.batch > self.sent.id for w in line.history)

    def _behind_own(self, line: Line) -> bool:
        """Whether a later batch of the node wrote the row, and no other node has since the basis."""
        return self._wrote_later(line) and not self._others_since(line)

    def _behind_own_grave(self, line: Line) -> bool:
        return self._behind_own(line) and line.buried_by is not None and line.buried_by.batch > self.sent.id

    def _foreign(self, register: Register) -> bool:
        return register.node != self.node and register.position > self.basis

    def _order(self, table: str) -> Order:
        if self.judge.rules[table].order == "edit":
            return min(_time_ms(self.sent.id), self.place), self.sent.id
        return self.place, self.sent.id

    def _register(self, at: At, value: Cell) -> Register:
        return Register(value, self._order(at[0]), self.node, self.sent.id, self.position)

    def _wrote(self, at: At, line: Line) -> None:
        line.history.append(Written(self.position, self.node, self.sent.id))
        self.after[at] = line

    def _loses(self, at: At, column: str, value: Cell, loser: str, winner: str) -> None:
        self.lost.append(Lost(self.position, *at, column, value, loser, winner))

    # Inserts

    def _insert(self, at: At, line: Line | None, full: Row, given: Row) -> str:
        if line is not None and line.cells is not None:
            if not self._behind_own(line):
                raise _RefusedError("ROW_EXISTS")
            return self._late_insert(at, line, line.cells, full, given)
        if line is not None and line.buried_by is not None:
            if self._behind_own_grave(line):
                return SUPERSEDED
            seen = max(w.position for w in line.history) <= self.basis
            mine = line.buried_by.node == self.node and line.buried_by.batch <= self.sent.id
            back = self._rules(at).resurrect and not self._wrote_later(line)
            if not seen and not mine and not back:
                raise _RefusedError("ROW_DELETED")
        history = line.history if line is not None else []
        born = self._register(at, None)
        self._wrote(at, Line({c: self._register(at, v) for c, v in full.items()}, born, history))
        return APPLIED

    def _late_insert(self, at: At, line: Line, cells: dict[str, Register], full: Row, given: Row) -> str:
        mine = self._order(at[0])
        if mine < line.born.order:
            return SUPERSEDED
        kept = {column for column, register in cells.items() if register.order > mine}
        for column, value in full.items():
            if column not in kept:
                cells[column] = self._register(at, value)
        line.born = self._register(at, None)
        self._wrote(at, line)
        return SUPERSEDED if kept & given.keys() else APPLIED

    # Deletes

    def _delete(self, at: At, line: Line) -> str:
        wins = self._rules(at).delete == "wins"
        if line.cells is None:
            if self._behind_own_grave(line) or (wins and self._wrote_later(line)):
                return SUPERSEDED
            raise _RefusedError("ALREADY_DELETED")
        if self._behind_own(line) or (wins and self._wrote_later(line)):
            return SUPERSEDED
        outcome = APPLIED
        if self._others_since(line):
            unseen = {column: register for column, register in line.cells.items() if self._foreign(register)}
            guarded = any(self._rules(at).columns.get(column) == "reject" for column in unseen)
            if guarded or not wins:
                raise _RefusedError("CONCURRENT_UPDATE")
            for column, register in unseen.items():
                self._loses(at, column, register.value, register.batch, self.sent.id)
            outcome = OVERWROTE if unseen else MERGED
        self._bury(at, line)
        return outcome

    def _bury(self, at: At, line: Line) -> None:
        """Delete the row, and the rows that Postgres deleted with it."""
        line.cells, line.buried_by = None, Written(self.position, self.node, self.sent.id)
        self._wrote(at, line)
        columns = dict(self.judge.cascades.get(at[0], ()))
        for key in self.judge.caused.get(self.sent.id, ()):
            stands = self.after.get(key) or self.judge.lines.get(key)
            row = {} if stands is None else stands.row or {}
            if stands is not None and key[0] in columns and row.get(columns[key[0]]) == at[1]:
                self._bury(key, stands.copy())

    # Updates

    def _update(self, at: At, line: Line, cells: dict[str, Register], changes: Row, before: Row) -> str:
        if line.born.node != self.node and line.born.position > self.basis:
            raise _RefusedError("ROW_DELETED")
        mine, policies = self._order(at[0]), self._rules(at).columns
        outcome = MERGED if self._others_since(line) else APPLIED
        wrote = False
        for column, value in changes.items():
            stored = cells[column]
            policy = policies.get(column, "lww")
            limit = stored
            if policy == "reject" and self._foreign(stored):
                raise _RefusedError("CONCURRENT_UPDATE")
            if policy.startswith(_FUNCTION):
                if mine < line.born.order:
                    limit = line.born
                elif mine >= stored.order or stored.node != self.node:
                    found, written = self._by_function(at, column, stored, value, before, policy)
                    outcome = _stronger(outcome, found)
                    if written is not None:
                        cells[column] = self._register(at, written.value) if mine >= stored.order else written
                        wrote = True
                    continue
            elif policy not in ("lww", "reject"):
                if mine >= line.born.order:
                    stored.value = _computed(policy, stored.value, value, before.get(column, stored.value))
                    if mine >= stored.order:
                        cells[column] = self._register(at, stored.value)
                    wrote = True
                    continue
                limit = line.born
            if mine >= limit.order:
                if self._foreign(stored) and stored.value != value:
                    outcome = _stronger(outcome, OVERWROTE)
                    self._loses(at, column, stored.value, stored.batch, self.sent.id)
                cells[column] = self._register(at, value)
                wrote = True
            else:
                outcome = SUPERSEDED
                if limit.node != self.node and stored.value != value:
                    self._loses(at, column, value, self.sent.id, limit.batch)
        if wrote:
            self._wrote(at, line)
        return outcome

    def _by_function(
        self, at: At, column: str, stored: Register, value: Cell, before: Mapping[str, Cell], policy: str
    ) -> tuple[str, Register | None]:
        """The outcome, and the new value of the column: None where it stays. The function is called only where the
        stored value is neither the one that the device had seen nor the one that it brings."""
        base = before.get(column)
        if stored.value == value or (before and stored.value == base):
            return APPLIED, _with(stored, value)
        self.asked = True
        try:
            result = self.judge.functions[policy.removeprefix(_FUNCTION)](base, stored.value, value)
        except ValueError:
            self._failed = True
            result = value
        if result != value:
            self._loses(at, column, value, self.sent.id, stored.batch)
        if result == stored.value:
            return SUPERSEDED, None
        if stored.batch:
            self._loses(at, column, stored.value, stored.batch, self.sent.id)
        return OVERWROTE if result == value else MERGED, _with(stored, result)


def _with(register: Register, value: Cell) -> Register:
    return Register(value, register.order, register.node, register.batch, register.position)


def _computed(policy: str, stored: Any, value: Any, before: Any) -> Any:
    if policy == "counter":
        added = (value or 0) - (before or 0)
        return (stored or 0) + added if added else stored
    if stored is None or value is None:
        return value if stored is None else stored
    if policy == "max":
        return max(stored, value)
    if policy == "min":
        return min(stored, value)
    if policy == "union":
        return stored if set(value) <= set(stored) else tuple(dict.fromkeys([*stored, *value]))
    raise AssertionError(f"the judge knows no policy {policy}")
