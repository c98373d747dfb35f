"""How batches leave the queue: shown by the log or covered by a pull, rejected, or expired."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from anabranch.client.events import ConflictEvent, ConflictOutcome, Origin, State
from anabranch.client.file.believed import UNREADABLE
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.file.sets import change_in, select_in
from anabranch.client.logs import get_logger
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.overlay.rebase import rebase, release
from anabranch.client.queue import statements
from anabranch.client.reading.effects import Folded
from anabranch.v1 import change_pb2, errors_pb2, value_pb2, verdict_pb2
from anabranch.wire.enum_names import enum_name
from anabranch.wire.plain import plain_value

log = get_logger(__name__)

Touched = dict[str, dict[str, tuple[Any, ...]]]
COLUMN_DROPPED = change_pb2.LOSS_CAUSE_COLUMN_DROPPED
_IN_THE_LOG: Mapping[int, ConflictOutcome] = {
    verdict_pb2.OUTCOME_SUPERSEDED: "lost",
    verdict_pb2.OUTCOME_OVERWROTE: "overwrote",
}
_IN_VERDICTS_ALONE: Mapping[int, ConflictOutcome] = {verdict_pb2.OUTCOME_MERGED: "merged"}


def set_aside(tx: Tx, table: str, reason: str) -> None:
    """Leave a table's rows as they are until it has been pulled again; ``table`` is its identity."""
    tx.forget_standing(table)
    tx.conn.execute(
        "UPDATE _db_tables SET stage = 'aside', reason = ? WHERE name = ? AND stage = 'live'", (reason, table)
    )
    tx.events.append(State("set_aside", reason, tx.tables.told(table)))


def show(
    tx: Tx,
    folded: Folded,
    touched: Touched,
    pendings: Pendings,
    origin: Origin,
    lenient: dict[str, int],
) -> None:
    """Change the bases by the folded effects and show the touched rows again, table by table: a table that can't take
    them is set aside and stops no other. A table that was never pulled is left out: its pull will show the rows, over
    those that it brings."""
    new = unpulled(tx) if touched else frozenset()
    for name, reason in folded.misfits.items():
        log.warning("table_set_aside", table=name, error=reason)
        set_aside(tx, name, f"the log's rows do not fit its columns: {reason}")
    for name in {**folded.patches, **touched}:
        table = tx.tables.get(name)
        if table is None or name in new:
            continue
        try:
            with tx.savepoint():
                patches = folded.patches.get(name, {})
                until = lenient.get(name, 0)
                missing = rebase(tx, table, patches, touched.get(name, {}), pendings, origin, until)
        except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
            log.warning("table_set_aside", table=name, error=str(error))
            set_aside(tx, name, f"SQLite refused a row: {error}")
        except UNREADABLE as error:
            # Another program, or the disk, has left a value there that the column can't hold.
            log.warning("table_set_aside", table=name, error=repr(error))
            set_aside(tx, name, f"a row of it can't be read: {error!r}")
        else:
            if missing:
                set_aside(tx, name, f"the log changes the row {missing[0]}, which is not here")


def unpulled(tx: Tx) -> frozenset[str]:
    """The tables that were never pulled."""
    return frozenset(name for (name,) in tx.conn.execute("SELECT name FROM _db_tables WHERE stage = 'new'"))


def leave(tx: Tx, pendings: Pendings, position: int) -> Touched:
    """Take the batches out of the queue that were seen and wait for no earlier one; return the rows to show again."""
    ids = statements.leaving(tx.conn)
    if not ids:
        return {}
    statements.confirm(tx.conn, ids, position)
    return release(tx, ids, pendings)


def seen(tx: Tx, ids: Collection[str]) -> None:
    """Note that these batches, own and foreign ones, are in the log."""
    own = statements.which(tx.conn, ids)
    if own:
        statements.mark_seen(tx.conn, own)


def publish_losers(tx: Tx, losers: Sequence[change_pb2.Loser]) -> None:
    """Publish the lost values that concern own batches."""
    ids = {i for loser in losers for i in (loser.batch_id, loser.winner_batch_id)}
    own: set[str] = set()
    for kept in ("_db_mutations_queue", "_db_confirmed", "_db_mutations_queue_dead"):
        own |= {i for (i,) in select_in(tx.conn, f"SELECT id FROM {kept} WHERE id IN {{in}}", ids)}
    for loser in losers:
        lost = loser.batch_id in own
        if not lost and loser.winner_batch_id not in own:
            continue
        table = tx.tables.get(loser.table)
        if table is None:
            continue
        # Without an arm it is a whole row, or too large for a page of the log: the server still has it.
        known = loser.value.WhichOneof("kind") is not None
        tx.events.append(
            ConflictEvent(
                table.sql_name,
                shown_key(table, loser.key),
                table.told(loser.column, dropped=loser.cause == COLUMN_DROPPED),
                lost_value(table, loser.column, loser.value) if known else None,
                loser.batch_id,
                loser.winner_batch_id,
                "lost" if lost else "overwrote",
                value_known=known,
                cause=cause(loser.cause),
                of=(loser.table, loser.column),
            )
        )


def lost_value(table: DeviceTable, column: str, value: value_pb2.Value) -> Any:
    """A value that lost as a read gives it, or as it was sent where the table has no such column any more."""
    try:
        return table.shown_value(column, value)
    except (KeyError, ValueError):
        return plain_value(value)


def cause(number: int) -> str:
    """The name of what a value lost to, where that is no other value; else empty."""
    return enum_name(change_pb2.LossCause, number) if number else ""


def shown_key(table: DeviceTable, values: Sequence[value_pb2.Value]) -> tuple[Any, ...]:
    """A key as a read gives it; values of another kind than today's columns are given as they were sent."""
    out = []
    for name, value in zip(table.table.key_columns, values, strict=False):
        try:
            out.append(table.shown_value(name, value))
        except ValueError:
            out.append(plain_value(value))
    return tuple(out)


def publish_verdicts(tx: Tx, ids: Sequence[str]) -> None:
    """Publish conflicts that only the verdicts of these batches report, because a pull took the log's place."""
    rows = select_in(
        tx.conn, "SELECT id, verdict FROM _db_mutations_queue WHERE verdict IS NOT NULL AND id IN {in}", ids
    )
    for batch_id, data in rows:
        try:
            _publish(tx, verdict_pb2.Verdict.FromString(data), _IN_THE_LOG)
        except UNREADABLE as error:
            # The conflicts that it tells of are among the server's, too; the pull matters more.
            log.warning("verdict_not_read", batch=batch_id, error=type(error).__name__)


def publish_merged(tx: Tx, verdicts: Sequence[verdict_pb2.Verdict]) -> None:
    """Publish the merges in new verdicts, which no log reports: another node's changes stand beside the batch's."""
    for verdict in verdicts:
        _publish(tx, verdict, _IN_VERDICTS_ALONE)


def _publish(tx: Tx, verdict: verdict_pb2.Verdict, outcomes: Mapping[int, ConflictOutcome]) -> None:
    for mutation in verdict.mutations:
        outcome = outcomes.get(mutation.outcome)
        table = tx.tables.get(mutation.table) if outcome is not None else None
        if outcome is None or table is None:
            continue
        key = shown_key(table, mutation.key)
        batch_id = verdict.batch_id
        lost, won = (batch_id, "") if outcome == "lost" else ("", batch_id)
        # A merge was about no column: the other node's are not the batch's.
        for column in mutation.columns or [""]:
            told = table.told(column)
            event = ConflictEvent(table.sql_name, key, told, None, lost, won, outcome, value_known=False)
            tx.events.append(event)


def bury(tx: Tx, verdicts: Sequence[verdict_pb2.Verdict], pendings: Pendings, died_ms: int) -> None:
    """Move rejected batches to the dead queue and remove their changes from the shown rows. Where that fails, the dead
    letter says so, and the table is pulled again."""
    known = {v.batch_id: v for v in verdicts}
    ids = statements.which(tx.conn, known)
    if not ids:
        return
    tx.conn.executemany(
        """INSERT OR REPLACE INTO _db_mutations_queue_dead (id, value, basis, verdict, died_ms)
           SELECT id, value, basis, ?, ? FROM _db_mutations_queue WHERE id = ?""",
        [(known[i].SerializeToString(), died_ms, i) for i in ids],
    )
    touched = release(tx, ids, pendings)
    # Own later batches that were seen may have waited for these.
    for name, keys in leave(tx, pendings, tx.state.cursor_ms).items():
        touched.setdefault(name, {}).update(keys)
    asides = len(tx.events)
    show(tx, Folded(), touched, pendings, "rejected", {})
    if any(isinstance(e, State) and e.kind == "set_aside" for e in tx.events[asides:]):
        tx.conn.executemany("UPDATE _db_mutations_queue_dead SET still_shown = 1 WHERE id = ?", [(i,) for i in ids])
    publish_dead(tx, [known[i] for i in ids])


def bury_damaged(tx: Tx, damaged: Mapping[str, str], pendings: Pendings, died_ms: int) -> None:
    """Move batches of the queue whose bytes are damaged (id to what is wrong) to the dead queue, where they stay as
    they are. The rows that they show can't be told from them: their tables are pulled again."""
    found = select_in(tx.conn, "SELECT DISTINCT tbl FROM _db_pending_rows WHERE batch IN {in}", damaged)
    tables = [name for (name,) in found if name in tx.tables]
    verdicts = [
        verdict_pb2.Verdict(
            batch_id=batch_id,
            status=verdict_pb2.VERDICT_STATUS_REJECTED,
            reason=errors_pb2.REASON_MALFORMED,
            message=f"it was not sent: its bytes in the device's file are damaged ({why})",
        )
        for batch_id, why in damaged.items()
    ]
    bury(tx, verdicts, pendings, died_ms)
    for table in tables:
        set_aside(tx, table, f"a damaged batch has changed it: {', '.join(damaged)}")
    if not tables:
        return
    change_in(tx.conn, "UPDATE _db_mutations_queue_dead SET still_shown = 1 WHERE id IN {in}", damaged)


def publish_dead(tx: Tx, verdicts: Iterable[verdict_pb2.Verdict]) -> None:
    """Publish that batches have become dead letters."""
    for verdict in verdicts:
        tx.events.append(_refused(tx, verdict))
        tx.events.append(State("dead_letter", f"{verdict.batch_id}: {reason_name(verdict)}: {verdict.message}"))


def _refused(tx: Tx, verdict: verdict_pb2.Verdict) -> ConflictEvent:
    """The event of a rejection: the refused row, where there is one, and the server's row."""
    refused = verdict.mutations[-1] if verdict.mutations else verdict_pb2.MutationVerdict()
    table = tx.tables.get(refused.table)
    row = refused.server_row
    column = refused.columns[0] if refused.columns else ""
    return ConflictEvent(
        table=tx.tables.told(refused.table),
        key=() if table is None else shown_key(table, refused.key),
        column=column if table is None else table.told(column),
        losing_value=None,
        losing_batch_id=verdict.batch_id,
        winning_batch_id="",
        outcome="rejected",
        value_known=False,
        reason=reason_name(verdict),
        server_row=shown_values(table, row.columns, row.values) if refused.HasField("server_row") else None,
    )


def shown_values(
    table: DeviceTable | None, columns: Sequence[str], values: Sequence[value_pb2.Value]
) -> dict[str, Any]:
    """Given values by column, as a read gives them; values that today's table can't hold are as they were sent, and
    columns that it lacks have names of no other column (``DeviceTable.told``). Those that the app does not know are
    left out."""
    out: dict[str, Any] = {}
    for name, value in zip(columns, values, strict=False):
        if value.WhichOneof("kind") is None:
            continue
        if table is None:
            out[name] = plain_value(value)
            continue
        if table.is_hidden(name):
            continue
        try:
            out[table.told(name)] = table.shown_value(name, value)
        except (KeyError, ValueError):
            out[table.told(name)] = plain_value(value)
    return out


def reason_name(verdict: verdict_pb2.Verdict) -> str:
    """The verdict's reason without the enum's prefix."""
    return enum_name(errors_pb2.Reason, verdict.reason)


def counted_in(tx: Tx, pendings: Pendings, newest_ms: int) -> None:
    """Show again rows whose base has batches that just got their verdicts, at positions up to ``newest_ms``: a pull of
    their table saw a later moment than the cursor, and came before the verdicts did."""
    tables = dict(
        tx.conn.execute(
            "SELECT name, first_ms FROM _db_tables WHERE stage != 'new' AND first_ms > ?", (tx.state.cursor_ms,)
        )
    )
    if not tables:
        return
    touched = pendings.keys_of(tx, statements.covered(tx.conn, min(newest_ms, max(tables.values()))))
    show(tx, Folded(), {name: keys for name, keys in touched.items() if name in tables}, pendings, "snapshot", {})


def pulled(tx: Tx, pendings: Pendings) -> None:
    """Remove accepted batches from the queue that the last pull covers: the log after it doesn't show them. A device
    without any table has all that it is to have up to its cursor."""
    (position,) = tx.conn.execute("SELECT min(first_ms) FROM _db_tables WHERE stage != 'new'").fetchone()
    if position is None:
        position = tx.state.cursor_ms if tx.state.pulls else 0
    ids = statements.covered(tx.conn, position)
    if not ids:
        return
    publish_verdicts(tx, ids)
    statements.mark_seen(tx.conn, ids)
    show(tx, Folded(), leave(tx, pendings, position), pendings, "snapshot", {})
