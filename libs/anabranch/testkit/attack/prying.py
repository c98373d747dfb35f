"""Calls of somebody who knows every key, every batch's id and the tokens of others, and asks for all of it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ulid import ULID

from anabranch.client import CallFailed
from anabranch.testkit.attack.hunted import DATABASE, TABLES, TEAMS, Known
from anabranch.testkit.attack.wiretap import TappedRemote, Wiretap
from anabranch.v1 import (
    batch_pb2,
    change_pb2,
    ingest_pb2,
    position_pb2,
    resolver_pb2,
    snapshot_pb2,
    value_pb2,
    verdict_pb2,
)

PAUSE_S = 0.01
MOST_RESPONSES = 30
MOST_AGO_S = 20.0


class Pryer:
    """Calls as ``principal``, with claims that change. ``failures``: how calls ended that failed, by their code."""

    def __init__(
        self,
        principal: str,
        addresses: Mapping[str, str],
        tap: Wiretap,
        sign: Callable[[str, Mapping[str, Any]], str],
        known: Known,
        chance: random.Random,
    ) -> None:
        self.principal = principal
        self.nodes = {str(ULID())}
        self.failures: dict[str, str] = {}
        self._known = known
        self._chance = chance
        self._remote = TappedRemote(
            tap,
            ingest=addresses["ingest"],
            snapshot=addresses["snapshot"],
            resolver=addresses["conflict-resolver"],
            token=lambda: sign(principal, {"teams": chance.sample(TEAMS, chance.randrange(2))}),
        )
        self._reached = 0
        self._node_token = b""
        self._unanswered: list[str] = []

    def run(self, stop: threading.Event) -> None:
        """Call until ``stop``."""
        calls = (
            self._get,
            self._subscribe,
            self._pull,
            self._compare,
            self._explain,
            self._send,
            self._conflicts,
            self._verdicts,
        )
        while not stop.wait(PAUSE_S):
            try:
                self._chance.choice(calls)()
            except CallFailed as error:
                self.failures[f"{error.code} {error.reason}"] = str(error)

    def close(self) -> None:
        """Close its connections."""
        self._remote.close()

    def _state(self) -> position_pb2.NodeState:
        chosen = [f"team:{team}" for team in self._chance.sample(TEAMS, self._chance.randrange(4))]
        held = position_pb2.HeldAudiences(
            digest=self._chance.choice([b"", bytes(16)]), chosen=self._chance.random() < 0.5, choice=chosen
        )
        node = batch_pb2.Node(id=self._chance.choice(sorted(self.nodes)), name=self.principal)
        return position_pb2.NodeState(node=node, held=held)

    def _token(self) -> bytes:
        """A token that was made for another call, at times for another principal's."""
        token: bytes = self._known.any(self._known.tokens, self._chance, b"")
        return token if self._chance.random() < 0.5 else b""

    def _keep(self, token: bytes) -> None:
        if token:
            self._known.note(self._known.tokens, token)

    def _after(self) -> int:
        return self._chance.choice([0, self._reached, max(0, self._reached - self._chance.randrange(1, 5_000))])

    def _get(self) -> None:
        request = change_pb2.GetRequest(
            db_name=DATABASE, node_state=self._state(), after=self._after(), page_token=self._token()
        )
        request.max_bytes = self._chance.choice([0, 1, 10_000])
        for _ in range(MOST_RESPONSES):
            answer = self._remote.get(request)
            self._reached = max(self._reached, answer.page.reached.server_timestamp_ms)
            self._keep(answer.next_page_token)
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    def _subscribe(self) -> None:
        request = change_pb2.SubscribeRequest(db_name=DATABASE, node_state=self._state(), after=self._after())
        stream = self._remote.subscribe(request)
        ending = threading.Timer(0.5, stream.cancel)
        ending.start()
        try:
            for _ in stream:
                pass
        except CallFailed as error:
            if error.code != "CANCELLED":
                raise
        finally:
            ending.cancel()

    def _pull(self) -> None:
        # Where it names some, its rows come from the tables.
        audiences = [f"team:{team}" for team in self._chance.sample(TEAMS, self._chance.choice([0, 0, 0, 1, 2]))]
        required = snapshot_pb2.RequiredTable(
            table=self._chance.choice(TABLES), resume=self._token(), audiences=audiences
        )
        request = snapshot_pb2.PullRequest(db_name=DATABASE, node_state=self._state())
        if self._chance.random() < 0.8:
            request.required.append(required)
        for chunk in self._remote.pull(request):
            self._keep(chunk.resume)

    def _compare(self) -> None:
        ranges = [snapshot_pb2.KeyRange(bits=0, prefix=0)]

        def requests() -> Iterator[snapshot_pb2.CompareRequest]:
            table = self._chance.choice(TABLES)
            yield snapshot_pb2.CompareRequest(db_name=DATABASE, node_state=self._state(), table=table)
            yield snapshot_pb2.CompareRequest(split=ranges, read=ranges)

        for _ in self._remote.compare(requests(), 20.0):
            pass

    def _explain(self) -> None:
        """Ask what would become of a batch on a key that is perhaps not seen."""
        envelope = batch_pb2.Envelope(payload=self._batch(ULID()).SerializeToString())
        self._remote.explain(resolver_pb2.ExplainRequest(db_name=DATABASE, node_state=self._state(), envelope=envelope))

    def _send(self) -> None:
        """Send a batch on a key that is perhaps not seen, as if it were written a while ago: one that loses is answered
        with the row as it stands."""
        batch = self._batch(ULID.from_timestamp(time.time() - self._chance.random() * MOST_AGO_S))
        request = ingest_pb2.SendRequest(
            db_name=DATABASE,
            node_state=self._state(),
            node_token=self._node_token,
            unanswered_batch_ids=self._unanswered,
            envelopes=[batch_pb2.Envelope(payload=batch.SerializeToString())],
        )
        answer = self._remote.send(request)
        self._node_token = answer.node_token
        answered = {one.batch_id for one in answer.verdicts if one.status != verdict_pb2.VERDICT_STATUS_PENDING}
        asked = dict.fromkeys([*self._unanswered, batch.id])
        self._unanswered = [one for one in asked if one not in answered][-MOST_RESPONSES:]
        self._known.note(self._known.batches, batch.id)

    def _batch(self, batch_id: ULID) -> batch_pb2.DbMutationBatch:
        key, title = self._known.any(self._known.jobs, self._chance, ""), self._known.marks.new(["by.device"])
        for mark in (key, title):
            self._known.note(self._known.sent, (self.principal, mark))
        batch = batch_pb2.DbMutationBatch(id=str(batch_id), db_name=DATABASE, schema_version=1)
        batch.node.id = next(iter(self.nodes))
        kind = self._chance.choice(
            [batch_pb2.MUTATION_TYPE_INSERT, batch_pb2.MUTATION_TYPE_UPDATE, batch_pb2.MUTATION_TYPE_DELETE]
        )
        columns = ["id"] if kind == batch_pb2.MUTATION_TYPE_DELETE else ["id", "title"]
        mutation = batch.mutations.add(table="job", type=kind, columns=columns)
        values = [value_pb2.Value(string_value=key), value_pb2.Value(string_value=title)]
        mutation.rows.add(values=values[: len(columns)])
        return batch

    def _conflicts(self) -> None:
        request = resolver_pb2.ListConflictsRequest(db_name=DATABASE, page_size=100, page_token=self._token())
        if self._chance.random() < 0.7:
            request.table = "job"
        if request.table and self._chance.random() < 0.5:
            key = self._known.any(self._known.jobs, self._chance, "")
            self._known.note(self._known.sent, (self.principal, key))
            request.key.append(value_pb2.Value(string_value=key))
        self._keep(self._remote.list_conflicts(request).next_page_token)

    def _verdicts(self) -> None:
        ids = [self._known.any(self._known.batches, self._chance, str(ULID())) for _ in range(20)]
        self._remote.get_verdict(resolver_pb2.GetVerdictRequest(db_name=DATABASE, batch_ids=ids))
