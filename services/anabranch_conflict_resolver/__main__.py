"""Runs the conflict-resolver: ``python -m anabranch_conflict_resolver``, with settings from the environment."""

from __future__ import annotations

import sys

from anabranch.runtime.server import main
from anabranch.runtime.service import Service, ServiceContext
from anabranch_conflict_resolver.config import ResolverSettings
from anabranch_conflict_resolver.functions.child import Functions
from anabranch_conflict_resolver.loop import garbage
from anabranch_conflict_resolver.loop.resolver import Resolver
from anabranch_conflict_resolver.servicer import SERVICE, ResolverServicer, register


async def build(context: ServiceContext[ResolverSettings]) -> Service:
    """Put the service together."""
    garbage.collect_only_when_told()
    functions = Functions(context.settings.function_timeout_ms)
    resolver = Resolver(context.settings, functions, context.clock)
    servicer = ResolverServicer(context.settings, functions, context.pool, context.clock)

    async def close() -> None:
        await servicer.close()
        functions.close()

    return Service(
        names=(SERVICE,),
        register=lambda server: register(server, servicer),
        ready=resolver.ready,
        run=resolver.run,
        close=close,
    )


if __name__ == "__main__":
    sys.exit(main(ResolverSettings, "conflict-resolver", build))
