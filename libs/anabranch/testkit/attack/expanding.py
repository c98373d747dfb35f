"""Batches whose values are small as they travel and large as Postgres gives them back."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping

from ulid import ULID

from anabranch.testkit.attack.calls import judge, judge_verdict
from anabranch.testkit.attack.phases import Phases
from anabranch.testkit.attack.target import Findings, Target
from anabranch.testkit.ingest_rig import Device, FailedCallError
from anabranch.v1 import batch_pb2, value_pb2, verdict_pb2

CALL_S = 10.0
PAUSE_S = 0.25
ROWS = 3_000
MOST_BATCHES = 40
"""Batches whose rows are there; the rows of older ones are deleted, so that the table grows for a while only."""

_Value = value_pb2.Value


def send_expanding(target: Target, chance: random.Random, stop: Phases, found: Findings) -> None:
    """Send until ``stop``."""
    device = Device(target.addresses["ingest"], target.device_key, target.db_name)
    rows: deque[list[str]] = deque()
    made = batch_pb2.DbMutationBatch()
    while not stop.rest(PAUSE_S):
        old = rows.popleft() if len(rows) >= MOST_BATCHES else []
        name = "deletes" if old else chance.choice(list(_MADE))

        def make(batch: batch_pb2.DbMutationBatch, name: str = name, old: list[str] = old) -> None:
            batch.ClearField("mutations")
            if old:
                _delete(batch, old)
            else:
                _MADE[name](batch, chance)
            made.CopyFrom(batch)

        try:
            answer = device.send(device.payload(change=make), timeout_s=CALL_S)
        except FailedCallError as error:
            judge(f"expanding: {name}", error, [], found)
            # The token of the lost answer is unknown: a new node goes on.
            device = Device(device.address, device.key, device.db_name)
            continue
        for verdict in answer.verdicts:
            judge_verdict(f"expanding: {name}", verdict, found)
            if verdict.status == verdict_pb2.VERDICT_STATUS_APPLIED and not old:
                rows.append(_keys(made))


def _keys(batch: batch_pb2.DbMutationBatch) -> list[str]:
    """The keys of the rows that a batch inserts into ``item``."""
    inserts = [mutation for mutation in batch.mutations if mutation.table == "item"]
    return [row.values[0].string_value for mutation in inserts for row in mutation.rows]


def _delete(batch: batch_pb2.DbMutationBatch, keys: list[str]) -> None:
    mutation = batch.mutations.add(table="item", type=batch_pb2.MUTATION_TYPE_DELETE, columns=["id"])
    for key in keys:
        mutation.rows.add(values=[_Value(string_value=key)])


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
