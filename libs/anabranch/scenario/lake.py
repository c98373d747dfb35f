"""The lake of a scenario: one run of the compactor, one sweep of the janitor, and a comparison of the lake's rows with
the server's."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import grpc

from anabranch.columnar.lake import LakeError
from anabranch.columnar.row_states import Row
from anabranch.runtime.compactor_job import program
from anabranch.scenario.audiences import server_cells
from anabranch.scenario.rows import differences
from anabranch.scenario.world import FellShortError, World
from anabranch.store.lake import compactions
from anabranch.store.lake.source import open_lake
from anabranch.v1 import retention_pb2, retention_pb2_grpc
from anabranch.values import Table

_RUN_S = 300.0
_SWEEP_S = 60.0
_AGAIN_S = 0.05
_SHOWN = 1_500


def compact(world: World) -> None:
    """Run the compactor once over the scenario's database, at the servers' time. FellShortError where it fails."""
    stack = world.ground.stack
    _, environment = program(stack.database_url, str(world.folder / "lake"), database=world.name)
    environment["ANABRANCH_CLOCK_FILE"] = str(stack.clock_file)
    began = time.monotonic()
    try:
        done = world.ground.compactor.run(environment, _RUN_S)
    except subprocess.TimeoutExpired:
        raise FellShortError(f"the compactor was not done after {_RUN_S:g} s") from None
    world.lend(time.monotonic() - began)
    if done.returncode:
        raise FellShortError(f"the compactor ended with {done.returncode}: {done.stderr[-_SHOWN:]}")


def sweep(world: World) -> None:
    """Have the janitor sweep the scenario's database to the end. Raises FellShortError where it fails."""
    stack = world.ground.stack
    request = retention_pb2.RunSweepRequest(db_name=world.name)
    metadata = (("authorization", f"Bearer {stack.key}"),)
    until = time.monotonic() + _SWEEP_S
    with grpc.insecure_channel(stack.addresses["retention-janitor"]) as channel:
        janitor = retention_pb2_grpc.RetentionJanitorServiceStub(channel)
        while time.monotonic() < until:
            try:
                response = janitor.RunSweep(request, metadata=metadata, timeout=_SWEEP_S, wait_for_ready=True)
            except grpc.RpcError as error:
                # The janitor is in a sweep that it began by itself, or was killed during one.
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise FellShortError(f"the sweep failed: {error.details()}") from None
                time.sleep(_AGAIN_S)
                continue
            if not response.unfinished:
                return
    raise FellShortError(f"the sweep was not done after {_SWEEP_S:g} s")


def published_positions(world: World) -> set[int]:
    """The positions up to which the database's runs reach."""
    return {run.to_position for run in compactions.all_published(world.conn, world.database.id)}


def lake_differences(world: World) -> Iterator[str]:
    """Differences between the server's rows and those of the lake, in words: of the base, and of the rows as of the
    head, which are put together from every change."""
    database = world.database
    if compactions.last_published(world.conn, database.id, database.epoch) is None:
        yield "nothing is published"
        return
    head = compactions.read_head(world.conn, database.id)
    for name, table in database.tables.items():
        try:
            source = open_lake(world.conn, database, name)
        except LakeError as error:
            yield f"{name}: {error}"
            continue
        wanted = server_cells(world, table)
        yield from _differences(table, source.lake.rows().values(), wanted, "the base of ")
        yield from _differences(
            table, source.lake.as_of(head, source.tail(world.conn)).values(), wanted, "lake rows of "
        )


def _differences(table: Table, found: Iterable[Row], wanted: Sequence[Sequence[Any]], where: str) -> Iterator[str]:
    rows = list(found)
    unknown = [row for row in rows if any(name not in row for name in table.column_names)]
    if unknown:
        yield f"{where}{table.name}: {len(unknown)} rows are not known as a whole, such as {unknown[0]}"
        return
    cells = [tuple(row[name] for name in table.column_names) for row in rows]
    yield from (where + text for text in differences(table, cells, wanted))
