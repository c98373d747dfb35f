"""A second form of the rules: every column is a register that keeps the write with the greatest key.

It takes a log and the batches as they were sent, and gives the rows and the conflicts that must result from them. It
knows nothing of row versions, nor when a batch is refused: it reads from the log which batches were accepted, and the
fate of whole rows. For tables without cascades and columns without a computing policy, and ``delete: rejects``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.merge import MutationType
from anabranch.merge.model import Cell
from anabranch.testkit.memory_server import Effect, Key, Logged, MemoryTable, Row, Sent

Order = tuple[int, str]


@dataclass(frozen=True)
class Register:
    """One stored value and its writer."""

    order: Order
    value: Cell
    node: str
    position: int
    batch: str


@dataclass(frozen=True)
class Lost:
    """One conflict: the losing value and both batches."""

    key: Key
    column: str
    value: Cell
    loser: str
    winner: str


class Oracle:
    """Reads a log from its beginning. ``order`` is the policy's."""

    def __init__(self, tables: Mapping[str, MemoryTable], order: str, preset: Mapping[Key, Row]) -> None:
        self.lost: list[Lost] = []
        self._tables = tables
        self._order = order
        self._read: list[Logged] = []
        self._born: dict[Key, Order] = dict.fromkeys(preset, (0, ""))
        self._cells = {key: {c: Register((0, ""), v, "", 0, "") for c, v in row.items()} for key, row in preset.items()}

    def rows(self) -> dict[Key, Row]:
        """The rows that must be there."""
        return {key: {c: r.value for c, r in cells.items()} for key, cells in self._cells.items()}

    def read(self, logged: Logged, sent: Sent) -> None:
        """Apply the next batch of the log."""
        own = [b.position for b in self._read if b.node == logged.node and b.id > logged.id]
        place = min(own, default=logged.position)
        time = min(sent.time_ms, place) if self._order == "edit" else place
        self._read.append(logged)
        changes = [(m.type, m.table, change) for m in sent.mutations for change in m.rows]
        for (type_, table, change), effect in zip(changes, logged.effects, strict=True):
            new = {
                c: Register((time, logged.id), v, logged.node, logged.position, logged.id)
                for c, v in change.values.items()
            }
            self._change(type_, (table, change.key), new, effect, sent, (time, logged.id), logged)

    def _change(
        self,
        type_: MutationType,
        key: Key,
        new: dict[str, Register],
        effect: Effect,
        sent: Sent,
        order: Order,
        logged: Logged,
    ) -> None:
        if type_ is MutationType.INSERT:
            if effect.type is MutationType.INSERT:
                self._born[key] = order
                self._cells[key] = {}
            elif key not in self._cells or self._born[key] > order:
                return
            self._born[key] = order
            for column, default in self._tables[key[0]].columns.items():
                given = new.get(column) or Register(order, default, logged.node, logged.position, logged.id)
                stored = self._cells[key].get(column)
                if stored is None or stored.order <= order:
                    self._cells[key][column] = given
        elif type_ is MutationType.DELETE:
            if effect.type is MutationType.DELETE:
                del self._cells[key]
        elif key in self._cells:
            for column, register in new.items():
                self._update(key, column, register, sent)

    def _update(self, key: Key, column: str, new: Register, sent: Sent) -> None:
        stored = self._cells[key][column]
        others = stored.node != new.node
        if stored.order <= new.order:
            self._cells[key][column] = new
            if others and stored.position > sent.basis and stored.value != new.value:
                self.lost.append(Lost(key, column, stored.value, stored.batch, new.batch))
        elif others and stored.value != new.value:
            self.lost.append(Lost(key, column, new.value, new.batch, stored.batch))


def told(
    tables: Mapping[str, MemoryTable],
    order: str,
    preset: Mapping[Key, Row],
    log: Sequence[Logged],
    sent: Mapping[str, Sent],
) -> Oracle:
    """An oracle that has read the whole log; ``sent`` by id."""
    oracle = Oracle(tables, order, preset)
    for logged in log:
        oracle.read(logged, sent[logged.id])
    return oracle
