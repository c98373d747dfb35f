"""The interface between a service and ``serve``: the context that a service gets, and the parts that it returns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import grpc

from anabranch.clock import Clock
from anabranch.runtime.config import ServiceSettings
from anabranch.runtime.credentials.watch import KeyNews
from anabranch.store.session.engine import AsyncPool

S = TypeVar("S", bound=ServiceSettings)


@dataclass(frozen=True, slots=True)
class ServiceContext(Generic[S]):
    """The context that ``build`` gets. The database answers and its schema is current by then; the server does not
    listen yet."""

    name: str
    settings: S
    clock: Clock
    pool: AsyncPool
    """Sessions in autocommit: a single statement is one round trip, several need ``conn.transaction()``."""
    stopping: asyncio.Event
    """Set when the drain begins."""


async def _always_ready() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Service:
    """The service that ``build`` returns."""

    names: tuple[str, ...]
    """Full names of its gRPC services, as health and reflection know them: ``anabranch.v1.IngestService``."""
    register: Callable[[grpc.aio.Server], None]
    """Adds its servicers to the server."""
    ready: Callable[[], Awaitable[str | None]] = _always_ready
    """Asked every ``ready_interval_ms``, and given as long: why the service can't do its work now, or None.
    The pool and the schema are looked at beside it."""
    run: Callable[[], Awaitable[None]] | None = None
    """Its background work. It is cancelled after the drain, when no call is left; if it ends before, by
    returning or by raising, the process stops with exit code 1, so that whatever started it starts it
    again."""
    close: Callable[[], Awaitable[None]] | None = None
    """Called last, before the pool closes."""
    key_news: KeyNews | None = None
    """News of revoked keys from its listener; without it, a session of their own listens for them."""
    endless: frozenset[str] = field(default_factory=frozenset)
    """Methods (``/anabranch.v1.ChangeService/Subscribe``) whose streams never end by themselves: the server sends them
    to another server when the drain begins, other streams only when it is over."""


Build = Callable[[ServiceContext[S]], Awaitable[Service]]
