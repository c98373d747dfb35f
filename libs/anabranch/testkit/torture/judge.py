"""Decides every batch of a run by itself, and compares: verdicts, conflicts, rows.

It takes the batches as they were made, each with its basis, and of the server only in which group and so at which
position each was decided; within a group the lower id goes first. It knows the rules as prose: a row is the list of
those who wrote it, and a register for each column; whoever is asked about is looked for in that list. Nothing of
``anabranch.merge`` is used.

Constraints are Postgres's to judge, and where a batch stood in its group may decide. So a batch that was refused for a
constraint must break that one at its turn, and after each group nothing may be broken.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anabranch.schema import Cell, Table
from anabranch.schema.cells import key_text
from anabranch.v1 import batch_pb2, errors_pb2, verdict_pb2
from anabranch.wire.values import column_reader

Order = tuple[int, str]
At = tuple[str, str]
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
APPLIED, MERGED, OVERWROTE, SUPERSEDED = "APPLIED", "MERGED", "OVERWROTE", "SUPERSEDED"
_STRENGTH = (APPLIED, MERGED, OVERWROTE, SUPERSEDED)
_INSERT, _UPDATE, _DELETE = 1, 2, 3


class Sent(NamedTuple):
    """A batch as it was made, the node that sent it (by the call, not by its bytes), and the basis that travelled
    beside it."""

    id: str
    node: str
    basis: int
    payload: bytes


@dataclass
class Register:
    """A stored value, who wrote it and its key in the order."""

    value: Cell
    order: Order
    node: str
    batch: str
    position: int


class Written(NamedTuple):
    """Somebody wrote the row."""

    position: int
    node: str
    batch: str


@dataclass
class Line:
    """A row's life: ``cells`` is None where it is not in the table."""

    cells: dict[str, Register] | None
    born: Register
    history: list[Written] = field(default_factory=list)
    buried_by: Written | None = None


class Lost(NamedTuple):
    """One conflict."""

    position: int
    table: str
    key: str
    column: str
    value: Cell
    loser: str
    winner: str


Broken = Callable[[Collection[At], Mapping[At, Mapping[str, Cell]]], Collection[str]]
"""Some rows, there or gone, and all rows to the names of the constraints that those break."""


class _Refused(Exception):
    pass


@dataclass
class Judge:
    """``rules``: of each table its order and the policies of its columns. ``broken``: what the tables ask of their
    rows. ``defaults``: values of columns that an insert leaves out, NULL where there are none. ``faults`` says, in
    words, where the server decided otherwise."""

    tables: Mapping[str, Table]
    rules: Mapping[str, tuple[str, Mapping[str, str]]]
    broken: Broken
    defaults: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    lines: dict[At, Line] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    accepted: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    def preset(self, rows: Mapping[At, Mapping[str, Cell]]) -> None:
        """Rows from before registration, which nobody wrote."""
        for at, row in rows.items():
            nobody = Register(None, (0, ""), "", "", 0)
            self.lines[at] = Line({c: Register(v, (0, ""), "", "", 0) for c, v in row.items()}, nobody)

    def rows(self) -> dict[At, dict[str, Cell]]:
        """The rows that must be there."""
        return {at: _values(line.cells) for at, line in self.lines.items() if line.cells is not None}

    def group(self, position: int, decided: Sequence[tuple[Sent, verdict_pb2.Verdict]]) -> None:
        """Decide the batches of one group, in the order of their ids, and compare with the server's verdicts."""
        touched: set[At] = set()
        for sent, verdict in sorted(decided, key=lambda pair: pair[0].id):
            touched |= self._batch(position, sent, verdict)
        rows = self.rows()
        self.faults += [f"after {position} {name} is broken" for name in self.broken(touched, rows)]

    def _batch(self, position: int, sent: Sent, verdict: verdict_pb2.Verdict) -> set[At]:
        batch = batch_pb2.DbMutationBatch.FromString(sent.payload)
        node = sent.node
        own = [at for batch_id, at in self.accepted.get(node, ()) if batch_id > sent.id]
        turn = _Turn(self, position, sent, node, min([*own, position]), min(sent.basis, position - 1))
        reason, outcomes = "", []
        told = _told(verdict)
        names: set[str] = set()
        try:
            for mutation in batch.mutations:
                found = [turn.row(mutation, number) for number in range(len(mutation.rows))]
                outcomes.append(max(found, key=_STRENGTH.index))
                if told == "CONSTRAINT":
                    # Also what a later mutation would have mended: each is a statement of its own.
                    names.update(self.broken(turn.after, self._rows_with(turn.after)))
        except _Refused as refused:
            reason = str(refused)
        if not reason and told == "CONSTRAINT":
            self.seen["CONSTRAINT"] += 1
            if verdict.constraint not in names:
                self.faults.append(
                    f"{sent.id} was refused for {verdict.constraint or verdict.sqlstate}, breaks {names}"
                )
            return set()
        if reason:
            self.seen[reason] += 1
            if told != reason:
                self.faults.append(f"{sent.id} at {position} is {reason}, and the server says {told}")
            return set()
        if told != outcomes:
            self.faults.append(f"{sent.id} at {position} is {outcomes}, and the server says {told}")
        self.seen.update(outcomes)
        if verdict.position != position:
            self.faults.append(f"{sent.id} is told of at {verdict.position}, not {position}")
        self.lines.update(turn.after)
        self.lost += turn.lost
        self.accepted.setdefault(node, []).append((sent.id, position))
        return set(turn.after)

    def _rows_with(self, after: Mapping[At, Line]) -> dict[At, dict[str, Cell]]:
        rows = self.rows()
        for at, line in after.items():
            if line.cells is None:
                rows.pop(at, None)
            else:
                rows[at] = _values(line.cells)
        return rows


def _told(verdict: verdict_pb2.Verdict) -> str | list[str]:
    if verdict.status == verdict_pb2.VERDICT_STATUS_REJECTED:
        return errors_pb2.Reason.Name(verdict.reason).removeprefix("REASON_")
    return [verdict_pb2.Outcome.Name(m.outcome).removeprefix("OUTCOME_") for m in verdict.mutations]


def _values(cells: Mapping[str, Register]) -> dict[str, Cell]:
    return {column: register.value for column, register in cells.items()}


def _time_ms(ulid: str) -> int:
    time = 0
    for digit in ulid[:10]:
        time = time * 32 + _DIGITS.index(digit)
    return time


@dataclass
class _Turn:
    """One batch's turn. ``after``: the rows as it leaves them, which count once all of it is accepted."""

    judge: Judge
    position: int
    sent: Sent
    node: str
    place: int
    basis: int
    after: dict[At, Line] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)

    def row(self, mutation: batch_pb2.DbMutation, number: int) -> str:
        """The outcome of one row. Raises _Refused."""
        table = self.judge.tables[mutation.table]
        given: dict[str, Cell] = {}
        for name, value in zip(mutation.columns, mutation.rows[number].values, strict=True):
            if value.WhichOneof("kind") is not None:
                given[name] = column_reader(table.by_name[name])(value)
        at = (table.name, key_text([given[name] for name in table.key_columns]))
        line = copy.deepcopy(self.after.get(at) or self.judge.lines.get(at))
        if mutation.type == _INSERT:
            full: dict[str, Cell] = {
                **dict.fromkeys(table.column_names),
                **self.judge.defaults.get(table.name, {}),
                **given,
            }
            return self._insert(at, line, full, given)
        if line is None or (line.cells is None and line.buried_by is None):
            raise _Refused("ROW_NOT_FOUND")
        if line.cells is None:
            if self._behind_own(line) and line.buried_by is not None and line.buried_by.batch > self.sent.id:
                return SUPERSEDED
            raise _Refused("ROW_DELETED" if mutation.type == _UPDATE else "ALREADY_DELETED")
        if mutation.type == _DELETE:
            if self._behind_own(line):
                return SUPERSEDED
            if self._others_since(line):
                raise _Refused("CONCURRENT_UPDATE")
            line.cells, line.buried_by = None, Written(self.position, self.node, self.sent.id)
            self._wrote(at, line)
            return APPLIED
        before: dict[str, Cell] = {}
        if mutation.HasField("undo"):
            for name, value in zip(mutation.undo.columns, mutation.undo.rows[number].values, strict=True):
                if value.WhichOneof("kind") is not None:
                    before[name] = column_reader(table.by_name[name])(value)
        changes = {name: cell for name, cell in given.items() if name not in table.key_columns}
        return self._update(at, line, line.cells, changes, before)

    def _others_since(self, line: Line) -> bool:
        return any(w.node != self.node and w.position > self.basis for w in line.history)

    def _behind_own(self, line: Line) -> bool:
        """A later batch of the node wrote the row, and nobody else since the basis."""
        later = any(w.node == self.node and w.batch > self.sent.id for w in line.history)
        return later and not self._others_since(line)

    def _order(self, table: str) -> Order:
        if self.judge.rules[table][0] == "edit":
            return min(_time_ms(self.sent.id), self.place), self.sent.id
        return self.place, self.sent.id

    def _register(self, at: At, value: Cell) -> Register:
        return Register(value, self._order(at[0]), self.node, self.sent.id, self.position)

    def _wrote(self, at: At, line: Line) -> None:
        line.history.append(Written(self.position, self.node, self.sent.id))
        self.after[at] = line

    def _insert(self, at: At, line: Line | None, full: Mapping[str, Cell], given: Mapping[str, Cell]) -> str:
        if line is not None and line.cells is not None:
            if not self._behind_own(line):
                raise _Refused("ROW_EXISTS")
            return self._late_insert(at, line, line.cells, full, given)
        if line is not None and line.buried_by is not None:
            mine = line.buried_by.node == self.node
            if self._behind_own(line) and line.buried_by.batch > self.sent.id:
                return SUPERSEDED
            seen = max(w.position for w in line.history) <= self.basis
            if not seen and not (mine and line.buried_by.batch <= self.sent.id):
                raise _Refused("ROW_DELETED")
        history = line.history if line is not None else []
        born = self._register(at, None)
        self._wrote(at, Line({c: self._register(at, v) for c, v in full.items()}, born, history))
        return APPLIED

    def _late_insert(
        self, at: At, line: Line, cells: dict[str, Register], full: Mapping[str, Cell], given: Mapping[str, Cell]
    ) -> str:
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

    def _update(
        self, at: At, line: Line, cells: dict[str, Register], changes: Mapping[str, Cell], before: Mapping[str, Cell]
    ) -> str:
        if line.born.node != self.node and line.born.position > self.basis:
            raise _Refused("ROW_DELETED")
        mine, policies = self._order(at[0]), self.judge.rules[at[0]][1]
        outcome = MERGED if self._others_since(line) else APPLIED
        wrote = False
        for column, value in changes.items():
            stored = cells[column]
            policy = policies.get(column, "lww")
            limit = stored
            if policy != "lww":
                if mine >= line.born.order:
                    stored.value = _computed(policy, stored.value, value, before.get(column, stored.value))
                    if mine >= stored.order:
                        cells[column] = self._register(at, stored.value)
                    wrote = True
                    continue
                limit = line.born
            if mine >= limit.order:
                if stored.node != self.node and stored.position > self.basis and stored.value != value:
                    outcome = max(outcome, OVERWROTE, key=_STRENGTH.index)
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

    def _loses(self, at: At, column: str, value: Cell, loser: str, winner: str) -> None:
        self.lost.append(Lost(self.position, *at, column, value, loser, winner))


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
