"""Reports of nodes on tables that disagree are counted once a table and node, whatever else they say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ulid import ULID

from anabranch.runtime import metrics
from anabranch.v1 import batch_pb2, position_pb2
from anabranch_snapshot import disagreements
from anabranch_snapshot.disagreements import Disagreements


def counted(database: str) -> float:
    return metrics._totals["anabranch_sums_disagreed"].get((database,), 0)


def state(node: str, *tables: str) -> position_pb2.NodeState:
    said = [position_pb2.Disagreement(table=table, position=7) for table in tables]
    return position_pb2.NodeState(node=batch_pb2.Node(id=node), disagreements=said)


def test_once_a_table_and_node_until_it_agrees() -> None:
    name = f"d{ULID()}"
    database: Any = SimpleNamespace(id=1, name=name, tables={"a": None, "b": None})
    heard = Disagreements()
    for node, tables, expected in (
        ("x", ("a",), 1),
        ("x", ("a",), 1),
        ("y", ("a",), 2),
        ("x", ("a", "b"), 3),
        ("x", ("b",), 3),
        ("x", ("a", "b"), 4),
        ("x", (), 4),
        ("x", ("a",), 5),
        # No table of the database's: nobody makes up labels or log lines.
        ("z", ("made up",), 5),
    ):
        heard.hear(database, state(node, *tables))
        assert counted(name) == expected, (node, tables)


def test_what_is_remembered_has_a_limit(monkeypatch: Any) -> None:
    monkeypatch.setattr(disagreements, "KEPT", 3)
    database: Any = SimpleNamespace(id=1, name=f"d{ULID()}", tables={"a": None})
    heard = Disagreements()
    for n in range(10):
        heard.hear(database, state(f"n{n}", "a"))
    assert len(heard._last) == 3
