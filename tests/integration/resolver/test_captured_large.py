"""More captured changes than a group holds: backlogs, and transactions that are taken in pieces."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from anabranch.merge import SERVER_NODE
from anabranch.store.capture import captured, large
from anabranch.store.catalog.out_of_sync import mark_torn
from anabranch.store.inbox.claim import open_session, session_options
from anabranch.store.session.engine import Session
from anabranch.testkit.oracle import read_server, replay
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.captured import backlog, limits, pieces
from anabranch_conflict_resolver.group.cache import Cache
from anabranch_conflict_resolver.group.commit import commit_group
from anabranch_conflict_resolver.group.outcome import GroupLimits

MOST, PIECE = 40, 15
_LOOKED_AT = """
select coalesce(idx_tup_fetch, 0) + coalesce(seq_tup_read, 0) from pg_stat_user_tables
where schemaname = 'anabranch' and relname = 'captured'
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups hold few captured changes."""
    monkeypatch.setattr(limits, "MOST_ROWS", MOST)
    monkeypatch.setattr(pieces, "HELD_ROWS", MOST)
    monkeypatch.setattr(pieces, "PIECE_ROWS", PIECE)
    monkeypatch.setattr(pieces, "BUCKET_ROWS", PIECE)


def check(rig: ResolverRig) -> None:
    """The log leads to the rows, and nothing waits."""
    rig.check()
    server = read_server(rig.conn, rig.database)
    assert replay(server, {}) == server.rows
    assert rig.sql("select count(*) from anabranch.captured") == [(0,)]


def drain_all(rig: ResolverRig) -> None:
    """Commit groups until nothing waits; in between the rows are ahead of the log."""
    drain_unchecked(rig)
    check(rig)


def drain_unchecked(rig: ResolverRig) -> None:
    """Drain all, where the log lacks changes and is not compared with the rows."""
    assert rig.commit is not None
    for _ in range(100):
        if not rig.commit(rig.database.id, 1_000, 0):
            break


def groups(rig: ResolverRig) -> list[tuple[int, int]]:
    """Batches and changes of each group."""
    return rig.sql("select batches, changes from anabranch.groups order by position")


def another_session(rig: ResolverRig, *, statement_timeout_ms: int = 10_000) -> Session:
    """A resolver's session beside the rig's own."""
    options = session_options(statement_timeout_ms=statement_timeout_ms, lock_timeout_ms=250, idle_timeout_ms=5_000)
    return open_session(rig.url, options)


def commit_groups(rig: ResolverRig, session: Session, most: int) -> None:
    """So many groups of a resolver that knows nothing yet, or fewer, where nothing waits any more."""
    cache = Cache()
    for _ in range(most):
        outcome = commit_group(
            session, cache, rig.database.id, most=100, now_ms=rig.time_ms, clock_offset_ms=0, limits=GroupLimits()
        )
        if not outcome.taken and not outcome.drained:
            break


@pytest.mark.usefixtures("small")
def test_a_backlog_is_drained_before_the_batches_by_whole_transactions(rig: ResolverRig) -> None:
    node = rig.node("a")
    for i in range(10):
        rig.sql(f"insert into app.todo select '{i}-' || j, 'milk', false from generate_series(1, 12) j")
    made = node.send(node.make(("insert", "todo", [{"id": "mine", "title": "t"}])))
    drain_all(rig)
    assert rig.outcome(made) == ["APPLIED"]
    assert groups(rig) == [(3, 36), (3, 36), (3, 36), (2, 13)]
    check(rig)


@pytest.mark.usefixtures("small")
def test_a_large_transaction_is_one_batch_of_one_group(rig: ResolverRig) -> None:
    node = rig.node("a")
    waits = node.send(node.make(("update", "todo", [{"id": "n7", "done": True}])))
    rig.sql("insert into app.todo select 'n' || j, 'milk', false from generate_series(1, 100) j")
    drain_all(rig)
    assert groups(rig)[0] == (1, 100)
    assert rig.outcome(waits) == "ROW_DELETED", "somebody else inserted it after the basis"
    ordinals = [o for (o,) in rig.sql("select ordinal from anabranch.log where node_id = %s order by 1", [SERVER_NODE])]
    assert ordinals == list(range(100))
    rig.sql("truncate app.todo")
    rig.sql("insert into app.todo values ('n1', 'anew', true)")
    drain_all(rig)
    [(tombstones,)] = rig.sql("select count(*) from anabranch.row_versions where tombstone_batch is not null")
    assert tombstones == 99


@pytest.mark.usefixtures("small")
def test_a_row_changed_in_several_pieces(rig: ResolverRig) -> None:
    with rig.session() as somebody:
        for title in ("one", "two", "three"):
            somebody.execute(
                "insert into app.todo select 'n' || j, %s, false from generate_series(1, 50) j"
                " on conflict (id) do update set title = excluded.title",
                [title],
            )
        somebody.execute("delete from app.todo where id < 'n3'")
    drain_all(rig)
    assert groups(rig)[0][0] == 1
    check(rig)


@pytest.mark.usefixtures("small")
def test_a_large_transaction_in_which_keys_change_places(make_rig: Any) -> None:
    rig = make_rig("create table todo (id int, title text, primary key (id) deferrable initially deferred)")
    rig.sql("insert into app.todo select j, 'n' || j from generate_series(1, 100) j")
    drain_all(rig)
    rig.sql("update app.todo set id = id + 1")
    drain_all(rig)
    assert groups(rig) == [(1, 100), (1, 200)]
    check(rig)


@pytest.mark.usefixtures("small")
def test_a_large_transaction_with_triggers_that_change_its_rows_again(make_rig: Any) -> None:
    again = """;
    create function again() returns trigger language plpgsql as $f$ begin
        if new.title not like '%!' then update app.todo set title = title || '!' where id = new.id; end if;
        return null;
    end $f$;
    create trigger again after insert or update on todo for each row execute function again()
    """
    rig = make_rig("create table todo (id text primary key, title text)" + again)
    rig.sql("insert into app.todo select 'n' || j, 'milk' from generate_series(1, 60) j")
    drain_all(rig)
    assert groups(rig) == [(1, 120)]
    check(rig)


@pytest.mark.usefixtures("small")
def test_a_large_transaction_whose_rows_foreign_keys_set_to_null_and_then_delete(make_rig: Any) -> None:
    """All deletes are captured before all updates, as the first that was queued was a delete."""
    tables = """
    create table list (id int primary key);
    create table todo (id int primary key, goes int references list (id) on delete cascade,
                       home int references list (id) on delete set null)
    """
    rig = make_rig(tables, {"list": None, "todo": None})
    rig.sql("insert into app.list select j from generate_series(1, 40) j")
    rig.sql("insert into app.todo values (0, 1, 40)")
    rig.sql("insert into app.todo select j, j + 1, j from generate_series(1, 39) j")
    drain_all(rig)
    rig.sql("delete from app.list")
    of_todo = "select array_agg(type order by id) from anabranch.captured where table_id = %s"
    [(kinds,)] = rig.sql(of_todo, [rig.database.tables["todo"].id])
    assert kinds == [3] * 40 + [2] * 39
    drain_all(rig)
    assert groups(rig)[-1] == (1, 119)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("torn_between", [True, False], ids=["between", "behind"])
def test_a_large_transaction_with_keys_that_change_places_beside_a_torn_table(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch, torn_between: bool
) -> None:
    """A row of the torn table is no change and an updated key is two: as many changes as rows tell of nothing."""
    monkeypatch.setattr(pieces, "BUCKET_ROWS", 24)

    def of(self: Any, place: Any) -> int:
        return int.from_bytes(place[1][0], "big") % len(self.ids)

    monkeypatch.setattr(pieces._Buckets, "of", of)
    rig = make_rig(
        "create table t (id int primary key, n int);"
        "create table u (id int, made int, primary key (id) deferrable initially deferred)",
        {"t": None, "u": None},
    )
    rig.sql("insert into app.t select j, 0 from generate_series(1, 98) j")
    rig.sql("insert into app.u select j, j from generate_series(1, 49) j")
    drain_all(rig)
    mark_torn(rig.conn, rig.database.id, "t")
    with rig.session() as somebody:
        # Each takes the key that the next one gives up.
        for i in range(1, 50):
            somebody.execute("update app.u set id = id + 1 where made = %s", [i])
            if torn_between:
                somebody.execute("update app.t set n = n + 1 where id between %s and %s", [2 * i - 1, 2 * i])
        if not torn_between:
            somebody.execute("update app.t set n = n + 1")
    drain_unchecked(rig)
    assert rig.sql("select count(*) from anabranch.captured") == [(0,)]
    of_u = "select key::int, array_agg(type order by ordinal) from anabranch.log where position = %s group by key"
    assert dict(rig.sql(of_u, [rig.head])) == {1: [3], **{key: [3, 1] for key in range(2, 50)}, 50: [1]}


@pytest.mark.usefixtures("small")
def test_a_row_that_a_large_transaction_changes_very_often_is_told_by_its_ends(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter beside many inserts, a row that comes and goes, one that comes back to what it was, and ordinary ones
    in the same buckets."""
    monkeypatch.setattr(pieces, "OFTEN", 10)
    monkeypatch.setattr(pieces, "HELD_ROWS", 20)
    monkeypatch.setattr(pieces, "BUCKET_ROWS", 1_000)
    counting = """;
    create function counting() returns trigger language plpgsql as $f$ begin
        update app.list set touched = touched + 1 where id = 'counted';
        update app.list set touched = 1 - touched where id = 'swings';
        if new.id % 2 = 0 then insert into app.list values ('comes and goes', new.id);
        else delete from app.list where id = 'comes and goes'; end if;
        return null;
    end $f$;
    create trigger counting after insert on todo for each row execute function counting()
    """
    tables = "create table todo (id int primary key, title text); create table list (id text primary key, touched int)"
    rig = make_rig(tables + counting, {"todo": None, "list": None})
    rig.sql("insert into app.list values ('counted', 0), ('swings', 0), ('comes and goes', 0), ('quiet', 0)")
    drain_all(rig)
    with rig.session() as somebody:
        somebody.execute("update app.list set touched = 7 where id = 'quiet'")
        somebody.execute("insert into app.todo select j, 'milk' from generate_series(1, 60) j")
        somebody.execute("update app.list set touched = 8 where id = 'quiet'")
    drain_all(rig)
    of_list = "select key, count(*) from anabranch.log where position = %s and table_id = %s group by key"
    assert dict(rig.sql(of_list, [rig.head, rig.database.tables["list"].id])) == {
        "counted": 1,
        "comes and goes": 2,
        "quiet": 2,
    }
    assert groups(rig)[-1] == (1, 65)


def looked_at(rig: ResolverRig, session: Session, transactions: int, changes: int) -> float:
    """At how many captured rows Postgres looks for each change while so many transactions of so many changes are
    drained in a session; skips where that can't be asked to tell at once."""
    if rig.conn.info.server_version < 150000:
        pytest.skip("the server has no pg_stat_force_next_flush: it came with Postgres 15")
    before = rig.sql(_LOOKED_AT)[0][0]
    insert = f"insert into app.todo select %s || j, 'milk', false from generate_series(1, {changes}) j"
    for i in range(transactions):
        rig.sql(insert, [f"{transactions}-{i}-"])
    commit_groups(rig, session, 2 * transactions)
    # A session tells of what it has looked at itself, and once it is in no transaction.
    session.execute("select pg_stat_force_next_flush()")
    session.commit()
    looked = rig.sql(_LOOKED_AT)[0][0] - before
    assert looked >= changes * transactions, "each is looked at, once at least"
    check(rig)
    return float(looked) / (changes * transactions)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_work_for_a_change_does_not_grow_with_what_waits_behind_it(rig: ResolverRig) -> None:
    """Postgres looks at as many captured rows for each, however many transactions wait."""
    with another_session(rig) as session:
        looked_at(rig, session, 5, 8)
        few, many = looked_at(rig, session, 25, 8), looked_at(rig, session, 200, 8)
    assert many < 1.5 * few + 3, f"{few:.1f} rows looked at for each change where 200 wait, {many:.1f} where 1,600 do"


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_nor_where_each_transaction_is_taken_in_pieces(rig: ResolverRig) -> None:
    with another_session(rig) as session:
        looked_at(rig, session, 2, 50)
        few, many = looked_at(rig, session, 5, 50), looked_at(rig, session, 40, 50)
    assert many < 1.5 * few + 3, f"{few:.1f} rows looked at for each change where 250 wait, {many:.1f} where 2,000 do"


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_scan_of_a_backlog_has_a_time_limit_of_its_own(rig: ResolverRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take longer than any other statement of a group; what comes after it may not."""
    slow = b"where (select true from pg_sleep(2.5)) and database_id"
    scan = large.FIRST_TO_END.replace(b"where database_id", slow)
    assert scan != large.FIRST_TO_END
    monkeypatch.setattr(large, "FIRST_TO_END", scan)
    timeouts: list[Any] = []
    read_whole = large.read_whole

    def and_look(conn: Any, *arguments: Any) -> Any:
        asked = "select current_setting('statement_timeout'), current_setting('transaction_timeout', true)"
        timeouts.append(conn.execute(asked).fetchone())
        return read_whole(conn, *arguments)

    monkeypatch.setattr(backlog, "read_whole", and_look)
    for i in range(10):
        rig.sql(f"insert into app.todo select '{i}-' || j, 'milk', false from generate_series(1, 12) j")
    with another_session(rig, statement_timeout_ms=2_000) as session:
        commit_groups(rig, session, 4)
    check(rig)
    assert groups(rig) == [(3, 36), (3, 36), (3, 36), (1, 12)]
    assert set(timeouts) == {("2s", "6s" if rig.conn.info.server_version >= 170000 else None)}


@pytest.mark.usefixtures("small")
def test_a_large_transaction_whose_rows_are_gone_holds_up_nothing(rig: ResolverRig) -> None:
    """Another session drained it, or its table was removed, after a group had found it."""
    assert rig.commit is not None
    for name in "abc":
        rig.sql("insert into app.todo select %s || j, 'milk', false from generate_series(1, 100) j", [name])
    rig.commit(rig.database.id, 1_000, 0)
    with another_session(rig) as session:
        commit_groups(rig, session, 2)
    made = rig.node("a").insert("todo", {"id": "mine", "title": "t"})
    drain_all(rig)
    assert rig.outcome(made) == ["APPLIED"]
    assert groups(rig) == [(1, 100), (1, 100), (1, 100), (1, 1)]


@pytest.mark.usefixtures("small")
def test_a_backlog_that_another_session_has_drained_is_looked_at_anew(rig: ResolverRig) -> None:
    assert rig.commit is not None
    for i in range(20):
        rig.sql(f"insert into app.todo select '{i}-' || j, 'milk', false from generate_series(1, 12) j")
    rig.commit(rig.database.id, 1_000, 0)
    with another_session(rig) as session:
        commit_groups(rig, session, 3)
    drain_all(rig)
    assert sum(changes for _, changes in groups(rig)) == 240


@pytest.mark.usefixtures("small")
def test_a_crowd_of_transactions_that_overlap_is_drained_in_an_order_that_fits(rig: ResolverRig) -> None:
    rig.sql("insert into app.todo values ('shared', '0', false)")
    long = rig.session()
    long.execute("insert into app.todo select 'l' || j, 'long', false from generate_series(1, 30) j")
    for i in range(1, 15):
        rig.sql(f"update app.todo set title = '{i}' where id = 'shared'")
        rig.sql(f"insert into app.todo select '{i}-' || j, 'milk', false from generate_series(1, 5) j")
    long.execute("update app.todo set title = 'last' where id = 'shared'")
    long.commit()
    long.close()
    drain_all(rig)
    assert rig.sql("select count(distinct position) from anabranch.log where key like 'l%'") == [(1,)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_memory_does_not_follow_the_size_of_a_transaction(rig: ResolverRig) -> None:
    rows = 150_000
    rig.sql("insert into app.todo select 'w' || j, repeat('x', 200), false from generate_series(1, 30000) j")
    drain_all(rig)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rig.sql(f"insert into app.todo select 'n' || j, repeat('x', 200), false from generate_series(1, {rows}) j")
    rig.group()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert groups(rig)[-1] == (1, rows)
    assert grown < 60 * 2**20, f"{grown / 2**20:.0f} MiB for images of {rows * 250 / 2**20:.0f} MiB"


def test_large_rows_are_taken_by_their_bytes(rig: ResolverRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_BYTES", 2_000)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 2_000)
    sizes: list[int] = []
    for module, name in ((captured, "read"), (large, "read_of"), (large, "read_whole")):
        real = getattr(module, name)

        def measured(*arguments: Any, real: Any = real) -> Any:
            rows = real(*arguments)
            sizes.append(captured.size(rows))
            return rows

        monkeypatch.setattr(module, name, measured)
    for i in range(10):
        rig.sql(f"insert into app.todo values ('{i}', repeat('x', 500), false)")
    rig.sql("insert into app.todo select 'n' || i, repeat('x', 500), false from generate_series(1, 20) i")
    rig.sql("insert into app.todo values ('large', repeat('x', 5000), false)")
    drain_all(rig)
    assert [batches for batches, _ in groups(rig)] == [3, 3, 3, 1, 1, 1]
    assert (1, 20) in groups(rig)
    assert max(sizes) < 2_000 + 5_100
    assert sorted(set(sizes))[-2] < 2_700
