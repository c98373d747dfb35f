"""A node as the server sees it: what it tells of its dead letters, and what becomes of it when it is forgotten."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.store.nodes.known import KnownNode, known_nodes
from anabranch.testkit.story import Story, Teller, new_id
from anabranch.testkit.waiting import until

TODO = {"todo": "id text primary key, title text constraint todo_title check (title <> '')"}


def nodes(told: Story) -> dict[str, KnownNode]:
    found = known_nodes(told.conn, told.name)
    assert found is not None
    return {node.name: node for node in found.nodes}


@pytest.mark.slow
def test_a_device_tells_of_its_dead_letters_and_of_their_end(story: Teller) -> None:
    told = story(TODO)
    a, b = told.node("a"), told.node("b")
    for _ in range(3):
        a.insert("todo", {"id": new_id(), "title": ""})
    a.sync()
    a.sync()
    until(lambda: nodes(told)["a"].dead_letters_of == (("CONSTRAINT", "todo", 3),))
    assert nodes(told)["a"].dead_letters == 3
    assert nodes(told)["b"].dead_letters == 0
    for _ in range(3):
        a.replay(1, {"title": "mended"})
    told.sync()
    a.sync()
    until(lambda: nodes(told)["a"].dead_letters == 0)
    b.sync()


@pytest.mark.slow
def test_a_node_that_was_forgotten_and_comes_back_goes_on_with_what_it_has_queued(story: Teller) -> None:
    told = story(TODO)
    a, b = told.node("a"), told.node("b")
    a.insert("todo", {"id": new_id(), "title": "before"})
    told.sync()
    node_id = nodes(told)["a"].id
    a.insert("todo", {"id": new_id(), "title": "queued meanwhile"})
    url = told.stack.database_url
    done = CliRunner().invoke(app, ["node", "forget", told.name, node_id, "--yes", "--force", "--postgres-url", url])
    assert done.exit_code == 0, done.output
    b.insert("todo", {"id": new_id(), "title": "by another"})
    told.sync()
    assert nodes(told)["a"].id == node_id
    assert sorted(row[1] for row in a.rows("todo")) == ["before", "by another", "queued meanwhile"]
    told.check()
