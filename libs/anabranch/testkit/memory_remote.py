"""The server in memory as a device's remote: for tests of the device itself, where thousands of histories are needed.

It takes the place of gRPC and the services, and uses their messages: the log in parts as small as asked for, pulls in
chunks that can be cut, answers that get lost. Tests of the wire use the real services.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from anabranch.client.call_ahead import CallAhead
from anabranch.client.errors import CallFailed
from anabranch.client.remote import RemoteDb
from anabranch.errors import AnabranchError
from anabranch.merge import SERVER_NODE, Mutation, MutationType, RowChange
from anabranch.ranges import WHOLE, KeyRange, RangeSums, in_ranges
from anabranch.testkit.memory_audiences import AudienceOf, View, audiences_of, set_digest, sums_of
from anabranch.testkit.memory_messages import AnswerStream, arrow_ipc, effect_bytes, name_of, range_sums
from anabranch.testkit.memory_schema import Ddl, MemorySchema
from anabranch.testkit.memory_server import Effect, Logged, MemoryServer, Sent
from anabranch.v1 import (
    batch_pb2,
    change_pb2,
    errors_pb2,
    ingest_pb2,
    position_pb2,
    resolver_pb2,
    snapshot_pb2,
    value_pb2,
    verdict_pb2,
)
from anabranch.values import Cell, Table
from anabranch.values.canonical import RowEncoder
from anabranch.values.messages import column_reader, column_writer


class MemoryRemote(RemoteDb):
    """One server for any number of devices. ``tables`` have one key column of text. ``part_effects``: the most effects
    that a part of a group has; ``page_parts``: parts of a page; ``chunk_rows``: rows of a chunk of a pull.

    Set by tests: ``offline`` fails every call; ``lose_answers`` fails so many Send calls after they were decided;
    ``cut_pull_after`` breaks the next pull after so many chunks; ``floor``; ``epoch``; ``on_rewind``; ``calls``
    counts by name; ``principal``, whose device it is, as the server's ``sets`` and ``claims`` name it;
    ``during_compare`` is called when a comparison has taken its snapshot; ``rows_compared`` counts the rows it sent;
    ``behind`` counts the answers that a node is behind the floor, and ``lost`` those that were lost; ``schema`` has the
    tables and how they changed, ``lost_values`` what batches had for columns that are gone: table, key, column, cell;
    ``described_for`` the app versions that Describe was asked for."""

    def __init__(
        self, server: MemoryServer, tables: Sequence[Table], now_ms: Callable[[], int], principal: str = ""
    ) -> None:
        super().__init__("localhost:1")
        self.principal = principal
        self.known_audiences: set[tuple[str, str]] = set()
        self.server = server
        self.schema = MemorySchema(server, tables)
        self.described_for: list[int] = []
        self.lost_values: list[tuple[str, str, str, Cell]] = []
        self.now_ms = now_ms
        self.part_effects = 2
        self.page_parts = 3
        self.chunk_rows = 2
        self.offline = False
        self.lose_answers = 0
        self.cut_pull_after: int | None = None
        self.floor = 0
        self.epoch = "epoch-1"
        self.on_rewind = "dead_letter"
        self.calls: dict[str, int] = {}
        self.rows_compared = 0
        self.behind = 0
        self.lost = 0
        self.during_compare: Callable[[], None] = lambda: None
        self._sums: dict[int, list[position_pb2.TableSum]] = {}

    def _called(self, name: str, node_state: position_pb2.NodeState | None = None) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.offline:
            raise CallFailed("UNAVAILABLE", "", "offline", again=True)
        if node_state is not None and not self._has(node_state.greatest_seen):
            raise CallFailed("OUT_OF_RANGE", "HISTORY_REWOUND", "the server was restored", again=False)

    def _has(self, seen: position_pb2.Position) -> bool:
        return seen.server_timestamp_ms <= self.server.head

    def find_common(self, request: change_pb2.FindCommonRequest) -> change_pb2.FindCommonResponse:
        """The last of the given positions that the server's history has."""
        self._called("find_common")
        common = max((p.server_timestamp_ms for p in request.seen if self._has(p)), default=0)
        return change_pb2.FindCommonResponse(common=self.position(common), state=self.state())

    def position(self, at: int) -> position_pb2.Position:
        """A position of the history, in milliseconds."""
        return position_pb2.Position(epoch=self.epoch, server_timestamp_ms=at, token=b"sealed %d" % at)

    def state(self) -> position_pb2.ServerState:
        """The server's state, which every answer carries."""
        return position_pb2.ServerState(
            settled=self.position(self.server.head),
            floor=self.floor,
            schema_version=self.schema.version,
            server_time_ms=self.now_ms(),
        )

    def commit(self) -> None:
        """Decide the batches that can be decided, and note the sums after that."""
        head = self.server.head
        self.server.commit(self.now_ms())
        if self.server.head > head:
            self._sums[self.server.head] = self.sums()

    def write(
        self,
        changes: Sequence[tuple[str, MutationType, str, Mapping[str, Cell]]],
        sets: Mapping[str, frozenset[str]] | None = None,
    ) -> bool:
        """Run one transaction as by plain SQL (see ``MemoryServer.write``)."""
        done = self.server.write(changes, self.now_ms(), sets)
        if done:
            self._sums[self.server.head] = self.sums()
        return done

    @property
    def tables(self) -> dict[str, Table]:
        """The tables of today, by identity."""
        return self.schema.tables

    @tables.setter
    def tables(self, tables: dict[str, Table]) -> None:
        self.schema.tables = tables
        for table in tables.values():
            self.schema.ever.setdefault(table.name, {}).update(table.by_name)

    def alter(self, change: Callable[[Ddl], object]) -> int:
        """Run one transaction of DDL and SQL, as somebody else does; return its position."""
        ddl, position = self.schema.begin(), max(self.now_ms(), self.server.head + 1)
        change(ddl)
        self.schema.enter(ddl, position, lambda table: self._audience_of(table) is not None)
        if ddl.effects:
            # Smaller than every id of a device, and in the order of the log.
            batch_id = f"{len(self.server.log):026d}"
            self.server.log.append(Logged(position, batch_id, SERVER_NODE, tuple(ddl.effects)))
        self.server.head = position
        self._sums[position] = self.sums()
        return position

    def rows(self, table: Table) -> list[list[Cell]]:
        """The live rows of a table, in the order of its columns."""
        return [
            [row.get(c) for c in table.column_names]
            for (name, _), row in self.server.live().items()
            if name == table.name
        ]

    def sums(self) -> list[position_pb2.TableSum]:
        """The sums of all tables, and of each audience of restricted ones, now."""
        return [
            one
            for table in self.tables.values()
            for one in sums_of(table, self.rows(table), self._audience_of(table), self.known_audiences)
        ]

    def _audience_of(self, table: Table) -> AudienceOf | None:
        return self.server.tables[table.name].audience

    def view(self, node_state: position_pb2.NodeState) -> View:
        """The caller as a reader."""
        held = node_state.held
        return View(
            self.server,
            self.principal,
            self.server.claims.get(self.principal, frozenset()),
            frozenset(held.choice) if held.chosen else None,
            node_state.node.id,
        )

    def _told(self, view: View, held: position_pb2.HeldAudiences, at: int) -> change_pb2.Audiences | None:
        """The reader's audiences, where a page begins at ``at`` and the reader holds others."""
        restricted, mine = any(map(self._audience_of, self.tables.values())), view.at(at)
        same = held.digest == set_digest(mine)
        return change_pb2.Audiences(values=sorted(mine)) if restricted and not same else None

    def describe(self, request: snapshot_pb2.DescribeRequest, timeout_s: float = 0) -> snapshot_pb2.DescribeResponse:
        """Every table."""
        self._called("describe", request.node_state)
        self.described_for.append(request.app_version)
        tables = self.schema.described(request.app_version, lambda table: self._audience_of(table) is not None)
        policy = snapshot_pb2.DatabasePolicy(on_rewind=self.on_rewind)
        version = self.schema.version
        return snapshot_pb2.DescribeResponse(tables=tables, policy=policy, state=self.state(), version=version)

    def send(self, request: ingest_pb2.SendRequest, timeout_s: float = 0) -> ingest_pb2.SendResponse:
        """Take batches in and decide them. One that can't be read is refused under the name that it has, if any."""
        self._called("send", request.node_state)
        self.server.principal_of[request.node_state.node.id] = self.principal
        names: list[str] = []
        unread: dict[str, verdict_pb2.Verdict] = {}
        for envelope in request.envelopes:
            name = name_of(envelope.payload)
            names.append(name)
            try:
                sent = self.sent(envelope, request.node_state.node.id) if name else None
            except _CarriedOverError as refused:
                self.server.refuse(name, str(refused), self.now_ms())
                continue
            except (DecodeError, ValueError, LookupError, TypeError):
                sent = None
            if sent is not None:
                self.server.send(sent, self.now_ms())
                continue
            unread[name] = verdict_pb2.Verdict(
                batch_id=name, status=verdict_pb2.VERDICT_STATUS_REJECTED, reason=errors_pb2.REASON_MALFORMED
            )
        self.commit()
        if self.lose_answers > 0:
            self.lose_answers -= 1
            self.lost += 1
            raise CallFailed("UNAVAILABLE", "", "the answer is lost", again=True)
        verdicts = [unread[name] if name in unread else self.verdict(name) for name in names]
        return ingest_pb2.SendResponse(verdicts=verdicts, node_token=b"token", state=self.state())

    def send_stream(self, requests: Iterator[ingest_pb2.SendStreamRequest], timeout_s: float) -> Any:
        """Not known here: what is sent is sent by calls."""
        raise CallFailed("UNIMPLEMENTED", "", "no streams", again=False)

    def get_verdict(self, request: resolver_pb2.GetVerdictRequest) -> resolver_pb2.GetVerdictResponse:
        """Verdicts of batches that are known."""
        self._called("get_verdict")
        known = [i for i in request.batch_ids if i in self.server.verdicts or i in self.server.waiting]
        return resolver_pb2.GetVerdictResponse(verdicts=[self.verdict(i) for i in known], state=self.state())

    def sent(self, envelope: batch_pb2.Envelope, node: str) -> Sent:
        """An envelope as the memory server takes it."""
        batch = batch_pb2.DbMutationBatch.FromString(envelope.payload)
        return Sent(
            batch.id,
            node,
            envelope.basis,
            int(self.now_ms()),
            [self._mutation(m) for m in batch.mutations],
            envelope.prev,
        )

    def _mutation(self, message: batch_pb2.DbMutation) -> Mutation:
        if message.table not in self.tables:
            raise _CarriedOverError("UNKNOWN_TABLE")
        table = self.tables[message.table]
        kind = MutationType(message.type)
        undo = self._cells(table, message.undo.columns, message.undo.rows) or [{}] * len(message.rows)
        changes = []
        for given, before in zip(self._cells(table, message.columns, message.rows), undo, strict=True):
            row = self._carried_on(table, given)
            key = str(row["id"])
            if kind is MutationType.DELETE:
                row = {}
            elif kind is MutationType.UPDATE:
                del row["id"]
            changes.append(RowChange(key, row, before if kind is MutationType.UPDATE else {}))
        return Mutation(table.name, kind, changes)

    def _carried_on(self, table: Table, row: Mapping[str, Cell]) -> dict[str, Cell]:
        """A row that may have been written for earlier columns, with those of today. Raises _CarriedOverError."""
        carried: dict[str, Cell] = {}
        for name, cell in row.items():
            while name not in table.by_name and (successor := self.schema.successors.get((table.name, name))):
                try:
                    name, cell = successor.name, successor.cast(cell)
                except ValueError as error:
                    raise _CarriedOverError("VALUE_NOT_CAST") from error
            if name in table.by_name:
                carried[name] = cell
            else:
                self.lost_values.append((table.name, str(row["id"]), name, cell))
        return carried

    def _cells(self, table: Table, columns: Sequence[str], rows: Sequence[value_pb2.Row]) -> list[dict[str, Cell]]:
        readers = [column_reader(self.schema.column(table.name, c)) for c in columns]
        return [
            {
                c: read(v)
                for c, read, v in zip(columns, readers, row.values, strict=True)
                if v.WhichOneof("kind") is not None
            }
            for row in rows
        ]

    def verdict(self, batch_id: str) -> verdict_pb2.Verdict:
        """The verdict on a batch so far."""
        found = self.server.verdicts.get(batch_id)
        if found is None:
            return verdict_pb2.Verdict(batch_id=batch_id, status=verdict_pb2.VERDICT_STATUS_PENDING)
        if found.reason:
            return verdict_pb2.Verdict(
                batch_id=batch_id,
                status=verdict_pb2.VERDICT_STATUS_REJECTED,
                position=found.position,
                reason=errors_pb2.Reason.Value(f"REASON_{found.reason}"),
            )
        return verdict_pb2.Verdict(
            batch_id=batch_id, status=verdict_pb2.VERDICT_STATUS_APPLIED, position=found.position
        )

    def _parts(self, after: int, view: View) -> list[change_pb2.LoggedGroup]:
        groups: dict[int, list[Logged]] = {position: [] for position in self.schema.changes if position > after}
        for logged in self.server.log:
            if logged.position > after:
                groups.setdefault(logged.position, []).append(logged)
        parts = []
        for position, batches in sorted(groups.items()):
            batches.sort(key=lambda b: b.id)
            sees: dict[tuple[str, str], bool] = {}
            pieces = [piece for logged in batches for piece in self._pieces(view.batch(logged, sees), logged, view)]
            change, schema_change = view.change(position), self.schema.changes.get(position, b"")
            if (change is not None or schema_change) and not pieces:
                pieces = [None]
            for i, entry in enumerate(pieces):
                last = i == len(pieces) - 1
                parts.append(
                    change_pb2.LoggedGroup(
                        position=position,
                        batches=[] if entry is None else [entry],
                        incomplete=not last,
                        sums=view.sums(self._sums.get(position, []), position) if last else [],
                        audience_change=change,
                        schema_change=schema_change,
                    )
                )
        return parts

    def _pieces(
        self, sent: Sequence[tuple[Effect, frozenset[str]]] | None, logged: Logged, view: View
    ) -> Iterator[change_pb2.LoggedBatch | None]:
        """The pieces of a batch that a reader gets: the rest of its last effect is in a part of its own."""
        if sent is None:
            return
        node = batch_pb2.Node(id=logged.node)
        if not sent:
            yield change_pb2.LoggedBatch(id=logged.id, node=node)
        effects = [self._effect(e) for e, _ in sent]
        restricted = any(e.before is not None for e, _ in sent)
        whose = [change_pb2.Audiences(values=sorted(audiences)) for _, audiences in sent]
        for start in range(0, len(effects), self.part_effects):
            piece, its = effects[start : start + self.part_effects], whose[start : start + self.part_effects]
            rest = b""
            if len(piece[-1]) > 8 and start + self.part_effects >= len(effects):
                half = len(piece[-1]) // 2
                piece, rest = [*piece[:-1], piece[-1][:half]], piece[-1][half:]
            audiences = its if restricted else []
            yield change_pb2.LoggedBatch(
                id=logged.id, node=node, effects=piece, effect_incomplete=bool(rest), audiences=audiences
            )
            if rest:
                yield change_pb2.LoggedBatch(id=logged.id, node=node, effects=[rest], audiences=audiences[-1:])

    def _effect(self, effect: Any) -> bytes:
        return effect_bytes(self.schema.ever[effect.table], effect)

    def get(self, request: change_pb2.GetRequest) -> change_pb2.GetResponse:
        """One page of the log."""
        self._called("get", request.node_state)
        if request.after < self.floor:
            self.behind += 1
            raise CallFailed("OUT_OF_RANGE", "BEHIND_FLOOR", "behind the floor", again=False)
        token = request.page_token
        after, skip = (int(x) for x in token.split()) if token else (request.after, 0)
        view = self.view(request.node_state)
        parts = self._parts(after, view)
        taken = parts[skip : skip + self.page_parts]
        more = skip + self.page_parts < len(parts)
        complete = [p.position for p in parts[: skip + self.page_parts] if not p.incomplete]
        reached = (complete[-1] if complete else after) if more else max(self.server.head, after)
        begins = max([after, *(p.position for p in parts[:skip] if not p.incomplete)])
        told = self._told(view, request.node_state.held, begins)
        return change_pb2.GetResponse(
            page=change_pb2.Page(groups=taken, reached=self.position(reached), audiences=told),
            next_page_token=b"%d %d" % (after, skip + self.page_parts) if more else b"",
            state=self.state(),
            sums=view.sums(self.sums(), reached) if reached == self.server.head else [],
        )

    def get_ahead(self, request: change_pb2.GetRequest) -> CallAhead[change_pb2.GetResponse]:
        """The page as the server has it now, or the failure of now, whatever happens until it is waited for."""
        try:
            response = self.get(request)
        except CallFailed as error:
            return CallAhead.failed(error)
        return CallAhead(lambda: response)

    def _table(self, name: str) -> Table:
        if name not in self.tables:
            raise CallFailed("NOT_FOUND", "UNKNOWN_TABLE", f"there is no synced table {name!r}", again=False)
        return self.tables[name]

    def pull(self, request: snapshot_pb2.PullRequest) -> Any:
        """The tables asked for."""
        self._called("pull", request.node_state)
        return AnswerStream(self._chunks(request))

    def _chunks(self, request: snapshot_pb2.PullRequest) -> Iterator[snapshot_pb2.PullResponse]:
        sent = 0
        view = self.view(request.node_state)
        for wanted in request.required:
            table, head, all_sums = self._table(wanted.table), self.server.head, self.sums()
            of, mine = self._audience_of(table), view.at(head)
            shown = mine & frozenset(wanted.audiences) if wanted.audiences else mine
            rows = sorted(self.rows(table), key=lambda row: str(row[0]))
            after = wanted.resume.decode()
            rows = [
                row
                for row in rows
                if str(row[0]) > after and (of is None or not shown.isdisjoint(audiences_of(table, row, of)))
            ]
            while True:
                if self.cut_pull_after is not None and sent >= self.cut_pull_after:
                    self.cut_pull_after = None
                    raise CallFailed("UNAVAILABLE", "", "the pull is cut", again=True)
                chunk, rows = rows[: self.chunk_rows], rows[self.chunk_rows :]
                sent += 1
                response = snapshot_pb2.PullResponse(
                    table=table.name,
                    arrow_ipc=_ipc(table, chunk, of) if chunk else b"",
                    done=not rows,
                    as_of=self.position(head),
                    resume=b"" if not rows else str(chunk[-1][0]).encode(),
                    state=self.state(),
                )
                its = [s for s in all_sums if s.table == table.name]
                if not rows and of is None:
                    response.sum.CopyFrom(its[0])
                elif not rows:
                    response.audiences.values.extend(sorted(mine))
                    response.sums.extend(s for s in its if s.audience in mine and s.count)
                yield response
                if not rows:
                    break

    def compare(self, requests: Iterator[snapshot_pb2.CompareRequest], timeout_s: float = 0) -> Any:
        """A table by key ranges."""
        self._called("compare")
        return AnswerStream(self._answers(requests))

    def _answers(self, requests: Iterator[snapshot_pb2.CompareRequest]) -> Iterator[snapshot_pb2.CompareResponse]:
        first = next(requests)
        table, view, head = self._table(first.table), self.view(first.node_state), self.server.head
        named = [dict(zip(table.column_names, row, strict=True)) for row in self.rows(table)]
        rows = [list(row.values()) for row in named if view.sees(table.name, row, head)]
        encoder, sums = RowEncoder(table), RangeSums()
        sums.add(encoder, rows)
        told = self.sums() if self._audience_of(table) is None else sums_of(table, rows, None, set())
        (total,) = (s for s in told if s.table == table.name)
        opening = snapshot_pb2.CompareResponse(as_of=self.position(head), sum=total, state=self.state())
        self.during_compare()
        yield opening
        yield snapshot_pb2.CompareResponse(sums=range_sums(sums, WHOLE), done=True)
        for request in requests:
            for one in request.split:
                yield snapshot_pb2.CompareResponse(sums=range_sums(sums, KeyRange(one.bits, one.prefix)))
            is_in = in_ranges(encoder, [KeyRange(one.bits, one.prefix) for one in request.read])
            for row in filter(is_in, rows):
                self.rows_compared += 1
                values = [column_writer(c)(cell) for c, cell in zip(table.columns, row, strict=True)]
                data = value_pb2.Row(values=values).SerializeToString()
                yield snapshot_pb2.CompareResponse(rows=[data[:5]], row_incomplete=True)
                yield snapshot_pb2.CompareResponse(rows=[data[5:]])
            yield snapshot_pb2.CompareResponse(done=True)


class _CarriedOverError(AnabranchError):
    """A batch is refused for the reason that it names."""


def _ipc(table: Table, rows: Sequence[Sequence[Cell]], of: AudienceOf | None) -> bytes:
    return arrow_ipc(table, rows, None if of is None else [audiences_of(table, row, of) for row in rows])
