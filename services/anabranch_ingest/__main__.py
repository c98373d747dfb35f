"""Runs ingest: ``python -m anabranch_ingest``, with settings from the environment."""

from __future__ import annotations

import sys

from anabranch.runtime.server import main
from anabranch.runtime.service import Service, ServiceContext
from anabranch_ingest.config import IngestSettings
from anabranch_ingest.ingest import Ingest
from anabranch_ingest.servicer import SERVICE, IngestServicer, register


async def build(context: ServiceContext[IngestSettings]) -> Service:
    """Put the service together."""
    ingest = Ingest(context.settings, context.clock, context.stopping)
    await ingest.start()
    servicer = IngestServicer(ingest)
    return Service(
        names=(SERVICE,),
        register=lambda server: register(server, servicer),
        ready=ingest.ready,
        run=ingest.run,
        key_news=ingest.key_news,
    )


if __name__ == "__main__":
    sys.exit(main(IngestSettings, "ingest", build))
