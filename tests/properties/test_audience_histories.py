"""The device's file against what its principal may see: random histories of two devices with audiences of their own,
and of a server where rows move from one audience to another, memberships come and go, alone or together with rows,
and tokens change.

After every step the file is consistent: exactly the base's rows of restricted tables have their audiences kept, the
sums of audiences are those of the rows, and none of the rows is there through lost audiences alone. After a read to the
log's head, and at the end, a device shows exactly the rows that its set shows, and no sum disagrees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.client import CallFailed, Change, NotReady, RowExists, RowMissing, State, SyncedDb
from anabranch.client.file import audience_sums, row_audiences
from anabranch.client.reading import audience_checks, gains, held
from anabranch.client.reading.sums import base_rows
from anabranch.merge import MutationType, Policy
from anabranch.testkit.memory_messages import AnswerStream
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable, Row
from anabranch.testkit.own_folder import MEMORY
from anabranch.values import Column, Kind, Table
from anabranch.values.canonical import table_sum
from anabranch.wire.audiences import digest

FEW_EXAMPLES, EXAMPLES, MANY_EXAMPLES = 25, 400, 3_000
TEAMS = ("a", "b", "c")


def table(name: str, *columns: str) -> Table:
    return Table(name, tuple(Column(c, Kind.STRING, "text") for c in ("id", *columns)), ("id",))


COLUMNS: dict[str, tuple[str, ...]] = {
    "job": ("team", "other", "title"),
    "room": ("team", "title"),
    "note": ("title",),
}
TABLES = [table(name, *columns) for name, columns in COLUMNS.items()]
PRINCIPALS = ("alice", "bob")


def of_job(row: Row) -> list[str]:
    return [f"team:{row[c]}" for c in ("team", "other") if row[c] is not None]


def of_room(row: Row) -> list[str]:
    return [] if row["team"] is None else [f"team:{row['team']}"]


def the_server() -> MemoryServer:
    tables = {
        "job": MemoryTable(dict.fromkeys(("id", *COLUMNS["job"])), audience=of_job),
        "room": MemoryTable(dict.fromkeys(("id", *COLUMNS["room"])), audience=of_room),
        "note": MemoryTable(dict.fromkeys(("id", *COLUMNS["note"]))),
    }
    server = MemoryServer(tables, Policy(), park_ms=50)
    for number in range(9):
        key, team = f"r{number}", TEAMS[number % 3]
        other = TEAMS[number // 3] if number % 2 else None
        server.preset("job", key, {"id": key, "team": team, "other": other, "title": "before"})
        server.preset("room", key, {"id": key, "team": team, "title": "before"})
    server.preset("note", "r0", {"id": "r0", "title": "before"})
    server.sets = {"alice": frozenset({"team:a"}), "bob": frozenset({"team:b", "team:c"})}
    return server


class Remote(MemoryRemote):
    """Makes a pull's answers at once, so that all happens in one thread, and changes the server between calls:
    ``meanwhile`` holds changes, one of which is made before each page of the log."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.meanwhile: list[Any] = []

    def pull(self, request: Any) -> Any:
        self._called("pull", request.node_state)
        answers: list[Any] = []
        try:
            # Answers before a cut stay.
            answers.extend(self._chunks(request))
        except CallFailed as error:
            return AnswerStream(failing(answers, error))
        return AnswerStream(iter(answers))

    def get(self, request: Any) -> Any:
        if self.meanwhile and not request.page_token:
            self.meanwhile.pop()()
        return super().get(request)


def failing(answers: list[Any], error: CallFailed) -> Iterator[Any]:
    yield from answers
    raise error


names = st.sampled_from(["job", "job", "room", "note"])
keys = st.sampled_from([f"r{n}" for n in range(11)])
teams = st.sampled_from([*TEAMS, *TEAMS, None])
changes = st.tuples(
    names, st.sampled_from(["insert", "update", "update", "move", "move", "delete"]), keys, teams, teams
)
sets = st.frozensets(st.sampled_from([f"team:{t}" for t in TEAMS]))
sql = st.tuples(st.just("sql"), st.integers(0, 1), st.lists(changes, min_size=1, max_size=4))
grant = st.tuples(st.just("grant"), st.integers(0, 1), st.tuples(sets, st.lists(changes, max_size=3)))
claim = st.tuples(st.just("claim"), st.integers(0, 1), sets)
write = st.tuples(st.just("write"), st.integers(0, 1), st.lists(changes, min_size=1, max_size=2))
choose = st.tuples(st.just("choose"), st.integers(0, 1), st.none() | sets)
meanwhile = st.tuples(st.just("meanwhile"), st.integers(0, 1), sql | grant)
other = st.tuples(
    st.sampled_from(["read", "read", "read", "flush", "cut", "offline", "online", "reopen", "behind", "lose"]),
    st.integers(0, 1),
    st.integers(1, 4),
)
histories = st.lists(sql | grant | grant | claim | write | choose | meanwhile | other | other, min_size=6, max_size=20)


class World:
    """Two devices of two principals on one server."""

    def __init__(self, folder: Path, page_parts: int, part_effects: int) -> None:
        self.now = 1_700_000_000_000
        self.server = the_server()
        self.server.head = self.now - 1
        self.remotes = [Remote(self.server, TABLES, lambda: self.now, principal) for principal in PRINCIPALS]
        for remote in self.remotes:
            remote._sums, remote.known_audiences = self.remotes[0]._sums, self.remotes[0].known_audiences
            remote.page_parts, remote.part_effects = page_parts, part_effects
        self.remotes[0].sums()
        self.paths = [folder / "a.db", folder / "b.db"]
        self.chosen: list[frozenset[str] | None] = [None, None]
        self.mirrors: list[dict[tuple[str, str], Any]] = [{}, {}]
        self.seen: Counter[str] = Counter()
        self.wrong: list[State] = []
        self.devices = [self.open(i) for i in range(2)]
        for device in self.devices:
            device.start(background=False)

    def open(self, i: int) -> SyncedDb:
        device = SyncedDb(
            self.paths[i], self.remotes[i], "d", PRINCIPALS[i], now_ms=lambda: self.now, audiences=self.chosen[i]
        )
        device.on_change(lambda change: self.mirror(i, change))
        device.on_state(self.hear)
        # Rows that the choice gives up are gone before anybody can listen.
        self.mirrors[i] = shown(device)
        return device

    def hear(self, state: State) -> None:
        if state.kind in ("set_aside", "sums_disagree", "error"):
            self.wrong.append(state)

    def mirror(self, i: int, change: Change) -> None:
        row = (change.table, change.key[0])
        if change.type == "delete":
            assert self.mirrors[i].pop(row, None) is not None, f"deleted what was not there: {change}"
        else:
            assert (change.type == "insert") is (row not in self.mirrors[i]), change
            self.mirrors[i][row] = dict(change.row or {})

    def step(self, action: str, i: int, argument: Any) -> None:
        self.now += 7
        remote, device = self.remotes[i], self.devices[i]
        if action == "sql":
            remote.write([self.by_sql(*change) for change in argument])
        elif action == "grant":
            audiences, rows = argument
            remote.write([self.by_sql(*change) for change in rows], {PRINCIPALS[i]: audiences})
        elif action == "claim":
            self.server.claims[PRINCIPALS[i]] = argument
        elif action == "write":
            self.write(device, argument)
        elif action == "meanwhile":
            remote.meanwhile.append(lambda: self.step(*argument))
        elif action in ("read", "flush"):
            self.sync(i, action)
        elif action == "cut":
            remote.cut_pull_after = argument
        elif action == "lose":
            remote.lose_answers = argument
        elif action in ("offline", "online"):
            remote.offline = action == "offline"
        elif action == "behind":
            remote.floor = self.server.head
        else:
            if action == "choose":
                self.chosen[i] = argument
            device.close()
            self.devices[i] = self.open(i)
            self.check(i)
            self.devices[i].start(background=False)

    def sync(self, i: int, action: str) -> None:
        device, remote = self.devices[i], self.remotes[i]
        try:
            if action == "flush":
                device.flush(0.05)
                return
            device.read()
        except CallFailed as error:
            self.seen["failed"] += 1
            if not error.again:
                raise
            return
        current = device._file.current()
        if not remote.meanwhile and device.status().queued == 0 and current.cursor_ms == self.server.head:
            self.seen["read"] += 1
            assert shown(device) == self.visible(i)
            assert not current.gains_due or not held.owed(device._file.reader(), device._file.tables().values())

    def visible(self, i: int) -> dict[tuple[str, str], Any]:
        """The rows of the server that a device is to show: a model of its own."""
        principal, choice = PRINCIPALS[i], self.chosen[i]
        mine = self.server.sets[principal] | self.server.claims.get(principal, frozenset())
        if choice is not None:
            mine &= choice
        of = {"job": of_job, "room": of_room}
        return {
            (name, key): dict(row)
            for (name, key), row in self.server.live().items()
            if name not in of or mine.intersection(of[name](row))
        }

    def by_sql(self, name: str, kind: str, key: str, team: Any, other: Any) -> tuple[str, MutationType, str, Row]:
        values = {"id": key, **self.values(name, team, other)}
        if kind == "insert":
            return name, MutationType.INSERT, key, values
        if kind == "delete":
            return name, MutationType.DELETE, key, {}
        changed = [c for c in values if c in ("team", "other")] if kind == "move" else ["title"]
        return name, MutationType.UPDATE, key, {c: values[c] for c in changed or ["title"]}

    def values(self, name: str, team: Any, other: Any) -> dict[str, Any]:
        values = {"team": team, "other": other, "title": f"at {self.now}"}
        return {c: values[c] for c in COLUMNS[name]}

    def write(self, device: SyncedDb, wanted: list[Any]) -> None:
        with device.batch():
            for name, kind, key, team, other in wanted:
                values = self.values(name, team, other)
                synced = device.table(name)
                try:
                    if kind == "insert":
                        synced.insert({"id": key, **values})
                    elif kind == "delete":
                        synced.delete(key)
                    else:
                        moves = {c: v for c, v in values.items() if c != "title"} if kind == "move" else {}
                        synced.update({"id": key, **(moves or {"title": values["title"]})})
                except (RowMissing, RowExists, NotReady):
                    pass  # The batch goes on without it.

    def check(self, i: int) -> None:
        """The file is consistent."""
        device = self.devices[i]
        assert self.mirrors[i] == shown(device)
        assert not self.wrong, "a device mends itself, and here nothing is to be mended"
        with device._file.transaction() as tx:
            all_held = held.held(tx.conn)
            assert tx.state.held_digest in (b"", digest(all_held))
            choice = tx.state.chosen_audiences
            assert choice is None or all_held <= choice
            for name, one in tx.tables.items():
                (stage,) = tx.conn.execute("SELECT stage FROM _db_tables WHERE name = ?", (name,)).fetchone()
                rows = list(base_rows(tx.conn, one))
                kept = dict(
                    tx.conn.execute("SELECT key, audiences FROM _db_row_audiences WHERE tbl = ?", (name,)).fetchall()
                )
                assert kept.keys() == ({one.key_text(one.key_of(row)) for row in rows} if one.restricted else set())
                if stage == "new":
                    continue
                kept_sum = tx.conn.execute("SELECT count, hash FROM _db_tables WHERE name = ?", (name,)).fetchone()
                count, total = table_sum(one.encoder, rows)
                assert kept_sum == (count, total.to_bytes(16, "big"))
                found = audience_checks.totals(tx.conn, one, rows)
                complete = audience_sums.complete(tx.conn, name)
                assert complete <= all_held
                assert one.restricted or not complete
                assert audience_sums.all_of(tx.conn, name) == {
                    audience: (n, audience_sums.as_bytes(total))
                    for audience in complete
                    for n, total in [found.by_audience.get(audience, (0, 0))]
                }

    def settle(self) -> None:
        for remote in self.remotes:
            remote.offline, remote.lose_answers, remote.cut_pull_after = False, 0, None
            remote.meanwhile.clear()
        for _ in range(4):
            for device in self.devices:
                self.now += 60
                device.flush(0.05)
                self.now += 60
                self.remotes[0].commit()
                device.read()


def shown(device: SyncedDb) -> dict[tuple[str, str], Any]:
    out: dict[tuple[str, str], Any] = {}
    for name in device._file.tables():
        columns = ("id", *COLUMNS[name])
        for row in device.execute(f'SELECT {", ".join(columns)} FROM "{name}"'):
            out[name, row[0]] = dict(zip(columns, row, strict=True))
    return out


def tell(history: list[tuple[str, int, Any]], slice_s: float, page_parts: int, part_effects: int) -> Counter[str]:
    with TemporaryDirectory(dir=MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(gains, "SLICE_S", slice_s)
        patch.setattr(row_audiences, "_AT_ONCE", 2)
        world = World(Path(folder), page_parts, part_effects)
        try:
            for action, i, argument in history:
                world.step(action, i, argument)
                world.check(i)
            world.settle()
            for i, device in enumerate(world.devices):
                world.check(i)
                assert shown(device) == world.visible(i)
                status = device.status()
                assert (status.queued, status.disagreeing) == (0, ())
                assert device.verify() == ()
                assert device.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            return world.seen
        finally:
            for device in world.devices:
                device.close()


TEAM = {team: frozenset({f"team:{team}"}) for team in TEAMS}
TOLD: list[tuple[str, int, Any]] = [
    ("read", 0, 1),
    ("grant", 0, (TEAM["a"] | TEAM["b"], [("job", "move", "r0", "b", None)])),
    ("cut", 0, 1),
    ("read", 0, 1),
    ("sql", 0, [("job", "move", "r1", "c", "a"), ("job", "update", "r4", None, None)]),
    ("meanwhile", 0, ("sql", 0, [("job", "insert", "r9", "b", "c"), ("job", "delete", "r7", None, None)])),
    ("reopen", 0, 1),
    ("read", 0, 1),
    ("write", 0, [("job", "update", "r4", None, None)]),
    ("grant", 0, (TEAM["c"], [("room", "delete", "r2", None, None)])),
    ("flush", 0, 1),
    ("read", 0, 1),
    ("claim", 0, TEAM["a"]),
    ("read", 0, 1),
    ("choose", 0, TEAM["a"]),
    ("read", 0, 1),
    ("choose", 0, None),
    ("read", 0, 1),
    ("behind", 1, 1),
    ("read", 1, 1),
    # Seen through a gained audience alone, and gone, in one group.
    ("grant", 1, (TEAM["a"], [("job", "move", "r1", "a", "a"), ("job", "delete", "r1", None, None)])),
    ("read", 1, 1),
]
"""Every sort of change once, whatever is drawn."""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("slice_s", [0.0, 100.0], ids=["chunk by chunk", "at once"])
def test_a_device_shows_what_its_principal_may_see(slice_s: float) -> None:
    tell_histories(slice_s, FEW_EXAMPLES)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("slice_s", [0.0, 100.0], ids=["chunk by chunk", "at once"])
def test_hundreds_of_histories_end_so(slice_s: float) -> None:
    tell_histories(slice_s, EXAMPLES)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("slice_s", [0.0, 100.0], ids=["chunk by chunk", "at once"])
def test_thousands_of_histories_end_so(slice_s: float) -> None:
    tell_histories(slice_s, MANY_EXAMPLES)


def tell_histories(slice_s: float, examples: int) -> None:
    seen = tell(TOLD, slice_s, 3, 2)
    assert seen["read"] > 3, seen

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(history=histories, page_parts=st.integers(1, 4), part_effects=st.integers(1, 3))
    def told(history: list[tuple[str, int, Any]], page_parts: int, part_effects: int) -> None:
        tell(history, slice_s, page_parts, part_effects)

    told()
