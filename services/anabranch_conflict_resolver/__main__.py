"""Runs the conflict-resolver: ``python -m anabranch_conflict_resolver``, with settings from the environment."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from threading import Event

from anabranch.runtime.server import main
from anabranch.runtime.service import Service, ServiceContext
from anabranch_conflict_resolver.config import ResolverSettings, explain_options, group_options
from anabranch_conflict_resolver.explain import DryRuns
from anabranch_conflict_resolver.functions.child import Functions
from anabranch_conflict_resolver.group.commit import commit_group
from anabranch_conflict_resolver.group.outcome import GroupLimits
from anabranch_conflict_resolver.loop import garbage
from anabranch_conflict_resolver.loop.known import Known
from anabranch_conflict_resolver.loop.resolver import Resolver
from anabranch_conflict_resolver.loop.seal_keys import SealKeys
from anabranch_conflict_resolver.loop.sessions import Sessions
from anabranch_conflict_resolver.loop.wakeups import Wakeups
from anabranch_conflict_resolver.loop.worker import Worker
from anabranch_conflict_resolver.loop.writers import Writers, drop_others
from anabranch_conflict_resolver.servicer import SERVICE, ResolverServicer, register


async def build(context: ServiceContext[ResolverSettings]) -> Service:
    """Put the service together."""
    garbage.collect_only_on_call()
    settings, clock = context.settings, context.clock
    url = settings.postgres_url.get_secret_value()
    functions = Functions(settings.function_timeout_ms)
    writers = await asyncio.to_thread(_writers, settings)
    keys = None if writers.reach_keys else SealKeys(url)
    wakeups, known, stopping = Wakeups(), Known(keys), Event()
    alone_ms = settings.group_alone_timeout_ms
    limits = GroupLimits(settings.group_max_bytes, settings.busy_ms, alone_ms=alone_ms, rest_ms=settings.rest_ms)
    most = settings.resolver_workers
    sessions = Sessions(writers, group_options(settings), kept=most, most=max(most, settings.resolver_sessions))
    workers = [
        Worker(
            sessions,
            partial(commit_group, limits=limits, functions=functions),
            clock,
            wakeups,
            known,
            stopping,
            most_batches=settings.group_max_batches,
            target_ms=settings.group_target_ms,
            rest_ms=settings.rest_ms,
        )
        for _ in range(most)
    ]
    resolver = Resolver(settings, writers, workers, wakeups, known, stopping, clock)
    dry_runs = DryRuns(
        Sessions(writers, explain_options(settings)), functions, keys, longest_s=settings.explain_timeout_ms / 1000
    )
    servicer = ResolverServicer(context.pool, clock, dry_runs.explain)

    async def close() -> None:
        await asyncio.to_thread(servicer.close)
        await asyncio.to_thread(dry_runs.close)
        functions.close()

    return Service(
        names=(SERVICE,),
        register=lambda server: register(server, servicer),
        ready=resolver.ready,
        run=resolver.run,
        close=close,
    )


def _writers(settings: ResolverSettings) -> Writers:
    url = settings.postgres_url.get_secret_value()
    writers = Writers(url, settings.shared_writer(), trusting=settings.trust_owners)
    if writers.shared is None:
        drop_others(url)
    return writers


if __name__ == "__main__":
    sys.exit(main(ResolverSettings, "conflict-resolver", build))
