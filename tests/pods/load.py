"""Devices and plain SQL that write while something happens to the services: what was written, which calls failed, and
how long the slowest batch waited for its verdict."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest

from anabranch.client import RemoteDb, SyncedDb
from anabranch.client.errors import CallFailed

BEAT_S = 0.25
VERDICT_S = 120.0
AGAIN_S = 0.2
"""How soon a device whose call failed calls again: `flush` calls at once."""
AWAY_BEATS = 8
"""A device that goes offline now and then writes so many batches before it comes back."""
_KINDS = ("UnaryUnaryClientInterceptor", "UnaryStreamClientInterceptor", "StreamStreamClientInterceptor")


@dataclass
class Load:
    """``written``: keys of all rows; ``failed``: calls by method and code; ``slowest``: the longest wait for a verdict,
    in seconds, with the device and when it began."""

    written: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, str, float] = (0.0, "", 0.0)
    unsent: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)
    by_sql: int = 0
    began: float = field(default_factory=time.monotonic)
    ending: threading.Event = field(default_factory=threading.Event)
    pause: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def waited(self, device: str, seconds: float) -> None:
        """Note a batch that has its verdict."""
        with self.lock:
            self.slowest = max(self.slowest, (seconds, device, time.monotonic() - seconds - self.began))

    def told(self) -> str:
        """All of it in a line."""
        seconds, device, at = self.slowest
        calls = sum(self.calls.values())
        return (
            f"{len(self.written)} rows ({self.by_sql} by SQL), slowest batch {seconds:.2f} s "
            f"({device}, {at:.0f} s in), {calls} calls, failed: {dict(self.failed) or 'none'}"
        )


class _Counting(
    grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor
):
    def __init__(self, load: Load) -> None:
        self._load = load

    def _seen(self, method: str, call: Any) -> Any:
        def done(_: object) -> None:
            code = call.code()
            with self._load.lock:
                self._load.calls[method] += 1
                if code not in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
                    self._load.failed[f"{method.rpartition('/')[2]} {code.name}"] += 1

        call.add_done_callback(done)
        return call

    def intercept_unary_unary(self, go: Callable[..., Any], details: Any, request: Any) -> Any:
        return self._seen(details.method, go(details, request))

    def intercept_unary_stream(self, go: Callable[..., Any], details: Any, request: Any) -> Any:
        return self._seen(details.method, go(details, request))

    def intercept_stream_stream(self, go: Callable[..., Any], details: Any, requests: Any) -> Any:
        return self._seen(details.method, go(details, requests))


@contextmanager
def under_load(
    monkeypatch: pytest.MonkeyPatch, folder: Path, remote: Callable[[], RemoteDb], url: str, devices: int = 4
) -> Iterator[Load]:
    """Have ``devices`` and a session of SQL write until the block ends, then until every batch has its verdict. The
    last device goes offline and comes back, again and again."""
    load = Load()
    plain = grpc.secure_channel

    def counted(*arguments: Any, **named: Any) -> grpc.Channel:
        return grpc.intercept_channel(plain(*arguments, **named), _Counting(load))

    monkeypatch.setattr(grpc, "secure_channel", counted)
    run = f"{time.time():.0f}"
    work = [(f"{run}-{n}", n == devices - 1) for n in range(devices)]
    threads = [
        threading.Thread(target=_safely, args=(load, _device, name, folder / f"{name}.db", remote, away))
        for name, away in work
    ]
    threads.append(threading.Thread(target=_safely, args=(load, _sql, f"{run}-sql", url)))
    for one in threads:
        one.start()
    try:
        yield load
    finally:
        load.ending.set()
        for one in threads:
            one.join(VERDICT_S * 2)
    assert not any(one.is_alive() for one in threads)
    assert not load.trouble, load.trouble


def _safely(load: Load, work: Callable[..., None], name: str, *more: Any) -> None:
    try:
        work(load, name, *more)
    except Exception as error:  # told by the thread that waits
        load.trouble.append(f"{name}: {error!r}")


def _device(load: Load, name: str, file: Path, remote: Callable[[], RemoteDb], away: bool) -> None:
    db = SyncedDb(file, remote=remote(), db_name="shop", node_name=name)
    _start(load, db)
    beat, offline = 0, False
    while not load.ending.wait(BEAT_S):
        if away and beat % AWAY_BEATS == 0:
            offline = not offline
            if offline:
                db.stop()
            else:
                db.start()
        key = f"{name}-{beat}"
        db.table("todo").insert({"id": key, "title": "x", "n": beat})
        with load.lock:
            load.written.append(key)
        if not offline:
            _verdict(load, name, db)
        beat += 1
    if offline:
        db.start()
    _verdict(load, name, db)
    status = db.status()
    load.unsent[name], load.dead[name] = status.unsent, status.dead
    db.close()


def _start(load: Load, db: SyncedDb) -> None:
    """Start for the first time; a pull that fails is asked for again, as an app does, and goes on where it stopped."""
    started = time.monotonic()
    while True:
        try:
            return db.start()
        except CallFailed:
            if time.monotonic() - started > VERDICT_S:
                raise
            load.pause.wait(AGAIN_S)


def _verdict(load: Load, name: str, db: SyncedDb) -> None:
    """Wait for the verdicts; a call that fails is made again, as an app does."""
    started = time.monotonic()
    while time.monotonic() - started < VERDICT_S:
        try:
            if db.flush(VERDICT_S):
                break
        except CallFailed:
            load.pause.wait(AGAIN_S)
    load.waited(name, time.monotonic() - started)


def _sql(load: Load, name: str, url: str) -> None:
    number = 0
    while not load.ending.wait(BEAT_S):
        key = f"{name}-{number}"
        try:
            with psycopg.connect(url, autocommit=True, connect_timeout=5) as conn:
                conn.execute("insert into shop.todo (id, title, n) values (%s, 'x', %s)", (key, number))
        except psycopg.OperationalError:
            # Postgres is away: whether the row is there, the next look says, so the key is not used again.
            number += 1
            continue
        with load.lock:
            load.written.append(key)
            load.by_sql += 1
        number += 1
