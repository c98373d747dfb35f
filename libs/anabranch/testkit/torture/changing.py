"""The part of a fault run in which DDL changes tables: their database, the nodes that write it, and who alters it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from anabranch.store.catalog import databases, registration
from anabranch.store.session.engine import Session
from anabranch.testkit.stack import Stack
from anabranch.testkit.torture import changing_tables, checks
from anabranch.testkit.torture.alterer import KINDS
from anabranch.testkit.torture.changing_checks import Changed
from anabranch.testkit.torture.checks import Check
from anabranch.testkit.torture.processes import Node
from anabranch.testkit.torture.proxy import Proxy

NODES = 2
WANTED = frozenset(f"DDL: {kind}" for kind in KINDS)
_MODULES = "anabranch.testkit.torture"


class Changing:
    """``nodes`` write over ``proxies``, one for each; ``alterers`` run the DDL, with pauses of at most ``pause_s``
    seconds. ``leave`` ends them all."""

    def __init__(
        self,
        conn: Session,
        stack: Stack,
        folder: Path,
        seed: int,
        proxy: Callable[[int], Proxy],
        leave: ExitStack,
        *,
        pause_s: float,
    ) -> None:
        conn.execute(changing_tables.SQL.encode())
        registration.create_database(conn, changing_tables.NAME, changing_tables.NAME, changing_tables.POLICY)
        for table in changing_tables.FIRST:
            registration.add_table(conn, changing_tables.NAME, table)
        self.proxies = [proxy(number) for number in range(NODES)]
        self._files = [folder / f"changing-{number}.db" for number in range(NODES)]
        self.nodes = [
            Node(
                f"{_MODULES}.node",
                f"changing-node-{number}",
                folder,
                {
                    "db": changing_tables.NAME,
                    "file": str(file),
                    "remote": dict.fromkeys(("ingest", "snapshot", "resolver"), own.address),
                    "key": stack.new_key(f"changing-{number}", database=changing_tables.NAME),
                    "seed": seed * NODES + number,
                    "changing": True,
                },
            )
            for number, (file, own) in enumerate(zip(self._files, self.proxies, strict=True))
        ]
        spec = {"url": stack.database_url, "seed": seed, "pause_s": pause_s}
        self.alterers = [Node(f"{_MODULES}.alterer", "alterer", folder, spec)]
        for own in self.proxies:
            leave.callback(own.close)
        for process in (*self.nodes, *self.alterers):
            leave.callback(process.close)
            process.start()

    def stop(self) -> None:
        """End the writing and the DDL."""
        for process in (*self.nodes, *self.alterers):
            process.tell("stop")
        for alterer in self.alterers:
            alterer.hear_until("stopped")

    def drained(self, conn: Session) -> Changed:
        """The end, once all queues are empty and everything is read. Raises AssertionError."""
        number = databases.load_database(conn, changing_tables.NAME).id
        ends = checks.drain(self.nodes, conn, number)
        return Changed(
            conn,
            databases.load_database(conn, changing_tables.NAME),
            [checks.recorded_by(node, end["dead"]) for node, end in zip(self.nodes, ends, strict=True)],
            ends,
            self._files,
            self.alterers,
        )


def promises(changed: Changed, *, with_lake: bool) -> Mapping[str, Check]:
    """The checks by promise. ``with_lake``: everything was compacted, too."""
    lake = {"changing tables: the lake": checks.promise(changed.check_lake, "rows in files as on the server")}
    return {**changed.promises(), **(lake if with_lake else {})}


def kinds_done(alterers: Sequence[Node]) -> Mapping[str, int]:
    """How many transactions with each kind of DDL were committed."""
    counted = dict.fromkeys(WANTED, 0)
    for alterer in alterers:
        for line in alterer.lines():
            if "did" in line:
                counted[f"DDL: {line['did']}"] += 1
    return counted
