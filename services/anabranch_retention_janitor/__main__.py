"""Runs the retention-janitor: ``python -m anabranch_retention_janitor``, with settings from the environment."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from anabranch.runtime.server import main
from anabranch.runtime.service import Service, ServiceContext
from anabranch_retention_janitor import servicer
from anabranch_retention_janitor.census import Census
from anabranch_retention_janitor.config import JanitorSettings
from anabranch_retention_janitor.janitor import Janitor
from anabranch_retention_janitor.servicer import JanitorServicer

if TYPE_CHECKING:
    import grpc


async def build(context: ServiceContext[JanitorSettings]) -> Service:
    """Put the service together."""
    janitor = Janitor(context.settings, context.clock)
    answers = JanitorServicer(janitor, context.pool)
    census = Census(context.settings, context.clock)

    async def run() -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(janitor.run())
            both.create_task(census.run())

    def register(server: grpc.aio.Server) -> None:
        servicer.register(server, answers)

    return Service(names=(servicer.SERVICE,), register=register, run=run, close=janitor.close)


if __name__ == "__main__":
    sys.exit(main(JanitorSettings, "retention-janitor", build))
