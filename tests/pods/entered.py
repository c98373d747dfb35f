"""One public name for all services, as the chart's Ingress says it, through an nginx that is set up from that object:
devices write and read through it, while pods behind it are exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import certificates
from tests.cluster.control_plane import ControlPlane

from anabranch.client import RemoteDb, SyncedDb
from anabranch.client.remote import Tls

from . import nginx, topologies
from .conftest import space
from .judged import during, judge
from .trial import DATABASE, Trial

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("writes")]
SPACE = "entry"
HOST = f"{nginx.NAME}.{SPACE}.svc.cluster.local"


@pytest.fixture(scope="module")
def entry(plane: ControlPlane, trial: Trial, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteDb]:
    """The way in by the public name."""
    folder = tmp_path_factory.mktemp("entry")
    keys = certificates.make(folder, names=(HOST,))
    trial.release.upgrade(topologies.entered(HOST, nginx.NAME))
    with space(plane, SPACE, folder) as own:
        data = {"tls.crt": keys.server.read_text(), "tls.key": keys.server_key.read_text()}
        own.api.create(own.at("v1/secrets"), {"metadata": {"name": nginx.NAME}, "stringData": data})
        nginx.run(trial.release, trial.release.one("networking.k8s.io/v1/ingresses", "rel-anabranch"), own.space)
        to, tls = f"{HOST}:443", Tls(root_certificates=keys.authority.read_bytes())
        yield RemoteDb(ingest=to, snapshot=to, resolver=to, token=trial.keys[0], tls=tls)
    trial.release.upgrade(topologies.TRIAL)


def test_a_new_device_starts_by_the_public_name(trial: Trial, entry: RemoteDb, tmp_path: Path) -> None:
    with SyncedDb(tmp_path / "new.db", remote=entry, db_name=DATABASE, node_name="by-the-entry") as db:
        db.read()
        assert db.execute("select count(*) from todo").fetchall() == trial.sql("select count(*) from shop.todo")


def test_devices_write_through_it_while_pods_are_exchanged(
    trial: Trial, entry: RemoteDb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def change() -> None:
        for component in ("ingest", "snapshot"):
            trial.replace(component)

    load = during(trial, monkeypatch, tmp_path, "pods exchanged behind the Ingress", change, remote=lambda: entry)
    assert load.calls
    judge(trial, load)
