"""Starts the echo service as a real process and calls it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_status import rpc_status

from anabranch.ports import free_port
from anabranch.runtime.children import Child, Program
from anabranch.runtime.errors import error_info
from anabranch.runtime.health import PROBE_OPTIONS, becomes_ready
from anabranch.store.nodes import api_keys, key_administration
from anabranch.store.session.engine import connect
from anabranch.testkit import preforked
from anabranch.v1 import change_pb2, change_pb2_grpc

TIMEOUT_S = 10.0
STOP_PATIENCE_S = 15.0
SUCCESS = ("OK", "")


@dataclass
class Echo:
    """A running echo service."""

    child: Child
    address: str
    metrics_address: str
    database_url: str
    credentials: grpc.ChannelCredentials | None = None
    options: list[tuple[str, int]] = field(default_factory=list)

    def channel(self) -> grpc.Channel:
        """A new channel; the caller closes it."""
        options = [*PROBE_OPTIONS, *self.options]
        if self.credentials is None:
            return grpc.insecure_channel(self.address, options=options)
        return grpc.secure_channel(self.address, self.credentials, options=options)

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until it says SERVING. Raises TimeoutError with the end of its log."""
        deadline = time.monotonic() + timeout_s
        with self.channel() as channel:
            while self.child.pid is not None and time.monotonic() < deadline:
                if becomes_ready(channel, 1.0):
                    return
        raise TimeoutError(f"the echo service is not ready:\n{self.child.log_tail()}")

    def new_key(
        self,
        subject: str,
        *,
        role: api_keys.Role = "device",
        database: str | None = None,
        expires_ms: int | None = None,
    ) -> str:
        """A new API key."""
        with connect(self.database_url, application_name="echo", autocommit=True) as conn:
            return key_administration.create(
                conn, subject=subject, role=role, database=database, now_ms=now_ms(), expires_ms=expires_ms
            )

    def revoke(self, key: str) -> None:
        """End a key."""
        revoke_key(self.database_url, key)


def revoke_key(database_url: str, key: str) -> None:
    """End a key as ``anabranch key revoke`` does, which tells services of it."""
    parts = api_keys.split_key(key)
    assert parts is not None
    with connect(database_url, application_name="echo", autocommit=True) as conn:
        assert key_administration.revoke(conn, parts[0], now_ms())


def now_ms() -> int:
    """The time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def bearer(credentials: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Metadata of a call with these credentials."""
    return (("authorization", f"Bearer {credentials}"), *more)


def get(
    channel: grpc.Channel, credentials: str | None, after: int = 0, *more: tuple[str, str], **request: object
) -> change_pb2.GetResponse:
    """One ``Get``. Raises grpc.RpcError."""
    metadata = bearer(credentials, *more) if credentials is not None else tuple(more)
    message = change_pb2.GetRequest(after=after, **{"db_name": "shop", **request})  # type: ignore[arg-type]
    return change_pb2_grpc.ChangeServiceStub(channel).Get(message, timeout=TIMEOUT_S, metadata=metadata)


def failure(error: grpc.RpcError) -> tuple[str, str]:
    """Code and reason of a failed call. Raises AssertionError unless it has exactly one ErrorInfo of this project."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None, f"no ErrorInfo: {error}"
    assert len(status.details) == 1, f"no single ErrorInfo: {error}"
    info = error_info(error)
    assert info is not None, f"no ErrorInfo: {error}"
    assert info.domain == "anabranch"
    return error.code().name, info.reason


def outcome(call: Callable[[], object]) -> tuple[str, str]:
    """Code and reason of a call, as ``failure``; ``SUCCESS`` where it does not fail."""
    try:
        call()
    except grpc.RpcError as error:
        return failure(error)
    return SUCCESS


def failing(call: Callable[[], object]) -> tuple[str, str]:
    """Code and reason of a call that has to fail, as ``failure``. Raises AssertionError where it does not."""
    found = outcome(call)
    assert found != SUCCESS, "the call did not fail"
    return found


def ending(stream: Iterator[object]) -> tuple[str, str]:
    """Code and reason by which a stream ends, as ``failing``."""
    return failing(lambda: [None for _ in stream])


def subscribe(
    channel: grpc.Channel, credentials: str, after: int = 0, timeout_s: float = 60
) -> Iterator[change_pb2.SubscribeResponse]:
    """A stream whose first heartbeat has come. Raises grpc.RpcError."""
    request = change_pb2.SubscribeRequest(db_name="shop", after=after)
    stream = change_pb2_grpc.ChangeServiceStub(channel).Subscribe(
        request, timeout=timeout_s, metadata=bearer(credentials)
    )
    next(stream)
    return stream


@contextmanager
def echo_service(
    database_url: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    credentials: grpc.ChannelCredentials | None = None,
) -> Iterator[Echo]:
    """An echo service that was started; not yet waited for. It is stopped at the end, and its log printed."""
    folder.mkdir(parents=True, exist_ok=True)
    address, metrics_address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    program = Program(
        name="echo",
        arguments=(sys.executable, "-m", "anabranch.testkit.echo_service"),
        environment={
            **os.environ,
            "ANABRANCH_POSTGRES_URL": database_url,
            "ANABRANCH_LISTEN_ADDRESS": address,
            "ANABRANCH_METRICS_ADDRESS": metrics_address,
            "ANABRANCH_READY_INTERVAL_MS": "100",
            "ANABRANCH_END_WITH_STDIN": "true",
            **(environment or {}),
        },
        log=folder / "echo.log",
    )
    child = Child(program, restarts=False, say=print, launch=preforked.launch)
    child.start()
    try:
        yield Echo(child, address, metrics_address, database_url, credentials)
    finally:
        child.stop(STOP_PATIENCE_S)
        print(child.log_tail())


@contextmanager
def running_echo(
    database_url: str, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[Echo, grpc.Channel]]:
    """An echo service that is ready, and a channel to it."""
    with echo_service(database_url, folder, environment) as echo, echo.channel() as channel:
        echo.wait_ready()
        yield echo, channel
