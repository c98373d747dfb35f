"""V03: ten thousand devices sync once, and no process has more series for it than for ten."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import grpc
import psycopg
import pytest
from ulid import ULID

from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.exposition import page
from anabranch.testkit.stack import Stack
from anabranch.v1 import (
    batch_pb2,
    change_pb2,
    change_pb2_grpc,
    ingest_pb2,
    ingest_pb2_grpc,
    position_pb2,
    value_pb2,
    verdict_pb2,
)

DEVICES = 10_000
AT_ONCE = 64
READ_EVERY = 10
MOST_SERIES = 2_000
DATABASE = "many"
CALL_TIMEOUT_S = 60.0


def _request(number: int) -> ingest_pb2.SendRequest:
    """The call of a new device that has made one row."""
    node = batch_pb2.Node(id=str(ULID()), name=f"device-{number}")
    row = [value_pb2.Value(string_value=f"row-{number}"), value_pb2.Value(string_value="made offline")]
    mutation = batch_pb2.DbMutation(
        table="item",
        type=batch_pb2.MUTATION_TYPE_INSERT,
        columns=["id", "body"],
        rows=[value_pb2.Row(values=row)],
    )
    batch = batch_pb2.DbMutationBatch(id=str(ULID()), db_name=DATABASE, node=node, mutations=[mutation])
    return ingest_pb2.SendRequest(
        db_name=DATABASE,
        node_state=position_pb2.NodeState(node=node),
        envelopes=[batch_pb2.Envelope(payload=batch.SerializeToString())],
    )


async def _sync_all(stack: Stack, key: str) -> int:
    """Every device sends its batch, and one of ten reads on; how many were applied."""
    metadata = (("authorization", f"Bearer {key}"),)
    numbers = iter(range(DEVICES))
    applied = 0

    async def some() -> None:
        nonlocal applied
        async with (
            grpc.aio.insecure_channel(stack.addresses["ingest"]) as ingest,
            grpc.aio.insecure_channel(stack.addresses["snapshot"]) as snapshot,
        ):
            sender, reader = ingest_pb2_grpc.IngestServiceStub(ingest), change_pb2_grpc.ChangeServiceStub(snapshot)
            for number in numbers:
                request = _request(number)
                answer = await sender.Send(request, timeout=CALL_TIMEOUT_S, metadata=metadata)
                applied += sum(one.status == verdict_pb2.VERDICT_STATUS_APPLIED for one in answer.verdicts)
                if number % READ_EVERY == 0:
                    asked = change_pb2.GetRequest(
                        db_name=DATABASE, node_state=request.node_state, after=answer.verdicts[0].position
                    )
                    await reader.Get(asked, timeout=CALL_TIMEOUT_S, metadata=metadata)

    await asyncio.gather(*itertools.starmap(some, [()] * AT_ONCE))
    return applied


def _series(address: str) -> list[str]:
    return [line.rpartition(" ")[0] for line in page(address).splitlines() if line and not line.startswith("#")]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_ten_thousand_devices_make_no_series_of_their_own(databases: TestDatabases, tmp_path: Path) -> None:
    url = databases.fresh()
    with Stack(url, folder=tmp_path) as stack:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("create schema many")
            conn.execute("create table many.item (id text primary key, body text)")
        with connect(url, application_name="test", autocommit=True) as session:
            create_database(session, DATABASE, "many")
            add_table(session, DATABASE, "item")
        assert asyncio.run(_sync_all(stack, stack.new_key("fleet", database=DATABASE))) == DEVICES
        for name, address in stack.metrics_addresses.items():
            found = _series(address)
            assert 20 < len(found) < MOST_SERIES, (name, len(found))
            for series in found:
                assert "device-" not in series
                assert "row-" not in series
                assert "fleet" not in series
    databases.release(url)
