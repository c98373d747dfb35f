"""The judge of every story must itself notice a changed row, a lost batch and a queue that is not empty."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from anabranch.testkit.stack import Stack
from anabranch.testkit.story import Story, new_id
from anabranch.testkit.story_node import Made, StoryNode
from anabranch.testkit.unseen import write_unseen

TODO = {"todo": "id text primary key, title text, done boolean"}


@pytest.fixture
def told(stack: Stack, tmp_path: Path) -> Any:
    made = Story(stack, tmp_path, TODO)
    yield made
    made.close()


def one_row(told: Story) -> tuple[StoryNode, str]:
    a, x = told.node("a"), new_id()
    a.insert("todo", {"id": x, "title": "milk", "done": False})
    told.sync()
    told.check()
    return a, x


def test_a_row_that_differs_on_the_server_is_noticed(told: Story) -> None:
    _, x = one_row(told)
    # Behind the triggers' back: what they see comes into the log.
    told.sql(f"alter table {told.name}.todo disable trigger user")
    told.sql(f"update {told.name}.todo set title = 'soy' where id = %s", [x])
    with pytest.raises(AssertionError, match="the server's own sums"):
        told.check()


def test_a_row_that_differs_on_the_device_is_noticed(told: Story) -> None:
    a, x = one_row(told)
    with closing(sqlite3.connect(a.file)) as conn, conn:
        write_unseen(conn, f"UPDATE todo SET done = NULL WHERE id = '{x}'")
    with pytest.raises(AssertionError, match=f"todo .*{x}"):
        told.check()


def test_a_batch_that_is_neither_in_the_log_nor_dead_is_noticed(told: Story) -> None:
    a, _ = one_row(told)
    a.made.append(Made(new_id(), b"", 0))
    with pytest.raises(AssertionError, match="is lost, or twice"):
        told.check()
