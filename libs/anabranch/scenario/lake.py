"""The lake of a scenario: one run of the compactor, and its base view against the server's rows."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

from anabranch.columnar.lake import LakeError, LakeTable, table_files
from anabranch.columnar.manifest import from_json
from anabranch.runtime.compactor_job import program
from anabranch.scenario.rows import differences, server_cells
from anabranch.scenario.world import FellShort, World
from anabranch.store import compactions
from anabranch.store.file_codecs import file_codecs

_RUN_S = 300.0
_TOLD = 1_500


def compact(world: World) -> None:
    """Run the compactor once over the scenario's database, at the servers' time. Raises FellShort where it fails."""
    stack = world.ground.stack
    arguments, environment = program(stack.database_url, str(world.folder / "lake"), database=world.name)
    environment["ANABRANCH_CLOCK_FILE"] = str(stack.clock_file)
    began = time.monotonic()
    try:
        done = subprocess.run(
            arguments, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_RUN_S
        )
    except subprocess.TimeoutExpired:
        raise FellShort(f"the compactor was not done after {_RUN_S:g} s") from None
    world.lend(time.monotonic() - began)
    if done.returncode:
        raise FellShort(f"the compactor ended with {done.returncode}: {done.stderr[-_TOLD:]}")


def published_positions(world: World) -> set[int]:
    """The positions up to which the database's runs reach."""
    return {run.to_position for run in compactions.all_published(world.conn, world.database.id)}


def base_differences(world: World) -> Iterator[str]:
    """What differs between the base view and the server's rows, in words."""
    database = world.database
    published = compactions.last_published(world.conn, database.id, database.epoch)
    if published is None:
        yield "nothing is published"
        return
    manifest = from_json(published.manifest)
    for name, table in database.tables.items():
        try:
            columns = table_files(manifest, name).columns.table.columns
        except LakeError as error:
            yield f"{name}: {error}"
            continue
        lake = LakeTable(published.root, manifest, name, file_codecs(columns))
        rows = [tuple(row.get(column) for column in table.column_names) for row in lake.base().values()]
        yield from differences(table, rows, server_cells(world, table))
