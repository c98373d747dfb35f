"""Batches whose values are small as they travel and large as Postgres gives them back."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping

import grpc
from ulid import ULID

from anabranch.testkit.attack.calls import judge
from anabranch.testkit.attack.target import Findings, Target
from anabranch.testkit.echo import bearer
from anabranch.v1 import batch_pb2, errors_pb2, ingest_pb2, ingest_pb2_grpc, position_pb2, value_pb2, verdict_pb2

CALL_S = 10.0
PAUSE_S = 0.25
ROWS = 3_000

_Value = value_pb2.Value


def send_expanding(target: Target, chance: random.Random, stop: threading.Event, found: Findings) -> None:
    """Send until ``stop``."""
    node = batch_pb2.Node(id=str(ULID()), name="expanding")
    token = b""
    with grpc.insecure_channel(target.addresses["ingest"]) as channel:
        stub = ingest_pb2_grpc.IngestServiceStub(channel)
        while not stop.wait(PAUSE_S):
            batch = batch_pb2.DbMutationBatch(id=str(ULID()), db_name=target.db_name, node=node, schema_version=1)
            name = chance.choice(list(_MADE))
            _MADE[name](batch, chance)
            request = ingest_pb2.SendRequest(
                db_name=target.db_name,
                node_state=position_pb2.NodeState(node=node),
                node_token=token,
                envelopes=[batch_pb2.Envelope(payload=batch.SerializeToString())],
            )
            try:
                answer: ingest_pb2.SendResponse = stub.Send(request, timeout=CALL_S, metadata=bearer(target.device_key))
            except grpc.RpcError as error:
                judge(f"expanding: {name}", error, [], found)
                # The token of the lost answer is unknown: a new node goes on.
                node, token = batch_pb2.Node(id=str(ULID()), name="expanding"), b""
                continue
            token = answer.node_token
            for verdict in answer.verdicts:
                status = verdict_pb2.VerdictStatus.Name(verdict.status).removeprefix("VERDICT_STATUS_")
                reason = errors_pb2.Reason.Name(verdict.reason).removeprefix("REASON_")
                found.answer(f"expanding: {name} {status} {reason}")
                if verdict.reason == errors_pb2.REASON_INTERNAL:
                    found.breach(f"a verdict INTERNAL for {name}", verdict.message)


def _insert(batch: batch_pb2.DbMutationBatch, rows: int, column: str, value: _Value) -> None:
    mutation = batch.mutations.add(table="item", type=batch_pb2.MUTATION_TYPE_INSERT, columns=["id", "body", column])
    for _ in range(rows):
        mutation.rows.add(values=[_Value(string_value=str(ULID())), _Value(string_value="x"), value])


def _numerics(batch: batch_pb2.DbMutationBatch, chance: random.Random) -> None:
    exponent = chance.choice([131_071, 16_383, -16_383, 2_000])
    _insert(batch, ROWS, "n", _Value(decimal_value=f"1e{exponent}"))


def _numbers_in_json(batch: batch_pb2.DbMutationBatch, chance: random.Random) -> None:
    text = "[" + ",".join(["1e131071"] * 400) + "]"
    _insert(batch, chance.choice([1, 100]), "doc", _Value(json_value=text))


def _deep_json(batch: batch_pb2.DbMutationBatch, chance: random.Random) -> None:
    depth = chance.choice([100, 10_000, 1_000_000])
    _insert(batch, 1, "doc", _Value(json_value="[" * depth + "]" * depth))


def _odd_keys(batch: batch_pb2.DbMutationBatch, chance: random.Random) -> None:
    table, key = chance.choice(
        [
            ("by_label", _Value(text_literal="nothing like it")),
            ("by_domain", _Value(int64_value=-5)),
            ("by_day", _Value(date_days=2**31 - 1)),
            ("by_uuid", _Value(uuid_value="x")),
        ]
    )
    mutation = batch.mutations.add(table=table, type=batch_pb2.MUTATION_TYPE_INSERT, columns=["id", "body"])
    mutation.rows.add(values=[key, _Value(string_value="x")])


def _many_rows(batch: batch_pb2.DbMutationBatch, chance: random.Random) -> None:
    """Each of them fires a trigger that writes more."""
    _insert(batch, 5_000, "n", _Value(decimal_value="1"))


_MADE: Mapping[str, Callable[[batch_pb2.DbMutationBatch, random.Random], None]] = {
    "numerics": _numerics,
    "numbers in json": _numbers_in_json,
    "deep json": _deep_json,
    "odd keys": _odd_keys,
    "many rows": _many_rows,
}
