"""``anabranch node``: what the server knows of nodes, and the end of one that won't come back."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from anabranch.cli.app import app
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.nodes.known import known_nodes
from anabranch.store.session.engine import Session
from anabranch.testkit.log_writer import LogWriter

OLD, NEW, TWIN = (f"{number:026}" for number in (1, 2, 3))
NODE = """
insert into anabranch.nodes (database_id, node_id, name, principal, epoch, token, last_seen_ms, acknowledged)
select id, %s, %s, %s, epoch, '', (extract(epoch from clock_timestamp()) * 1000)::bigint - %s, %s
from anabranch.databases where name = 'shop'
"""
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("ANABRANCH_POSTGRES_URL", raising=False)


@pytest.fixture
def head(conn: Session, migrated_url: str) -> int:
    """A database with two nodes, of which one has applied nothing yet and holds the log, and its head."""
    conn.execute("create table app.t (id text primary key)")
    create_database(conn, "shop", "app")
    add_table(conn, "shop", "t")
    writer = LogWriter(migrated_url, "shop")
    position = writer.insert("t", [["a"]])
    writer.close()
    conn.execute(NODE, (OLD, "gate \x1b[31m7", "ann", 3 * DAY_MS, 5))
    conn.execute("update anabranch.nodes set app_version = 3")
    conn.execute(NODE, (NEW, "n" * 70, "ben", 1_000, position))
    conn.execute(
        "insert into anabranch.node_dead_letters select database_id, node_id, 0, 4, "
        """'[{"reason": "CONSTRAINT", "table": "t", "count": 3}, {"reason": "EXPIRED", "table": "", "count": 1}]' """
        "from anabranch.nodes where node_id = %s",
        (OLD,),
    )
    return position


def command(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["node", *arguments, "--postgres-url", url])


def test_nodes_are_listed_with_what_they_hold(head: int, migrated_url: str) -> None:
    told = command(migrated_url, "list", "shop")
    assert told.exit_code == 0, told.output
    assert max(map(len, told.stdout.splitlines())) <= 80
    words = " ".join(told.stdout.split())
    assert f"{OLD} gate \\x1b[31m7 principal ann seen " in words, "what would move the cursor is shown"
    assert "(3.0 d ago) acknowledged 5 " in words
    assert "behind app of schema version 3 the log is kept for it dead letters 4 " in words
    assert "dead letters 4 (told 1970-01-01 00:00:00Z) 3 CONSTRAINT t 1 EXPIRED" in words
    assert f"acknowledged {head} 0 s behind" in words
    assert words.count("the log is kept for it") == 1
    assert "n" * 70 in told.stdout
    first, second = map(json.loads, command(migrated_url, "list", "shop", "--json").stdout.splitlines())
    assert (first["id"], first["holds"], first["dead_letters"]) == (OLD, True, 4)
    assert first["dead_letters_of"] == [["CONSTRAINT", "t", 3], ["EXPIRED", "", 1]]
    assert (second["id"], second["holds"], second["behind_ms"], second["told_ms"]) == (NEW, False, 0, None)
    assert (first["app_version"], second["app_version"]) == (3, 0)
    assert words.count("app of schema version") == 1


def test_nodes_come_in_pages_by_their_id(head: int, conn: Session) -> None:
    conn.execute(NODE, (TWIN, "twin", "p", 0, head))
    pages: list[list[tuple[str, int]]] = []
    after = ""
    while len(pages) < 4:
        page = known_nodes(conn, "shop", after, most=2)
        assert page is not None
        pages.append([(node.id, node.dead_letters) for node in page.nodes])
        after = page.after
        if not after:
            break
    assert pages == [[(OLD, 4), (NEW, 0)], [(TWIN, 0)]]
    assert known_nodes(conn, "nowhere") is None


def test_a_node_is_forgotten_by_name_or_id_and_no_longer_holds_the_log(
    head: int, conn: Session, migrated_url: str
) -> None:
    unasked = command(migrated_url, "forget", "shop", OLD)
    assert (unasked.exit_code, len(unasked.stderr.splitlines())) == (2, 1)
    assert "give --yes (NOT_CONFIRMED)" in unasked.stderr
    assert command(migrated_url, "forget", "shop", OLD, "--yes").stdout.startswith("node gate \\x1b[31m7 (")
    assert conn.execute("select node_id from anabranch.nodes").fetchall() == [(NEW,)]
    assert conn.execute("select count(*) from anabranch.node_dead_letters").fetchone() == (0,)
    recent = command(migrated_url, "forget", "shop", "n" * 70, "--yes")
    assert recent.exit_code == 2
    assert "called within the last day; --force forgets it all the same (NODE_IN_USE)" in recent.stderr
    assert command(migrated_url, "forget", "shop", "n" * 70, "--yes", "--force").exit_code == 0
    assert command(migrated_url, "list", "shop").stdout == "no nodes yet\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("list", "nowhere"), "UNKNOWN_DATABASE"),
        (("forget", "nowhere", OLD, "--yes"), "UNKNOWN_DATABASE"),
        (("forget", "shop", "nobody", "--yes"), "UNKNOWN_NODE"),
        (("forget", "shop", "twin", "--yes"), "SEVERAL_NODES"),
    ],
)
def test_a_wrong_name_is_said_in_a_line(
    head: int, conn: Session, migrated_url: str, arguments: tuple[str, ...], reason: str
) -> None:
    for node in (TWIN, f"{4:026}"):
        conn.execute(NODE, (node, "twin", "p", 9 * DAY_MS, head))
    told = command(migrated_url, *arguments)
    assert (told.exit_code, told.stdout) == (2, "")
    [line] = told.stderr.splitlines()
    assert line.endswith(f"({reason})")
