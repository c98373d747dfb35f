"""Direct transactions against device batches, in every order that chance gives: sessions that stay open, commit while a
group runs, roll back, or undo a savepoint; cascades and triggers of both. However they fall, the log leads to exactly
the rows of the tables, and the sums are those of the rows. The oracle reads only tables."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anabranch.clock import Clock
from anabranch.merge import SERVER_NODE
from anabranch.store.inbox.claim import open_session, session_options
from anabranch.store.session.engine import Session
from anabranch.store.session.errors import PostgresError
from anabranch.testkit.oracle import read_server, replay
from anabranch.testkit.resolver_rig import ResolverRig, RigNode
from anabranch_conflict_resolver.group import attempt as deciding
from anabranch_conflict_resolver.group import records, waves
from anabranch_conflict_resolver.group.cache import Cache
from anabranch_conflict_resolver.group.commit import commit_group
from anabranch_conflict_resolver.group.outcome import GroupLimits

INTERLEAVINGS = int(os.environ.get("ANABRANCH_INTERLEAVINGS", "300"))
_FIXTURES = 6
_STEPS = 28
_KEYS = 5

TABLES = """
create table list (id text primary key, name text, touched bigint);
create table todo (id text primary key, list_id text references list (id) on delete cascade, title text, done boolean);
create table pin (id text primary key, list_id text references list (id) on delete set null, label text unique);
create table plain (id text primary key, title text, done boolean);
create function touch() returns trigger language plpgsql as $f$ begin
    update app.list set touched = coalesce(touched, 0) + 1 where id = new.list_id;
    return null;
end $f$;
create trigger touch after insert or update on todo for each row execute function touch();
create function back() returns trigger language plpgsql as $f$ begin
    if new.title like 'bad%' then update app.todo set title = old.title where id = new.id; end if;
    return null;
end $f$;
create trigger back after update on todo for each row execute function back()
"""
NAMES = {"list": None, "todo": None, "pin": {"delete": "wins"}, "plain": {"order": "edit"}}


class Play:
    """One rig, played on again and again: its rows are emptied by nobody, so that histories grow long."""

    def __init__(self, url: str) -> None:
        self.random = random.Random(0)
        options = session_options(statement_timeout_ms=10_000, lock_timeout_ms=30, idle_timeout_ms=5_000)
        self.session = open_session(url, options)
        self.cache = Cache()
        self.rig = ResolverRig(url, TABLES, NAMES, commit=self._commit)
        self.nodes: list[RigNode] = [self.rig.node(name) for name in ("a", "b", "c")]
        self.open: list[Session] = []
        self.quick = self.rig.session()
        self.quick.execute("set lock_timeout = '5ms'")
        self.quick.commit()
        self.meanwhile: Callable[[], None] | None = None

    def close(self) -> None:
        for session in [*self.open, self.quick]:
            session.close()
        self.rig.close()
        self.session.close()

    def _commit(self, database_id: int, most: int, offset_ms: int) -> int:
        outcome = commit_group(
            self.session,
            self.cache,
            database_id,
            most=most,
            now_ms=Clock(offset_ms).now_ms(),
            clock_offset_ms=offset_ms,
            limits=GroupLimits(busy_ms=1),
        )
        return outcome.taken + outcome.drained

    def key(self, table: str) -> str:
        return f"{table[0]}{self.random.randrange(_KEYS)}"

    def sql(self) -> str:
        """A statement of somebody's."""
        draw = self.random
        word = f"{draw.choice(['bad', 'good', 'fair'])}{draw.randrange(1_000)}"
        some = f"id in ('{self.key('todo')}', '{self.key('todo')}')"
        return draw.choice(
            [
                f"insert into app.list values ('{self.key('list')}', '{word}', 0) on conflict (id) do update"
                f" set name = excluded.name",
                f"insert into app.todo select 't' || i, '{self.key('list')}', '{word}', false"
                f" from generate_series(0, 2) i on conflict do nothing",
                f"insert into app.pin values ('{self.key('pin')}', '{self.key('list')}', '{draw.randrange(3)}')",
                f"insert into app.plain values ('{self.key('x')}', '{word}', true) on conflict (id) do update"
                f" set title = '{word}'",
                f"update app.todo set title = '{word}' where {some}",
                f"update app.todo set done = not done, list_id = '{self.key('list')}'",
                f"update app.plain set done = not done where id <= '{self.key('x')}'",
                f"update app.list set name = '{word}' where id = '{self.key('list')}'",
                f"update app.plain set id = '{self.key('x')}' where id = '{self.key('x')}'",
                f"delete from app.list where id = '{self.key('list')}'",
                f"delete from app.todo where {some}",
                f"delete from app.pin where id = '{self.key('pin')}'",
                f"with gone as (delete from app.plain where id = '{self.key('x')}' returning *)"
                f" insert into app.plain select 'x9' || id, title, done from gone on conflict do nothing",
                "truncate app.plain" if draw.random() < 0.1 else "update app.list set touched = touched",
            ]
        )

    def statement(self, session: Session) -> None:
        """Run one; what Postgres refuses, or somebody else holds, ends the transaction."""
        try:
            if self.random.random() < 0.2:
                session.execute("savepoint s")
                session.execute(self.sql().encode())
                session.execute("rollback to savepoint s")
            session.execute(self.sql().encode())
        except PostgresError:
            session.rollback()

    def direct(self) -> None:
        """Something of a direct transaction: a step of one that is open, or a whole one."""
        draw = self.random
        if len(self.open) < 3 and draw.random() < 0.5:
            session = self.rig.session()
            session.execute("set lock_timeout = '15ms'")
            session.commit()
            self.open.append(session)
        if not self.open:
            return
        session = draw.choice(self.open)
        for _ in range(draw.randrange(3)):
            self.statement(session)
        ending = draw.random()
        if ending < 0.5:
            session.commit()
        elif ending < 0.6:
            session.rollback()

    def at_once(self) -> None:
        """A transaction of one or two statements."""
        for _ in range(self.random.randrange(1, 3)):
            self.statement(self.quick)
        self.quick.commit()

    def batch(self) -> None:
        """A batch of a device, of what it saw long ago or just now."""
        draw = self.random
        node = draw.choice(self.nodes)
        if draw.random() < 0.6:
            node.see()
        changes: list[Any] = []
        for table in draw.sample(["list", "todo", "pin", "plain"], draw.choice([1, 1, 2])):
            key = self.key("x" if table == "plain" else table)
            verb = draw.choice(["insert", "update", "update", "delete"])
            row: dict[str, Any] = {"id": key}
            if verb != "delete":
                column = {"list": "name", "todo": "title", "pin": "label", "plain": "title"}[table]
                row[column] = f"{draw.choice(['bad', 'dev'])}{draw.randrange(5)}"
                if table in ("todo", "pin") and draw.random() < 0.6:
                    row["list_id"] = self.key("list")
            changes.append((verb, table, [row]))
        node.send(node.make(*changes))

    def group(self) -> None:
        """A group, into which somebody may write at any of its stages."""
        draw = self.random
        self.meanwhile = draw.choice([None, self.direct, self.at_once, self.at_once])
        self.committed(draw.choice([1, 3, 100]))
        self.meanwhile = None

    def committed(self, most: int) -> int:
        """Commit a group; how much it took. What fails for nobody's fault is tried again later, as a worker does."""
        assert self.rig.commit is not None
        try:
            return self.rig.commit(self.rig.database.id, most, 0)
        except PostgresError:
            assert not self.session.closed
            return 1

    def play(self, seed: int) -> None:
        self.random = random.Random(seed)
        for _ in range(_STEPS):
            self.random.choice([self.direct, self.direct, self.batch, self.group])()
        for session in self.open:
            (session.commit if self.random.random() < 0.7 else session.rollback)()
        for _ in range(200):
            if not self.committed(100) and not self.rig.sql(
                "select from anabranch.inbox where park_deadline_ms < extract(epoch from clock_timestamp()) * 1000 + 50"
            ):
                break
        self.check(seed)

    def check(self, seed: int) -> None:
        self.rig.check()
        server = read_server(self.rig.conn, self.rig.database)
        assert replay(server, {}) == server.rows, f"seed {seed}: the log does not lead to the rows"
        [(left,)] = self.rig.sql("select count(*) from anabranch.captured")
        assert left == 0, f"seed {seed}: captured changes are left"
        wrong = self.rig.sql(
            "select l.key, l.position from anabranch.log l join anabranch.row_versions v using (table_id, key)"
            " where l.type <> 4 and l.position > v.last_position"
        )
        assert not wrong, f"seed {seed}: histories are behind the log"
        gone = self.rig.sql(
            "select key from (select distinct on (table_id, key) table_id, key, type from anabranch.log where type <> 4"
            " order by table_id, key, position desc, batch_id desc, ordinal desc) l"
            " join anabranch.row_versions v using (table_id, key) where (l.type = 3) <> (v.tombstone_batch is not null)"
        )
        assert not gone, f"seed {seed}: tombstones are not those of the log"
        many = self.rig.sql(
            "select v.key from anabranch.row_versions v, jsonb_each(stamps) s"
            " where (s.value ->> 3)::bigint > v.last_position"
        )
        assert not many, f"seed {seed}: a column was written after its row"
        split = self.rig.sql(
            "select batch_id from anabranch.log where node_id = %s"
            " group by batch_id having count(distinct position) > 1",
            [SERVER_NODE],
        )
        assert not split, f"seed {seed}: a transaction is at two positions"


@pytest.fixture
def play(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    made = Play(migrated_url)

    def into(module: Any, name: str) -> None:
        """Somebody may write before ``name`` and after it."""
        real = getattr(module, name)

        def with_others(*arguments: Any, **named: Any) -> Any:
            if made.meanwhile is not None and made.random.random() < 0.5:
                made.meanwhile()
            result = real(*arguments, **named)
            if made.meanwhile is not None and made.random.random() < 0.5:
                made.meanwhile()
            return result

        monkeypatch.setattr(module, name, with_others)

    into(waves, "run_wave")
    into(deciding, "_load")
    into(deciding, "finish")
    into(records, "gather")
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(_FIXTURES))
def test_direct_transactions_against_batches(play: Play, part: int) -> None:
    for seed in range(part, INTERLEAVINGS, _FIXTURES):
        play.play(seed)
    kinds = {node for (node,) in play.rig.sql("select distinct node_id from anabranch.batches where status = 1")}
    assert SERVER_NODE in kinds
    assert len(kinds) > 1, "no device was ever accepted"
