"""A server in memory: everything around the conflict rules, without Postgres.

For the properties of the rules, which need thousands of small histories. It takes batches in, parks, groups, decides
by ``anabranch.merge``, judges constraints and keeps a log; it shares no code with the services, and where the two
differ one of them is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.merge import (
    SERVER_NODE,
    Accepted,
    Asked,
    Batch,
    Conflict,
    Mutation,
    MutationType,
    Outcome,
    Parked,
    Policy,
    Rejected,
    RowState,
    Write,
    applied,
    place_of,
    resolve,
)
from anabranch.merge.model import Cell, Decision
from anabranch.testkit.memory_audiences import AudienceOf, SetChange

Key = tuple[str, str]
Row = Mapping[str, Cell]


@dataclass(frozen=True)
class MemoryTable:
    """A table with the constraints that may refuse a write. ``columns`` maps each to its default, the key's first;
    ``references`` maps columns to the tables whose keys they hold, ``cascade`` says what happens to a row whose parent
    is deleted; ``unique`` names columns whose values, but for None, occur once; ``audience`` gives a row's audiences,
    where the table is restricted."""

    columns: Mapping[str, Cell]
    references: Mapping[str, str] = field(default_factory=dict)
    cascade: bool = False
    unique: tuple[str, ...] = ()
    audience: AudienceOf | None = None


@dataclass(frozen=True)
class Sent:
    """A batch on its way: its frozen content and the fields of its envelope."""

    id: str
    node: str
    basis: int
    time_ms: int
    mutations: Sequence[Mutation]
    prev: str = ""


@dataclass(frozen=True)
class Effect:
    """The effect on one row: ``values`` is the whole row of an insert, the changed columns of an update, or all of them
    where these make the row another audience's. ``type`` None: no effect. ``before`` and ``after``: the row's
    audiences; None where the table is not restricted."""

    table: str
    key: str
    type: MutationType | None
    values: Row
    before: frozenset[str] | None = None
    after: frozenset[str] | None = None


@dataclass(frozen=True)
class Logged:
    """One accepted batch in the log."""

    position: int
    id: str
    node: str
    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class MemoryVerdict:
    """``reason`` is empty where the batch was accepted; ``outcomes`` then has one for each mutation."""

    position: int
    reason: str
    outcomes: tuple[Outcome, ...]


@dataclass
class _Waiting:
    sent: Sent
    deadline: int


class MemoryServer:
    """One database. Time is given by the caller; ``park_ms`` is counted once, from a batch's arrival; a batch that
    changes a row which an earlier one of its node may bring waits for it without an end.

    ``sets``: the memberships of principals at the head, ``set_changes`` how groups made them; ``claims``: what their
    tokens give; ``principal_of``: whose nodes are."""

    def __init__(self, tables: Mapping[str, MemoryTable], policy: Policy, park_ms: int) -> None:
        self.tables = tables
        self.policy = policy
        self.policy_of: Callable[[str], Policy] = lambda _: policy
        self.functions: Mapping[str, Callable[[Cell, Cell, Cell], Cell]] = {}
        self.park_ms = park_ms
        self.head = 0
        self.now = 0
        self.rows: dict[Key, RowState] = {}
        self.verdicts: dict[str, MemoryVerdict] = {}
        self.log: list[Logged] = []
        self.conflicts: list[Conflict] = []
        self.sets: dict[str, frozenset[str]] = {}
        self.claims: dict[str, frozenset[str]] = {}
        self.set_changes: list[SetChange] = []
        self.principal_of: dict[str, str] = {}
        self.waiting: dict[str, _Waiting] = {}
        self.awaiting: set[str] = set()
        self.missing: dict[str, set[str]] = {}
        self._accepted: dict[str, list[tuple[str, int]]] = {}

    def preset(self, table: str, key: str, row: Row) -> None:
        """Put a row there as if before registration: without a history."""
        self.rows[table, key] = RowState({**self.tables[table].columns, **row}, None)

    def live(self) -> dict[Key, Row]:
        """The rows of all tables."""
        return {key: state.values for key, state in self.rows.items() if state.values is not None}

    def send(self, sent: Sent, now: int) -> None:
        """Take a batch in, once: a batch that waits or is decided already changes nothing."""
        if sent.id not in self.verdicts and sent.id not in self.waiting:
            self.waiting[sent.id] = _Waiting(sent, now + self.park_ms)

    def refuse(self, batch_id: str, reason: str, now: int) -> None:
        """Decide a batch that fits no table of today, unless it waits or is decided already: as of any other, its
        node's later batches wait for that."""
        if batch_id not in self.verdicts and batch_id not in self.waiting:
            self.head = max(now, self.head + 1)
            self.verdicts[batch_id] = MemoryVerdict(self.head, reason, ())

    def commit(self, now: int) -> None:
        """Decide the batches that can be decided, as one group in the order of ids."""
        self.now = now
        position = max(now, self.head + 1)
        decided = False
        for batch_id in sorted(self.waiting):
            waiting = self.waiting[batch_id]
            in_time = now < waiting.deadline
            prev = waiting.sent.prev
            if prev and prev not in self.verdicts and prev not in self.awaiting and in_time:
                continue
            if self._decide(waiting.sent, position, self._earlier_pending(waiting.sent)):
                decided = True
                del self.waiting[batch_id]
                self.awaiting.discard(batch_id)
                if prev and prev not in self.verdicts:
                    self.missing.setdefault(waiting.sent.node, set()).add(prev)
            elif not in_time:
                self.awaiting.add(batch_id)
        if decided:
            self.head = position

    def write(
        self,
        changes: Sequence[tuple[str, MutationType, str, Row]],
        now: int,
        sets: Mapping[str, frozenset[str]] | None = None,
    ) -> bool:
        """Run one transaction as by plain SQL, as a group of its own: table, type, key, and the row or the columns to
        change. Changes that do not fit (an insert of a row that is there) are left out. ``sets``: memberships of
        principals after it. False where a constraint refused it, or nothing was left."""
        position = max(now, self.head + 1)
        # Smaller than every id of a device, and in the order of the log.
        batch = Batch(f"{len(self.log):026d}", SERVER_NODE, position - 1, 0, position, position, ())
        before: dict[Key, RowState | None] = {}
        effects: list[Effect] = []
        for table, kind, key, values in changes:
            state = self.rows.get((table, key))
            old = (state.values if state is not None else None) or {}
            if bool(old) is (kind is MutationType.INSERT):
                continue
            if kind is MutationType.UPDATE:
                values = {column: cell for column, cell in values.items() if cell != old[column]}
                if not values:
                    continue
            policy = self.policy_of(table)
            remember = policy.resurrect or policy.delete == "wins"
            write = Write(table, key, kind, values, 0, 0, remember=remember)
            effects += self._carry_out(batch, write, before)
        if any(self._violated(key) for key in before):
            self._put_back(before)
            return False
        moved = self._set_changes(position, sets or {})
        if not effects and not moved:
            return False
        self.log.append(Logged(position, batch.id, SERVER_NODE, tuple(effects)))
        self.head = position
        return True

    def _set_changes(self, position: int, sets: Mapping[str, frozenset[str]]) -> bool:
        changed = False
        for principal, now in sets.items():
            before = self.sets.get(principal, frozenset())
            if now != before:
                self.set_changes.append(SetChange(position, principal, now - before, before - now))
                self.sets[principal] = now
                changed = True
        return changed

    def audiences(self, table: str, row: Row | None) -> frozenset[str] | None:
        """The audiences of a row; none of a row that is not there; None where the table is not restricted."""
        of = self.tables[table].audience
        return None if of is None else frozenset(of(row) if row else ())

    def _set_of(self, node: str) -> frozenset[str]:
        principal = self.principal_of.get(node, "")
        return self.sets.get(principal, frozenset()) | self.claims.get(principal, frozenset())

    def _unseen(self, sent: Sent) -> str:
        """The reason to refuse a batch that changes a row which its principal does not see; "" where there is none."""
        mine = self._set_of(sent.node)
        for mutation in sent.mutations:
            for change in mutation.rows:
                state = self.rows.get((mutation.table, change.key))
                whose = self.audiences(mutation.table, state.values if state is not None else None)
                if whose is not None and state is not None and state.values and whose.isdisjoint(mine):
                    return "CONSTRAINT" if mutation.type is MutationType.INSERT else "ROW_NOT_FOUND"
        return ""

    def _may_write(self, sent: Sent, effects: Sequence[Effect]) -> bool:
        mine = self._set_of(sent.node)
        for effect in effects:
            rows = [effect.before] if effect.type is not MutationType.INSERT else []
            rows += [effect.after] if effect.type is not MutationType.DELETE else []
            if effect.type is not None and any(whose is not None and whose.isdisjoint(mine) for whose in rows):
                return False
        return True

    def _put_back(self, before: Mapping[Key, RowState | None]) -> None:
        for key, state in before.items():
            if state is None:
                del self.rows[key]
            else:
                self.rows[key] = state

    def _earlier_pending(self, sent: Sent) -> bool:
        """Whether an earlier batch of the node is known, because it came or was named, and has no verdict."""
        known = (w.sent for w in self.waiting.values() if w.sent.node == sent.node and w.sent.id <= sent.id)
        if any(o.id < sent.id or (o.prev != "" and o.prev not in self.verdicts) for o in known):
            return True
        return any(missing < sent.id and missing not in self.verdicts for missing in self.missing.get(sent.node, ()))

    def _decide(self, sent: Sent, position: int, earlier_pending: bool) -> bool:
        place = place_of(sent.id, position, self._accepted.get(sent.node, ()))
        if reason := self._unseen(sent):
            self.verdicts[sent.id] = MemoryVerdict(position, reason, ())
            return True
        batch = Batch(sent.id, sent.node, sent.basis, sent.time_ms, position, place, sent.mutations, earlier_pending)
        decision = self._resolved(batch)
        if isinstance(decision, Parked):
            return False
        if decision is None or isinstance(decision, Rejected):
            reason = "MERGE_FUNCTION" if decision is None else decision.reason.name
            self.verdicts[sent.id] = MemoryVerdict(position, reason, ())
            return True
        before: dict[Key, RowState | None] = {}
        effects = [effect for write in decision.writes for effect in self._carry_out(batch, write, before)]
        if any(self._violated(key) for key in before):
            self._put_back(before)
            self.verdicts[sent.id] = MemoryVerdict(position, "CONSTRAINT", ())
            return True
        if not self._may_write(sent, effects):
            self._put_back(before)
            self.verdicts[sent.id] = MemoryVerdict(position, "FORBIDDEN", ())
            return True
        self._record(batch, decision, effects)
        return True

    def _resolved(self, batch: Batch) -> Accepted | Rejected | Parked | None:
        """The decision; None where a merge function gives none."""
        answers: dict[tuple[int, int], dict[str, Cell]] = {}
        decision: Decision = resolve(batch, self.rows, self.policy_of)
        while isinstance(decision, Asked):
            for q in decision.questions:
                try:
                    answer = self.functions[q.function](q.base, q.stored, q.incoming)
                except ValueError:
                    return None
                assert q.column not in answers.get((q.mutation, q.row), {}), "asked twice"
                answers.setdefault((q.mutation, q.row), {})[q.column] = answer
            decision = resolve(batch, self.rows, self.policy_of, answers)
        return decision

    def _record(self, batch: Batch, decision: Accepted, effects: list[Effect]) -> None:
        self.log.append(Logged(batch.position, batch.id, batch.node, tuple(effects)))
        self.conflicts += decision.conflicts
        self._accepted.setdefault(batch.node, []).append((batch.id, batch.position))
        self.verdicts[batch.id] = MemoryVerdict(
            batch.position, "", tuple(outcome.outcome for outcome in decision.outcomes)
        )

    def _carry_out(self, batch: Batch, write: Write, before: dict[Key, RowState | None]) -> Iterator[Effect]:
        key = write.table, write.key
        state = self.rows.get(key)
        before.setdefault(key, state)
        old = (state.values if state is not None else None) or {}
        columns = self.tables[write.table].columns
        stored: Row | None = None
        if write.type is MutationType.INSERT:
            stored = {**columns, **write.values}
        elif write.type is MutationType.UPDATE:
            assert old, "an update of no row would change fewer rows than it names"
            stored = {**old, **write.values, **{column: columns[column] for column in write.defaults}}
        elif write.type is MutationType.DELETE:
            assert old, "a delete of no row would change fewer rows than it names"
        after = applied(state, batch, write, stored)
        if state is not None or after.version is not None:
            self.rows[key] = after
        effect = stored or {}
        was = self.audiences(write.table, old)
        becomes = was if write.type is None else self.audiences(write.table, stored)
        if write.type is MutationType.UPDATE and was == becomes:
            effect = {column: cell for column, cell in effect.items() if cell != old[column]}
        yield Effect(*key, write.type, effect, was, becomes)
        if write.type is MutationType.DELETE:
            yield from self._cascade(batch, write, before)

    def _cascade(self, batch: Batch, write: Write, before: dict[Key, RowState | None]) -> Iterator[Effect]:
        for child, rules in self.tables.items():
            if not rules.cascade:
                continue
            for column, parent in rules.references.items():
                if parent != write.table:
                    continue
                for (table, key), row in list(self.live().items()):
                    if table == child and row[column] == write.key:
                        yield from self._carry_out(
                            batch, Write(child, key, MutationType.DELETE, {}, write.mutation, write.row), before
                        )

    def _violated(self, changed: Key) -> bool:
        table, key = changed
        rules = self.tables[table]
        state = self.rows.get(changed)
        row = state.values if state is not None else None
        if row is None:
            return any(
                other[column] == key
                for child, child_rules in self.tables.items()
                for column, parent in child_rules.references.items()
                if parent == table
                for (of, _), other in self.live().items()
                if of == child
            )
        for column, parent in rules.references.items():
            above = self.rows.get((parent, row[column]))
            if row[column] is not None and (above is None or above.values is None):
                return True
        return any(
            row[column] is not None and other[column] == row[column]
            for column in rules.unique
            for (of, other_key), other in self.live().items()
            if of == table and other_key != key
        )
