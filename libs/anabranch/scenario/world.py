"""One scenario's world: its database on the ground, its nodes, its clocks, and the fault points that are armed.

State model of time: one common offset (``advance``), the servers' own, one for each node; every clock reads a file, so
that it holds for processes that are started later. Services that were armed to die are watched by a thread each, which
starts them again once they have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anabranch import faults
from anabranch.errors import AnabranchError
from anabranch.runtime.fleet import FleetError
from anabranch.scenario.ground import Ground
from anabranch.scenario.model import Scenario
from anabranch.scenario.naming import Naming, read_naming
from anabranch.scenario.node import Network, Node, NodeDiedError, RaisedError
from anabranch.scenario.values import Ids
from anabranch.scenario.who import People
from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.catalog import databases, registration
from anabranch.store.cells.binary_cells import quote
from anabranch.values import Table

DEFAULTS = {
    "order": "server",
    "resurrect": False,
    "delete": "rejects",
    "park_ms": 5000,
    "retention_days": 30,
    "max_absence_days": 30,
}
"""A database's policy where the file says nothing."""
_TABLES = """
select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relkind = 'r' and c.relpersistence = 'p' and not c.relispartition
      and exists (select from pg_constraint k where k.conrelid = c.oid and k.contype = 'p' and not exists (
          select from pg_attribute a where a.attrelid = c.oid and a.attnum = any(k.conkey)
                 and (a.attgenerated <> '' or a.attidentity = 'a')))
"""
_DAY_MS = 24 * 3600 * 1000
_WATCH_S = 0.2
_HEALS = 3
_LONGEST_S = 120.0
"""A story that takes longer than that falls short."""


class FellShortError(AnabranchError):
    """An expectation or a step of the file does not hold; the message says which."""


class NotYetError(AnabranchError):
    """A step that needs a part that does not exist yet."""

    def __init__(self, step: str) -> None:
        super().__init__(f"not yet: {step}")


class World:
    """The world of ``scenario``; ``folder`` takes the nodes' files. ``kept``: saved files of nodes, each with the
    schema version that the node had read. ``unsynced``: tables of the schema that were there and not registered when
    the story began. ``audience_of``: audience expressions, as they were given, by the tables' identities."""

    def __init__(self, ground: Ground, scenario: Scenario, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.ground = ground
        self.scenario = scenario
        self.folder = folder
        self.ids = Ids()
        self.nodes: dict[str, Node] = {}
        self.kept: dict[tuple[str, str], tuple[Path, int | None]] = {}
        self.unsynced: frozenset[str] = frozenset()
        self.audience_of: dict[str, str | None] = {}
        self.verdicts: dict[str, bytes] = {}
        self.name = ground.next_name()
        self.people = People(ground, scenario, self.ids, self.name)
        self.common_ms = 0
        self.server_ms = 0
        self._deadline = time.monotonic() + _LONGEST_S
        self._networks: dict[str, Network] = {}
        self._offsets: dict[str, int] = {}
        self._watched: dict[str, threading.Thread] = {}
        self._over = threading.Event()
        self.conn = ground.session()

    def left_s(self) -> float:
        """The seconds that are left for the story. Raises FellShortError where there are none."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise FellShortError(f"the story was not at its end after {_LONGEST_S:g} s")
        return left

    def lend(self, seconds: float) -> None:
        """Let the story take so many seconds longer, for a slow step."""
        self._deadline += seconds

    # The server

    @property
    def park_ms(self) -> int:
        """How long a batch of this database waits for an earlier batch or a row on which it depends."""
        return int(self.scenario.policy.get("park_ms", DEFAULTS["park_ms"]))

    def make_database(self) -> None:
        """Make the schema and its tables, and register them."""
        self.conn.execute(f"create schema {self.name}".encode())
        for table in self.scenario.tables:
            parts = [f"{quote(name)} {kind}" for name, kind in table.columns.items()]
            parts.append(f"primary key ({', '.join(quote(name) for name in table.key_columns)})")
            self.run_sql(f"create table {quote(table.name)} ({', '.join([*parts, *table.constraints])})")
        for statement in self.scenario.setup:
            self.run_sql(statement)
        registration.create_database(self.conn, self.name, self.name, {**DEFAULTS, **self.scenario.policy})
        for table in self.scenario.tables:
            self.register(table.name, table.policy, table.audience)
        if self.scenario.audiences is not None:
            set_audience_rules(self.conn, self.name, self.scenario.audiences.given)
        self.unsynced = self.tables_there() - {table.name for table in self.scenario.tables}

    def register(self, table: str, policy: Mapping[str, Any], audience: str | None) -> None:
        """Have a table synced."""
        registration.add_table(self.conn, self.name, table, policy, audience=audience)
        self.audience_of[table] = audience

    def tables_there(self) -> frozenset[str]:
        """The tables with a key that devices can make which the schema has now, synced or not."""
        return frozenset(name for (name,) in self.conn.execute(_TABLES, (self.name,)))

    def run_sql(self, text: str) -> None:
        """Run SQL as an application does, in one transaction, with the scenario's schema first in the search path."""
        with self.conn.transaction():
            self.conn.execute(f"set local search_path to {self.name}, public".encode())
            self.conn.execute(self.ids.in_sql(text).encode())

    @property
    def database(self) -> databases.Database:
        """The database as it is registered now."""
        return databases.load_database(self.conn, self.name)

    @property
    def naming(self) -> Naming:
        """The synced tables by their names, now and before."""
        database = self.database
        return read_naming(self.conn, self.name, database.ddl_version, database.tables_by_id)

    def table(self, name: str, node: Node | None = None) -> Table | None:
        """The synced table that is called so, on the server or for the app of ``node``; else the last one that was;
        None where none ever was."""
        version = None if node is None else node.pinned or node.version
        return self.naming.table(name, version)

    def relation(self, name: str) -> str:
        """The table of that name in the story's schema, as SQL takes it."""
        return f"{self.name}.{quote(name)}"

    def reconnect(self) -> None:
        """Open a new session, after the server was gone."""
        self.conn.close()
        self.conn = self.ground.session()

    # Time

    def set_clocks(self) -> None:
        """Write every clock's file with its current offset."""
        self.ground.stack.set_clock_offset(self.common_ms + self.server_ms)
        for node in self.nodes.values():
            node.set_clock(self.common_ms)

    def advance(self, days: float) -> None:
        """Let time pass for all."""
        self.common_ms += round(days * _DAY_MS)
        self.set_clocks()
        for node in self.nodes.values():
            self.attempt(node, "time_passed")

    def set_node_clock(self, name: str, offset_ms: int) -> None:
        """Set the offset of a node's clock, also of a node that is made later."""
        self._offsets[name] = offset_ms
        if name in self.nodes:
            self.nodes[name].offset_ms = offset_ms
            self.nodes[name].set_clock(self.common_ms)

    # Nodes

    def network(self, name: str) -> Network:
        """The state of a node's network, also of a node that is made later."""
        return self._networks.setdefault(name, Network())

    def add_node(self, name: str) -> Node:
        """A node that has no process and, unless a file is put there, no file yet."""
        file = self.folder / f"{len(self.nodes)}.db"
        spec = self.people.spec(name)
        chosen = {
            "tables": spec.tables,
            "audiences": self.ids.resolve(spec.audiences),
            "schema_version": spec.schema_,
        }
        options = {
            "name": name,
            "file": str(file),
            "db_name": self.name,
            "addresses": dict(self.ground.stack.addresses),
            "principal": self.people.principal(name),
            "token": self.people.token(name),
            "clock_file": str(file.with_suffix(".clock")),
            "fault_file": str(file.with_suffix(".faults")),
            "log": str(file.with_suffix(".log")),
            **{option: given for option, given in chosen.items() if given is not None},
        }
        node = Node(name, self.ground.nursery, options, self.network(name), self._offsets.get(name, 0))
        self.nodes[name] = node
        node.set_clock(self.common_ms)
        return node

    def renew_token(self, node: Node) -> None:
        """Give a node a token of what its people and their claims are now."""
        node.options.update(principal=self.people.principal(node.name), token=self.people.token(node.name))
        if node.has_process:
            self.attempt(node, "renew", again=True, token=node.options["token"])

    def start(self, node: Node) -> None:
        """Run a node's process and, if it can reach the server as far as it needs, start its SyncedDb. Raises
        RaisedError, FellShortError."""
        node.open()
        if node.started:
            return
        try:
            self.attempt(node, "start", again=True)
            node.started = True
            node.version = node.version or self.database.ddl_version
        except RaisedError as error:
            # Without a network, or after a pull that was cut, the node starts at its next sync.
            if not error.again:
                raise

    def attempt(self, node: Node, do: str, *, again: bool = False, **arguments: Any) -> Any:
        """Send a node a command. Where it dies at an armed fault point, it is started again, and then, if ``again``,
        gets the command once more. Raises RaisedError; FellShortError where it died for another reason."""
        for _ in range(len(faults.armed(node.fault_file)) + 1):
            before = faults.armed(node.fault_file)
            try:
                return node.ask(do, **arguments)
            except NodeDiedError as error:
                if faults.armed(node.fault_file) == before:
                    raise FellShortError(f"{error}, and nobody had armed that: {node.log_tail}") from None
            except TimeoutError as error:
                raise FellShortError(str(error)) from None
            node.open()
            if do != "start":
                self.start(node)
            if not again:
                return None
        raise FellShortError(f"{node.name} dies again and again at {do}")

    def online(self) -> list[Node]:
        """The nodes that have a network."""
        return [node for node in self.nodes.values() if not node.network.is_cut]

    # Deaths

    def crash(self, service: str) -> None:
        """Kill a service and start it again."""
        self.ground.stack.kill(service)
        self.ground.stack.start(service)
        self.ground.stack.wait_ready(service)

    def arm(self, service: str, point: str) -> None:
        """Have a service die at a fault point, once, and be started again."""
        deaths = self.ground.stack.arm(service, point)
        if service in self._watched:
            return
        watcher = threading.Thread(target=self._watch, args=(service, deaths), name=f"watch-{service}", daemon=True)
        watcher.start()
        self._watched[service] = watcher

    def _watch(self, service: str, deaths: int) -> None:
        while not self._over.is_set():
            try:
                self.ground.stack.wait_died(service, deaths, _WATCH_S)
            except TimeoutError:
                continue
            deaths += 1
            self.ground.stack.start(service)

    @property
    def has_armed(self) -> bool:
        """Whether services were armed to die, and are started again when they have."""
        return bool(self._watched)

    def never_reached(self) -> list[str]:
        """The fault points that were armed and that no process has reached."""
        found = [f"{name}: {p}" for name in self.ground.stack.addresses for p in self.ground.stack.armed(name)]
        return found + [f"{n.name}: {p}" for n in self.nodes.values() for p in faults.armed(n.fault_file)]

    def heal(self) -> None:
        """Start the services that are dead, and wait until all are ready."""
        for name in self.ground.stack.addresses:
            for attempt in range(1, _HEALS + 1):
                self.ground.stack.start(name)
                try:
                    self.ground.stack.wait_ready(name)
                    break
                except FleetError:
                    # The service died at its armed fault point during the wait.
                    if attempt == _HEALS:
                        raise

    def close(self) -> None:
        """End the nodes and the threads that watch services, and tidy the ground."""
        self._over.set()
        for watcher in self._watched.values():
            watcher.join()
        for node in self.nodes.values():
            node.kill()
        self.conn.close()
        self.ground.tidy()
