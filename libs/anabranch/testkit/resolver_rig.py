"""A database with synced tables, nodes that put batches straight into its inbox, and groups committed on demand.

No service runs: a test calls ``group`` (or ``drain``) and checks verdicts, rows, log and sums.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from ulid import ULID

from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.catalog import databases, registration
from anabranch.store.catalog.sums import scan_rows, scan_sum
from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.channels import INBOX_CHANNEL
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.waiting import until
from anabranch.v1 import batch_pb2, errors_pb2, value_pb2, verdict_pb2
from anabranch.values import Table
from anabranch.values.canonical import SUM_MODULUS, RowEncoder, table_sum
from anabranch.values.messages import column_writer
from anabranch.wire.enum_names import enum_name

Rows = Mapping[str, Any]
Change = tuple[str, str, Sequence[Rows]]
"""The type of change (insert, update or delete), the table, and its rows."""
_TYPES = {"insert": 1, "update": 2, "delete": 3}

_APPEND = """
insert into anabranch.inbox (database_id, batch_id, node_id, principal, basis, prev, payload, payload_sha256,
                             traceparent, arrived_ms, refusal, refusal_message, read_audiences, write_audiences,
                             claims)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_NODE = """
insert into anabranch.nodes (database_id, node_id, name, principal, epoch, token, last_seen_ms)
values (%s, %s, %s, %s, '', '', 0)
"""
_SOMEBODY_WAITS = """
select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()
"""


class ResolverRig:
    """``tables``: SQL that makes the tables of schema ``app`` (the search path while it runs); they are registered in
    the order of ``names``, each with its policy, and with its expression in ``audiences``; ``rules`` say where
    principals have their audiences from.
    ``commit`` commits one group: database id, most batches, offset of the clock; it returns how many were taken."""

    def __init__(
        self,
        url: str,
        tables: str,
        names: Mapping[str, Mapping[str, Any] | None],
        *,
        policy: Mapping[str, Any] | None = None,
        audiences: Mapping[str, str] | None = None,
        rules: Mapping[str, Any] | None = None,
        database: str = "app",
        commit: Callable[[int, int, int], int] | None = None,
    ) -> None:
        self.url = url
        self.name = database
        self.commit = commit
        self.clock_offset_ms = 0
        self.time_ms = 0
        self.conn = connect(url, application_name="anabranch-rig", autocommit=True)
        self.sql(f"create schema {database}")
        self.sql(f"set search_path to {database}; {tables}; reset search_path")
        registration.create_database(self.conn, database, database, policy)
        for name, own in names.items():
            registration.add_table(self.conn, database, name, own, audience=(audiences or {}).get(name))
        if rules is not None:
            set_audience_rules(self.conn, database, rules)
        self.database = databases.load_database(self.conn, database)

    def close(self) -> None:
        """End the rig's session."""
        self.conn.close()

    def session(self) -> Session:
        """Another session, for a foreign writer; transactions are the caller's."""
        return connect(self.url, application_name="somebody-else")

    def sql(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run SQL as an application does, committed at once; return its rows."""
        cursor = self.conn.execute(text.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def node(
        self, name: str, principal: str = "", read: Sequence[str] | None = None, write: Sequence[str] | None = None
    ) -> RigNode:
        """A new node. ``read``, ``write``: the audiences that its claims give."""
        return RigNode(self, name, principal or f"user-{name}", read, write)

    def group(self, most: int = 1_000) -> int:
        """Commit one group and ``check`` the state after it; return how many batches it looked at."""
        assert self.commit is not None, "the rig was made without a way to commit"
        taken = self.commit(self.database.id, most, self.clock_offset_ms)
        self.check()
        return taken

    def drain(self, most: int = 1_000) -> None:
        """Commit groups until none finds a batch that is ready."""
        for _ in range(1_000):
            if not self.group(most):
                return
        raise AssertionError("a thousand groups, and there are batches left that are ready")

    def until_waiting(self) -> None:
        """Wait until a session waits for a lock in this database.

        Raises:
            AssertionError: none does for some seconds.
        """
        for _ in range(2_000):
            if self.sql(_SOMEBODY_WAITS):
                return
            self.sql("select pg_sleep(0.005)")
        raise AssertionError("nobody waits")

    def until_decided(self, batch_id: str) -> None:
        """Commit groups until a batch, which may have to wait, has its verdict.

        Raises:
            AssertionError: two hundred rounds did not bring it.
        """
        for _ in range(200):
            self.drain()
            if self.outcome(batch_id) != "PENDING":
                return
            self.sql("select pg_sleep(0.005)")
        raise AssertionError("the batch waits for ever")

    @property
    def head(self) -> int:
        """The last group's position."""
        [(position,)] = self.sql(
            "select coalesce(max(position), 0) from anabranch.groups where database_id = %s", [self.database.id]
        )
        return int(position)

    def verdict(self, batch_id: str) -> verdict_pb2.Verdict | None:
        """The verdict on a batch; None where it has none."""
        rows = self.sql(
            "select verdict from anabranch.batches where database_id = %s and batch_id = %s",
            [self.database.id, batch_id],
        )
        return verdict_pb2.Verdict.FromString(rows[0][0]) if rows else None

    def outcome(self, batch_id: str) -> str | list[str]:
        """PENDING, the reason of a rejection, or the outcomes of the mutations."""
        verdict = self.verdict(batch_id)
        if verdict is None:
            return "PENDING"
        if verdict.status == verdict_pb2.VERDICT_STATUS_REJECTED:
            return enum_name(errors_pb2.Reason, verdict.reason)
        return [enum_name(verdict_pb2.Outcome, m.outcome) for m in verdict.mutations]

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """The rows of a table, ordered by their first column."""
        names = ", ".join(f'"{name}"' for name in columns) or "*"
        return self.sql(f'select {names} from {self.name}."{table}" order by 1')

    def waiting(self) -> list[str]:
        """The ids of the batches in the inbox, in their order."""
        return [
            row[0]
            for row in self.sql(
                "select batch_id from anabranch.inbox where database_id = %s order by 1", [self.database.id]
            )
        ]

    def until_left(self, left: int = 0, timeout_s: float = 20.0) -> None:
        """Wait until no more than ``left`` batches are in the inbox."""
        until(lambda: len(self.waiting()) <= left, timeout_s, lambda: f"{len(self.waiting())} batches are left")

    def losers(self) -> list[tuple[str, str, str, Any]]:
        """Table, key, column and value of every conflict."""
        found = []
        for table_id, key, column, raw in self.sql(
            "select table_id, key, column_name, losing_value from anabranch.conflicts where database_id = %s"
            " order by position, batch_id, ordinal",
            [self.database.id],
        ):
            value = value_pb2.Value.FromString(raw)
            arm = value.WhichOneof("kind")
            found.append((self.database.tables_by_id[table_id].name, key, column, arm and getattr(value, arm)))
        return found

    def check(self) -> None:
        """Check the invariants after a group: sums are those of the rows, the log leads to the rows, every accepted
        batch is in the log at its position, positions grow, and no decided batch is left in the inbox.

        Raises:
            AssertionError: one of them does not hold.
        """
        self.database = databases.load_database(self.conn, self.name)
        for name, table in self.database.tables.items():
            with self.conn.transaction():
                count, total = scan_sum(self.conn, self.name, table)
            [(kept, kept_hash)] = self.sql(
                "select row_count, row_hash from anabranch.table_sums where table_id = %s", [table.id]
            )
            assert (count, total) == (kept, int.from_bytes(kept_hash, "big")), f"sum of {name}"
            if name in self.database.restricted:
                assert self._kept_by_audience(table) == self._by_audience(table), f"sums of the audiences of {name}"
        stray = self.sql(
            "select b.batch_id from anabranch.batches b where b.database_id = %s and (b.status = 1) <> exists ("
            "select from anabranch.log l where l.database_id = b.database_id and l.position = b.position"
            " and l.batch_id = b.batch_id)",
            [self.database.id],
        )
        assert not stray, "accepted batches are in the log at their position, others are not"
        both = self.sql(
            "select i.batch_id from anabranch.inbox i join anabranch.batches b using (database_id, batch_id)"
        )
        assert not both, "decided batches are left in the inbox"

    def _by_audience(self, table: Table) -> dict[str, tuple[int, int]]:
        """Count and hash of the rows of each audience, as Postgres evaluates the expression now."""
        keys = ", ".join(f"{quote(name)}::text" for name in table.in_sql(table.key_columns))
        [listed] = self.sql(
            f"select coalesce(json_agg(json_build_array(json_build_array({keys}), "
            f"{self.database.restricted[table.name].as_list})), '[]') from {self.name}.{quote(table.sql_name)}"
        )
        audiences = {tuple(key): found for key, found in listed[0]}
        encoder = RowEncoder(table)
        sums: dict[str, tuple[int, int]] = {}
        with self.conn.transaction(), closing(scan_rows(self.conn, self.name, table)) as chunks:
            for row in (row for rows in chunks for row in rows):
                for audience in audiences[tuple(str(row[i]) for i in table.key_index)]:
                    count, total = sums.get(audience, (0, 0))
                    more, more_total = table_sum(encoder, [row])
                    sums[audience] = (count + more, (total + more_total) % SUM_MODULUS)
        return sums

    def _kept_by_audience(self, table: Table) -> dict[str, tuple[int, int]]:
        rows = self.sql(
            "select audience, row_count, row_hash from anabranch.audience_sums where table_id = %s", [table.id]
        )
        assert all(count or not any(total) for _, count, total in rows), "an audience without rows has a hash"
        return {audience: (count, int.from_bytes(total, "big")) for audience, count, total in rows if count}


class RigNode:
    """A node that writes into the inbox. ``basis``: the position that it has applied; ``last``: its last batch's id;
    ``read``, ``write``: the audiences that its claims give."""

    def __init__(
        self,
        rig: ResolverRig,
        name: str,
        principal: str,
        read: Sequence[str] | None = None,
        write: Sequence[str] | None = None,
    ) -> None:
        self.rig = rig
        self.read = read
        self.write_set = write
        self.claims: str | None = None
        self.id = str(ULID())
        self.name = name
        self.principal = principal
        self.basis = 0
        self.last = ""
        rig.conn.execute(_NODE, (rig.database.id, self.id, name, principal))

    def see(self) -> None:
        """Read the log to the head."""
        self.basis = self.rig.head

    def new_id(self, time_ms: int | None = None) -> str:
        """The next id, greater than all before it in the rig; ``time_ms`` makes one of that time."""
        rig = self.rig
        if time_ms is None:
            time_ms = rig.time_ms = max(rig.time_ms + 1, time.time_ns() // 1_000_000)
        return str(ULID.from_bytes(time_ms.to_bytes(6, "big") + secrets.token_bytes(10)))

    def make(self, *changes: Change, batch_id: str | None = None, undo: Rows | None = None) -> Made:
        """A batch, not sent yet."""
        database = self.rig.database
        made = batch_id or self.new_id()
        payload = batch_pb2.DbMutationBatch(id=made, db_name=database.name)
        payload.node.id, payload.node.name = self.id, self.name
        for verb, table, rows in changes:
            mutation = payload.mutations.add(table=table, type=_TYPES[verb])
            names: list[str] = list(dict.fromkeys(name for row in rows for name in row))
            mutation.columns.extend(names)
            for row in rows:
                mutation.rows.add(values=[_value(database.tables.get(table), name, row) for name in names])
            if undo is not None:
                mutation.undo.columns.extend(undo)
                mutation.undo.rows.add(values=[_value(database.tables.get(table), name, undo) for name in undo])
        made_before, self.last = self.last, made
        return Made(made, payload.SerializeToString(), self.basis, made_before)

    def send(
        self,
        made: Made,
        *,
        prev: str | None = None,
        arrived_ms: int | None = None,
        refusal: tuple[int, str] | None = None,
        traceparent: str | None = None,
    ) -> str:
        """Put a batch into the inbox; its id."""
        reason, message = refusal or (None, None)
        self.rig.conn.execute(
            _APPEND,
            (
                self.rig.database.id,
                made.id,
                self.id,
                self.principal,
                made.basis,
                prev,
                made.payload,
                hashlib.sha256(made.payload).digest(),
                traceparent,
                time.time_ns() // 1_000_000 if arrived_ms is None else arrived_ms,
                reason,
                message,
                None if self.read is None else list(self.read),
                None if self.write_set is None else list(self.write_set),
                self.claims,
            ),
        )
        self.rig.conn.execute(f"notify {INBOX_CHANNEL}, '{self.rig.database.id}'".encode())
        return made.id

    def write(self, *changes: Change) -> str:
        """Make a batch and send it; its id."""
        return self.send(self.make(*changes))

    def insert(self, table: str, *rows: Rows) -> str:
        """A batch of one insert."""
        return self.write(("insert", table, rows))

    def update(self, table: str, *rows: Rows) -> str:
        """A batch of one update."""
        return self.write(("update", table, rows))

    def delete(self, table: str, *keys: Rows) -> str:
        """A batch of one delete."""
        return self.write(("delete", table, keys))


class Made:
    """A batch as made: its id, bytes, basis, and the id of the node's batch before it ("" where there is none)."""

    __slots__ = ("basis", "before", "id", "payload")

    def __init__(self, batch_id: str, payload: bytes, basis: int, before: str) -> None:
        self.id = batch_id
        self.payload = payload
        self.basis = basis
        self.before = before


def _value(table: Table | None, name: str, row: Rows) -> value_pb2.Value:
    if name not in row:
        return value_pb2.Value()
    cell = row[name]
    column = table.by_name.get(name) if table is not None else None
    if isinstance(cell, value_pb2.Value):
        return cell
    if column is None:
        return value_pb2.Value(string_value=str(cell))
    return column_writer(column)(cell)
