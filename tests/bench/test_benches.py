"""The benches measure what they say: small runs, whose figures are looked at for sense and not for size."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from anabranch.bench import capture_drain, ingest, latency, workload
from anabranch.bench.report import Result, percentile, print_json
from anabranch.v1 import batch_pb2


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda: ingest.ingest(changes=1_600), id="ingest"),
        pytest.param(lambda: ingest.ingest1(changes=320), id="ingest1"),
        pytest.param(lambda: latency.latency(times=20), id="latency"),
        pytest.param(lambda: latency.propagate(times=20), id="propagate"),
        pytest.param(lambda: capture_drain.capture(rows=1_000, paced=100), id="capture"),
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
