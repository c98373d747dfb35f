"""Snapshot alone, as real processes: for tests of the read side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ulid import ULID

from anabranch.store.nodes import key_administration
from anabranch.store.session.engine import connect
from anabranch.testkit.exposition import shown
from anabranch.testkit.service_rig import ServiceRig
from anabranch.testkit.snapshot_reader import Reader


class SnapshotRig(ServiceRig):
    """Processes of snapshot, as ``ServiceRig`` has them."""

    def __init__(self, url: str, folder: Path, *, count: int = 1, environment: Mapping[str, str] | None = None) -> None:
        super().__init__("snapshot", url, folder, count=count, environment=environment)

    def reader(self, db_name: str, *, subject: str = "", number: int = 0, database: str | None = None) -> Reader:
        """A reader with a key and a node of its own, of a principal of its own unless ``subject`` names one."""
        with connect(self.url, application_name="test", autocommit=True) as conn:
            subject = subject or f"user-{ULID()}"
            key = key_administration.create(conn, subject=subject, role="device", database=database, now_ms=1)
        return Reader(self.addresses[number], key, db_name)

    def metric(self, name: str, number: int = 0, **labels: str) -> float:
        """The value of a metric at the Prometheus endpoint; 0 where it has no series."""
        return shown(self.metrics_addresses[number], name, **labels)
