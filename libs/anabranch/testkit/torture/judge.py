"""Decide every batch of a run independently, and compare verdicts, conflicts and rows.

It takes the batches as they were made, each with its basis, and from the server only the group and so the position at
which each was decided; within a group the lower id goes first. It follows the prose of the rules: a row is the list of
its writers, and a register for each column; questions about a writer are answered from that list (``turn``). No code of
``anabranch.merge`` is used.

Batches of the node "server" are not decided: their changes are taken from the log. But each writer by SQL kept a
journal of the rows that each committed transaction found and left. So each transaction must be in the log once, whole,
with every row's steps in their order, and a step must have found the row that the batches before it in the log had
left.

Postgres decides which rows a cascade deletes: a batch that has a higher id and touches no row of the deleting batch may
have been written first. The rows of a cascade are taken from the log, and must have existed and referred to the deleted
row.

Writes by the code of a table into another one are taken from the log, too (``side_effects``).

Postgres judges constraints, and a batch's place in its group may matter. So a batch that was refused for a constraint
must break that one at its turn, and after each group no constraint may be broken. A transaction by SQL between two
groups may cause a refusal before it is in the log: then the next batches of the server must explain that refusal.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.testkit.torture.registers import (
    At,
    Broken,
    Function,
    Line,
    Logged,
    Lost,
    Register,
    Row,
    Rules,
    Sent,
    ServerBatch,
    Step,
    Written,
)
from anabranch.testkit.torture.side_effects import SideEffects
from anabranch.testkit.torture.turn import Turn
from anabranch.v1 import errors_pb2, verdict_pb2
from anabranch.values import Cell, Table
from anabranch.wire.enum_names import enum_name

SERVER = "server"
_NO_ANSWER = ("it did not answer within", "its process ended", "the process of the functions")


@dataclass
class _Unexplained:
    """A refusal for ``constraint`` that nothing at its turn explains, and the batch's rows after each mutation."""

    batch: str
    constraint: str
    stages: list[dict[At, dict[str, Cell] | None]]
    why: str


@dataclass
class Judge:
    """``broken``: the check of the tables' constraints. ``defaults``: values of columns that an insert leaves out, NULL
    where there are none. ``cascades``: by table, the children's table and the column that holds its key. ``functions``:
    by name; ``beside``: the writes of the tables' own code. ``journal``: the steps of each committed transaction;
    ``caused``: by batch, the rows that a cascade deleted. ``faults``: in words, the differences from the server's
    decisions."""

    tables: Mapping[str, Table]
    rules: Mapping[str, Rules]
    broken: Broken
    defaults: Mapping[str, Row] = field(default_factory=dict)
    cascades: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    beside: SideEffects = field(default_factory=SideEffects)
    journal: Mapping[str, Sequence[Step]] = field(default_factory=dict)
    caused: Mapping[str, Collection[At]] = field(default_factory=dict)
    lines: dict[At, Line] = field(default_factory=dict)
    live: dict[At, dict[str, Cell]] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    accepted: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)
    _unexplained: list[_Unexplained] = field(default_factory=list)

    def preset(self, rows: Mapping[At, Row]) -> None:
        """Set rows from before registration, which have no writer."""
        for at, row in rows.items():
            nobody = Register(None, (0, ""), "", "", 0)
            self.put(at, Line({c: Register(v, (0, ""), "", "", 0) for c, v in row.items()}, nobody))

    def put(self, at: At, line: Line) -> None:
        """Set a row's state from now on."""
        self.lines[at] = line
        row = line.row
        if row is None:
            self.live.pop(at, None)
        else:
            self.live[at] = row

    def rows(self) -> dict[At, dict[str, Cell]]:
        """The rows that must be there."""
        return dict(self.live)

    def group(
        self,
        position: int,
        decided: Sequence[tuple[Sent, verdict_pb2.Verdict]],
        server: Sequence[ServerBatch] = (),
    ) -> None:
        """Take the server's own batches of a group as they stand in the log, decide the others in the order of their
        ids, and compare with the verdicts."""
        touched: set[At] = set()
        for batch in server:
            touched |= self._server(position, batch)
            self._explain()
        if decided:
            self._give_up()
        for sent, verdict in sorted(decided, key=lambda pair: pair[0].id):
            touched |= self._batch(position, sent, verdict)
        self.faults += [f"after {position} {name} is broken" for name in self.broken(touched, self.live)]

    def finish(self) -> None:
        """End the log: a transaction that is missing in it is lost."""
        self._give_up()
        missing = sorted(self.journal.keys() - self.logged)
        self.faults += [f"transaction {name} was committed and is not in the log" for name in missing]

    def _server(self, position: int, batch: ServerBatch) -> set[At]:
        steps: dict[At, deque[Step]] = {}
        if batch.transaction not in self.journal:
            self.faults.append(f"transaction {batch.transaction} at {position} is in the log, and nobody committed it")
        if batch.transaction in self.logged:
            self.faults.append(f"transaction {batch.transaction} at {position} is in the log twice")
        for step in self.journal.get(batch.transaction, ()):
            steps.setdefault(step.at, deque()).append(step)
        self.logged.add(batch.transaction)
        for change in batch.changes:
            line = self.lines.get(change.at)
            before = None if line is None else line.row
            after = None if change.kind == "delete" else {**(before or {}), **change.cells}
            wanted = steps[change.at].popleft() if steps.get(change.at) else None
            if wanted is None or wanted.before != before or wanted.after != after:
                what = f"{change.kind} from {before} to {after}"
                where = f"transaction {batch.transaction} at {position}, {change.at}"
                self.faults.append(f"{where}: the log has {what}, the writer {wanted}")
            self._carry(position, batch, change, line)
            self.seen[f"by SQL: {change.kind}"] += 1
        left = [step for of_row in steps.values() for step in of_row]
        if left:
            self.faults.append(f"transaction {batch.transaction} at {position}: the log lacks {left[:3]}")
        return {change.at for change in batch.changes}

    def _carry(self, position: int, batch: ServerBatch, change: Logged, line: Line | None) -> None:
        me = Written(position, SERVER, batch.id)
        stamp = Register(None, (position, batch.id), SERVER, batch.id, position)
        now = line.copy() if line is not None else Line(None, stamp)
        now.history.append(me)
        if change.kind == "delete":
            now.cells, now.buried_by = None, me
        else:
            stamped = {column: replace(stamp, value=value) for column, value in change.cells.items()}
            if change.kind == "insert":
                now.cells, now.born = stamped, stamp
            else:
                now.cells = {**(now.cells or {}), **stamped}
        self.put(change.at, now)

    def _batch(self, position: int, sent: Sent, verdict: verdict_pb2.Verdict) -> set[At]:
        own = [at for batch_id, at in self.accepted.get(sent.node, ()) if batch_id > sent.id]
        turn = Turn(self, position, sent, min([*own, position]), min(sent.basis, position - 1))
        told = _decision(verdict)
        constraint = told == "CONSTRAINT"
        reason, outcomes = turn.take(stages=constraint)
        if constraint and not reason:
            self.seen["CONSTRAINT"] += 1
            found = _Unexplained(sent.id, verdict.constraint, turn.stages, f"{verdict.sqlstate} {verdict.message}")
            if not self._explains(found):
                self._unexplained.append(found)
            return set()
        if turn.asked and told == "MERGE_FUNCTION" and any(text in verdict.message for text in _NO_ANSWER):
            # A function that ran out of time shows nothing about the rules.
            self.seen["MERGE_FUNCTION, no answer"] += 1
            return set()
        if reason:
            self.seen[reason] += 1
            if told != reason:
                self.faults.append(f"{sent.id} at {position} is {reason}, and the server says {told} {verdict.message}")
            return set()
        if told != outcomes:
            self.faults.append(f"{sent.id} at {position} is {outcomes}, and the server says {told} {verdict.message}")
        self.seen.update(outcomes)
        for at in self.caused.get(sent.id, ()):
            if at not in turn.after or turn.after[at].cells is not None:
                self.faults.append(f"{sent.id} at {position}: {at} went with no row that it belonged to")
            self.seen["gone with another row"] += 1
        if verdict.position != position:
            self.faults.append(f"{sent.id} is reported at {verdict.position}, not {position}")
        for at, line in turn.after.items():
            self.put(at, line)
        self.lost += turn.lost
        self.accepted.setdefault(sent.node, []).append((sent.id, position))
        return {*turn.after, *self._beside(position, sent)}

    def _beside(self, position: int, sent: Sent) -> set[At]:
        """Take the writes of the tables' own code that an accepted batch caused."""
        if sent.id not in self.beside.changes:
            return set()
        self.faults += [f"at {position} {fault}" for fault in self.beside.faults(sent.id, self.live)]
        for change in self.beside.of_tally(sent.id):
            line = self.lines[change.at].copy()
            assert line.cells is not None, f"nobody deletes {change.at}"
            stamp = Register(None, (position, sent.id), sent.node, sent.id, position)
            line.cells |= {column: replace(stamp, value=value) for column, value in change.cells.items()}
            line.history.append(Written(position, sent.node, sent.id))
            self.put(change.at, line)
            self.seen["written by code of a table"] += 1
        return {change.at for change in self.beside.of_tally(sent.id)}

    def _explain(self) -> None:
        self._unexplained = [one for one in self._unexplained if not self._explains(one)]

    def _explains(self, one: _Unexplained) -> bool:
        """Whether the refused rows, on those that are there now, break the constraint."""
        for stage in one.stages:
            rows: dict[At, Row] = {**self.live}
            for at, row in stage.items():
                if row is None:
                    rows.pop(at, None)
                else:
                    rows[at] = row
            if one.constraint in self.broken(stage.keys(), rows):
                return True
        return False

    def _give_up(self) -> None:
        self.faults += [f"{u.batch} was refused for {u.constraint} ({u.why}), breaks it not" for u in self._unexplained]
        self._unexplained = []


def _decision(verdict: verdict_pb2.Verdict) -> str | list[str]:
    if verdict.status == verdict_pb2.VERDICT_STATUS_REJECTED:
        return enum_name(errors_pb2.Reason, verdict.reason)
    return [enum_name(verdict_pb2.Outcome, m.outcome) for m in verdict.mutations]
