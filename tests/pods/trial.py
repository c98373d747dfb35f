"""The chart installed with its own Postgres, as its users and an administrator outside of the pods reach it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from tests.cluster.api import Thing, until
from tests.cluster.release import COMPONENT, Release

from anabranch.client import RemoteDb
from anabranch.client.remote import Tls

DATABASE = "shop"
SERVICES = ("ingest", "conflict-resolver", "snapshot", "retention-janitor")
COMMAND_S = 120
REPLACED_S = 120
TABLE = """
create schema shop;
create table shop.todo (id text primary key, title text not null, n int not null default 0);
create table public.written (id text not null, what text not null);
create function public.note() returns trigger language plpgsql security definer as $$
begin insert into public.written values (coalesce(new.id, old.id), tg_op); return null; end $$;
create trigger note after insert or update or delete on shop.todo for each row execute function public.note();
"""
"""A synced table, and beside it a note of every write that reaches it, however it came."""


@dataclass(frozen=True, slots=True)
class Trial:
    """``url`` leads to Postgres, ``authority`` is that of the services' certificate, ``key`` a device's."""

    release: Release
    kubectl_program: Path
    url: str
    authority: bytes
    keys: list[str]

    @classmethod
    def of(cls, release: Release, kubectl: Path) -> Trial:
        """One that is installed."""
        secrets = release.secrets()
        password = base64.b64decode(secrets["rel-anabranch-postgres"]["password"]).decode()
        host = f"rel-anabranch-postgres.{release.space}.svc.cluster.local"
        url = f"host={host} dbname=anabranch user=anabranch password={password} sslmode=require"
        return cls(release, kubectl, url, base64.b64decode(secrets["rel-anabranch-tls"]["ca.crt"]), [])

    def furnish(self) -> None:
        """Make a database with a table, and a key for devices, by the commands that NOTES print."""
        self.sql(TABLE)
        self.command("database", "create", DATABASE, "--schema", "shop")
        self.command("table", "add", DATABASE, "todo")
        self.keys.append(self.command("key", "create", "tablet-1", "--database", DATABASE).split()[-1])

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Run SQL past the services; rows of the last statement."""
        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as conn:
            cursor = conn.execute(text)
            return cursor.fetchall() if cursor.description else []

    def kubectl(self, *arguments: str) -> str:
        """The output of kubectl. Raises CalledProcessError."""
        given = ["--kubeconfig", str(self.release.kubeconfig), "--namespace", self.release.space]
        return subprocess.run(
            [self.kubectl_program, *given, *arguments], check=True, capture_output=True, text=True, timeout=COMMAND_S
        ).stdout

    def command(self, *arguments: str) -> str:
        """The product's command in a pod of ingest, as NOTES print it."""
        return self.kubectl("exec", "deploy/rel-anabranch-ingest", "--", "anabranch", *arguments)

    def local(self, *arguments: str) -> str:
        """The product's command out here, on the Postgres in there."""
        environment = {**os.environ, "ANABRANCH_POSTGRES_URL": self.url}
        line = [sys.executable, "-m", "anabranch.cli.entry", *arguments]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def remote(self) -> RemoteDb:
        """A device's way in, by the names of the Services."""
        ingest, snapshot, resolver = (
            f"rel-anabranch-{name}.{self.release.space}.svc.cluster.local:7400"
            for name in ("ingest", "snapshot", "conflict-resolver")
        )
        tls = Tls(root_certificates=self.authority)
        return RemoteDb(ingest=ingest, snapshot=snapshot, resolver=resolver, token=self.keys[0], tls=tls)

    def of_component(self, component: str) -> list[Thing]:
        """All pods of a component, ended ones too."""
        return self.release.listed("v1/pods", labelSelector=f"{COMPONENT}={component}")

    def replace(self, component: str) -> None:
        """Delete the pods of a component, and wait until others are ready."""
        old = {pod["metadata"]["uid"] for pod in self.release.pods(component).values()}
        for name in self.release.pods(component):
            self.release.api.delete(f"{self.release.at('v1/pods')}/{name}")

        def others() -> bool:
            found = [pod for pod in self.of_component(component) if pod["metadata"]["uid"] not in old]
            return any(is_ready(pod) for pod in found)

        until(f"{component} has another pod", REPLACED_S, others)

    def restarts(self) -> dict[str, int]:
        """How often each service's pod was started again, by name."""
        return {
            name: sum(one["restartCount"] for one in pod["status"]["containerStatuses"])
            for service in SERVICES
            for name, pod in self.release.pods(service).items()
        }

    def log(self, pod: Thing) -> str:
        """Everything that a pod has printed."""
        path = f"{self.release.at('v1/pods')}/{pod['metadata']['name']}/log"
        found = self.release.api.get(path)
        return str(found.get("text", json.dumps(found)))


def is_ready(pod: Thing) -> bool:
    """Whether its condition says so."""
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
