"""Runs a service: a gRPC server with health, reflection, credentials, telemetry and an orderly end.

States of the process, in order; none is entered twice:

* *starting*: waits, at most ``START_TIMEOUT_S``, for Postgres and for its schema; then builds the service.
  Nothing listens.
* *serving*: listens. Readiness is looked at every ``ready_interval_ms``, and more often while there is none: health
  says SERVING while Postgres answers (``readiness``), the schema fits and the service itself has no objection.
  Credentials are looked at by ``credential_watch``, the tokens' key set is read again by ``key_set``.
* *draining*: from the first SIGTERM or SIGINT, or the end of standard input where that is watched. Health
  says NOT_SERVING; then ``drain`` ends all calls within ``drain_ms``.
* *stopped*: background work cancelled, service, pool and telemetry closed.

A second signal ends the process at once. Background work that ends by itself leads to *draining* and exit
code 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import grpc
import structlog
import tenacity
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from anabranch import limits
from anabranch.clock import Clock
from anabranch.errors import ServerError
from anabranch.runtime import metrics, telemetry
from anabranch.runtime.calls.admission import CallAdmission
from anabranch.runtime.calls.dropping import watch_calls
from anabranch.runtime.calls.interceptor import HEALTH_PREFIX, REFLECTION_PREFIX, CallInterceptor
from anabranch.runtime.calls.limits import RateLimit
from anabranch.runtime.calls.requests import UnderWay
from anabranch.runtime.calls.streams import Streams
from anabranch.runtime.calls.unknown_methods import make_server
from anabranch.runtime.certificates import Certificates
from anabranch.runtime.config import S, ServiceSettings, SettingsError, is_loopback, load_settings
from anabranch.runtime.credentials.auth import Authenticator
from anabranch.runtime.credentials.keys import KeyDirectory
from anabranch.runtime.credentials.tokens import TokenVerifier
from anabranch.runtime.credentials.watch import CredentialWatch
from anabranch.runtime.drain import drain
from anabranch.runtime.health_states import HealthStates
from anabranch.runtime.logs import configure_logs, write_error_of_loop
from anabranch.runtime.readiness import Lookout
from anabranch.runtime.service import Build, Service, ServiceContext
from anabranch.store import revisions
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import AsyncPool, SessionOptions, async_pool
from anabranch.store.session.readiness import PoolerError, first_look
from anabranch.store.session.told import told

START_TIMEOUT_S = 60.0
START_LOOK_S = 5.0
UNREADY_INTERVAL_S = 0.1
CLOSE_TIMEOUT_S = 5.0
METADATA_BYTES = 64 * 1024
"""The most that gRPC takes of a call's metadata. Beyond, it refuses the call itself."""
CALLS_OF_A_CONNECTION = 10_000
"""Calls at a time: a gateway has those of many devices on one connection."""
IDLE_MS = 300_000
"""A connection without a call is closed after so long; clients make another one by themselves."""
HANDSHAKE_MS = 20_000
_log = structlog.get_logger()


class NotReadyError(ServerError):
    """Postgres does not answer, or its schema does not fit the service."""


def main(settings: type[S], name: str, build: Build[S]) -> int:
    """Run a service with settings from the environment; gives the exit code. ``__main__`` calls it."""
    try:
        loaded = load_settings(settings)
    except SettingsError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return serve(loaded, name, build)


def serve(settings: S, name: str, build: Build[S]) -> int:
    """Run a service until a signal ends it. Exit code: 0 after a signal, 1 where it could not start or its
    work ended."""
    configure_logs(name, settings.log_level)
    return asyncio.run(_serve(settings, name, build))


async def _serve(settings: S, name: str, build: Build[S]) -> int:
    asyncio.get_running_loop().set_exception_handler(write_error_of_loop)
    close_telemetry = telemetry.start(name, settings)
    stopping = asyncio.Event()
    clock = Clock(settings.clock_offset_ms, settings.clock_file)
    pool = async_pool(
        settings.postgres_url.get_secret_value(),
        application_name=f"anabranch-{name}",
        min_size=2,
        max_size=settings.pool_max_connections,
        autocommit=True,
        options=SessionOptions(statement_timeout_ms=settings.statement_timeout_ms),
    )
    _handle_signals(stopping)
    if settings.end_with_stdin:
        _handle_end_of_input(stopping)
    try:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(pool.close, CLOSE_TIMEOUT_S)
            started = await _until(stopping, _start(settings, name))
            if not started:
                return 0
            await pool.open(wait=False)
            service = await build(ServiceContext(name, settings, clock, pool, stopping))
            if service.close is not None:
                stack.push_async_callback(service.close)
            return await _listen(settings, service, pool, clock, stopping)
    except (NotReadyError, PoolerError, SettingsError) as error:
        _log.error("can't start", detail=error)
        return 1
    except Exception as error:
        _log.error("service failed", exc_info=error)
        return 1
    finally:
        _close_telemetry(close_telemetry)
        _log.info("stopped")


def _close_telemetry(close: Callable[[], None]) -> None:
    """Send what is left; wait at most ``CLOSE_TIMEOUT_S`` for the receiver, then the thread ends with the process."""
    thread = threading.Thread(target=close, name="close-telemetry", daemon=True)
    thread.start()
    thread.join(CLOSE_TIMEOUT_S)
    if thread.is_alive():
        _log.warning("traces or metrics are left unsent")


def _handle_signals(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        _log.info("stopping", signal=signal.Signals(number).name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def _handle_end_of_input(stopping: asyncio.Event) -> None:
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()

    def on_input() -> None:
        if not os.read(stdin, 1024):
            loop.remove_reader(stdin)
            _log.warning("stopping: what started this process is gone")
            stopping.set()

    loop.add_reader(stdin, on_input)


async def _until(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work unless ``stopping`` is set before its end; gives whether it was done."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for one in (task, stop):
            one.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


async def _start(settings: ServiceSettings, name: str) -> None:
    """Wait for Postgres and its schema. Raises NotReadyError, PoolerError."""
    url = settings.postgres_url.get_secret_value()
    known = revisions.revisions()
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(NotReadyError),
        wait=tenacity.wait_exponential(multiplier=0.05, max=1.0),
        stop=tenacity.stop_after_delay(START_TIMEOUT_S),
        reraise=True,
    )
    last: str | None = None
    async for attempt in retrying:
        with attempt:
            objection = await _asked(first_look(url, f"anabranch-{name}", known), START_LOOK_S)
            if objection is not None:
                if objection != last:
                    last = objection
                    _log.warning("not ready", detail=objection)
                raise NotReadyError(objection)


async def _asked(asking: Awaitable[str | None], timeout_s: float) -> str | None:
    try:
        async with asyncio.timeout(timeout_s):
            return await asking
    except TimeoutError:
        return "the database does not answer in time"
    except Exception as error:
        if is_unavailable(error):
            return f"the database is not available: {told(error)}"
        raise


def _options(settings: ServiceSettings) -> list[tuple[str, int]]:
    return [
        # A second process on the same port is an error, not a rival.
        ("grpc.so_reuseport", 0),
        # Above the limit of the interceptor, so that the interceptor can refuse a message with a reason.
        ("grpc.max_receive_message_length", settings.max_message_bytes + 1024 * 1024),
        # As much of metadata: gRPC's default is below the longest token.
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES),
        # The part of a message that comes before it is asked for stays small; with the probe it is megabytes a call. A
        # message that is asked for gets room for all of it, whatever the network.
        ("grpc.http2.bdp_probe", 0),
        # Callers without credentials have a part in all of these.
        ("grpc.max_allowed_incoming_connections", settings.limit_connections),
        ("grpc.max_concurrent_streams", CALLS_OF_A_CONNECTION),
        ("grpc.max_connection_idle_ms", IDLE_MS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_send_message_length", -1),
        # Devices ping an idle stream, which also keeps it through NATs; that is no abuse.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", limits.LEAST_PING_INTERVAL_MS),
        ("grpc.http2.max_ping_strikes", 0),
        # A device that vanished must not hold its stream for ever.
        ("grpc.keepalive_time_ms", limits.SERVER_PING_AFTER_MS),
        ("grpc.keepalive_timeout_ms", limits.PING_ANSWER_MS),
        # How long gRPC waits for the answer where TCP itself still answers; its default is a minute.
        ("grpc.http2.ping_timeout_ms", limits.PING_ANSWER_MS),
        # Else pings become rarer on an idle connection.
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _bind(server: grpc.aio.Server, settings: ServiceSettings) -> int:
    address = settings.listen_address
    try:
        if settings.tls_cert_file is None or settings.tls_key_file is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, Certificates(settings).credentials())
    except (RuntimeError, OSError) as error:
        raise SettingsError(f"can't listen on {address}: {error}") from error


async def _listen(
    settings: ServiceSettings, service: Service, pool: AsyncPool, clock: Clock, stopping: asyncio.Event
) -> int:
    streams = Streams(settings.limit_open_streams, stopping, clock)
    tokens = TokenVerifier(settings, clock)
    authenticator = Authenticator(KeyDirectory(pool), tokens, clock)
    url = settings.postgres_url.get_secret_value()
    watch = CredentialWatch(url, f"{pool.name}-keys", authenticator, streams, service.key_news)
    rate = RateLimit(settings.limit_calls_per_s, settings.limit_calls_burst)
    interceptor = CallInterceptor(
        CallAdmission(authenticator, rate),
        rate,
        streams,
        UnderWay(settings.limit_request_bytes),
        max_message_bytes=settings.max_message_bytes,
        first_request_ms=settings.first_request_ms,
        open_reflection=is_loopback(settings.listen_address),
    )
    watch_calls(asyncio.get_running_loop())
    server = make_server([interceptor], _options(settings))
    service.register(server)
    states = HealthStates(service.names)
    health_pb2_grpc.add_HealthServicer_to_server(states, server)
    reflection.enable_server_reflection((*service.names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    port = _bind(server, settings)
    endless = service.endless | {
        f"{HEALTH_PREFIX}Watch",
        f"{REFLECTION_PREFIX}v1alpha.ServerReflection/ServerReflectionInfo",
    }
    # Objects that exist by now stay: full collections need not look through them again and again.
    gc.collect()
    gc.freeze()
    await server.start()
    _log.info("listening", address=settings.listen_address, port=port, tls=settings.tls)
    async with (
        _background(_watch_readiness(settings, service, pool, states)) as readiness,
        _background(watch.run()) as credentials,
        _background(_endless(None if tokens.key_set is None else tokens.key_set.run)) as key_set,
        _background(_endless(service.run)) as work,
    ):
        stop = asyncio.ensure_future(stopping.wait())
        done, _ = await asyncio.wait({stop, readiness, credentials, key_set, work}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        stopping.set()
        states.end()
        metrics.gauge("anabranch_ready", 0)
        await drain(server, streams, endless, settings.drain_ms / 1000)
    failed = done - {stop}
    for task in failed:
        _log.error("background work ended", exc_info=task.exception())
    return 1 if failed else 0


async def _endless(work: Callable[[], Awaitable[None]] | None) -> None:
    """Do background work. Where there is none, wait: work that ends has the service end."""
    if work is None:
        await asyncio.Event().wait()
    else:
        await work()


@contextlib.asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S)


async def _watch_readiness(settings: ServiceSettings, service: Service, pool: AsyncPool, states: HealthStates) -> None:
    interval_s = settings.ready_interval_ms / 1000
    url, name = settings.postgres_url.get_secret_value(), f"{pool.name}-lookout"
    lookout = Lookout(url, name, pool, revisions.revisions())
    try:
        await _look_again_and_again(lookout, interval_s, service, pool, states)
    finally:
        await lookout.close()


async def _look_again_and_again(
    lookout: Lookout, interval_s: float, service: Service, pool: AsyncPool, states: HealthStates
) -> None:
    last: str | None = "starting"
    refused = 0
    while True:
        objection = await _objection(service, lookout, max(interval_s, 1.0))
        if objection != last:
            last = objection
            _log.info("ready") if objection is None else _log.warning("not ready", detail=objection)
            states.set(objection is None)
        metrics.gauge("anabranch_ready", 1 if objection is None else 0)
        pool_state = pool.get_stats()
        metrics.gauge("anabranch_pool_in_use", pool_state["pool_size"] - pool_state["pool_available"])
        metrics.gauge("anabranch_pool_open", pool_state["pool_size"])
        metrics.gauge("anabranch_pool_waiting", pool_state["requests_waiting"])
        metrics.count("anabranch_pool_refused", pool_state.get("requests_errors", 0) - refused)
        refused = pool_state.get("requests_errors", 0)
        # Callers that wait for the service wait for this look; a service that is ready is asked less often.
        await asyncio.sleep(interval_s if objection is None else min(interval_s, UNREADY_INTERVAL_S))


async def _objection(service: Service, lookout: Lookout, timeout_s: float) -> str | None:
    objection = await lookout.objection(timeout_s)
    if objection is not None:
        return objection
    try:
        async with asyncio.timeout(timeout_s):
            return await service.ready()
    except TimeoutError:
        return "the service does not say in time whether it is ready"
    except Exception as error:
        _log.warning("readiness can't be determined", exc_info=error)
        return f"readiness can't be determined: {type(error).__name__}"
