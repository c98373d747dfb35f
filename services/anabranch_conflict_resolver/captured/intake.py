"""The one way of captured changes into the log, for one row and for a million: the changes of a transaction are brought
into the order in which they were made, and become one batch of the server.

Changes that a group can hold are held until it is recorded, with the histories carried forward in its view
(``log_rows``). A larger transaction is logged at once, piece by piece (``log_pieces``); neither this process nor a
reader of the log ever holds more than a piece of it, beside the hash of each change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from anabranch.merge import RowState
from anabranch.store.capture import captured
from anabranch.store.capture.captured import Captured
from anabranch.store.group import records as store
from anabranch.store.group.rows import Row
from anabranch.store.group.versions import insert_versions, update_versions
from anabranch.store.inbox import parking
from anabranch.store.inbox.claim import renew
from anabranch.store.session.at_once import together
from anabranch.values import Cell
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.shown import learn
from anabranch_conflict_resolver.captured.order import (
    UNKNOWN,
    Image,
    Link,
    Unknown,
    end_to_end,
    is_chain,
    is_settled,
)
from anabranch_conflict_resolver.captured.server_batches import (
    Drained,
    Origin,
    ServerBatch,
    Step,
    rows_of,
    server_batch_id,
)
from anabranch_conflict_resolver.captured.steps import know, steps_of
from anabranch_conflict_resolver.group.context import Context
from anabranch_conflict_resolver.group.tables import SyncedDatabase
from anabranch_conflict_resolver.group.versions import changed_versions
from anabranch_conflict_resolver.group.view import View

_Place = tuple[RowKey, int]
"""A row, and an era of its table."""
AT_ONCE = 2_500
"""Changes that are logged at a time where they are not held."""
NOTHING_CAUSED = 2**63 - 1
"""The group writes to no synced table: changes that it caused need not be looked for behind all that waits."""


def log_rows(
    context: Context, view: View, rows: Sequence[Captured], touched: Set[RowKey] = frozenset(), *, first: int = 0
) -> Drained:
    """Make batches of captured rows, which stand in the order of their capture and are of whole transactions. The
    first one is the position's number ``first``. ``touched``: rows that the group has locked."""
    synced, position = context.synced, context.position
    # The last row of each transaction.
    ends = sorted({row.xid: row for row in rows}.values(), key=lambda row: row.id)
    steps = steps_of(context.conn, synced, rows)
    ordered = in_order(context, [steps[row.xid] for row in ends])
    know(context.conn, synced, view, {step.at for one in ordered for step in one})
    learn(context.conn, synced.restricted, rows_of(step for one in ordered for step in one))
    remembering = _remembers(synced)
    # A locked row is for those whom it was for when it was read: nobody has changed it since.
    whose = {at: view.audiences[at] for at in touched & view.rows.keys() if at[0] in synced.restricted}
    batches: list[ServerBatch] = []
    for row, made in zip(ends, ordered, strict=True):
        origin = Origin(row.xid, row.role, row.application)
        batch = ServerBatch(server_batch_id(position, first + len(batches)), origin, position)
        batch.add(view, made, remembering)
        if batch.log:
            batches.append(batch)
    settle(synced, view, touched)
    view.audiences.update(whose)
    ids = [row.id for row in rows]
    return Drained(batches, ids, ids[-1] if ids else 0)


def log_held(context: Context, view: View, drained: Drained) -> None:
    """Log at once what ``log_rows`` has made of captured changes, and delete these: nothing is held any more. Only the
    batches' own rows, and sums, are left to record.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    conn, synced = context.conn, context.synced
    begun, changed = changed_versions(synced.tables, view)
    came = [one for batch in drained.batches for one in batch.came]
    with together(conn):
        store.write_log(
            conn, synced.database.id, context.position, [row for batch in drained.batches for row in batch.log]
        )
        insert_versions(conn, begun)
        update_versions(conn, changed)
        if came:
            parking.free(conn, synced.database.id, decided=(), rows=came)
        captured.delete(conn, synced.database.id, drained.ids)
    for batch in drained.batches:
        batch.let_go()


def log_pieces(context: Context, origin: Origin, pieces: Iterable[list[Step]], *, number: int = 0) -> Drained:
    """Make a batch of one transaction, the position's ``number``, whose changes come in pieces, each with all changes
    of its rows or in the order in which rows were changed. Only the batch's own row, and sums, are left to record.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    conn, position = context.conn, context.position
    batch = ServerBatch(server_batch_id(position, number), origin, position, heartbeat=lambda: renew(conn))
    remembering = _remembers(context.synced)
    for steps in pieces:
        [ordered] = in_order(context, [steps])
        for first in range(0, len(ordered), AT_ONCE):
            _log_now(context, batch, ordered[first : first + AT_ONCE], remembering)
        # Not held while the next ones are read.
        del steps, ordered
    return Drained([batch] if batch.ordinal else [], (), NOTHING_CAUSED)


def _log_now(context: Context, batch: ServerBatch, steps: Sequence[Step], remembering: Mapping[str, bool]) -> None:
    conn, synced = context.conn, context.synced
    view = View()
    know(conn, synced, view, {step.at for step in steps})
    learn(conn, synced.restricted, rows_of(steps))
    batch.add(view, steps, remembering)
    begun, changed = changed_versions(synced.tables, view)
    large = batch.cut_large()
    with together(conn):
        store.write_log(conn, synced.database.id, context.position, batch.log)
        insert_versions(conn, begun)
        update_versions(conn, changed)
        if batch.came:
            parking.free(conn, synced.database.id, decided=(), rows=batch.came)
    batch.let_go()
    for row in large:
        store.append_effect(conn, synced.database.id, context.position, row)


def _remembers(synced: SyncedDatabase) -> Mapping[str, bool]:
    """By table, whether its rules ask for overtaken writers."""
    policies = {name: synced.database.table_policy(name) for name in synced.tables}
    return {name: policy.resurrect or policy.delete == "wins" for name, policy in policies.items()}


def in_order(context: Context, transactions: Sequence[list[Step]]) -> Sequence[list[Step]]:
    """The steps of each transaction in the order in which they were made, row by row. Where a transaction altered the
    table in between, what it did before stands before what it did after."""
    doubtful: set[_Place] = set()
    for steps in transactions:
        if len({step.at for step in steps}) < len(steps):
            links: dict[_Place, list[Link]] = {}
            for step in steps:
                links.setdefault(step.of, []).append(step.link)
            doubtful.update(
                of for of, of_row in links.items() if len(of_row) > 1 and not (is_chain(of_row) and is_settled(of_row))
            )
    if not doubtful:
        return transactions
    result = [list(steps) for steps in transactions]
    images = _rows_now(context, transactions, doubtful)
    # From the last transaction to the first: the image that one began with is the image that the one before it left.
    for steps, ordered in zip(reversed(transactions), reversed(result), strict=True):
        places: dict[_Place, list[int]] = {}
        for place, step in enumerate(steps):
            if step.of in doubtful:
                places.setdefault(step.of, []).append(place)
        for of, of_row in places.items():
            there = [steps[place] for place in of_row]
            order = end_to_end([s.link for s in there], [s.depth for s in there], images.get(of, UNKNOWN))
            made = there if order is None else [there[i] for i in order]
            for place, step in zip(of_row, made, strict=True):
                ordered[place] = step
            images[of] = made[0].link[0]
    return result


def _rows_now(context: Context, transactions: Sequence[list[Step]], rows: Set[_Place]) -> dict[_Place, Image | Unknown]:
    """The captured image that equals the row as it stands; none for a row that has changed again since."""
    images: dict[_Place, list[tuple[Row | None, Image]]] = {of: [] for of in rows}
    keys: dict[str, dict[str, tuple[Cell, ...]]] = {}
    for step in (step for steps in transactions for step in steps if step.of in rows):
        images[step.of] += [(step.before, step.link[0]), (step.after, step.link[1])]
        row = step.before or step.after
        assert row is not None
        keys.setdefault(step.at[0], {})[step.at[1]] = tuple(row[i] for i in step.table.table.key_index)
    stand = {name: context.synced.tables[name].sql.read(context.conn, list(of.values()))() for name, of in keys.items()}
    found: dict[_Place, Image | Unknown] = {}
    for ((name, key), era), of_row in images.items():
        row = stand[name].get(key)
        for image, raw in of_row:
            if image == row:
                found[(name, key), era] = raw
    return found


def settle(synced: SyncedDatabase, view: View, touched: Set[RowKey]) -> None:
    """Have the rules see the rows that the group has locked as they stand, with the histories now carried forward. A
    row that was not there when it was to be locked, and is there now, counts as locked by another session."""
    for at in view.changed & touched:
        row = view.rows.get(at)
        state = view.states[at]
        if row is not None:
            view.states[at] = RowState(dict(zip(synced.tables[at[0]].names, row, strict=True)), state.version)
        elif state.values is not None:
            view.busy |= {at}
