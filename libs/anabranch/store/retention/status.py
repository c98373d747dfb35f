"""A database's holds on the floor, and the rows that would go: the same for the command, GetStatus and a dry run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.columnar.evidence import EvidenceError
from anabranch.merge.retention import Bound, Facts, Hold, RetentionPlan, plan
from anabranch.store.lake.compactions import Published
from anabranch.store.log.partitions import DEFAULT, Leaf, leaves, passed
from anabranch.store.retention.floor import Kept, last_group, read_facts
from anabranch.store.retention.proof import Proof
from anabranch.store.retention.rows import ROWS, Limits, count, count_log
from anabranch.store.session.engine import Session

COUNTED = 100_000
"""Rows of a kind that are counted; beyond, there are more."""


@dataclass(frozen=True, slots=True)
class Look:
    """A database, with the bounds of the rows that may go now. ``target``: the group that the floor may move to.
    ``bounds``: the strictest first, with that of a failed proof. ``newest``: the newest published run; ``proof``: its
    proof, None where the log is not compacted, or the proof has failed."""

    kept: Kept
    facts: Facts
    plan: RetentionPlan
    target: int
    bounds: tuple[Bound, ...]
    newest: Published | None
    proof: Proof | None

    def limits(self, floor: int) -> Limits:
        """The bounds of the rows that may go once the floor is there. Conflicts go behind their own proof only: those
        that no run had stay."""
        return Limits(
            self.kept.id,
            floor,
            floor if self.facts.compacted_from is None else self.facts.compacted_from,
            self.plan.kept_since_ms,
            self.plan.absent_since_ms,
            self.plan.leftover_before_ms,
        )


@dataclass(frozen=True, slots=True)
class RetentionStatus:
    """``removes``: by kind, how many rows would go (at most COUNTED of each are counted)."""

    look: Look
    removes: Mapping[str, int]
    partitions: Sequence[Leaf]


def look(conn: Session, kept: Kept, now_ms: int) -> Look:
    """Find out what may go of a database. The files of the stretch that would go are checked, but not read as a whole.

    Raises:
        psycopg.Error: it can't be read.
    """
    facts, newest = read_facts(conn, kept, now_ms)
    planned = plan(facts)
    target = last_group(conn, kept, planned.target)
    bounds, proof = planned.bounds, None
    if facts.compacted_from is not None and target > kept.floor and newest is not None:
        try:
            proof = Proof(newest)
            proof.require_files(kept.floor, target)
        except EvidenceError as error:
            bounds, target, proof = (broken(kept.floor, error), *bounds), kept.floor, None
    return Look(kept, facts, planned, target, bounds, newest, proof)


def broken(floor: int, error: EvidenceError) -> Bound:
    """The bound that a failed proof sets."""
    return Bound(Hold.PROOF, floor, str(error))


def status(conn: Session, kept: Kept, now_ms: int) -> RetentionStatus:
    """Count the rows that would go of a database.

    Raises:
        psycopg.Error: it can't be read.
    """
    found = look(conn, kept, now_ms)
    limits = found.limits(found.target)
    partitions = leaves(conn)
    log = 0
    # Rows of the other partitions stay until the whole partition is behind the floor.
    for name in (DEFAULT, *(leaf.name for leaf in passed(conn, kept.id, limits.floor, now_ms))):
        log += count_log(conn, name, limits, COUNTED - log) if log < COUNTED else 0
    removes = {"log": log, **{what: count(conn, what, limits, COUNTED) for what in ROWS}}
    return RetentionStatus(found, {what: rows for what, rows in removes.items() if rows}, partitions)


def at(kept: Kept, floor: int) -> Kept:
    """The facts as they are once the floor is at ``floor``."""
    return replace(kept, floor=floor)
