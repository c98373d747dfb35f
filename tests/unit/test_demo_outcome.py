"""The demo's proof fails where a tablet holds one row too many or too few, or does not hold what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.client.audiences.teams import Teams

from anabranch.client import SyncedDb
from anabranch.demo import plan, sums
from anabranch.demo.airports import audience_of
from anabranch.demo.outcome import Outcome

SERVER = {
    ("planes", ""): (7, b"p" * 16),
    ("flights", ""): (9, b"f" * 16),
    ("flights", "airport:EWR"): (4, b"e" * 16),
    ("flights", "airport:JFK"): (3, b"j" * 16),
    ("flights", "airport:LGA"): (2, b"l" * 16),
    ("gate_notes", ""): (1, b"n" * 16),
    ("gate_notes", "airport:EWR"): (1, b"n" * 16),
}
JFK = {
    ("planes", ""): (7, b"p" * 16),
    ("flights", ""): (3, b"j" * 16),
    ("flights", "airport:JFK"): (3, b"j" * 16),
    ("gate_notes", ""): (0, bytes(16)),
    ("gate_notes", "airport:JFK"): (0, bytes(16)),
}


def outcome() -> Outcome:
    """That of a run in which everything is as it should be."""
    made = Outcome(server_sums=SERVER)
    for tablet in plan.AIRPORTS:
        made.reports[tablet] = {
            "dead": [],
            "queued": 0,
            "disagreeing": (),
            "pulls": 1,
            "columns": {"flights": ["flight", "remote_stand"]},
        }
        made.sums[tablet] = sums.visible(SERVER, audience_of(tablet))
        made.compared[tablet] = (10, 0)
    made.lake.position = made.lake.floor = 17
    made.pulls[plan.NEW_TABLET] = {"cursor": 17}
    made.closing["EWR"] = 3
    made.verdicts.reasons[plan.STRAYING, "FORBIDDEN"] = 1
    return made


def test_a_tablet_has_the_sums_of_what_it_may_see() -> None:
    assert sums.visible(SERVER, "airport:JFK") == JFK
    assert outcome().equal
    assert outcome().from_parquet
    assert not outcome().untold


def compared(made: Outcome) -> None:
    made.compared["gate-jfk"] = (10, 1)


def compared_with_nothing(made: Outcome) -> None:
    made.compared["gate-jfk"] = (0, 0)


def not_compared(made: Outcome) -> None:
    del made.compared["gate-jfk"]


def without_sums(made: Outcome) -> None:
    del made.sums["gate-jfk"]


def without_a_tablet(made: Outcome) -> None:
    del made.reports[plan.NEW_TABLET], made.sums[plan.NEW_TABLET], made.compared[plan.NEW_TABLET]


def by_its_own_word(made: Outcome) -> None:
    made.reports["gate-jfk"] = {**made.reports["gate-jfk"], "disagreeing": ("flights",)}


def with_a_queue(made: Outcome) -> None:
    made.reports["gate-jfk"] = {**made.reports["gate-jfk"], "queued": 1}


@pytest.mark.parametrize(
    "wrong",
    [compared, compared_with_nothing, not_compared, without_sums, without_a_tablet, by_its_own_word, with_a_queue],
)
def test_what_is_not_proven_is_not_equal(wrong: Callable[[Outcome], None]) -> None:
    made = outcome()
    wrong(made)
    assert not made.equal


def test_a_pull_of_the_tables_is_none_of_the_parquet() -> None:
    made = outcome()
    made.pulls[plan.NEW_TABLET] = {"cursor": 18}
    assert not made.from_parquet
    nothing_since = outcome()
    nothing_since.closing.clear()
    assert not nothing_since.from_parquet, "the tables have the same rows"


def test_a_sentence_that_is_not_true_is_told() -> None:
    made = outcome()
    made.lake.floor = 16
    assert len(made.untold) == 1
    for refused in (0, 2):
        made = outcome()
        made.verdicts.reasons[plan.STRAYING, "FORBIDDEN"] = refused
        assert len(made.untold) == 1


@pytest.mark.parametrize("report", [{"columns": {"flights": ["flight"]}}, {"columns": {}}, {"pulls": 2}])
def test_a_tablet_that_did_not_follow_the_release_is_told(report: dict[str, object]) -> None:
    made = outcome()
    made.reports["gate-lga"] = {**made.reports["gate-lga"], **report}
    assert made.untold == made.behind_the_release
    assert [text.split()[0] for text in made.untold] == ["gate-lga"]


@pytest.mark.parametrize(
    ("place", "kept"),
    [
        pytest.param(("flights", ""), (4, b"k" * 16), id="one row too many, of no audience that it holds"),
        pytest.param(("flights", ""), (2, b"k" * 16), id="one row too few"),
        pytest.param(("flights", "airport:JFK"), (2, b"j" * 16), id="one row too few in an audience"),
        pytest.param(("flights", "airport:JFK"), (3, b"k" * 16), id="another row in an audience"),
        pytest.param(("flights", "airport:EWR"), (4, b"e" * 16), id="another airport's rows"),
        pytest.param(("gate_notes", "airport:JFK"), (1, b"n" * 16), id="a note that is not there"),
        pytest.param(("planes", ""), (6, b"p" * 16), id="one row too few of an open table"),
        pytest.param(("flights", "airport:JFK"), None, id="an audience that is not complete"),
    ],
)
def test_one_sum_that_differs_is_enough(place: tuple[str, str], kept: sums.Sum | None) -> None:
    made = outcome()
    changed = {**made.sums["gate-jfk"], place: kept}
    made.sums["gate-jfk"] = {where: one for where, one in changed.items() if one is not None}
    assert not made.equal


def test_a_tablets_sums_are_those_of_its_file(tmp_path: Path) -> None:
    remote = Teams()
    with SyncedDb(tmp_path / "d.db", remote, "d") as device:
        device.stop()
        whole = device.table_sums()
    found = sums.of_tablet(tmp_path / "d.db")
    assert {table: kept for (table, audience), kept in found.items() if not audience} == whole
    assert found["job", "team:a"] == found["job", ""]
    assert found["job", ""][0] == 3
    assert found.keys() == {("job", ""), ("job", "team:a"), ("note", "")}
