"""The promises, judged after a run by the devices' records and by the rows in Postgres: no service is called, and no
code of the client, the rules or the resolver is used.

Devices write down every batch that they made (``made``: id to payload) and every verdict that they received
(``told``: the serialized Verdict); readers every group that they received. All functions raise AssertionError with
the first breach.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf import message, text_format

from anabranch.store.catalog.databases import Database
from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.engine import Session
from anabranch.v1 import batch_pb2, change_pb2, errors_pb2, value_pb2, verdict_pb2
from anabranch.values import Cell, Table, key_text
from anabranch.values.messages import column_reader
from anabranch.wire.enum_names import enum_name

APPLIED = verdict_pb2.VERDICT_STATUS_APPLIED
REJECTED = verdict_pb2.VERDICT_STATUS_REJECTED
ANSWERED_BYTES = 1_000_000
Row = dict[str, Cell]
Rows = dict[tuple[str, str], Row]
"""Table and key text to the row's cells by column."""


@dataclass
class Recorded:
    """The record of one device. ``dead``: id to reason of its dead queue at the end. ``nowhere``: texts in batches and
    rows that it refused to save, and in how many places of its file each stood right after."""

    made: dict[str, bytes] = field(default_factory=dict)
    told: dict[str, list[bytes]] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    nowhere: dict[str, int] = field(default_factory=dict)


class Entry(NamedTuple):
    """A row of the log."""

    position: int
    batch_id: str
    table: str
    key: str
    effect: bytes


@dataclass(frozen=True)
class Server:
    """The state of Postgres after a run."""

    database: Database
    log: Sequence[Entry]
    verdicts: Mapping[str, bytes]
    digests: Mapping[str, bytes]
    positions: Sequence[int]
    rows: Rows


def read_rows(conn: Session, database: Database) -> Rows:
    """All rows of the synced tables. Works for types whose Python form is the cell (text, integers, booleans) and for
    arrays of them."""
    found: Rows = {}
    for table in database.tables.values():
        columns = ", ".join(quote(column.sql_name) for column in table.columns)
        relation = f"{quote(database.schema_name)}.{quote(table.sql_name)}"
        for row in conn.execute(f"select {columns} from {relation}".encode()):
            cells = {c: tuple(v) if isinstance(v, list) else v for c, v in zip(table.column_names, row, strict=True)}
            found[table.name, key_text([cells[name] for name in table.key_columns])] = cells
    return found


def read_server(conn: Session, database: Database, kept: str = "anabranch") -> Server:
    """Read the whole state in one transaction, from one snapshot. ``kept``: the schema with the tables ``log``,
    ``groups`` and ``conflicts``, for a test that has them cut and keeps copies of its own."""
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        log = [
            Entry(position, batch_id, database.tables_by_id[table_id].name, key, effect)
            for position, batch_id, table_id, key, effect in conn.execute(
                f"select position, batch_id, table_id, key, effect from {kept}.log where database_id = %s"
                " order by position, batch_id, ordinal".encode(),
                (database.id,),
            )
        ]
        batches = conn.execute(
            "select batch_id, verdict, payload_sha256 from anabranch.batches where database_id = %s", (database.id,)
        ).fetchall()
        positions = conn.execute(
            f"select position from {kept}.groups where database_id = %s order by position".encode(), (database.id,)
        ).fetchall()
        rows = read_rows(conn, database)
    return Server(
        database,
        log,
        {batch_id: bytes(verdict) for batch_id, verdict, _ in batches},
        {batch_id: bytes(digest) for batch_id, _, digest in batches},
        [position for (position,) in positions],
        rows,
    )


def _cells(table: Table, columns: Iterable[str], values: Iterable[value_pb2.Value]) -> Row:
    return {
        name: column_reader(table.by_name[name])(value)
        for name, value in zip(columns, values, strict=True)
        if value.WhichOneof("kind") is not None
    }


def writes(database: Database, payload: bytes) -> dict[tuple[str, str], Row]:
    """The values that a batch's bytes write: table and key text to the last value of each column, in the order made.
    Columns that an earlier mutation wrote to a row that the batch deletes are left out."""
    found: dict[tuple[str, str], Row] = {}
    for mutation in batch_pb2.DbMutationBatch.FromString(payload).mutations:
        table = database.tables[mutation.table]
        for row in mutation.rows:
            cells = _cells(table, mutation.columns, row.values)
            key = key_text([cells[name] for name in table.key_columns])
            if mutation.type == batch_pb2.MUTATION_TYPE_UPDATE:
                found.setdefault((table.name, key), {}).update(cells)
            else:
                found[table.name, key] = cells if mutation.type == batch_pb2.MUTATION_TYPE_INSERT else {}
    return found


def check_durable(
    server: Server,
    before: Rows,
    recorded: Sequence[Recorded],
    loose: Iterable[str] = (),
    caused: Iterable[str] = (),
    beside: Iterable[str] = (),
) -> int:
    """Promise 1: a batch that was reported as applied is in the log, at the position that was reported, with an entry
    for every row that it writes (for others, only deletes in the tables ``caused``, whose rows go with others, and
    updates in the tables ``beside``, which code of other tables writes), and with the values that it writes (but for
    columns in ``loose``, such as counters); and the log's effects, in their order, lead from the rows ``before`` to the
    rows of the tables: the last writer of every row by the log's order gives the row. Where a device saw its batch in
    the log before it got the verdict, the verdict in Postgres is the report. Returns the number of batches judged."""
    passed = set(loose)
    allowed = {(table, change_pb2.EFFECT_TYPE_DELETE) for table in caused}
    allowed |= {(table, change_pb2.EFFECT_TYPE_UPDATE) for table in beside}
    of_batch: dict[str, list[Entry]] = {}
    for entry in server.log:
        of_batch.setdefault(entry.batch_id, []).append(entry)
    judged = 0
    for device in recorded:
        for batch_id, payload in device.made.items():
            reports = device.told.get(batch_id) or [server.verdicts[batch_id]]
            verdict = verdict_pb2.Verdict.FromString(reports[-1])
            if verdict.status != APPLIED:
                continue
            judged += 1
            entries = of_batch.get(batch_id, [])
            assert {e.position for e in entries} == {verdict.position}, f"{batch_id} is not in the log as reported"
            wanted = writes(server.database, payload)
            there = {(e.table, e.key) for e in entries}
            assert there >= wanted.keys(), f"{batch_id}: rows are missing from the log"
            for entry in entries:
                if (entry.table, entry.key) not in wanted:
                    kind = change_pb2.Effect.FromString(entry.effect).type
                    assert (entry.table, kind) in allowed, (
                        f"{batch_id} has an effect on {entry.table} {entry.key}, which it does not name"
                    )
            # A batch that touches a row twice has an entry for each time: the last one counts.
            stored: Rows = {}
            for entry in entries:
                effect = change_pb2.Effect.FromString(entry.effect)
                cells = _cells(server.database.tables[entry.table], effect.columns, effect.values)
                stored.setdefault((entry.table, entry.key), {}).update(cells)
            for where, row in wanted.items():
                for name in row.keys() & stored[where].keys() - passed:
                    assert stored[where][name] == row[name], f"{batch_id} {where} {name}"
    assert replay(server, before) == server.rows, "the log does not lead to the rows of the tables"
    return judged


def replay(server: Server, before: Rows) -> Rows:
    """The rows that the log's effects lead to."""
    rows = {key: dict(row) for key, row in before.items()}
    for entry in server.log:
        effect = change_pb2.Effect.FromString(entry.effect)
        cells = _cells(server.database.tables[entry.table], effect.columns, effect.values)
        where = (entry.table, entry.key)
        if effect.type == change_pb2.EFFECT_TYPE_INSERT:
            assert where not in rows, f"{entry.batch_id} inserts {where}, which is there"
            rows[where] = cells
        elif effect.type == change_pb2.EFFECT_TYPE_UPDATE:
            rows[where].update(cells)
        elif effect.type == change_pb2.EFFECT_TYPE_DELETE:
            del rows[where]
    for (table, _), row in rows.items():
        for column in server.database.tables[table].columns:
            # Rows that are older than a column have what it began with, and no effect says so.
            if column.initial and column.name not in row:
                row[column.name] = column.initial[0]
    return rows


def check_atomic(server: Server, recorded: Sequence[Recorded]) -> int:
    """Promise 2: the log has nothing of a batch that was rejected (and all of one that was applied: see
    ``check_durable``). Returns the number of rejected batches."""
    logged = {entry.batch_id for entry in server.log}
    rejected = [b for b, v in server.verdicts.items() if verdict_pb2.Verdict.FromString(v).status == REJECTED]
    for batch_id in rejected:
        assert batch_id not in logged, f"{batch_id} was rejected and is in the log"
    assert {b for d in recorded for b in d.dead} <= set(rejected), "a dead letter that no verdict has rejected"
    return len(rejected)


def check_refused(server: Server, recorded: Sequence[Recorded], sent: Iterable[str]) -> int:
    """A batch or row that a device refused, as on a full disk, is nowhere: in no batch that it made, in no effect, not
    in its file; and devices have made all batches that nodes have ``sent``. Returns the number of refused batches and
    rows."""
    made = {batch_id for device in recorded for batch_id in device.made}
    assert made.issuperset(sent), f"batches that no device has saved: {sorted(set(sent) - made)[:3]}"
    for device in recorded:
        for text, places in device.nowhere.items():
            assert not places, f"{text} was refused and stands in {places} places of the device's file"
            raw = text.encode()
            held = [batch_id for batch_id, payload in device.made.items() if raw in payload]
            held += [entry.batch_id for entry in server.log if text in entry.key or raw in entry.effect]
            assert not held, f"{text} was refused and is in the batches {held[:3]}"
    return sum(len(device.nowhere) for device in recorded)


def _as_answered(verdict: bytes) -> bytes:
    """A stored verdict as answers carry it: one of more than ``ANSWERED_BYTES`` without the rows of the server."""
    if len(verdict) <= ANSWERED_BYTES:
        return verdict
    cut = verdict_pb2.Verdict.FromString(verdict)
    for mutation in cut.mutations:
        mutation.ClearField("server_row")
    return cut.SerializeToString()


def _as_text(verdict: bytes) -> str:
    try:
        return text_format.MessageToString(verdict_pb2.Verdict.FromString(verdict), as_one_line=True)
    except message.DecodeError:
        return f"no verdict: {verdict.hex()}"


def check_once(server: Server, recorded: Sequence[Recorded], answers: Mapping[str, bytes]) -> int:
    """Promise 3: every report of a batch is the same, byte for byte, and so is the answer when it was sent again
    (``answers``); its bytes are those that the server has judged; it is in the log at one position. Returns the number
    of reports."""
    places: dict[str, set[int]] = {}
    for entry in server.log:
        places.setdefault(entry.batch_id, set()).add(entry.position)
    for batch_id, positions in places.items():
        assert len(positions) == 1, f"{batch_id} was applied at {sorted(positions)}"
    reports = 0
    for device in recorded:
        for batch_id, payload in device.made.items():
            assert server.digests[batch_id] == hashlib.sha256(payload).digest(), f"{batch_id}: other bytes were judged"
            told = {*device.told.get(batch_id, []), _as_answered(server.verdicts[batch_id]), answers[batch_id]}
            assert len(told) == 1, (
                f"{batch_id} got {len(told)} different verdicts: {[_as_text(raw) for raw in sorted(told)]}"
            )
            reports += len(device.told.get(batch_id, []))
    return reports


def check_ordered(server: Server, followed: Sequence[Mapping[str, Any]]) -> int:
    """Promise 4: positions grow strictly; a reader that has followed all the time received exactly the log, each entry
    once and in its order, and never one at or below a position up to which it had read: a reader that goes on after its
    cursor would never receive such a late entry. Returns the number of groups."""
    assert all(a < b for a, b in zip(server.positions, server.positions[1:], strict=False))
    effects: dict[int, dict[str, list[bytes]]] = {}
    for entry in server.log:
        effects.setdefault(entry.position, {}).setdefault(entry.batch_id, []).append(entry.effect)
    wanted = [(p, [[batch, effects_digest(found)] for batch, found in group.items()]) for p, group in effects.items()]
    read = 0
    seen = []
    for line in followed:
        if "read" in line:
            read = max(read, line["read"])
            continue
        position = line["group"]
        assert position > read, f"the reader was given {position} after it had read to {read}"
        read = position
        seen.append((position, line["batches"]))
    assert seen == wanted, "the reader was not given exactly the log"
    return len(seen)


def effects_digest(effects: Iterable[bytes]) -> str:
    """A reader's record of the effects of a batch: SHA-256 over each with its length before it, as hex."""
    found = hashlib.sha256()
    for effect in effects:
        found.update(len(effect).to_bytes(4, "big") + effect)
    return found.hexdigest()


def check_nothing_lost(
    conn: Session,
    server: Server,
    recorded: Sequence[Recorded],
    loose: Iterable[str] = (),
    kept_in: str = "anabranch",
) -> int:
    """Promise 6: every batch ever made is in the log or, with the verdict's reason, in its device's dead queue; nothing
    waits; a mutation that overwrote another's value has kept that value; and a value kept as lost is one that the
    losing batch wrote (but for columns in ``loose``, in which another value may have been stored). ``kept_in`` is as
    ``kept`` of ``read_server``. Returns the number of values kept."""
    passed = set(loose)
    (waiting,) = conn.execute(
        "select count(*) from anabranch.inbox where database_id = %s", (server.database.id,)
    ).fetchone() or (None,)
    assert waiting == 0, f"{waiting} batches wait in the inbox"
    logged = {entry.batch_id for entry in server.log}
    for device in recorded:
        for batch_id in device.made:
            verdict = verdict_pb2.Verdict.FromString(server.verdicts[batch_id])
            if verdict.status == APPLIED:
                assert batch_id in logged, f"{batch_id} is lost"
                assert batch_id not in device.dead, f"{batch_id} is applied, and a dead letter"
                continue
            reason = enum_name(errors_pb2.Reason, verdict.reason)
            assert device.dead.get(batch_id) == reason, f"{batch_id}: {device.dead.get(batch_id)}, not {reason}"
    kept = conn.execute(
        f"select table_id, key, column_name, losing_value, losing_batch, winning_batch from {kept_in}.conflicts"
        " where database_id = %s".encode(),
        (server.database.id,),
    ).fetchall()
    won = {(batch, server.database.tables_by_id[table_id].name, key) for table_id, key, _, _, _, batch in kept}
    for batch_id, raw in server.verdicts.items():
        for mutation in verdict_pb2.Verdict.FromString(raw).mutations:
            if mutation.outcome == verdict_pb2.OUTCOME_OVERWROTE and not passed.issuperset(mutation.columns):
                table = server.database.tables[mutation.table]
                cells = _cells(table, table.key_columns, mutation.key)
                where = (batch_id, mutation.table, key_text([cells[name] for name in table.key_columns]))
                assert where in won, f"{where} overwrote a value that is not kept"
    payloads = {batch_id: payload for device in recorded for batch_id, payload in device.made.items()}
    for table_id, key, column, raw, loser, _ in kept:
        if loser in payloads and column not in passed:
            table = server.database.tables_by_id[table_id]
            [lost] = _cells(table, [column], [value_pb2.Value.FromString(raw)]).values()
            assert lost in _written(server.database, payloads[loser], table.name, key, column), (
                f"{loser} {key} {column}"
            )
    return len(kept)


def _written(database: Database, payload: bytes, name: str, key: str, column: str) -> list[Cell]:
    """Every value that a batch writes into a column of a row, in any mutation."""
    found = []
    table = database.tables[name]
    for mutation in batch_pb2.DbMutationBatch.FromString(payload).mutations:
        for row in mutation.rows if mutation.table == name else ():
            cells = _cells(table, mutation.columns, row.values)
            # A column that an insert does not give is NULL: the tables of these runs have no defaults.
            given = column in cells or mutation.type == batch_pb2.MUTATION_TYPE_INSERT
            if given and key_text([cells[part] for part in table.key_columns]) == key:
                found.append(cells.get(column))
    return found
