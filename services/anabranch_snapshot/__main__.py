"""Runs snapshot: ``python -m anabranch_snapshot``, with settings from the environment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from anabranch.runtime.server import main
from anabranch.runtime.service import Service, ServiceContext
from anabranch_snapshot import change_servicer, snapshot_servicer
from anabranch_snapshot.change_servicer import ChangeServicer
from anabranch_snapshot.config import SnapshotSettings
from anabranch_snapshot.snapshot import Snapshot
from anabranch_snapshot.snapshot_servicer import SnapshotServicer

if TYPE_CHECKING:
    import grpc


async def build(context: ServiceContext[SnapshotSettings]) -> Service:
    """Put the service together."""
    snapshot = Snapshot(context.settings, context.clock, context.pool)
    await snapshot.start()
    changes, tables = ChangeServicer(snapshot), SnapshotServicer(snapshot)

    def register(server: grpc.aio.Server) -> None:
        change_servicer.register(server, changes)
        snapshot_servicer.register(server, tables)

    return Service(
        names=(change_servicer.SERVICE, snapshot_servicer.SERVICE),
        register=register,
        ready=snapshot.ready,
        run=snapshot.run,
        close=snapshot.close,
        key_news=snapshot.key_news,
        endless=frozenset({f"/{change_servicer.SERVICE}/Subscribe"}),
    )


if __name__ == "__main__":
    sys.exit(main(SnapshotSettings, "snapshot", build))
