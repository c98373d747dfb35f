"""An ordinary small group asks Postgres so often, and no oftener: a count that grows is time in every write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anabranch.store.session.direct import DirectConnection
from anabranch.store.session.patience import PatientConnection
from anabranch.testkit.resolver_rig import ResolverRig

WAITS = 4
STATEMENTS = 14


class Counted:
    """``statements``: the texts of what was put; ``waits``: how often an answer was waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: list[bytes] = []
        self.waits = 0
        put, simple = DirectConnection._put, DirectConnection._simple
        receive, wait = DirectConnection._receive, PatientConnection.wait

        def counted_put(conn: DirectConnection, key: Any, *rest: Any) -> Any:
            self.statements.append(key[0])
            return put(conn, key, *rest)

        def counted_simple(conn: DirectConnection, command: bytes, *rest: Any) -> Any:
            self.statements.append(command)
            return simple(conn, command, *rest)

        def counted(original: Callable[..., Any]) -> Callable[..., Any]:
            def method(conn: Any, *arguments: Any, **named: Any) -> Any:
                self.waits += isinstance(conn, DirectConnection)
                return original(conn, *arguments, **named)

            return method

        monkeypatch.setattr(DirectConnection, "_put", counted_put)
        monkeypatch.setattr(DirectConnection, "_simple", counted_simple)
        monkeypatch.setattr(DirectConnection, "_receive", counted(receive))
        # The driver's own waits.
        monkeypatch.setattr(PatientConnection, "wait", counted(wait))


@pytest.mark.parametrize("kind", ["insert", "update", "delete"])
def test_a_small_write_takes_no_more_than_it_did(rig: ResolverRig, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    node = rig.node("a")
    rows = [{"id": f"{i}", "title": "before", "done": False} for i in range(6)]
    node.insert("todo", *rows[:5])
    rig.drain()
    node.see()
    # The second one of its kind finds everything prepared and read.
    for i in (1, 2):
        counted = Counted(monkeypatch)
        if kind == "insert":
            node.insert("todo", {"id": f"new {i}", "title": "t", "done": False})
        elif kind == "update":
            node.update("todo", {"id": f"{i}", "title": "after"})
        else:
            node.write(("delete", "todo", [{"id": f"{i}"}]))
        assert rig.commit is not None
        assert rig.commit(rig.database.id, 1_000, 0) == 1
        monkeypatch.undo()
    told = b"\n".join(statement[:60].replace(b"\n", b" ") for statement in counted.statements).decode()
    assert counted.waits <= WAITS, f"{counted.waits}\n{told}"
    assert len(counted.statements) <= STATEMENTS, told
    rig.check()
