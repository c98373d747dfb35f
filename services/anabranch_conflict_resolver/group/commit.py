"""The group commit: some batches of one database decided and committed together.

One call of ``commit_group`` is one transaction, in these states; an error anywhere rolls all of it back and leaves the
batches where they were:

1. *claimed*: this session is the only one that commits groups of the database. Nothing read before counts: the head,
   the schema version and the sums are those of now.
2. *taken*: up to ``most`` batches of the inbox. Each is at once one of: already decided (it came twice), refused
   (invalid, too old, or failed too often), waiting for its ``prev``, or a candidate.
3. *decided* (``group.attempt``): the candidates' rows are locked and read, the rules asked, and what they accept is
   written, wave by wave. A candidate becomes applied, rejected or waiting. Captured changes of others are drained
   between the locks and the rules (``captured.drain``), and what the group's own statements cause is taken as they run
   (``side_effects.cascades``).
4. *recorded*: log, histories, verdicts, conflicts, sums, group, inbox, notification.
5. *committed*. If the answer to COMMIT is lost, nobody needs to know which way it went: either the verdicts are there
   and the batches gone from the inbox, or neither, and the next claim finds out by looking.

Who waits: a batch whose ``prev`` is undecided, one that leans on a row that an earlier batch of its node may bring
(the first until ``arrival + park_ms`` at the latest, the second for as long as a device keeps a batch, and nobody waits
for it any longer than for the first), and one whose row somebody else holds (for a moment). What it waits
for sets it free in the transaction that decides it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import structlog

from anabranch import faults
from anabranch.limits import BATCH_EXPIRY_MS
from anabranch.merge import MutationType
from anabranch.runtime.telemetry import span, tracing
from anabranch.store.capture.captured import UndecodableError
from anabranch.store.catalog.drift import fingerprint
from anabranch.store.catalog.out_of_sync import tear
from anabranch.store.group.records import delete_inbox, notify_group
from anabranch.store.inbox import take
from anabranch.store.inbox.claim import allow, claim
from anabranch.store.inbox.take import Parking, Standing, Taken
from anabranch.store.log.seal import EMPTY_CHAIN
from anabranch.store.session.engine import Session
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.batch.decode import Decoded, Refusal
from anabranch_conflict_resolver.batch.results import Applied, Candidate, Rejection, Result, Waiting
from anabranch_conflict_resolver.blame.evidence import FAILURES_AT_MOST, given_up
from anabranch_conflict_resolver.captured.backlog import drain_backlog
from anabranch_conflict_resolver.captured.drain import Backlog
from anabranch_conflict_resolver.functions.ask import Asking
from anabranch_conflict_resolver.functions.child import Functions
from anabranch_conflict_resolver.group.attempt import Decided, decide_group
from anabranch_conflict_resolver.group.cache import Memory, current
from anabranch_conflict_resolver.group.context import Group
from anabranch_conflict_resolver.group.records import CapturedBetween, Sums, gather, look_between, new_sums, write
from anabranch_conflict_resolver.group.tables import SyncedDatabase

_log = structlog.get_logger()
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """``most_bytes``: payload bytes of one group. ``busy_ms``: how long a batch rests whose row somebody else holds.
    ``restarts``: how often a group starts again because rows appeared in between. ``alone_ms``: how long a group
    may take of one batch that has failed alone before."""

    most_bytes: int = 8 * 1024 * 1024
    busy_ms: int = 100
    restarts: int = 3
    alone_ms: int = 60_000


@dataclass(slots=True)
class Outcome:
    """What a group came to. ``taken`` batches were looked at, and ``drained`` captured changes taken; none where it
    could not be claimed or nothing was there. ``all_heard``: whatever there is to do beside, the listener rings for."""

    claimed: bool
    position: int = 0
    name: str = ""
    taken: int = 0
    results: Sequence[Result] = ()
    drained: int = 0
    all_heard: bool = False

    @property
    def decided(self) -> int:
        """How many batches got a verdict."""
        return sum(not isinstance(result, Waiting) for result in self.results)


def commit_group(
    conn: Session,
    memory: Memory,
    database_id: int,
    *,
    most: int,
    now_ms: int,
    clock_offset_ms: int,
    limits: GroupLimits,
    functions: Functions | None = None,
) -> Outcome:
    """Decide and commit up to ``most`` batches of the database. ``now_ms`` is this process's clock, by which waits and
    ages are judged; positions follow Postgres's, to which ``clock_offset_ms`` is added. ``functions`` runs the
    application's merge functions; without it, no column may ask one.

    Raises:
        psycopg.Error: nothing was done, or, where the session was lost in COMMIT, perhaps all of it.
    """
    memory.attempted, memory.draining, memory.tried_long = [], False, False
    try:
        # Where the last group was full there is more, and what comes next is read while Postgres works.
        ahead = most if memory.more else 0
        claimed = claim(
            conn,
            database_id,
            lambda: take.take(
                conn,
                database_id,
                most=most + ahead,
                most_bytes=limits.most_bytes,
                now_ms=now_ms,
                start=memory.last_principal,
                few=not memory.more,
            ),
        )
        standing = claimed.standing
        if not claimed.ours or standing is None:
            # Nothing was written. At a ROLLBACK the driver would forget all prepared statements, after every look.
            conn.commit()
            return Outcome(claimed.ours)
        faults.reach("after_claim")
        synced = current(conn, memory, standing)
        if synced.asks and functions is not None:
            functions.warm()
        taken = claimed.answer()
        memory.more = len(taken) >= most
        if not taken and not standing.any_captured:
            conn.commit()
            memory.last_principal = ""
            return Outcome(claimed=True, name=standing.name)
        now, later = taken[:most], taken[most:]
        if failed := [t for t in now if t.attempts]:
            # It may be one that takes long, as a delete that cascades over a million rows: it has a group of its own,
            # and time for it. The others come next.
            memory.more |= len(taken) > 1
            now, later = failed[:1], []
            allow(conn, limits.alone_ms)
            memory.tried_long = True
        memory.last_principal = now[-1].principal if now else ""
        memory.attempted = [t.batch_id for t in now]
        position = max(standing.clock_ms + clock_offset_ms, standing.position + 1)
        group = Group(conn, synced, position, now_ms, limits.busy_ms, asking=Asking(functions))
        # The group goes on with the trace of its first batch, and is linked with those of the others.
        traces = list(dict.fromkeys(t.traceparent for t in now if t.traceparent)) if tracing() else []
        group.draining = memory.trouble.beside = standing.any_captured
        if memory.trouble.allowed_ms:
            allow(conn, memory.trouble.allowed_ms)
        group.loud = dict.fromkeys(synced.tables, frozenset(MutationType)) if memory.wary else synced.loud
        group.hoping = memory.hopeful
        group.poisoned = memory.poisoned
        with span("group", parent=traces[0] if traces else None, links=traces[1:]):
            return _commit(group, memory, standing, now, later, limits)
    except CapturedBetween as between:
        conn.rollback()
        memory.more = False
        memory.wary |= between.own
        return Outcome(True, name=synced.database.name, taken=len(now), drained=1)
    except _ChangedBetween:
        conn.rollback()
        memory.more = False
        memory.looked_s = None
        return Outcome(True, name=synced.database.name, taken=len(now))
    except UndecodableError as error:
        if not conn.closed:
            conn.rollback()
        memory.more = False
        # Kept in the database before anything is dropped, so that nobody goes on as if the log had it.
        tear(conn, database_id, error.table, now_ms=now_ms)
        _log.error("captured changes are dropped: the table has to be registered anew", detail=str(error))
        return Outcome(True, name=synced.database.name, taken=len(now), drained=1)
    except BaseException:
        # When it is tried again, nothing is read ahead: a batch would be blamed for another one that was only read.
        memory.more = False
        memory.looked_s = None
        if not conn.closed:
            conn.rollback()
        raise


class _ChangedBetween(Exception):
    """A table was changed since it was compiled, and a batch would be blamed for it."""


def _may_have_drifted(results: Sequence[Result]) -> bool:
    """Whether Postgres refused a batch for what it is not to blame for: a name or a type that is no longer there."""
    return any(isinstance(result, Rejection) and result.sqlstate.startswith("42") for result in results)


def _commit(
    group: Group,
    memory: Memory,
    standing: Standing,
    taken: list[Taken],
    later: Sequence[Taken],
    limits: GroupLimits,
) -> Outcome:
    conn, synced, position = group.conn, group.synced, group.position
    database_id = synced.database.id
    taken.sort(key=lambda t: t.batch_id)
    dropped = [t.batch_id for t in taken if t.decided]
    results, candidates = sort_out(group, memory, [t for t in taken if not t.decided])
    at_hand = [t.batch_id for t in taken]
    try:
        if memory.outstanding or (memory.trouble.alone and group.draining):
            raise Backlog
        decided: Decided = decide_group(group, candidates, at_hand=at_hand, restarts=limits.restarts)
    except Backlog:
        # The batches wait: what was written before them goes first, and alone.
        results, dropped, later = [], [], ()
        memory.attempted, memory.draining = [], True
        memory.outstanding.one_by_one = memory.trouble.failures > 0
        decided = drain_backlog(group, memory.outstanding)
    if _may_have_drifted(decided.results) and fingerprint(conn, standing.name) != memory.shape:
        raise _ChangedBetween
    results += decided.results
    results.sort(key=lambda result: _id(result))
    records = gather(synced, position, results, group.drained)
    missing = _missing(taken, set(records.decided))
    sums: Sums = {}
    if memory.link != (standing.chain or EMPTY_CHAIN):
        # Somebody else has committed groups meanwhile.
        memory.sums.clear()
    if records.batches or records.server:
        unknown = {synced.tables[name].table.id for name in records.sum_changes} - memory.sums.keys()
        if unknown:
            memory.sums.update(take.read_sums(conn, unknown))
        sums = new_sums(synced.tables, records, memory.sums)
        link = write(
            conn,
            synced.tables,
            database_id=database_id,
            position=position,
            now_ms=group.now_ms,
            previous_link=standing.chain or EMPTY_CHAIN,
            seal_key=synced.database.seal_key,
            records=records,
            view=decided.view,
            sums=sums,
            dropped=dropped,
            any_parked=standing.any_parked,
            drained=group.drained,
            while_waiting=lambda: _read_ahead(synced, memory, later),
        )
    else:
        link = standing.chain or EMPTY_CHAIN
        if dropped:
            delete_inbox(conn, database_id, dropped)
            notify_group(conn, database_id, standing.position, dropped)
        if records.parkings:
            take.park(conn, database_id, records.parkings)
        if look_between(conn, database_id, group.drained).fetchone() and group.drained is not None:
            raise CapturedBetween(own=True)
    if missing:
        take.note_missing(conn, database_id, missing)
    faults.reach("before_commit")
    conn.commit()
    faults.reach("after_commit")
    memory.outstanding.committed()
    if memory.draining:
        memory.trouble.passed()
    elif not group.draining:
        memory.trouble.innocent = False
    memory.hopeful = not group.caused
    memory.poisoned = group.poisoned
    memory.link = link
    memory.sums.update(sums)
    drained = group.drained.changes if group.drained else 0
    # A full group leaves batches behind, one that ended early its own, and a verdict may set free who waited for it.
    left = memory.more or drained or len(results) + len(dropped) < len(taken)
    freed = standing.any_parked or records.parkings
    return Outcome(True, position, standing.name, len(taken), results, drained, all_heard=not (left or freed))


def _missing(taken: Sequence[Taken], decided: Set[str]) -> dict[str, str]:
    """By node, the earliest batch that one which is decided now names as the one before, and that has not come."""
    here = {t.batch_id for t in taken}
    missing: dict[str, str] = {}
    for one in taken:
        prev = one.prev
        if prev and not one.prev_decided and prev not in here and prev < one.batch_id and one.batch_id in decided:
            missing[one.node_id] = min(prev, missing.get(one.node_id, prev))
    return missing


def _read_ahead(synced: SyncedDatabase, memory: Memory, later: Sequence[Taken]) -> None:
    """Read the batches that the next group will probably take. What the last one read ahead and did not use goes."""
    decode = synced.decoder.decode
    memory.read_ahead = {(t.batch_id, t.payload_sha256): decode(t.batch_id, t.payload) for t in later if not t.refusal}


def _id(result: Result) -> str:
    return (result.candidate.taken if isinstance(result, Applied) else result.taken).batch_id


def sort_out(group: Group, memory: Memory, taken: Sequence[Taken]) -> tuple[list[Result], list[Candidate]]:
    """Refuse what needs no rules, let wait what waits for its ``prev``, read the rest. ``taken`` is in the order of
    ids."""
    policy = group.synced.database.policy
    oldest_ms = group.now_ms - policy.retention_days * _DAY_MS
    done = _patient(group, taken)
    results: list[Result] = []
    candidates: list[Candidate] = []
    late: list[tuple[str, str]] = []
    for one in taken:
        until_ms = one.arrived_ms + policy.park_ms
        may_wait = group.now_ms < until_ms
        decoded = None
        refusal = _refusal_unread(one)
        if refusal is None:
            decoded = _read(group, memory, one)
            refusal = _refusal(decoded, oldest_ms)
        if refusal is not None:
            results.append(
                Rejection(
                    one, refusal.reason, refusal.message, refusal.mutation, refusal.table, sqlstate=refusal.sqlstate
                )
            )
        elif may_wait and not one.prev_decided and one.prev not in done and (one.prev or "") < one.batch_id:
            results.append(Waiting(one, Parking(one.batch_id, until_ms, one.prev), one.prev or ""))
            group.held[one.batch_id] = one.node_id
            continue
        else:
            assert decoded is not None
            may_await_row = group.now_ms < one.arrived_ms + BATCH_EXPIRY_MS
            candidates.append(Candidate(one, decoded, group.position, may_wait, may_await_row))
            if one.last_accepted is not None and one.last_accepted > one.batch_id:
                late.append((one.batch_id, one.node_id))
        done.add(one.batch_id)
    if late:
        places = take.places(group.conn, group.synced.database.id, late)
        for candidate in candidates:
            candidate.place = places.get(candidate.taken.batch_id, group.position)
    return results, candidates


def _patient(group: Group, taken: Sequence[Taken]) -> set[str]:
    """Batches before these of their nodes that nobody waits for any longer: they have waited for a row for the park
    time, and go on for days if need be."""
    named = {t.prev for t in taken if t.prev and not t.prev_decided} - {t.batch_id for t in taken}
    if not named:
        return set()
    return take.awaiting_rows(group.conn, group.synced.database.id, named)


def _read(group: Group, memory: Memory, taken: Taken) -> Decoded:
    decoded = memory.read_ahead.pop((taken.batch_id, taken.payload_sha256), None)
    if decoded is None:
        decoded = group.synced.decoder.decode(taken.batch_id, taken.payload)
    return decoded


def _refusal_unread(taken: Taken) -> Refusal | None:
    """Why a batch is refused whatever is in it."""
    if taken.refusal:
        return Refusal(taken.refusal, taken.refusal_message or "")
    if taken.attempts >= FAILURES_AT_MOST:
        # Not read any more: that may be where it fails.
        return given_up(taken.failure or take.PROGRAM)
    return None


def _refusal(decoded: Decoded, oldest_ms: int) -> Refusal | None:
    if decoded.time_ms and decoded.time_ms < oldest_ms:
        text = "made longer ago than verdicts are kept: it could not be told from a repeat"
        return Refusal(errors_pb2.REASON_EXPIRED, text)
    return decoded.refusal
