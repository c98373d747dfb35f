"""The chart on a Postgres of one's own: TLS that is verified, and a password of odd characters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cluster import certificates
from tests.cluster.api import until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.release import Release

from . import topologies
from .conftest import space
from .trial import SERVICES

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("waits")]
PASSWORD = "p@:/#?%[]&$() 'x\" \\ $(HOME) $$ ü"
READY_S = 120
GROUP = 999


@pytest.fixture
def release(plane: ControlPlane, tmp_path: Path) -> Iterator[Release]:
    with space(plane, "external", tmp_path) as made:
        yield made


def _postgres(release: Release, folder: Path) -> str:
    """A Postgres as somebody else would run it; gives its host."""
    host = f"database.{release.space}.svc.cluster.local"
    keys = certificates.make(folder, names=(host,))
    secrets: dict[str, dict[str, str]] = {
        "database": {"password": PASSWORD},
        "database-tls": {"tls.crt": keys.server.read_text(), "tls.key": keys.server_key.read_text()},
        "database-authority": {"ca.crt": keys.authority.read_text()},
    }
    for name, data in secrets.items():
        release.api.create(release.at("v1/secrets"), {"metadata": {"name": name}, "stringData": data})
    container: dict[str, Any] = {
        "name": "postgres",
        "image": topologies.POSTGRES,
        "args": [
            *("-c", "ssl=on", "-c", "ssl_cert_file=/tls/tls.crt", "-c", "ssl_key_file=/tls/tls.key"),
            *("-c", "unix_socket_directories=/tmp"),
        ],
        "env": [
            {"name": "POSTGRES_USER", "value": "anabranch"},
            {"name": "POSTGRES_DB", "value": "anabranch"},
            {"name": "PGDATA", "value": "/data/pgdata"},
            {"name": "POSTGRES_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "database", "key": "password"}}},
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "readinessProbe": {"exec": {"command": ["pg_isready", "-h", "127.0.0.1", "-U", "anabranch"]}},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "tls", "mountPath": "/tls", "readOnly": True},
        ],
    }
    security = {
        "runAsNonRoot": True,
        "runAsUser": GROUP,
        "fsGroup": GROUP,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    volumes = [
        {"name": "data", "emptyDir": {}},
        {"name": "tls", "secret": {"secretName": "database-tls", "defaultMode": 0o440}},
    ]
    spec = {"containers": [container], "securityContext": security, "volumes": volumes}
    release.api.create(
        release.at("v1/pods"), {"metadata": {"name": "database", "labels": {"app": "database"}}, "spec": spec}
    )
    service = {"selector": {"app": "database"}, "ports": [{"name": "postgres", "port": 5432}]}
    release.api.create(release.at("v1/services"), {"metadata": {"name": "database"}, "spec": service})
    until("Postgres is ready", READY_S, lambda: release.behind("database", "postgres"))
    return host


@pytest.mark.usefixtures("trial")
def test_it_installs_on_a_postgres_of_ones_own_and_its_test_passes(release: Release, tmp_path: Path) -> None:
    host = _postgres(release, tmp_path)
    values = {
        "postgres": {
            "host": host,
            "existingSecret": {"name": "database", "passwordKey": "password"},
            "ca": {"secretName": "database-authority"},
        },
        "services": topologies.TRIAL["services"],
    }
    started = time.monotonic()
    release.install(values)
    installed = time.monotonic()
    release.test()
    print(f"installed in {installed - started:.0f} s, tested in {time.monotonic() - installed:.0f} s")
    encrypted = (
        "select bool_and(ssl), count(*) from pg_stat_ssl join pg_stat_activity using (pid) where backend_type = %s"
    )
    with psycopg.connect(
        host=host,
        dbname="anabranch",
        user="anabranch",
        password=PASSWORD,
        sslmode="verify-full",
        sslrootcert=str(tmp_path / "authority.pem"),
    ) as conn:
        found = conn.execute(encrypted, ("client backend",)).fetchone()
    assert found is not None
    assert found[0] is True
    assert found[1] > len(SERVICES)
