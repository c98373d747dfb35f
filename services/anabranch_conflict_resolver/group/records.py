"""A group's records besides the rows: log, histories, verdicts, conflicts, sums, the group itself, the inbox.

Everything is gathered first and written in sets. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from anabranch.merge import MutationType
from anabranch.runtime.telemetry import current_traceparent
from anabranch.store.audiences.affected import ChangedRows, store_changes
from anabranch.store.audiences.principals import Given
from anabranch.store.audiences.sums import AudienceSums, write_audience_sums
from anabranch.store.capture import captured
from anabranch.store.catalog.sums import sum_to_bytes
from anabranch.store.group import records as store
from anabranch.store.group.chain import Joined, next_link
from anabranch.store.group.last_look import LastLook
from anabranch.store.group.records import BatchRow, ConflictRow, GroupRow, LogRow, SumRow
from anabranch.store.group.versions import insert_versions, update_versions
from anabranch.store.inbox import notified, parking, take
from anabranch.store.inbox.claim import wait_as_usual
from anabranch.store.inbox.take import Head
from anabranch.store.log.seal import EMPTY_CHAIN
from anabranch.store.session.at_once import together
from anabranch.store.session.binary import flush
from anabranch.store.session.engine import Session
from anabranch.v1 import position_pb2, verdict_pb2
from anabranch.values.canonical import SUM_MODULUS
from anabranch_conflict_resolver.batch.results import Applied, Rejection, Result, Spill, joined, numbered
from anabranch_conflict_resolver.batch.rights import Rights
from anabranch_conflict_resolver.batch.shown import AudienceChanges, add_changes
from anabranch_conflict_resolver.batch.verdict_bytes import applied_as_written
from anabranch_conflict_resolver.batch.verdicts import applied_verdict, rejected_verdict
from anabranch_conflict_resolver.captured.server_batches import Drained
from anabranch_conflict_resolver.group.audiences import add_changed_rows, changed_sets, new_audience_sums
from anabranch_conflict_resolver.group.context import Context, Progress
from anabranch_conflict_resolver.group.lost import conflict_rows
from anabranch_conflict_resolver.group.outcome import Between
from anabranch_conflict_resolver.group.table import Sums, SyncedTable
from anabranch_conflict_resolver.group.tables import SyncedDatabase
from anabranch_conflict_resolver.group.versions import changed_versions
from anabranch_conflict_resolver.group.view import View

_APPLIED, _REJECTED = int(verdict_pb2.VERDICT_STATUS_APPLIED), int(verdict_pb2.VERDICT_STATUS_REJECTED)
_NO_RIGHTS: Mapping[str, Rights] = MappingProxyType({})
FEW = 64
"""Up to so many changes and verdicts a group's records are written by one statement."""


@dataclass(slots=True)
class Recount:
    """The sums of tables of which the group has read all rows, by number, and those of their audiences: they count, and
    not what the changes of rows add. ``rows``: how many effects told of those rows."""

    sums: Sums = field(default_factory=dict)
    audience_sums: AudienceSums = field(default_factory=dict)
    rows: int = 0


@dataclass(slots=True)
class Records:
    """``sum_changes``: by table, what to add to its sum's count and hash. ``came``: rows that are there now and were
    not. ``server``: the verdicts of batches that were captured; ``logged``: how many changes are in the log already.
    ``audience_changes``: what to add to the sums of audiences; ``changed``: rows of tables that membership queries
    read."""

    log: list[LogRow] = field(default_factory=list)
    batches: list[BatchRow] = field(default_factory=list)
    conflicts: list[ConflictRow] = field(default_factory=list)
    parkings: list[parking.Parking] = field(default_factory=list)
    links: list[tuple[str, Sequence[bytes] | Joined]] = field(default_factory=list)
    sum_changes: dict[str, tuple[int, int]] = field(default_factory=dict)
    greatest: dict[str, str] = field(default_factory=dict)
    came: list[tuple[int, str]] = field(default_factory=list)
    server: list[BatchRow] = field(default_factory=list)
    logged: int = 0
    audience_changes: AudienceChanges = field(default_factory=dict)
    changed: ChangedRows = field(default_factory=ChangedRows)

    @property
    def decided(self) -> list[str]:
        """The ids of the batches that have a verdict now."""
        return [row.batch_id for row in self.batches]


def gather(
    synced: SyncedDatabase,
    position: int,
    results: Sequence[Result],
    drained: Drained | None = None,
    rights: Mapping[str, Rights] = _NO_RIGHTS,
) -> Records:
    """The records of what a group has drained and of its results, which stand in the order of their ids. ``rights``: by
    id, those of batches that touch a restricted table."""
    records = Records()
    tables = synced.tables
    for batch in drained.batches if drained is not None else ():
        records.log += batch.log
        # A schema change that told no values is in the log as a group alone.
        if batch.ordinal:
            records.links.append((batch.id, batch.link))
            records.server.append(batch.record())
        records.came += batch.came
        records.logged += batch.ordinal - len(batch.log)
        for name, (more, more_hash) in batch.sum_changes.items():
            count, total = records.sum_changes.get(name, (0, 0))
            records.sum_changes[name] = (count + more, total + more_hash)
        add_changes(records.audience_changes, batch.audience_changes)
        records.changed.update(batch.changed)
    for result in results:
        if isinstance(result, Applied):
            _gather_applied(records, synced, position, result, rights.get(result.taken.batch_id))
        elif isinstance(result, Rejection):
            taken = result.taken
            of_batch = rights.get(taken.batch_id)
            verdict = rejected_verdict(tables, position, result, of_batch).SerializeToString()
            records.batches.append(
                BatchRow(
                    taken.batch_id,
                    taken.node_id,
                    taken.principal,
                    taken.payload_sha256,
                    _REJECTED,
                    result.reason,
                    position,
                    verdict,
                )
            )
        else:
            records.parkings.append(result.parking)
    return records


def _gather_applied(
    records: Records, synced: SyncedDatabase, position: int, result: Applied, rights: Rights | None
) -> None:
    tables = synced.tables
    accepting, taken = result.accepting, result.taken
    candidate, decision = accepting.candidate, accepting.decision
    batch_id, node_id = taken.batch_id, taken.node_id
    hashes: list[bytes] = []
    log, sums, audience_changes = records.log, records.sum_changes, records.audience_changes
    spills = result.spills
    for ordinal, change in enumerate(result.changes) if not spills else numbered(result.changes, spills):
        write, effect = change.write, change.effect
        name = write.table
        table_id = tables[name].table.id
        before = after = None
        if change.shown is not None:
            before, after = change.shown.before, change.shown.after
            if before != after and after and write.type is not MutationType.INSERT:
                # Batches may wait for a row that they have not seen, and see now.
                records.came.append((table_id, write.key))
        if change.rows is not None:
            records.changed.add(name, *change.rows)
        log.append(
            LogRow(
                batch_id,
                ordinal,
                node_id,
                table_id,
                write.key,
                effect.type,
                effect.data,
                effect.changed,
                effect.hash,
                before,
                after,
            )
        )
        hashes.append(effect.hash)
        if effect.count_change or effect.hash_change:
            count, total = sums.get(name, (0, 0))
            sums[name] = (count + effect.count_change, total + effect.hash_change)
        if write.type is MutationType.INSERT:
            records.came.append((table_id, write.key))
    if synced.restricted:
        add_changed_rows(audience_changes, result.changes)
    records.links.append((batch_id, hashes if not spills else joined(hashes, spills)))
    _gather_spills(records, spills)
    records.greatest[node_id] = batch_id
    place, keys = candidate.place, candidate.decoded.keys
    verdict = applied_as_written(batch_id, position, decision.outcomes, keys, synced.mutation_writers)
    verdict = verdict or applied_verdict(tables, position, result, rights).SerializeToString()
    row = BatchRow(batch_id, node_id, taken.principal, taken.payload_sha256, _APPLIED, 0, place, verdict)
    records.batches.append(row)
    if decision.conflicts or candidate.decoded.lost:
        records.conflicts += conflict_rows(tables, result)


def _gather_spills(records: Records, spills: Sequence[Spill]) -> None:
    """Add the changes that are in the log already, because they were too many to be held."""
    sums = records.sum_changes
    for spill in spills:
        for name, (more, more_hash) in spill.sum_changes.items():
            count, total = sums.get(name, (0, 0))
            sums[name] = (count + more, total + more_hash)
        add_changes(records.audience_changes, spill.audience_changes)
        records.changed.update(spill.changed)
        records.logged += spill.count


def new_sums(tables: Mapping[str, SyncedTable], records: Records, sums: Sums) -> Sums:
    """The sums after the group of the tables that it changed."""
    after: Sums = {}
    for name, (count_change, hash_change) in records.sum_changes.items():
        table_id = tables[name].table.id
        count, total = sums[table_id]
        after[table_id] = (count + count_change, (total + hash_change) % SUM_MODULUS)
    return after


@dataclass(frozen=True, slots=True)
class Recorded:
    """``link``: the chain's last one. ``sums``: those of the tables that the group has changed, ``audience_sums`` those
    of their audiences. ``any_parked``: batches of it wait. ``committed``: the group is, with its records. ``sets``:
    what membership queries gave principals before and give them now, of those for whom it changed."""

    link: bytes
    sums: Sums
    between: Between
    any_parked: bool
    audience_sums: AudienceSums = field(default_factory=dict)
    sets: Mapping[str, tuple[Given, Given]] = field(default_factory=dict)
    committed: bool = False


def record(
    context: Context,
    head: Head,
    results: Sequence[Result],
    progress: Progress,
    known_sums: Sums,
    known_audience_sums: AudienceSums,
    *,
    dropped: Sequence[str],
    while_waiting: Callable[[], None],
    counted: Recount | None = None,
    behind: Sequence[Callable[[], None]] | None = None,
) -> Recorded:
    """Write a group's records. ``known_sums``, ``known_audience_sums``: the sums known so far; those that are read are
    added to them. ``dropped``: batches that had their verdicts before. ``while_waiting`` is called while Postgres
    works. ``counted``: the group begins with a schema change, and is one even where no row has changed.
    ``behind``: the steps before COMMIT. Where the records are few, these are taken and the group is committed in the
    send that brings them; else it is left to the caller.

    Raises:
        psycopg.Error: Postgres refused a statement; no batch is to blame for it.
    """
    conn, database_id, drained = context.conn, context.synced.database.id, progress.drained
    records = gather(context.synced, context.position, results, drained, progress.rights)
    parked = bool(records.parkings)
    link = head.chain or EMPTY_CHAIN
    if records.batches or records.server or counted is not None:
        counted = counted or Recount()
        sums = {**_sums_after(context, records, known_sums, counted), **counted.sums}
        of_audiences = dict(counted.audience_sums)
        if records.audience_changes:
            tables = context.synced.tables
            of_audiences |= new_audience_sums(conn, tables, records.audience_changes, known_audience_sums)
        changes = changed_sets(conn, context.synced.database, records.changed)
        parked_before = head.any_parked
        link, between, committed = write(
            context,
            records,
            progress.view,
            sums,
            drained,
            link,
            dropped,
            parked_before,
            while_waiting,
            of_audiences,
            changes,
            behind,
        )
        return Recorded(link, sums, between, parked, of_audiences, changes, committed)
    if dropped:
        store.delete_inbox(conn, database_id, dropped)
        store.notify_group(conn, database_id, head.position, dropped)
    if records.parkings:
        parking.park(conn, database_id, records.parkings)
    _delete_drained(conn, database_id, drained)
    caused = drained is not None and captured.ask_for_own(conn, database_id, drained.up_to).fetchone()
    return Recorded(link, {}, Between.OWN if caused else Between.NONE, parked)


def _sums_after(context: Context, records: Records, known: Sums, counted: Recount) -> Sums:
    """The sums of the tables that the group has changed, but for those that it has counted: their rows' changes are
    left out of ``records``, where they would be added to sums. Those that are read are added to ``known``."""
    tables = context.synced.tables
    if counted.sums:
        whole = {name for name, table in tables.items() if table.table.id in counted.sums}
        records.sum_changes = {name: change for name, change in records.sum_changes.items() if name not in whole}
        records.audience_changes = {at: change for at, change in records.audience_changes.items() if at[0] not in whole}
    unknown = {tables[name].table.id for name in records.sum_changes} - known.keys()
    if unknown:
        known.update(take.read_sums(context.conn, unknown))
    return new_sums(tables, records, known)


def write(
    context: Context,
    records: Records,
    view: View,
    sums: Sums,
    drained: Drained | None,
    previous_link: bytes,
    dropped: Sequence[str],
    any_parked: bool,
    while_waiting: Callable[[], None],
    audience_sums: Mapping[tuple[int, str], tuple[int, int]] = MappingProxyType({}),
    sets: Mapping[str, tuple[Given, Given]] = MappingProxyType({}),
    behind: Sequence[Callable[[], None]] | None = None,
) -> tuple[bytes, Between, bool]:
    """Write the records of a group that decided something; gives the chain's new link, whether the group may be
    committed, and whether it is, which only few records are at once. ``sums``: those after the group of the tables that
    it changed, ``audience_sums`` those of audiences. ``dropped``: batches that had their verdicts before.
    ``while_waiting`` is called when everything has been sent, while Postgres works. ``sets``: as in ``Recorded``.
    ``behind``: as of ``record``.

    Raises:
        psycopg.Error: Postgres refused a statement; no batch is to blame for it.
    """
    conn, database_id, position = context.conn, context.synced.database.id, context.position
    link = next_link(previous_link, position, records.links)
    begun, changed = changed_versions(context.synced.tables, view)
    decided = records.decided
    few = len(records.log) + len(decided) <= FEW
    wait_as_usual(conn)
    up_to = None if drained is None else drained.up_to
    look = LastLook(conn, database_id, up_to, context.markers, behind if few else None)
    with look, together(conn, few=few, checked=look.commits) as send:
        store.write_log(conn, database_id, position, records.log)
        insert_versions(conn, begun)
        update_versions(conn, changed)
        store.write_batches(conn, database_id, position, context.now_ms, [*records.server, *records.batches])
        store.write_conflicts(conn, database_id, position, records.conflicts)
        store.write_sums(conn, position, [SumRow(n, count, sum_to_bytes(total)) for n, (count, total) in sums.items()])
        hashes = {place: (count, sum_to_bytes(total)) for place, (count, total) in audience_sums.items()}
        write_audience_sums(conn, position, hashes)
        store_changes(conn, context.synced.database, position, sets)
        store.write_group(conn, database_id, position, _group_row(context, records, sums, audience_sums, link))
        store.accept(conn, database_id, sorted(records.greatest.items()))
        store.delete_inbox(conn, database_id, [*decided, *dropped])
        _notify(context, records, dropped, link)
        send()
        if records.parkings:
            parking.park(conn, database_id, records.parkings)
        if any_parked or records.parkings:
            parking.free(conn, database_id, decided=decided, rows=records.came)
        _delete_drained(conn, database_id, drained)
        look.send()
        flush(conn)
        while_waiting()
    caused = look.found()
    if caused is None:
        return link, Between.NONE, look.commits
    return link, Between.OWN if caused else Between.OF_OTHERS, False


def _notify(context: Context, records: Records, dropped: Sequence[str], link: bytes) -> None:
    """Tell of the group, and of its verdicts as far as they have room in the notification."""
    database, position = context.synced.database, context.position
    verdicts = (notified.Verdict(r.batch_id, r.payload_sha256, r.principal, r.verdict) for r in records.batches)
    verdicts_of = partial(notified.seal_verdicts, database.seal_key, database.id, position, link, verdicts)
    traceparent = current_traceparent() or ""
    store.notify_group(context.conn, database.id, position, [*records.decided, *dropped], traceparent, verdicts_of)


def _group_row(
    context: Context,
    records: Records,
    sums: Sums,
    audience_sums: Mapping[tuple[int, str], tuple[int, int]],
    link: bytes,
) -> GroupRow:
    names = {table.table.id: name for name, table in context.synced.tables.items()}
    serialized = [
        position_pb2.TableSum(table=names[number], count=count, hash=sum_to_bytes(total)).SerializeToString()
        for number, (count, total) in sorted(sums.items())
    ]
    serialized += [
        position_pb2.TableSum(
            table=names[number], audience=audience, count=count, hash=sum_to_bytes(total)
        ).SerializeToString()
        for (number, audience), (count, total) in sorted(audience_sums.items())
    ]
    return GroupRow(len(records.links), records.logged + len(records.log), link, serialized)


def _delete_drained(conn: Session, database_id: int, drained: Drained | None) -> None:
    if drained is not None and drained.ids:
        captured.delete(conn, database_id, drained.ids)
