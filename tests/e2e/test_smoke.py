"""`anabranch smoke`, as `helm test` runs it: it says yes of a stack that works, and no of one that does not."""

from __future__ import annotations

import psycopg
import pytest
from typer.testing import CliRunner

from anabranch.cli import smoke
from anabranch.cli.smoke import app
from anabranch.testkit.stack import Stack


def _arguments(stack: Stack) -> list[str]:
    return [
        "--ingest", stack.addresses["ingest"], "--snapshot", stack.addresses["snapshot"],
        "--postgres-url", stack.database_url,
    ]  # fmt: skip


@pytest.mark.slow
def test_a_stack_that_works_passes_again_and_again_and_nothing_is_left(stack: Stack) -> None:
    for _ in range(2):
        result = CliRunner().invoke(app, _arguments(stack))
        assert result.exit_code == 0, result.output
        assert "works: one device wrote a row and another read it" in result.output
    with psycopg.connect(stack.database_url) as conn:
        rows = conn.execute("select count(*) from anabranch_smoke.probe").fetchone()
        keys = conn.execute(
            "select count(*), count(*) filter (where revoked_ms is not null) from anabranch.api_keys"
            " where subject = 'anabranch-smoke'"
        ).fetchone()
        nodes = conn.execute(
            "select n.node_id, n.name, n.acknowledged from anabranch.nodes n join anabranch.databases d"
            " on d.id = n.database_id where d.name = %s",
            (smoke.DATABASE,),
        ).fetchall()
    assert rows == (0,)
    assert nodes == [], "the log is kept for nodes that are gone"
    assert keys == (2, 2)


@pytest.mark.slow
def test_a_stack_without_its_resolver_fails(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(app, _arguments(stack)).exit_code == 0
    monkeypatch.setattr(smoke, "TIMEOUT_S", 6.0)
    stack.kill("conflict-resolver")
    try:
        result = CliRunner().invoke(app, _arguments(stack))
    finally:
        stack.restart("conflict-resolver")
    assert result.exit_code == 1
    assert "no verdict in time" in result.output


def test_one_address_too_few_is_told() -> None:
    result = CliRunner().invoke(app, ["--ingest", "localhost:1", "--postgres-url", "host=nowhere"])
    assert result.exit_code == 1
    assert "give --ingest and --snapshot" in result.output
