"""ListConflicts over a real socket, from a real process, and what a page of it reads."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from tests.integration.resolver.calls import Service, decided

from anabranch.runtime.errors import error_info
from anabranch.store.log import conflicts
from anabranch.testkit.resolver_rig import ResolverRig, RigNode
from anabranch.v1 import value_pb2

# Each test starts a resolver of its own.
pytestmark = pytest.mark.slow

MILK = {"id": "x", "title": "milk", "done": False}


def text(value: str) -> bytes:
    return value_pb2.Value(string_value=value).SerializeToString()


def lose(service: Service, a: RigNode, b: RigNode, key: str, value: str) -> int:
    """A value of ``a`` for a title loses to one of ``b``, which had not seen it; the position."""
    a.see()
    b.see()
    decided(service, a.principal, a.update("todo", {"id": key, "title": value}))
    return decided(service, b.principal, b.update("todo", {"id": key, "title": f"over {value}"})).position


def test_conflicts_are_listed_page_by_page_and_by_every_filter(service: Service, rig: ResolverRig) -> None:
    a, b, c = rig.node("a"), rig.node("b"), rig.node("c")
    decided(service, "user-a", a.insert("todo", MILK, {"id": "y", "title": "eggs", "done": False}))
    at = [lose(service, a, b, "x" if n % 2 else "y", f"v{n}") for n in range(5)]
    at.append(lose(service, c, b, "x", "v5"))
    found = service.all_conflicts()
    assert [x.position for x in found] == at[::-1]
    first = found[-1]
    assert (first.table, first.key[0].string_value, first.column, first.losing_value) == (
        "todo", "y", "title", text("v0"),
    )  # fmt: skip
    assert (first.losing_node.id, first.losing_node.name, first.winning_node.id) == (a.id, "a", b.id)
    assert rig.outcome(first.winning_batch_id) == ["OVERWROTE"]
    assert rig.outcome(first.losing_batch_id) == ["APPLIED"]
    for size in (1, 2, 3):
        assert service.all_conflicts(page_size=size) == found
        assert len(service.conflicts(page_size=size).conflicts) == size

    def values(**filters: Any) -> list[bytes]:
        return [x.losing_value for x in service.all_conflicts(page_size=2, **filters)]

    x = value_pb2.Value(string_value="x")
    assert values(table="todo", key=[x]) == [text("v5"), text("v3"), text("v1")]
    assert values(node_id=c.id) == [text("v5")]
    assert values(node_id=a.id, table="todo", key=[x]) == [text("v3"), text("v1")]
    assert values(from_ms=at[1], until_ms=at[4]) == [text("v3"), text("v2"), text("v1")]
    assert values(table="todo", key=[value_pb2.Value(string_value="none")]) == []


def test_no_page_of_conflicts_looks_at_everything(
    make_rig: Any, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that finds little makes pages short, not slow: each looks at so many entries, and the next goes on."""
    rig = make_rig()
    a, b, c = rig.node("a"), rig.node("b"), rig.node("c")
    a.insert("todo", MILK)
    rig.group()
    for node in [c, *[a] * 7]:
        b.see()
        node.see()
        node.update("todo", {"id": "x", "title": f"of {node.name}"})
        rig.group()
        b.update("todo", {"id": "x", "title": "b"})
        rig.group()
    monkeypatch.setattr(conflicts, "MOST_LOOKED_AT", 3)
    tables = [table.id for table in rig.database.tables.values()]
    for key in (None, "x"):
        wanted = conflicts.WantedConflicts(rig.database.id, tables, key, node_id=c.id)
        place, pages = None, []
        while True:
            listed = conflicts.page(rig.conn, wanted, place, items=10, max_bytes=1_000)
            pages.append(len(listed.lost))
            place = listed.after
            if place is None:
                break
        assert pages == [0, 0, 1]


def test_the_conflicts_of_a_row_are_found_by_their_index(rig: ResolverRig) -> None:
    [table] = [table.id for table in rig.database.tables.values()]
    with rig.conn.transaction():
        rig.sql(
            "insert into anabranch.conflicts select %s, 1 + n, 'b', 0, %s, case when n = 7 then 'x' else 'y' || n end,"
            " 'title', '', 'l', 'n', 'w', 'm' from generate_series(1, 50000) n",
            [rig.database.id, table],
        )
        rig.sql("analyze anabranch.conflicts")
        plans: list[str] = []
        steps = conflicts._page(conflicts.WantedConflicts(rig.database.id, [table], "x"), None, 10, 1_000)
        for statement in (next(steps), steps.send([])):
            sql = f"explain (analyze, timing off) {statement.sql}".encode()
            plans.append("\n".join(row[0] for row in rig.conn.execute(sql, statement.parameters).fetchall()))
    for plan in plans:
        assert "conflicts_row" in plan, plan
        assert "Rows Removed by Filter" not in plan, plan


def test_a_losing_value_larger_than_a_message_comes_in_parts(service: Service, rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    decided(service, "user-a", a.insert("todo", MILK))
    large = "".join(f"{n:08x}" for n in range(1_000_000))
    lose(service, a, b, "x", "small")
    lose(service, a, b, "x", large)
    lose(service, a, b, "x", "after")
    assert [x.losing_value for x in service.all_conflicts()] == [text("after"), text(large), text("small")]


@pytest.mark.parametrize(
    ("filters", "reason"),
    [
        ({"db_name": "other"}, "PERMISSION_DENIED"),
        ({"table": "nowhere"}, "UNKNOWN_TABLE"),
        ({"key": [value_pb2.Value(string_value="x")]}, "INVALID_REQUEST"),
        ({"table": "todo", "key": [value_pb2.Value(int64_value=1)]}, "INVALID_REQUEST"),
        ({"table": "todo", "key": [value_pb2.Value()]}, "INVALID_REQUEST"),
        ({"table": "todo", "key": [value_pb2.Value(string_value="x")] * 2}, "INVALID_REQUEST"),
        ({"page_size": -1}, "INVALID_REQUEST"),
        ({"node_id": "x" * 27}, "INVALID_REQUEST"),
        ({"page_token": b"0123456789abcdef0123456789abcdef"}, "INVALID_TOKEN"),
    ],
)
def test_a_wrong_question_about_conflicts_gets_one_reason(
    service: Service, filters: dict[str, Any], reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        service.conflicts(**filters)
    info = error_info(caught.value)
    assert info is not None
    assert info.reason == reason


def test_a_page_token_holds_for_its_own_filters_only(service: Service, rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    decided(service, "user-a", a.insert("todo", MILK))
    for n in range(3):
        lose(service, a, b, "x", f"v{n}")
    token = service.conflicts(page_size=1).next_page_token
    assert service.conflicts(page_size=2, page_token=token).conflicts
    with pytest.raises(grpc.RpcError) as caught:
        service.conflicts(table="todo", page_token=token)
    info = error_info(caught.value)
    assert info is not None
    assert info.reason == "INVALID_TOKEN"
