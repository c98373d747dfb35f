"""The state of a file, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.client.file import choice as choosing
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.queue import statements
from anabranch.client.reading import held, sums


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a file. Positions are in milliseconds. ``unsent``: batches without a verdict; ``queued``: those
    included that have one and wait for the log; ``pulls``: snapshots taken; ``disagreeing``: tables whose sums are
    not the server's; ``chosen``: the tables that the device has chosen, None for all; ``awaited``: those of them
    whose rows are not here yet, because they wait to be pulled or the server has no table of that name;
    ``set_aside``: tables that take no change until their rows are pulled again; ``audiences``: those that the
    device holds, some of whose rows may still have to be pulled; ``clock_skew_ms``: how far the device's clock is
    ahead of the server's, as of the last answer to this process, None before the first one; ``schema_version``: the
    database's, as the tables here are, 0 where that is not known; ``needs_schema_version``: the least that the app
    has to be built for by now, 0 where its own, or today's, can be told."""

    node_id: str
    cursor: int
    unsent: int
    queued: int
    dead: int
    pulls: int
    leader: bool
    disagreeing: tuple[str, ...]
    chosen: tuple[str, ...] | None = None
    awaited: tuple[str, ...] = ()
    audiences: tuple[str, ...] = ()
    clock_skew_ms: int | None = field(default=None, compare=False)
    schema_version: int = 0
    needs_schema_version: int = 0
    set_aside: tuple[str, ...] = ()


def of_file(file: DeviceFile, *, leader: bool, clock_skew_ms: int | None) -> Status:
    """The state of ``file``; the arguments hold the parts that only the process knows."""
    conn = file.reader()
    current = file.current()
    (unsent,) = conn.execute("SELECT count(*) FROM _db_mutations_queue WHERE server_timestamp_ms IS NULL").fetchone()
    (dead_letters,) = conn.execute("SELECT count(*) FROM _db_mutations_queue_dead").fetchone()
    choice = current.choice
    tables = file.tables()
    stages = dict(conn.execute("SELECT name, stage FROM _db_tables WHERE stage != 'new'").fetchall())
    pulled = [table for table in tables.values() if table.name in stages]
    return Status(
        node_id=current.node_id,
        cursor=current.cursor_ms,
        unsent=unsent,
        queued=statements.count(conn),
        dead=dead_letters,
        pulls=current.pulls,
        leader=leader,
        disagreeing=tuple(sorted(map(tables.told, sums.disagreements(conn)))),
        chosen=None if choice is None else tuple(sorted(choice)),
        awaited=tuple(choosing.lacking(choice or (), pulled)),
        audiences=tuple(sorted(held.held(conn))),
        clock_skew_ms=clock_skew_ms,
        schema_version=current.ddl_version,
        needs_schema_version=current.needs_version,
        set_aside=tuple(sorted(tables.told(name) for name, stage in stages.items() if stage == "aside")),
    )
