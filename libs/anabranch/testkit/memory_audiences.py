"""Audiences in the server in memory: what a reader with a set of audiences is sent of it.

The rules are those of the services, told once more: both must show a device the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from anabranch.merge import MutationType
from anabranch.v1 import change_pb2, position_pb2
from anabranch.values import Cell, Table
from anabranch.values.canonical import RowEncoder, table_sum

if TYPE_CHECKING:
    from anabranch.testkit.memory_server import Effect, Logged, MemoryServer, Row

AudienceOf = Callable[["Row"], Iterable[str]]
"""Gives a row's audiences."""


@dataclass(frozen=True)
class SetChange:
    """The change of a principal's memberships by the group at a position."""

    position: int
    principal: str
    gained: frozenset[str]
    lost: frozenset[str]


def set_digest(audiences: Iterable[str]) -> bytes:
    """The digest of a set, as the contract has it."""
    joined = b"".join(one + b"\0" for one in sorted(a.encode() for a in audiences))
    return blake2b(joined, digest_size=16).digest()


@dataclass(frozen=True)
class View:
    """A reader of a server: ``claims`` are what its token gives, ``choice`` what it wants (None: all)."""

    server: MemoryServer
    principal: str
    claims: frozenset[str]
    choice: frozenset[str] | None
    node: str

    def at(self, position: int) -> frozenset[str]:
        """The audiences of the reader after the group at ``position``."""
        found = self.server.sets.get(self.principal, frozenset())
        for change in reversed(self.server.set_changes):
            if change.principal == self.principal and change.position > position:
                found = (found - change.gained) | change.lost
        found |= self.claims
        return found if self.choice is None else found & self.choice

    def change(self, position: int) -> change_pb2.AudienceChange | None:
        """How the group at ``position`` changes them; None where it does not."""
        before, after = self.at(position - 1), self.at(position)
        if before == after:
            return None
        return change_pb2.AudienceChange(gained=sorted(after - before), lost=sorted(before - after))

    def batch(self, logged: Logged, sees: dict[tuple[str, str], bool]) -> list[tuple[Effect, frozenset[str]]] | None:
        """The effects of a batch that the reader gets, each with its row's audiences; None where it does not get the
        batch itself. ``sees``: which rows the reader was sent, or not, by earlier effects of the same group."""
        sent = [one for effect in logged.effects for one in self._sent(effect, logged.position, sees)]
        return sent if sent or logged.node == self.node else None

    def _sent(
        self, effect: Effect, position: int, sees: dict[tuple[str, str], bool]
    ) -> Iterator[tuple[Effect, frozenset[str]]]:
        if effect.before is None or effect.after is None:
            yield effect, frozenset()
            return
        after = self.at(position)
        row = effect.table, effect.key
        had = sees.get(row, not effect.before.isdisjoint(self.at(position - 1) & after))
        has = not effect.after.isdisjoint(after)
        if has and (had or effect.type is MutationType.INSERT or effect.before != effect.after):
            sees[row] = True
            yield effect, effect.after
        elif had and not has:
            sees[row] = False
            yield replace(effect, type=MutationType.DELETE, values={}), frozenset()

    def sees(self, table: str, row: Row, position: int) -> bool:
        """Whether the reader sees a row, at a position at which it is as given."""
        of = self.server.tables[table].audience
        return of is None or not self.at(position).isdisjoint(of(row))

    def sums(self, sums: Iterable[position_pb2.TableSum], position: int) -> list[position_pb2.TableSum]:
        """Those of all sums at a position that the reader may compare."""
        mine = self.at(position)
        return [s for s in sums if s.audience in mine or (not s.audience and not self._restricted(s.table))]

    def _restricted(self, table: str) -> bool:
        return self.server.tables[table].audience is not None


def sums_of(
    table: Table, rows: Sequence[Sequence[Cell]], of: AudienceOf | None, known: set[tuple[str, str]]
) -> list[position_pb2.TableSum]:
    """The sum of a table's rows, and of those of each audience that it has, or (``known``, table and audience) had."""
    encoder = RowEncoder(table)
    parts: dict[str, list[Sequence[Cell]]] = {"": list(rows)}
    if of is not None:
        parts.update({audience: [] for name, audience in known if name == table.name})
        for row in rows:
            for audience in frozenset(of(_named(table, row))):
                parts.setdefault(audience, []).append(row)
                known.add((table.name, audience))
    out = []
    for audience, its in parts.items():
        count, total = table_sum(encoder, its)
        out.append(
            position_pb2.TableSum(table=table.name, count=count, hash=total.to_bytes(16, "big"), audience=audience)
        )
    return out


def audiences_of(table: Table, row: Sequence[Cell], of: AudienceOf) -> list[str]:
    """A row's audiences, in order."""
    return sorted(of(_named(table, row)))


def _named(table: Table, row: Sequence[Cell]) -> Mapping[str, Cell]:
    return dict(zip(table.column_names, row, strict=True))
