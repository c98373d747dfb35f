"""The context in which a group is decided, and the progress of a try of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from anabranch.store.audiences.principals import Given
from anabranch.store.group.denied import Missing
from anabranch.store.session.engine import Session
from anabranch.values import Cell
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.rights import Rights
from anabranch_conflict_resolver.captured.server_batches import Drained
from anabranch_conflict_resolver.functions.child import Asking
from anabranch_conflict_resolver.group.tables import Kinds, SyncedDatabase
from anabranch_conflict_resolver.group.view import View


@dataclass(frozen=True, slots=True)
class Context:
    """The state that stays the same however often a group is tried. ``now_ms`` is the clock's time, ``position`` the
    group's. ``busy_ms``: how long a batch rests whose row another session has locked. ``at_hand``: the ids of all
    batches that were taken. ``may_cause``: changes that may cause others. ``asking`` caches the answers of the
    application's functions, ``missing`` the rights that a role was found to lack to an object (its kind and name).
    ``given``: what membership queries give principals, as far as it is known; more is added. ``dry``: nothing of the
    group will be committed. ``markers``: the numbers of markers of altered tables that wait and are left to wait."""

    conn: Session
    synced: SyncedDatabase
    position: int
    now_ms: int
    busy_ms: int
    at_hand: Sequence[str] = ()
    may_cause: Kinds = field(default_factory=dict)
    asking: Asking = field(default_factory=Asking)
    given: dict[str, Given] = field(default_factory=dict)
    dry: bool = False
    missing: dict[tuple[str, str], Missing] = field(default_factory=dict)
    markers: Sequence[int] = ()

    @property
    def role(self) -> str:
        """The role that batches are written as, so that row-level security decides; "" for the session's own."""
        return self.synced.database.audience_rules.rls_role

    @property
    def park_ms(self) -> int:
        """How long a batch may wait, from its arrival."""
        return self.synced.database.policy.park_ms


@dataclass(slots=True)
class Progress:
    """The progress of one try: it begins with the locks, and is dropped with the try.

    ``view``: the rows, carried forward. ``watched``: changes after which the try looks for others that they caused, so
    that their batches are run alone. ``touched``: the rows that the batches name, and others that were locked with
    them. ``pending``: by node, the least id among its batches that wait in the inbox and are not in the group;
    ``missing``: by node, the id of a batch that has not come, though a later one named it (both only of nodes for which
    it matters). ``drained``: the batches made of captured changes, None where none were looked for; ``arrived``: those
    drained later. ``caused``: rows that were changed without being named, with their keys. ``absorbed_up_to``: the
    greatest number of a captured change that was caused and logged at once. ``rights``: by id, those of batches that
    touch a restricted table."""

    view: View
    watched: Kinds = field(default_factory=dict)
    touched: Set[RowKey] = frozenset()
    pending: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    drained: Drained | None = None
    arrived: tuple[Drained, ...] = ()
    caused: dict[RowKey, tuple[Cell, ...]] = field(default_factory=dict)
    absorbed_up_to: int = 0
    rights: Mapping[str, Rights] = field(default_factory=dict)

    @property
    def looked_up_to(self) -> int:
        """The number of the captured change behind which those are that the try caused and has not taken."""
        return max(self.drained.up_to if self.drained is not None else 0, self.absorbed_up_to)

    def copy(self) -> Progress:
        """A copy for a part of the try that may be undone. Caused changes are noted in both."""
        return replace(self, view=self.view.copy())

    def become(self, other: Progress) -> None:
        """Go on from ``other``, a copy that was carried forward."""
        self.view.become(other.view)
        self.arrived, self.absorbed_up_to = other.arrived, other.absorbed_up_to
