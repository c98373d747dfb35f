"""The judge's records of batches and rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from anabranch.v1 import change_pb2
from anabranch.values import Cell

Order = tuple[int, str]
At = tuple[str, str]
Row = Mapping[str, Cell]
KINDS: Mapping[int, str] = {
    change_pb2.EFFECT_TYPE_INSERT: "insert",
    change_pb2.EFFECT_TYPE_UPDATE: "update",
    change_pb2.EFFECT_TYPE_DELETE: "delete",
}
"""Effects that change a row."""


@dataclass(frozen=True)
class Rules:
    """The policies of a table; ``columns`` without those that are plain."""

    order: str = "server"
    delete: str = "rejects"
    resurrect: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)


class Sent(NamedTuple):
    """A batch as it was made, the node that sent it (by the call, not by its bytes), and the basis that travelled
    beside it."""

    id: str
    node: str
    basis: int
    payload: bytes


class Logged(NamedTuple):
    """A change of a batch of the server as the log has it: ``kind`` is one of ``KINDS``, ``cells`` the row of an
    insert, the changed columns of an update."""

    at: At
    kind: str
    cells: Row


class ServerBatch(NamedTuple):
    """The changes of one transaction in the log."""

    id: str
    transaction: str
    changes: Sequence[Logged]


class Step(NamedTuple):
    """One change of a row in a writer's journal: the row before and the row after; None for no row."""

    at: At
    before: Row | None
    after: Row | None


@dataclass
class Register:
    """A stored value, its writer, and its key in the order."""

    value: Cell
    order: Order
    node: str
    batch: str
    position: int


class Written(NamedTuple):
    """A write of the row, by a node and a batch, at a position."""

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

    def copy(self) -> Line:
        """A copy that can be changed."""
        cells = None if self.cells is None else {column: replace(r) for column, r in self.cells.items()}
        return Line(cells, self.born, list(self.history), self.buried_by)

    @property
    def row(self) -> dict[str, Cell] | None:
        """Its values."""
        return None if self.cells is None else {column: r.value for column, r in self.cells.items()}


class Lost(NamedTuple):
    """One conflict."""

    position: int
    table: str
    key: str
    column: str
    value: Cell
    loser: str
    winner: str


Broken = Callable[[Collection[At], Mapping[At, Row]], Collection[str]]
"""From some rows, present or deleted, and all rows to the names of the constraints that the first ones break."""
Function = Callable[[Cell, Cell, Cell], Cell]
