"""What the batches of a group share while they are decided."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from anabranch.merge import MutationType
from anabranch.store.session.engine import Session
from anabranch.values import Cell
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.captured.server_batches import Drained
from anabranch_conflict_resolver.functions.ask import Asking
from anabranch_conflict_resolver.group.tables import SyncedDatabase


@dataclass(slots=True)
class Group:
    """What all batches of a group share. ``now_ms`` is the clock's time, ``position`` the group's. ``pending``: by
    node, the least id among its batches that wait in the inbox and are not in the group; ``missing``: by node, the
    id of a batch that has not come, though a later one named it (both only of nodes for which it matters).
    ``busy_ms``: how long a batch rests whose row somebody else holds. ``held``: batches that were taken with the group
    and wait already, and their nodes.

    ``draining``: captured changes wait, and ``drained`` is what was made of them. ``loud``: by table,
    changes that may cause others; ``hoping``: the group is run as if there were none; ``caused``: rows that were
    changed so, with their keys, and ``lock_too`` those of the last try. ``touched``: the rows that the candidates
    touch; ``absorbed_up_to``: the greatest number of a captured change that was caused and logged at once.
    ``poisoned``: bad batches are expected, and looked for before anything is written; afterwards, whether there were
    any."""

    conn: Session
    synced: SyncedDatabase
    position: int
    now_ms: int
    busy_ms: int
    pending: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    asking: Asking = field(default_factory=Asking)
    draining: bool = False
    drained: Drained | None = None
    loud: Mapping[str, frozenset[MutationType]] = field(default_factory=dict)
    hoping: bool = False
    caused: dict[RowKey, tuple[Cell, ...]] = field(default_factory=dict)
    lock_too: dict[RowKey, tuple[Cell, ...]] = field(default_factory=dict)
    touched: Set[RowKey] = frozenset()
    absorbed_up_to: int = 0
    poisoned: bool = False

    @property
    def drained_up_to(self) -> int:
        """The greatest number of a captured change that was there when the group drained."""
        return self.drained.up_to if self.drained is not None else 0

    @property
    def park_ms(self) -> int:
        """How long a batch may wait, from its arrival."""
        return self.synced.database.policy.park_ms
