"""Runs snapshot: ``python -m anabranch_snapshot``, with settings from the environment."""

from __future__ import annotations

import sys

from anabranch.runtime.server import main
from anabranch.runtime.service import Service, ServiceContext
from anabranch_snapshot import change_servicer
from anabranch_snapshot.change_servicer import ChangeServicer
from anabranch_snapshot.config import SnapshotSettings
from anabranch_snapshot.snapshot import Snapshot


async def build(context: ServiceContext[SnapshotSettings]) -> Service:
    """Put the service together."""
    snapshot = Snapshot(context.settings, context.clock, context.pool)
    await snapshot.start()
    changes = ChangeServicer(snapshot)

    return Service(
        names=(change_servicer.SERVICE,),
        register=lambda server: change_servicer.register(server, changes),
        ready=snapshot.ready,
        run=snapshot.run,
        close=snapshot.close,
        endless=frozenset({f"/{change_servicer.SERVICE}/Subscribe"}),
    )


if __name__ == "__main__":
    sys.exit(main(SnapshotSettings, "snapshot", build))
