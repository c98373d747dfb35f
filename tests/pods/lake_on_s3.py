"""A lake on an object store in the cluster, with the chart's network policies enforced: compacted in one pod, and a
new device starts from it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.control_plane import ControlPlane

from anabranch.client import SyncedDb

from . import s3, topologies
from .compaction import add_rows, prove, run
from .conftest import installed, space
from .lake_content import judge_content
from .trial import DATABASE, Trial

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("object store")]
ROOT = f"s3a://{s3.BUCKET}/shop"
SECRET = "lake-credentials"


@pytest.fixture(scope="module")
def store(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.ObjectStore]:
    """An object store with nothing in it."""
    with space(plane, "objects", tmp_path_factory.mktemp("objects")) as own:
        yield s3.run(plane.api, own.space)


@pytest.fixture(scope="module")
def stored(plane: ControlPlane, store: s3.ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """An install of its own, whose lake has never been anywhere else: a lake does not move to another root."""
    folder, values = tmp_path_factory.mktemp("stored"), topologies.on_s3("local", ROOT, SECRET, s3.PORT)
    with installed(plane, "stored", folder, values, {SECRET: store.credentials()}) as made:
        yield made


@pytest.fixture
def _from_here(store: s3.ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment variables by which a reader out here finds the lake, as services do."""
    for name, value in store.credentials().items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("_from_here")
def test_it_is_compacted_in_one_pod_and_a_new_device_starts_from_it(
    stored: Trial, store: s3.ObjectStore, tmp_path: Path
) -> None:
    add_rows(stored, "s3-local", 1_000)
    prove(stored, run(stored, "compact-s3-local"))
    assert store.names()
    judge_content(stored, ROOT, "s3-local-", 1_000)
    before = _from_parquet(stored)
    with SyncedDb(tmp_path / "new.db", remote=stored.remote(), db_name=DATABASE, node_name="from-the-lake") as db:
        db.read()
        assert db.execute("select count(*) from todo").fetchall() == stored.sql("select count(*) from shop.todo")
        assert not db.verify()
    assert _from_parquet(stored) == before + 1


def _from_parquet(stored: Trial) -> int:
    """How many pulls the one pod of snapshot has served from the lake."""
    [pod] = stored.release.pods("snapshot").values()
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9464/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("anabranch_pull_sources_total{") and 'source="parquet"' in line]
    return sum(int(float(line.rpartition(" ")[2])) for line in found)
