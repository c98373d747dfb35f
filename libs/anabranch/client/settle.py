"""How batches leave the queue: shown by the log or covered by a pull, rejected, or expired."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import Any, Literal

from anabranch.client import queue
from anabranch.client.effects import Folded
from anabranch.client.events import ConflictEvent, Origin, State
from anabranch.client.file import Tx
from anabranch.client.logs import get_logger
from anabranch.client.rebase import Pendings, rebase, release
from anabranch.client.sets import select_in
from anabranch.v1 import change_pb2, errors_pb2, verdict_pb2

log = get_logger(__name__)

Touched = dict[str, dict[str, tuple[Any, ...]]]


def set_aside(tx: Tx, table: str, reason: str) -> None:
    """Leave a table's rows as they are until it has been pulled again."""
    tx.conn.execute(
        "UPDATE _db_tables SET stage = 'aside', reason = ? WHERE name = ? AND stage = 'live'", (reason, table)
    )
    tx.events.append(State("set_aside", reason, table))


def show(
    tx: Tx,
    folded: Folded,
    touched: Touched,
    pendings: Pendings,
    origin: Origin,
    lenient: dict[str, int],
) -> None:
    """Change the bases by what was folded and show the touched rows again, table by table: one that can't take it is
    set aside and stops no other."""
    for name in {**folded.patches, **touched}:
        table = tx.tables.get(name)
        if table is None:
            continue
        try:
            with tx.savepoint():
                patches = folded.patches.get(name, {})
                until = lenient.get(name, 0)
                missing = rebase(tx, table, patches, touched.get(name, {}), pendings, origin, until)
        except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
            log.warning("table_set_aside", table=name, error=str(error))
            set_aside(tx, name, f"SQLite refused a row: {error}")
        else:
            if missing:
                set_aside(tx, name, f"the log changes the row {missing[0]}, which is not here")


def leave(tx: Tx, pendings: Pendings, position: int) -> Touched:
    """Take the batches out of the queue that were seen and wait for nothing; gives the rows to show again."""
    ids = queue.leaving(tx.conn)
    if not ids:
        return {}
    queue.confirm(tx.conn, ids, position)
    return release(tx, ids, pendings)


def seen(tx: Tx, ids: Collection[str]) -> None:
    """Note that these batches, own ones and others, stand in the log."""
    if ids and not queue.is_empty(tx.conn):
        own = queue.which(tx.conn, ids)
        if own:
            queue.mark_seen(tx.conn, own)


def tell_losers(tx: Tx, losers: Sequence[change_pb2.Loser]) -> None:
    """Tell of the lost values that concern own batches."""
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
        key = tuple(table.readers[i](v) for i, v in zip(table.table.key_index, loser.key, strict=True))
        place = table.table.index.get(loser.column)
        value = None
        if place is not None:
            value = table.readers[place](loser.value)
            store = table.storers[place]
            value = value if store is None or value is None else store(value)
        tx.events.append(
            ConflictEvent(
                loser.table,
                key,
                loser.column,
                value,
                loser.batch_id,
                loser.winner_batch_id,
                "lost" if lost else "overwrote",
            )
        )


def tell_verdicts(tx: Tx, ids: Sequence[str]) -> None:
    """Tell of conflicts that only the verdicts of these batches know of, because a pull took the log's place."""
    outcomes: dict[int, Literal["lost", "overwrote"]] = {
        verdict_pb2.OUTCOME_SUPERSEDED: "lost",
        verdict_pb2.OUTCOME_OVERWROTE: "overwrote",
    }
    rows = select_in(
        tx.conn, "SELECT id, verdict FROM _db_mutations_queue WHERE verdict IS NOT NULL AND id IN {in}", ids
    )
    for batch_id, data in rows:
        for mutation in verdict_pb2.Verdict.FromString(data).mutations:
            outcome = outcomes.get(mutation.outcome)
            table = tx.tables.get(mutation.table)
            if outcome is None or table is None:
                continue
            key = tuple(table.readers[i](v) for i, v in zip(table.table.key_index, mutation.key, strict=True))
            lost, won = (batch_id, "") if outcome == "lost" else ("", batch_id)
            for column in mutation.columns:
                tx.events.append(
                    ConflictEvent(
                        mutation.table,
                        key,
                        column,
                        None,
                        lost,
                        won,
                        outcome,
                        value_known=False,
                    )
                )


def bury(tx: Tx, verdicts: Sequence[verdict_pb2.Verdict], pendings: Pendings, died_ms: int) -> None:
    """Move rejected batches to the dead queue and take back what they showed. Where that fails, the dead letter says
    so, and the table is pulled again."""
    known = {v.batch_id: v for v in verdicts}
    ids = queue.which(tx.conn, known)
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
    for i in ids:
        verdict = known[i]
        tx.events.append(State("dead_letter", f"{i}: {reason_name(verdict)}: {verdict.message}"))


def reason_name(verdict: verdict_pb2.Verdict) -> str:
    """The verdict's reason without the enum's prefix."""
    return errors_pb2.Reason.Name(verdict.reason).removeprefix("REASON_")


def pulled(tx: Tx, pendings: Pendings) -> None:
    """Let go of accepted batches whose verdicts the last pull covers: no log that is read from now on shows them."""
    (position,) = tx.conn.execute("SELECT min(first_ms) FROM _db_tables WHERE stage != 'new'").fetchone()
    ids = queue.covered(tx.conn, position or 0)
    if not ids:
        return
    tell_verdicts(tx, ids)
    queue.mark_seen(tx.conn, ids)
    show(tx, Folded(), leave(tx, pendings, position), pendings, "snapshot", {})
