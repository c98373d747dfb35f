"""The group commit: some batches of one database decided and committed together.

One call of ``commit_group`` is one transaction, in these states; an error anywhere rolls all of it back and leaves the
batches where they were:

1. *claimed*: this session is the only one that commits groups of the database. Nothing read before counts: the head,
   the schema version and the sums are those of now. Where a table was altered, the group takes no batch: it drains what
   stands before that change, or takes the change itself (``schema.group``) instead of all that follows here.
2. *taken*: up to ``most`` batches of the inbox. Where one of them may kill the process, they are written down, and that
   is committed first (``undertaking``). Each is at once one of: already decided (it came twice), refused
   (invalid, too old, or failed too often), waiting for its ``prev``, or a candidate.
3. *decided* (``attempt``): the candidates' rows are locked and read, the rules asked, and the accepted writes made,
   wave by wave. A candidate becomes applied, rejected or waiting. Captured changes of others are drained between the
   locks and the rules (``captured.drain``), and changes that the group's own statements cause are taken as they run
   (``side_effects.cascades``).
4. *recorded*: log, histories, verdicts, conflicts, sums, group, inbox, notification. Then a last look whether something
   was captured meanwhile that the group does not know of (``store.group.last_look``): if so, it is rolled back.
5. *committed*: where the records are few and event triggers tell of DDL, in the send that brings them, behind the last
   look; else when its answer is there. If the answer to COMMIT is lost, the outcome need not be known at once: either
   the verdicts are there and the batches gone from the inbox, or neither, and the next claim finds out by looking.

These batches wait: a batch whose ``prev`` is undecided, one that updates or deletes a row that an earlier batch of its
node may bring (the first until ``arrival + park_ms`` at the latest, the second for as long as a device keeps a batch,
and no batch waits for it any longer than for the first), and one whose row another session has locked (for a moment).
The transaction that decides the batch, or brings the row, that it waits for sets it free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

import structlog

from anabranch import faults
from anabranch.merge import MutationType
from anabranch.runtime.telemetry import span, tracing
from anabranch.store.capture.captured import UndecodableError
from anabranch.store.catalog.drift import fingerprint
from anabranch.store.ddl.changes import AlteredMeanwhileError
from anabranch.store.ddl.notice import notice
from anabranch.store.inbox import neighbours, take
from anabranch.store.inbox.claim import allow, claim, give_up
from anabranch.store.inbox.take import Head, Taken
from anabranch.store.inbox.undertaken import OWNER, finish
from anabranch.store.log.seal import EMPTY_CHAIN
from anabranch.store.session.engine import Session
from anabranch_conflict_resolver.batch.results import Rejection, Result, Waiting
from anabranch_conflict_resolver.captured.backlog import drain_backlog
from anabranch_conflict_resolver.functions.child import Asking, Functions
from anabranch_conflict_resolver.group.attempt import decide_group
from anabranch_conflict_resolver.group.cache import NOTHING, Cache, Undertaken, current
from anabranch_conflict_resolver.group.candidates import sort_out
from anabranch_conflict_resolver.group.context import Context, Progress
from anabranch_conflict_resolver.group.next_try import Attempt
from anabranch_conflict_resolver.group.outcome import Between, GroupLimits, Outcome
from anabranch_conflict_resolver.group.records import Recorded, record
from anabranch_conflict_resolver.group.rights import learn_principals
from anabranch_conflict_resolver.group.tables import Kinds, SyncedDatabase
from anabranch_conflict_resolver.group.undertaking import Chosen, choose, passed_over, put_down, settle, write_down
from anabranch_conflict_resolver.schema.fault import failed
from anabranch_conflict_resolver.schema.group import BusyTableError
from anabranch_conflict_resolver.schema.tear import tear
from anabranch_conflict_resolver.schema.turn import commit_change, first_in_line
from anabranch_conflict_resolver.schema.waiting import SchemaWork, is_altered

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Begun:
    """A group that has been claimed and has something to do. ``now``: the batches that it looks at; ``later``: those
    that the next one will probably take; ``owed``: the principals that it passes over by its choice."""

    context: Context
    head: Head
    now: Sequence[Taken]
    later: Sequence[Taken]
    owed: Set[str]
    restarts: int
    work: SchemaWork | None = None

    def rolled_back(self, *, drained: int = 0) -> Outcome:
        """The outcome of a group that has to be run again. ``drained``: it is said to have drained so many."""
        return Outcome(True, name=self.head.name, taken=len(self.now), drained=drained)


def commit_group(
    conn: Session,
    cache: Cache,
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
    cache.undertaken = NOTHING
    begun: _Begun | Outcome | None = None
    try:
        begun = _begin(conn, cache, database_id, most, now_ms, clock_offset_ms, limits, functions)
        if isinstance(begun, Outcome):
            give_up(conn)
            return begun
        if begun.work is not None:
            with span("schema change"):
                return commit_change(begun.context, cache, begun.head, begun.work) or begun.rolled_back(drained=1)
        # The group goes on with the trace of its first batch, and is linked with those of the others.
        traces = list(dict.fromkeys(t.traceparent for t in begun.now if t.traceparent)) if tracing() else []
        with span("group", parent=traces[0] if traces else None, links=traces[1:]):
            return _commit(begun, cache)
    except (AlteredMeanwhileError, BusyTableError) as error:
        conn.rollback()
        cache.begin_anew()
        cache.given.clear()
        if isinstance(error, AlteredMeanwhileError) and isinstance(begun, _Begun):
            # Markers that event triggers have missed are written down for the next group.
            is_altered(conn, begun.context.synced.database, ())
        return Outcome(True, drained=1)
    except BaseException as error:
        outcome = _failed(conn, cache, database_id, now_ms, begun, error)
        if outcome is None:
            raise
        return outcome


def _failed(
    conn: Session, cache: Cache, database_id: int, now_ms: int, begun: _Begun | Outcome | None, error: BaseException
) -> Outcome | None:
    """Roll a group back that has failed; the outcome where it is only to be run again."""
    undecodable = isinstance(error, UndecodableError)
    if undecodable:
        cache.more = False
    else:
        cache.begin_anew()
        cache.owed = begun.owed if isinstance(begun, _Begun) else frozenset()
    cache.given.clear()
    if conn.closed:
        return None
    conn.rollback()
    if cache.undertaken.marked and not undecodable:
        put_down(conn, database_id)
    if isinstance(begun, _Begun) and isinstance(error, Exception):
        known = begun.work.numbers if begun.work is not None else cache.markers
        if is_altered(conn, begun.context.synced.database, known):
            # It took the tables for what they were: Postgres refuses its statements, or answers with other types.
            _log.info("a group was rolled back: tables were altered meanwhile", detail=error)
            return begun.rolled_back(drained=1)
        if isinstance(error, UndecodableError):
            tear(conn, begun.context.synced, error, now_ms)
            return begun.rolled_back(drained=1)
    if cache.undertaken.alters:
        failed(conn, cache, database_id, now_ms, error)
    return None


def _begin(
    conn: Session,
    cache: Cache,
    database_id: int,
    most: int,
    now_ms: int,
    clock_offset_ms: int,
    limits: GroupLimits,
    functions: Functions | None,
) -> _Begun | Outcome:
    """Claim the database, and take its work; the outcome where there is none."""
    claimed = claim(conn, database_id, lambda: _take(conn, cache, database_id, most, now_ms, limits.most_bytes))
    head = claimed.head
    if not claimed.ours or head is None:
        return Outcome(claimed.ours)
    faults.reach("after_claim")
    if head.undertaken is not None and settle(conn, database_id, head, now_ms, limits.rest_ms):
        return Outcome(True, name=head.name, drained=1)
    if cache.link != (head.chain or EMPTY_CHAIN):
        # Another resolver has committed groups meanwhile.
        cache.forget_sums()
    synced = current(conn, cache, head)
    if synced.asks and functions is not None:
        functions.warm()
    taken = claimed.answer()
    position = max(head.clock_ms + clock_offset_ms, head.position + 1)
    work = first_in_line(conn, cache, synced.database, position) if cache.altered or cache.markers else None
    if work is not None:
        return _Begun(Context(conn, synced, position, now_ms, 0), head, (), (), cache.owed, limits.restarts, work)
    chosen = choose(taken, most, cache.owed)
    cache.more = len(taken) >= most or len(taken) > len(chosen.now)
    if not taken and not head.any_captured:
        cache.last_principal = ""
        if head.owner == OWNER:
            finish(conn, database_id)
        return Outcome(claimed=True, name=head.name)
    undertaken = _undertake(conn, cache, database_id, head, chosen)
    if undertaken is None:
        return Outcome(True, name=head.name, drained=1)
    if chosen.failed:
        allow(conn, limits.alone_ms)
    cache.trouble.beside = undertaken.any_captured
    if cache.trouble.allowed_ms:
        allow(conn, cache.trouble.allowed_ms)
    now = sorted(chosen.now, key=lambda t: t.batch_id)
    context = Context(
        conn,
        synced,
        position,
        now_ms,
        limits.busy_ms,
        [t.batch_id for t in now],
        _may_cause(cache, synced),
        Asking(functions),
        cache.given,
        markers=cache.markers,
    )
    return _Begun(context, undertaken, now, chosen.later, chosen.owed, limits.restarts)


def _take(
    conn: Session, cache: Cache, database_id: int, most: int, now_ms: int, most_bytes: int
) -> Callable[[], list[Taken]]:
    """Ask for the batches that wait. Where the last group was full there is more, and the next ones are read while
    Postgres works."""
    return take.take(
        conn,
        database_id,
        most=most + (most if cache.more else 0),
        most_bytes=most_bytes,
        now_ms=now_ms,
        start=cache.last_principal,
        few=not cache.more,
    )


def _may_cause(cache: Cache, synced: SyncedDatabase) -> Kinds:
    """The kinds of mutations of each table that may cause other changes."""
    return dict.fromkeys(synced.tables, frozenset(MutationType)) if cache.all_may_cause else synced.may_cause


def _undertake(conn: Session, cache: Cache, database_id: int, head: Head, chosen: Chosen) -> Head | None:
    """Keep in the cache which batches this group has in work, and write them down where one of them may kill the
    process. Return the head as it is then; None where the claim was lost meanwhile."""
    now = chosen.now
    marked = chosen.suspected or (bool(now) and cache.careful and cache.is_careful())
    marked = marked and not cache.outstanding.waiting
    if marked and len(chosen.ids) == 1 and head.any_captured and not cache.trouble.innocent:
        cache.trouble.alone, marked = True, False
    cache.last_principal = now[-1].principal if now else ""
    cache.undertaken = Undertaken([t.batch_id for t in now], long=chosen.failed, marked=marked)
    return write_down(conn, database_id, head, chosen.ids) if marked else head


@dataclass(slots=True)
class _Tried:
    """The outcome of the tries. ``dropped``: batches that have their verdicts already. ``drifted``: one was refused as
    it would be if a table was changed since it was compiled."""

    results: list[Result]
    dropped: list[str]
    progress: Progress
    any_bad: bool
    drifted: bool = False


def _try(begun: _Begun, cache: Cache) -> _Tried:
    context, draining = begun.context, begun.head.any_captured
    made = sort_out(context, [t for t in begun.now if not t.decided], cache.read)
    if not cache.outstanding.waiting and not (cache.trouble.alone and draining):
        if context.synced.restricted:
            learn_principals(context, made.candidates)
        attempt = Attempt(
            optimistic=cache.optimistic,
            drains=draining,
            expects_bad=cache.expects_bad,
            held=made.held,
            restarts=begun.restarts,
        )
        decided = decide_group(context, attempt, made.candidates)
        if decided is not None:
            dropped = [t.batch_id for t in begun.now if t.decided]
            results = made.results + decided.results
            drifted = _may_have_drifted(decided.results)
            return _Tried(results, dropped, decided.progress, decided.any_bad, drifted)
    # The batches wait: changes that were written before them go first, and alone.
    cache.undertaken = replace(cache.undertaken, batches=(), drains_alone=True)
    cache.outstanding.one_by_one = cache.trouble.failures > 0
    return _Tried([], [], drain_backlog(context, cache.outstanding), cache.expects_bad)


def _commit(begun: _Begun, cache: Cache) -> Outcome:
    context, head = begun.context, begun.head
    conn, database_id = context.conn, context.synced.database.id
    tried = _try(begun, cache)
    if tried.drifted and fingerprint(conn, head.name) != cache.shape:
        # A batch would be blamed for it.
        conn.rollback()
        cache.begin_anew()
        cache.given.clear()
        return begun.rolled_back()
    tried.results.sort(key=lambda result: result.taken.batch_id)
    decided = {result.taken.batch_id for result in tried.results if not isinstance(result, Waiting)}
    missing = _missing(begun.now, decided)
    behind: list[Callable[[], None]] = [partial(faults.reach, "before_commit")]
    if head.owner == OWNER:
        behind.insert(0, partial(finish, conn, database_id))
    if missing:
        behind.insert(0, partial(neighbours.note_missing, conn, database_id, missing))
    later = () if cache.undertaken.drains_alone else begun.later
    recorded = record(
        context,
        head,
        tried.results,
        tried.progress,
        cache.sums,
        cache.audience_sums,
        dropped=tried.dropped,
        while_waiting=lambda: _read_ahead(context.synced, cache, later),
        behind=behind if cache.watched else None,
    )
    if recorded.between is not Between.NONE or (not cache.watched and notice(conn, context.synced.database)):
        conn.rollback()
        cache.more = False
        cache.given.clear()
        cache.all_may_cause |= recorded.between is Between.OWN
        return begun.rolled_back(drained=1)
    if not recorded.committed:
        for step in behind:
            step()
        conn.commit()
    faults.reach("after_commit")
    _keep(begun, cache, tried, recorded)
    drained = tried.progress.drained
    changes = drained.changes if drained else 0
    # A full group leaves batches behind, one that ended early its own, and a verdict may free batches that wait for it.
    left = cache.more or changes or len(tried.results) + len(tried.dropped) < len(begun.now)
    all_heard = not (left or head.any_parked or recorded.any_parked)
    return Outcome(True, context.position, head.name, len(begun.now), tried.results, changes, all_heard)


def _may_have_drifted(results: Sequence[Result]) -> bool:
    """Whether Postgres refused a batch without its fault: for a name or a type that is no longer there."""
    return any(isinstance(result, Rejection) and result.sqlstate.startswith("42") for result in results)


def _keep(begun: _Begun, cache: Cache, tried: _Tried, recorded: Recorded) -> None:
    """Keep the state of this group, which is committed, for the next one."""
    if cache.outstanding.taken:
        cache.outstanding.committed()
    if cache.undertaken.drains_alone:
        cache.trouble.passed()
    elif tried.progress.drained is None:
        cache.trouble.innocent = False
    if not cache.undertaken.drains_alone:
        cache.owed = begun.owed
        if len(tried.results) + len(tried.dropped) < len(begun.now):
            done = [*(result.taken for result in tried.results), *(t for t in begun.now if t.decided)]
            cache.owed |= passed_over(begun.now, done)
    cache.optimistic = not tried.progress.caused
    cache.expects_bad = tried.any_bad
    cache.link = recorded.link
    cache.sums.update(recorded.sums)
    if recorded.audience_sums or recorded.sets or cache.given:
        cache.audience_sums.update(recorded.audience_sums)
        cache.given.update({name: now for name, (_, now) in recorded.sets.items()})
        cache.keep_few()


def _missing(taken: Sequence[Taken], decided: Set[str]) -> dict[str, str]:
    """By node, the earliest batch that one which is decided now names as the one before, and that has not come."""
    here = {t.batch_id for t in taken}
    missing: dict[str, str] = {}
    for one in taken:
        prev = one.prev
        if prev and not one.prev_decided and prev not in here and prev < one.batch_id and one.batch_id in decided:
            missing[one.node_id] = min(prev, missing.get(one.node_id, prev))
    return missing


def _read_ahead(synced: SyncedDatabase, cache: Cache, later: Sequence[Taken]) -> None:
    """Read the batches that the next group will probably take. Batches read ahead before and not used are dropped."""
    decode = synced.decoder.decode
    cache.read_ahead = {(t.batch_id, t.payload_sha256): decode(t.batch_id, t.payload) for t in later if not t.refusal}
