"""A service is ready while the schema fits its release: at its revision, or at a newer one that says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from anabranch.runtime.health import probe
from anabranch.store import migrate, revisions
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.echo import Echo, echo_service
from anabranch.testkit.waiting import until

OWN = revisions.head()
OLDER = revisions.revisions()[1]


@pytest.fixture
def url(databases: TestDatabases) -> Iterator[str]:
    made = databases.fresh()
    migrate.upgrade(made)
    yield made
    databases.release(made)


def put_schema(url: str, revision: str, *serves: str) -> None:
    """Leave the schema as an upgrade to ``revision`` does, as far as readiness goes."""
    with psycopg.connect(url) as conn:
        conn.execute(f"update anabranch.{revisions.VERSION_TABLE} set version_num = %s", (revision,))
        conn.execute(f"delete from anabranch.{revisions.CODE_TABLE}")
        for served in serves:
            conn.execute(f"insert into anabranch.{revisions.CODE_TABLE} values (%s)", (served,))


def wait_for(echo: Echo, state: str, detail: str) -> None:
    """Wait until it is in this state and has said why."""
    until(
        lambda: probe(echo.address, 2.0) == state and said(echo)[-1] == detail,
        20,
        lambda: str((probe(echo.address, 2.0), said(echo))),
    )


def said(echo: Echo) -> list[str]:
    lines = [json.loads(line) for line in echo.child.program.log.read_text().splitlines()]
    return [line.get("detail", "ready") for line in lines if line["event"] in ("ready", "not ready")] or [""]


@pytest.mark.slow
def test_readiness_follows_the_schema(url: str, tmp_path: Path) -> None:
    with echo_service(url, tmp_path) as echo:
        wait_for(echo, "SERVING", "ready")
        put_schema(url, "9999", "9999", "9998")
        wait_for(
            echo,
            "NOT_SERVING",
            f"the schema is at revision 9999, made by a newer release, and no longer works with this one ({OWN})",
        )
        put_schema(url, OLDER, OLDER, OWN)
        reason = f"the schema is at revision {OLDER}, this release needs {OWN}: migrations have not run"
        wait_for(echo, "NOT_SERVING", reason)
        put_schema(url, "9999", "9999", OWN)
        wait_for(echo, "SERVING", "ready")


@pytest.mark.slow
def test_a_release_starts_on_a_newer_schema_that_serves_it(url: str, tmp_path: Path) -> None:
    put_schema(url, "9999", "9999", OWN)
    with echo_service(url, tmp_path) as echo:
        wait_for(echo, "SERVING", "ready")
