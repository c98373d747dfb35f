"""A node in memory: a queue and base rows, laid over each other by ``anabranch.merge.shown``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.merge import Mutation, MutationType, Pending, RowChange, shown
from anabranch.testkit.memory_server import Effect, Key, Logged, MemoryServer, Row, Sent

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def ulid(time_ms: int, rest: int) -> str:
    """The ULID with this time and these 80 bits."""
    number = time_ms << 80 | rest
    return "".join(_DIGITS[number >> shift & 31] for shift in range(125, -1, -5))


@dataclass
class Queued:
    """A batch that is still in the queue; ``seen``: the log has shown it."""

    sent: Sent
    seen: bool = False

    def touches(self) -> set[Key]:
        """The rows that the batch names."""
        return {(m.table, change.key) for m in self.sent.mutations for change in m.rows}


class MemoryNode:
    """One replica. ``number`` keeps the ids of nodes apart; ``clock_ms`` is how far its clock is off."""

    def __init__(self, name: str, number: int, server: MemoryServer, clock_ms: int = 0) -> None:
        self.name = name
        self.clock_ms = clock_ms
        self.base: dict[Key, Row] = server.live()
        self.queue: list[Queued] = []
        self.made: list[Sent] = []
        self.dead: dict[str, str] = {}
        self.cursor = server.head
        self._read = len(server.log)
        self._number = number
        self._last_time = 0
        self._policy = server.policy

    def make(self, now: int, *changes: tuple[str, MutationType, str, Row]) -> Sent:
        """Write one batch, of one mutation for each (table, type, key, values). Ids grow also where the time goes back,
        and an id is later than everything that the node has read."""
        time_ms = self._last_time = max(now + self.clock_ms, self._last_time, self.cursor + 1)
        mutations: list[Mutation] = []
        for table, type_, key, values in changes:
            row = self.shown(table, key, mutations)
            before = {c: row[c] for c in values if c in row} if row is not None else {}
            mutations.append(Mutation(table, type_, [RowChange(key, values, before)]))
        batch_id = ulid(time_ms, len(self.made) << 8 | self._number)
        sent = Sent(batch_id, self.name, self.cursor, time_ms, mutations)
        self.made.append(sent)
        self.queue.append(Queued(sent))
        return sent

    def to_send(self) -> list[Sent]:
        """The queue as it would be sent now, each naming the one before it."""
        waiting = [queued.sent for queued in self.queue if not queued.seen]
        prevs = ["", *(sent.id for sent in waiting)]
        return [replace(sent, prev=prev) for sent, prev in zip(waiting, prevs, strict=False)]

    def shown(self, table: str, key: str, more: Sequence[Mutation] = ()) -> Row | None:
        """The row as the app sees it; ``more``: mutations of a batch that is being made."""
        pending = [
            Pending(m.type, change.values, change.before, queued.seen)
            for queued in self.queue
            for m in queued.sent.mutations
            for change in m.rows
            if m.table == table and change.key == key
        ]
        pending += [
            Pending(m.type, change.values, change.before)
            for m in more
            for change in m.rows
            if m.table == table and change.key == key
        ]
        return shown(self.base.get((table, key)), pending, self._policy)

    def all_shown(self) -> dict[Key, Row]:
        """Every row as the app sees it."""
        keys = set(self.base).union(*(queued.touches() for queued in self.queue))
        rows = {key: self.shown(*key) for key in keys}
        return {key: row for key, row in rows.items() if row is not None}

    def read(self, server: MemoryServer) -> list[Logged]:
        """Read the log to its head, and the verdicts of refused batches. Returns the new part of the log."""
        new = server.log[self._read :]
        self._read = len(server.log)
        self.cursor = server.head
        for logged in new:
            for effect in logged.effects:
                _lay(self.base, effect)
            for queued in self.queue:
                if queued.sent.id == logged.id:
                    queued.seen = True
        for queued in list(self.queue):
            verdict = server.verdicts.get(queued.sent.id)
            if verdict is not None and verdict.reason:
                self.dead[queued.sent.id] = verdict.reason
                self.queue.remove(queued)
        held: set[Key] = set()
        for queued in list(self.queue):
            if queued.seen and not held & queued.touches():
                self.queue.remove(queued)
            else:
                held |= queued.touches()
        return new


def _lay(base: dict[Key, Row], effect: Effect) -> None:
    key = effect.table, effect.key
    if effect.type is MutationType.INSERT:
        base[key] = effect.values
    elif effect.type is MutationType.UPDATE:
        base[key] = {**base[key], **effect.values}
    elif effect.type is MutationType.DELETE:
        del base[key]
