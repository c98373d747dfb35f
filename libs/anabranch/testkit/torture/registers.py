"""What the judge knows of batches and rows."""

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
    """What the log has of one transaction."""

    id: str
    transaction: str
    changes: Sequence[Logged]


class Step(NamedTuple):
    """What a writer's journal has of one change of a row: what it found, and what it left; None for no row."""

    at: At
    before: Row | None
    after: Row | None


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

    def copy(self) -> Line:
        """One that can be changed."""
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
"""Some rows, there or gone, and all rows to the names of the constraints that those break."""
Function = Callable[[Cell, Cell, Cell], Cell]
