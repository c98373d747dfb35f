"""The benches measure what they say: small runs, whose figures are looked at for sense and not for size."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from anabranch.bench import (
    capture_drain,
    ddl,
    drain,
    fanout,
    growth,
    ingest,
    latency,
    log,
    poison,
    pull,
    sending,
    workload,
)
from anabranch.bench.benches import BENCHES
from anabranch.bench.cpu import DEVICES, ENDED, POSTGRES, Spent, process_name, spent
from anabranch.bench.report import Result, percentile, print_json
from anabranch.v1 import batch_pb2, errors_pb2, verdict_pb2


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda: ingest.ingest(changes=1_600), id="ingest"),
        pytest.param(lambda: ingest.ingest1(changes=320), id="ingest1"),
        pytest.param(lambda: ingest.ingest_audiences(changes=1_600), id="ingest_audiences", marks=pytest.mark.long),
        pytest.param(lambda: latency.latency(times=20), id="latency"),
        pytest.param(lambda: latency.propagate(times=20), id="propagate", marks=pytest.mark.long),
        pytest.param(lambda: capture_drain.capture(rows=1_000, paced=100), id="capture"),
        pytest.param(lambda: pull.pull(rows=4_000), id="pull"),
        pytest.param(lambda: pull.bootstrap(rows=4_000), id="bootstrap", marks=pytest.mark.long),
        pytest.param(lambda: log.log(rows=2_000, changes=1_600), id="log"),
        pytest.param(lambda: fanout.fanout(subscribers=20, seconds=1), id="fanout"),
        pytest.param(lambda: fanout.fanout(subscribers=20, seconds=1, teams=100), id="fanout_audiences"),
        pytest.param(lambda: ddl.ddl(rows=4_000, alters=3, steady_s=1.0), id="ddl"),
        pytest.param(lambda: drain.drain(batches=160), id="drain", marks=pytest.mark.long),
        pytest.param(lambda: poison.poison(changes=1_600), id="poison", marks=pytest.mark.long),
        pytest.param(lambda: growth.growth(changes=20_000, measured=800), id="growth", marks=pytest.mark.long),
    ],
)
def test_a_bench_prints_one_object_of_the_agreed_shape(
    run: Callable[[], Result], capsys: pytest.CaptureFixture[str]
) -> None:
    print_json([run()])
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert list(found) == ["bench", "value", "baseline", "ratio", "unit", "target", "met", "details"]
    assert found["value"] > 0
    assert found["baseline"] > 0
    assert found["ratio"] == pytest.approx(found["value"] / found["baseline"], rel=0.01)
    assert isinstance(found["target"], int | float)
    assert found["bench"] in BENCHES
    assert "cores" in found["details"]["machine"]


@pytest.mark.parametrize(
    ("value", "direction", "holds", "met"),
    [
        (5, "at least", True, True),
        (4, "at least", True, False),
        (5, "at least", False, False),
        (6, "at most", True, False),
    ],
)
def test_a_target_is_met_on_the_right_side_and_with_every_condition(
    value: float, direction: str, holds: bool, met: bool
) -> None:
    result = Result("x", value, 10, "u", 0.5, direction, {"also": holds})  # type: ignore[arg-type]
    assert result.met is met


def test_percentiles() -> None:
    values = [float(n) for n in range(100)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (50.0, 99.0, 7.0)
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_the_workload_has_the_changes_that_it_says() -> None:
    made = workload.clients(8, 1_600, 10, 1_700_000_000_000)
    batches = [batch for client in made for batch in client.batches]
    assert sum(len(batch.rows) for batch in batches) == 1_600
    assert len({batch.id for batch in batches}) == len(batches)
    for client in made:
        ids = [batch.id for batch in client.batches]
        assert ids == sorted(ids)
        inserted = {row[0] for batch in client.batches if batch.insert for row in batch.rows}
        assert {row[0] for batch in client.batches if not batch.insert for row in batch.rows} <= inserted
    parsed = batch_pb2.DbMutationBatch.FromString(batches[0].payload)
    assert parsed.id == batches[0].id
    assert len(parsed.mutations[0].rows) == 10


def test_the_drain_has_the_conflicts_that_it_says() -> None:
    planned = drain.plan(100, 1_700_000_000_000)
    kinds = [kind for kind, _ in planned.batches]
    assert {kind: kinds.count(kind) for kind in drain.KINDS} == {
        "insert": 40,
        "update": 40,
        "overwrite": 10,
        "refused": 10,
    }
    updated = {row["id"] for kind, rows in planned.batches if kind != "insert" for row in rows}
    there = {row[0] for batch in planned.there.batches for row in batch.rows}
    meanwhile = {row[0] for batch in planned.meanwhile.batches for row in batch.rows}
    assert updated == there
    assert meanwhile <= there
    assert planned.there.node_id != planned.meanwhile.node_id


@pytest.mark.parametrize("broken", poison.CONSTRAINTS)
def test_one_poisoned_batch_in_ten_has_one_bad_value(broken: poison.Constraint) -> None:
    clean = poison.client(1, 200, 1_700_000_000_000, None)
    sick = poison.client(1, 200, 1_700_000_000_000, broken)
    assert (len(clean.refused), len(sick.refused)) == (0, 20)
    of_sick = {batch.id: batch for batch in sick.batches}
    for batch_id in sick.refused:
        batch = of_sick[batch_id]
        columns = poison.COLUMNS if batch.insert else poison.UPDATED
        wrong = {
            "foreign key": [row for row in batch.rows if row[columns.index("list")] == "no list"],
            "check": [row for row in batch.rows if str(row[columns.index("position")]).startswith("-")],
            "not null": [row for row in batch.rows if row[columns.index("title")] is None],
            "unique": [row for row in batch.rows if batch.rows.index(row) == 5],
        }[broken]
        assert len(wrong) == 1
    refused = {row[0] for batch in sick.batches if batch.id in sick.refused and batch.insert for row in batch.rows}
    assert not refused & {row[0] for batch in sick.batches if not batch.insert for row in batch.rows}


def test_a_bench_that_meets_another_verdict_than_expected_says_so() -> None:
    made = poison.client(1, 20, 1_700_000_000_000, "check")
    bad = next(iter(made.refused))
    good = next(batch.id for batch in made.batches if batch.id not in made.refused)
    sender = sending.Sender(made, stub=None, key="", per_call=1)  # type: ignore[arg-type]

    def verdict(batch_id: str, status: str, reason: str = "UNSPECIFIED") -> verdict_pb2.Verdict:
        return verdict_pb2.Verdict(
            batch_id=batch_id,
            status=verdict_pb2.VerdictStatus.Value(f"VERDICT_STATUS_{status}"),
            reason=errors_pb2.Reason.Value(f"REASON_{reason}"),
        )

    assert sender.all_decided([verdict(good, "APPLIED"), verdict(bad, "REJECTED", "CONSTRAINT")])
    assert not sender.all_decided([verdict(good, "PENDING")])
    for wrong in (
        verdict(bad, "APPLIED"),
        verdict(good, "REJECTED", "CONSTRAINT"),
        verdict(bad, "REJECTED", "ROW_NOT_FOUND"),
    ):
        with pytest.raises(sending.NotAppliedError):
            sender.all_decided([wrong])


def test_processor_time_is_counted_of_what_was_started_too() -> None:
    with spent() as took:
        subprocess.run([sys.executable, "-c", "x = 0\nfor i in range(3_000_000): x += i"], check=True)
    assert took.cpu_s > 0.02
    assert took.wall_s > 0
    assert took.by_process[ENDED] > 0.02
    assert sum(took.by_process.values()) == pytest.approx(took.cpu_s)
    twice = Spent()
    twice.add(took)
    twice.add(took)
    assert twice.by_process[ENDED] == pytest.approx(2 * took.by_process[ENDED])
    assert twice.details(2)["cpu_us_a_change_by_process"][ENDED] == pytest.approx(
        took.by_process[ENDED] * 1e6, abs=0.01
    )


@pytest.mark.parametrize(
    ("program", "arguments", "name"),
    [
        ("python3.11", ["/venv/bin/python", "-m", "anabranch_snapshot"], "anabranch_snapshot"),
        ("python3.11", ["python", "-c", "from multiprocessing.spawn import spawn_main", "--x"], DEVICES),
        ("postgres", ["postgres: anabranch bench 127.0.0.1(5) idle"], POSTGRES),
        ("psql", ["psql", "-m"], "psql"),
    ],
)
def test_processor_time_has_the_name_of_its_service(program: str, arguments: list[str], name: str) -> None:
    assert process_name(program, arguments) == name
