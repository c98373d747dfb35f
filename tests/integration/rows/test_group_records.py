"""A group commit records every field where it belongs, and records that are not there are noticed."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors

from anabranch.merge.model import RowVersion, Stamp
from anabranch.store.group import records, versions
from anabranch.store.group.records import BatchRow, ConflictRow, GroupRow, Head, LogRow, SumRow
from anabranch.store.group.versions import VersionRow
from anabranch.store.log.seal import EMPTY_CHAIN
from anabranch.store.session.at_once import together
from anabranch.store.session.channels import GROUPS_CHANNEL
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.cell_strategies import texts


@pytest.fixture
def database(conn: Session) -> int:
    conn.execute("truncate anabranch.databases, anabranch.log, anabranch.row_versions cascade")
    row = conn.execute(
        """insert into anabranch.databases (name, schema_name, epoch, seal_key, created_ms)
           values ('d', 'app', 'e', 'x', 0) returning id"""
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture
def table(conn: Session, database: int) -> int:
    row = conn.execute(
        """insert into anabranch.synced_tables
           (database_id, name, columns, key_columns, registered_ms, first_position)
           values (%s, 't', '[]', '{id}', 0, 0) returning id""",
        [database],
    ).fetchone()
    assert row is not None
    return int(row[0])


def stored(conn: Session, table: str) -> list[tuple[object, ...]]:
    return conn.execute(f"select * from anabranch.{table} order by 1, 2, 3, 4".encode()).fetchall()


def test_the_head_is_the_last_group(conn: Session, database: int) -> None:
    assert records.read_head(conn, database) == Head(0, EMPTY_CHAIN)
    for position, chain in ((2**41 + 5, b"a" * 16), (2**41 + 7, b"b" * 16), (2**41 + 6, b"c" * 16)):
        records.write_group(conn, database, position, GroupRow(2, 3, chain, [b"sum", b""]))
    assert records.read_head(conn, database) == Head(2**41 + 7, b"b" * 16)
    assert records.read_head(conn, database + 1) == Head(0, EMPTY_CHAIN)
    assert stored(conn, "groups")[0] == (database, 2**41 + 5, 2, 3, b"a" * 16, [b"sum", b""], True)


def test_the_log_keeps_every_field(conn: Session, database: int) -> None:
    names = ("a", 'q"', "NULL", "", "back\\slash", "{}", "é,")
    rows = [
        LogRow("b1", 0, "n1", 7, "k", 2, b"\x00effect", names, b"h" * 16),
        LogRow("b1", 1, "n1", 8, '["a","b"]', 1, b"", (), b"i" * 16),
        LogRow("b2", 0, "n2", 7, "ü\U0001f600", 4, b"x" * 5_000, ("a",), b"j" * 16),
    ]
    records.write_log(conn, database, 2**41, rows)
    assert stored(conn, "log") == [
        (database, 2**41, "b1", 0, "n1", 7, "k", 2, b"\x00effect", list(names), b"h" * 16, None, None),
        (database, 2**41, "b1", 1, "n1", 8, '["a","b"]', 1, b"", [], b"i" * 16, None, None),
        (database, 2**41, "b2", 0, "n2", 7, "ü\U0001f600", 4, b"x" * 5_000, ["a"], b"j" * 16, None, None),
    ]


def test_verdicts_conflicts_and_sums_keep_every_field(conn: Session, database: int, table: int) -> None:
    batches = [
        BatchRow("b2", "n1", "p1", b"s" * 32, 1, 0, 4, b"v1"),
        BatchRow("b1", "n2", "p2", b"t" * 32, 2, 6, 5, b""),
    ]
    records.write_batches(conn, database, 9, 99, batches)
    assert stored(conn, "batches") == [
        (database, "b1", "n2", "p2", b"t" * 32, 2, 6, 9, 5, b"", 99),
        (database, "b2", "n1", "p1", b"s" * 32, 1, 0, 9, 4, b"v1", 99),
    ]
    lost = ("k", "", b"lost", "b0", "n0", "b1", "n1")
    conflicts = [
        ConflictRow("b1", 3, table, *lost),
        ConflictRow("b1", 4, table, *lost, ("team:1",), (), 1),
    ]
    records.write_conflicts(conn, database, 9, conflicts)
    assert stored(conn, "conflicts") == [
        (database, 9, "b1", 3, table, *lost, None, None, 0),
        (database, 9, "b1", 4, table, *lost, ["team:1"], [], 1),
    ]
    records.write_sums(conn, 9, [SumRow(table, 5, b"a" * 16)])
    records.write_sums(conn, 10, [SumRow(table, 2**40, b"b" * 16)])
    assert stored(conn, "table_sums") == [(table, 10, 2**40, b"b" * 16)]


names = st.text("ABC0123456789", min_size=1, max_size=26)
positions = st.integers(0, 2**62)
histories = st.builds(
    RowVersion,
    positions,
    names,
    names,
    positions,
    positions,
    positions,
    names | st.just(""),
    names | st.just(""),
    st.none() | names,
    st.dictionaries(texts, st.builds(Stamp, positions, names, names, positions), max_size=3),
    st.dictionaries(names, names, max_size=3),
)


@pytest.mark.slow
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.dictionaries(st.tuples(st.integers(1, 3), texts), st.tuples(histories, histories), max_size=4),
    others=st.sets(st.tuples(st.integers(1, 3), texts), max_size=2),
)
def test_a_rows_history_comes_back_as_it_was_written(
    conn: Session,
    rows: dict[tuple[int, str], tuple[RowVersion, RowVersion]],
    others: set[tuple[int, str]],
) -> None:
    conn.execute("truncate anabranch.row_versions")
    asked = [*rows, *others, *rows]
    versions.insert_versions(conn, [VersionRow(*at, first) for at, (first, _) in rows.items()])
    assert versions.read_versions(conn, asked)() == {at: first for at, (first, _) in rows.items()}
    versions.update_versions(conn, [VersionRow(*at, second) for at, (_, second) in rows.items()])
    assert versions.read_versions(conn, asked)() == {at: second for at, (_, second) in rows.items()}


def test_a_history_that_is_not_there_is_noticed(conn: Session) -> None:
    conn.execute("truncate anabranch.row_versions")
    version = RowVersion(1, "n", "b")
    versions.insert_versions(conn, [VersionRow(1, "here", version)])
    with pytest.raises(RuntimeError, match="2 records named, 1 there"):
        versions.update_versions(conn, [VersionRow(1, "here", version), VersionRow(2, "here", version)])


def test_decided_batches_leave_the_inbox(conn: Session, database: int) -> None:
    for batch_id in ("a", "b", "c"):
        conn.execute(
            """insert into anabranch.inbox
               (database_id, batch_id, node_id, principal, basis, payload, payload_sha256, arrived_ms)
               values (%s, %s, 'n', 'p', 0, '', '', 0)""",
            [database, batch_id],
        )
    records.delete_inbox(conn, database, ["c", "a"])
    assert [row[1] for row in stored(conn, "inbox")] == ["b"]
    with pytest.raises(RuntimeError, match="2 records named, 1 there"):
        records.delete_inbox(conn, database, ["b", "a"])


@pytest.mark.parametrize("few", [False, True])
def test_statements_sent_together_do_what_they_do_alone(conn: Session, database: int, few: bool) -> None:
    version = RowVersion(1, "n", "b")
    with conn.transaction(), together(conn, few=few) as send:
        records.write_group(conn, database, 5, GroupRow(1, 1, b"a" * 16, []))
        versions.insert_versions(conn, [VersionRow(1, "k", version)])
        send()
        versions.update_versions(conn, [VersionRow(1, "k", RowVersion(2, "n", "b"))])
        records.notify_group(conn, database, 5, ["b"])
    assert records.read_head(conn, database).position == 5
    assert versions.read_versions(conn, [(1, "k")])() == {(1, "k"): RowVersion(2, "n", "b")}


@pytest.mark.parametrize("few", [False, True])
def test_counts_are_checked_of_statements_sent_together(conn: Session, database: int, few: bool) -> None:
    def write() -> None:
        with conn.transaction(), together(conn, few=few):
            records.write_group(conn, database, 6, GroupRow(1, 1, b"a" * 16, []))
            records.delete_inbox(conn, database, ["nobody"])

    with pytest.raises(RuntimeError, match="1 records named, 0 there"):
        write()
    assert records.read_head(conn, database).position == 0
    # And the connection is as before.
    with pytest.raises(RuntimeError, match="1 records named, 0 there"):
        records.delete_inbox(conn, database, ["nobody"])


@pytest.mark.parametrize("few", [False, True])
def test_a_failure_among_statements_sent_together_is_raised(conn: Session, database: int, few: bool) -> None:
    row = GroupRow(1, 1, b"a" * 16, [])

    def write() -> None:
        with conn.transaction(), together(conn, few=few):
            records.write_group(conn, database, 7, row)
            records.write_group(conn, database, 7, row)
            records.delete_inbox(conn, database, ["nobody"])

    with pytest.raises(errors.UniqueViolation):
        write()
    assert records.read_head(conn, database).position == 0


@pytest.mark.parametrize("count", [0, 1, 277, 278, 279, 1000])
def test_notifications_name_every_batch_once_and_stay_small(conn: Session, rows_url: str, count: int) -> None:
    ids = [f"{n:026}" for n in range(count)]
    with connect(rows_url, application_name="listener", autocommit=True) as listener:
        listener.execute(f"listen {GROUPS_CHANNEL}")
        records.notify_group(conn, 12, 2**41, ids)
        conn.execute("select pg_notify(%s, 'end')", [GROUPS_CHANNEL])
        payloads = []
        for notification in listener.notifies(timeout=20):
            if notification.payload == "end":
                break
            payloads.append(notification.payload)
    assert payloads
    assert max(len(payload) for payload in payloads) <= 7_500
    assert {payload.rsplit(":", 1)[0] for payload in payloads} == {f"12:{2**41}"}
    told = [batch_id for payload in payloads for batch_id in payload.rsplit(":", 1)[1].split(",") if batch_id]
    assert told == ids
    assert len(payloads) == max(1, -(-count // 277))


def test_nothing_to_record_sends_nothing(rows_url: str) -> None:
    closed = connect(rows_url, application_name="closed")
    closed.close()
    records.write_log(closed, 1, 1, [])
    versions.insert_versions(closed, [])
    versions.update_versions(closed, [])
    records.write_batches(closed, 1, 1, 1, [])
    records.write_conflicts(closed, 1, 1, [])
    records.write_sums(closed, 1, [])
    records.delete_inbox(closed, 1, [])
    assert versions.read_versions(closed, [])() == {}
