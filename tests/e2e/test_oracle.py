"""The oracle of the fault runs must itself notice every breach: each promise broken once, on a real run's record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from anabranch.testkit import oracle
from anabranch.testkit.oracle import Recorded, Rows, Server
from anabranch.testkit.story import Story, Teller, new_id
from anabranch.v1 import verdict_pb2

pytestmark = pytest.mark.slow
"""Each of its stories takes a second or two of several processes."""


class Run:
    """A small run: two devices, a value lost, a batch rejected."""

    def __init__(self, told: Story) -> None:
        self.told = told
        a, b = told.node("a"), told.node("b")
        self.before: Rows = {}
        self.x, y = new_id(), new_id()
        a.insert("todo", {"id": self.x, "title": "milk", "n": 1}, {"id": y, "title": "eggs", "n": 1})
        told.sync()
        b.offline()
        b.update("todo", {"id": self.x, "title": "from b"})
        b.insert("todo", {"id": new_id(), "title": "never", "n": -1})
        a.update("todo", {"id": self.x, "title": "from a", "n": 2})
        a.delete("todo", y)
        a.sync()
        b.online()
        told.sync()
        self.recorded = [
            Recorded(
                made={made.id: made.payload for made in node.made},
                told={v.batch_id: [v.SerializeToString()] for v in node.verdicts},
                dead={letter.id: letter.reason for letter in node.db.dead_letters()},
            )
            for node in (a, b)
        ]
        self.answers = {batch: reports[0] for device in self.recorded for batch, reports in device.told.items()}
        self.followed = self.lines()

    @property
    def server(self) -> Server:
        return oracle.read_server(self.told.conn, self.told.database)

    def lines(self) -> list[dict[str, Any]]:
        found: dict[int, dict[str, list[bytes]]] = {}
        for entry in self.server.log:
            found.setdefault(entry.position, {}).setdefault(entry.batch_id, []).append(entry.effect)
        return [
            {"group": position, "batches": [[b, oracle.effects_digest(e)] for b, e in group.items()]}
            for position, group in found.items()
        ]

    def check(self) -> None:
        server = self.server
        assert oracle.check_durable(server, self.before, self.recorded) == 4
        assert oracle.check_atomic(server, self.recorded) == 1
        assert oracle.check_once(server, self.recorded, self.answers) == 5
        assert oracle.check_ordered(server, self.followed) == len(self.followed)
        assert oracle.check_nothing_lost(self.told.conn, server, self.recorded) == 1


@pytest.fixture
def run(story: Teller) -> Run:
    made = Run(story({"todo": "id text primary key, title text, n bigint check (n >= 0)"}))
    made.check()
    return made


def breaks(run: Run, match: str) -> None:
    with pytest.raises(AssertionError, match=match):
        run.check()


def test_a_log_entry_too_few(run: Run) -> None:
    server = run.server
    for place in range(len(server.log)):
        less = replace(server, log=[entry for i, entry in enumerate(server.log) if i != place])
        with pytest.raises(AssertionError):
            oracle.check_durable(less, run.before, run.recorded)


def test_a_row_that_the_log_does_not_lead_to(run: Run) -> None:
    server = run.server
    changed = {where: {**row, "title": "soy"} for where, row in server.rows.items()}
    with pytest.raises(AssertionError, match="does not lead to"):
        oracle.check_durable(replace(server, rows=changed), run.before, run.recorded)


def test_a_verdict_that_reports_another_position(run: Run) -> None:
    batch_id, [raw] = next(iter(run.recorded[0].told.items()))
    verdict = verdict_pb2.Verdict.FromString(raw)
    verdict.position += 1
    run.recorded[0].told[batch_id] = [verdict.SerializeToString()]
    breaks(run, "is not in the log as reported")


def test_two_different_reports_of_one_batch(run: Run) -> None:
    batch_id = next(iter(run.recorded[0].told))
    run.answers[batch_id] += b"\x08"
    breaks(run, "2 different verdicts")


def test_other_bytes_than_those_that_were_judged(run: Run) -> None:
    batch_id = next(iter(run.recorded[1].dead))
    run.recorded[1].made[batch_id] += b"\x08"
    breaks(run, "other bytes were judged")


def test_a_rejected_batch_that_is_in_the_log(run: Run) -> None:
    server = run.server
    [dead] = run.recorded[1].dead
    more = replace(server, log=[*server.log, server.log[-1]._replace(batch_id=dead)])
    with pytest.raises(AssertionError, match="was rejected and is in the log"):
        oracle.check_atomic(more, run.recorded)


def test_a_reader_that_is_given_a_group_too_few_too_many_or_late(run: Run) -> None:
    whole = list(run.followed)
    run.followed = whole[:1] + whole[2:]
    breaks(run, "not given exactly the log")
    run.followed = [whole[0], *whole]
    breaks(run, "was given")
    run.followed = [{"read": whole[0]["group"]}, *whole]
    breaks(run, "after it had read to")


def test_a_batch_that_is_lost_in_silence(run: Run) -> None:
    run.recorded[1].dead.clear()
    breaks(run, "CONSTRAINT")


def test_a_losing_value_that_is_not_kept(run: Run) -> None:
    run.told.sql("delete from anabranch.conflicts where database_id = %s", [run.told.database.id])
    breaks(run, "overwrote a value that is not kept")
