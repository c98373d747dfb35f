"""``anabranch up``: a whole installation on this machine.

The folder holds

    up.lock          locked while an ``up`` runs in it; the kernel frees it if that is killed
    endpoints.json   addresses, key and Postgres URL, for the other commands and for apps (mode 0600)
    admin.key        the key that the first run made (mode 0600)
    postgres/        the embedded Postgres, unless ANABRANCH_POSTGRES_URL names another
    logs/            the logs of the services, and up.log: the lines of this command

States: *starting* (Postgres, schema, key, services, in this order; any failure ends it with one line), *running*
(a service or a Postgres that dies is started again, so is a service that is not ready for long though Postgres answers,
and a line reports that), *stopping* (from the first SIGINT or SIGTERM, in the opposite order). A second signal ends it
at once; the services then end by themselves, and the embedded Postgres with them.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Annotated

import typer

from anabranch.cli.embedded import embedded_postgres
from anabranch.cli.installation import (
    ENDPOINTS,
    POSTGRES_VARIABLE,
    fail,
    read_endpoints,
    write_endpoints,
    write_private,
)
from anabranch.cli.printable import printable
from anabranch.cli.printable import say as print_line
from anabranch.embedded.binaries import PostgresUnavailableError
from anabranch.ports import HOST, NoFreePortError, is_free
from anabranch.runtime.fleet import SERVICES, Fleet, FleetError
from anabranch.runtime.fleet_watch import FleetWatch
from anabranch.store import migrate, revisions
from anabranch.store.nodes import api_keys, key_administration
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import connect

if TYPE_CHECKING:
    from anabranch.embedded.postgres import EmbeddedPostgres

app = typer.Typer()
POSTGRES_CHECK_S = 1.0
READY_TIMEOUT_S = 60.0
FORESEEN = (PostgresUnavailableError, migrate.MigrationError, FleetError, NoFreePortError, TimeoutError)
"""Errors at the start that are no fault of this program; they are reported in words, without a traceback."""
PORT_NAMES = (*SERVICES, "postgres", *(f"{name}-metrics" for name in SERVICES))
"""The listeners, in the order of the ports from --port-base on."""

Say = Callable[[str], None]
Folder = Annotated[
    Path, typer.Option("--data-dir", help="Folder of the installation; made if need be.", file_okay=False)
]
PortBase = Annotated[
    int | None,
    typer.Option(
        "--port-base",
        min=1024,
        max=65_535 - len(PORT_NAMES),
        help=f"First of {len(PORT_NAMES)} ports. Left out: those of the last run, where they are free.",
    ),
]


@app.command()
def up(data_dir: Folder, port_base: PortBase = None) -> None:
    """Run everything on this machine: Postgres, its schema, the services.

    Listens on 127.0.0.1 only, without TLS. Ends in order at Ctrl-C.
    """
    data_dir = data_dir.absolute()
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        fail(f"{data_dir} can't be made: {error.strerror}")
    stop = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(_locked(data_dir))
        logs = data_dir / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        note, say = _sayers(stack.enter_context((logs / "up.log").open("a", encoding="utf-8")))
        stack.enter_context(_signals(stop))
        try:
            _run(data_dir, _ports(data_dir, port_base), stop, note, say)
        except Exception as error:
            if not (isinstance(error, FORESEEN) or is_unavailable(error)):
                raise
            say(f"failed: {error}")
            raise typer.Exit(1) from error
        say("stopped")


def _run(data_dir: Path, ports: Mapping[str, int], stop: threading.Event, note: Say, say: Say) -> None:
    """``note`` gets the lines about expected steps, ``say`` those that people have to know."""
    print_line(f"starting Postgres and {len(SERVICES)} services in {data_dir} …")
    with ExitStack() as stack:
        embedded, url = _start_postgres(data_dir, ports, stack, note)
        if migrate.upgrade(url):
            note(f"the schema was brought to revision {revisions.head()}")
        key = _admin_key(data_dir, url, note, say)
        fleet = Fleet(postgres_url=url, folder=data_dir / "logs", restarts=True, say=say, ports=ports)
        stack.callback(fleet.stop)
        fleet.start(READY_TIMEOUT_S)
        write_endpoints(
            data_dir,
            {
                "addresses": fleet.addresses,
                "metrics_addresses": fleet.metrics_addresses,
                "key": key,
                "postgres_url": url,
                "embedded_postgres_port": None if embedded is None else _port_of(url),
                "pid": os.getpid(),
            },
        )
        note("ready")
        for line in _listening(data_dir, fleet, url, embedded):
            print_line(line)
        stack.enter_context(FleetWatch(fleet, url, say))
        while not stop.wait(POSTGRES_CHECK_S):
            if embedded is not None:
                _keep_postgres(embedded, say)
        say("stopping")


def _start_postgres(
    data_dir: Path, ports: Mapping[str, int], stack: ExitStack, note: Say
) -> tuple[EmbeddedPostgres | None, str]:
    url = os.environ.get(POSTGRES_VARIABLE)
    if url:
        note(f"using the Postgres of {POSTGRES_VARIABLE}")
        return None, url
    server = embedded_postgres(f"point {POSTGRES_VARIABLE} at a server")
    embedded = server(data_dir / "postgres", port=ports.get("postgres"))
    stack.callback(embedded.stop)
    started = time.monotonic()
    url = embedded.start()
    note(f"Postgres runs on {HOST}:{_port_of(url)} (started in {time.monotonic() - started:.1f} s)")
    return embedded, url


def _keep_postgres(embedded: EmbeddedPostgres, say: Say) -> None:
    pid = embedded.pid
    embedded.start()
    if embedded.pid != pid:
        say("Postgres had died and was started again")


def _admin_key(data_dir: Path, url: str, note: Say, say: Say) -> str:
    """The key of the first run, or a new one where there is none or this Postgres does not know it."""
    file = data_dir / "admin.key"
    with connect(url, application_name="anabranch-up", autocommit=True) as conn:
        if file.exists():
            key = file.read_text(encoding="utf-8").strip()
            if api_keys.is_good(conn, key, _now_ms()):
                return key
            say(f"{file} is not a good key of this Postgres; making another")
        key = key_administration.create(conn, subject="admin", role="admin", database=None, now_ms=_now_ms())
    write_private(file, f"{key}\n")
    note(f"made a key with the role admin: {file}")
    return key


def _ports(data_dir: Path, port_base: int | None) -> dict[str, int]:
    """The ports to listen on, by name: from ``port_base``, or those of the last run that are free."""
    if port_base is not None:
        ports = {name: port_base + number for number, name in enumerate(PORT_NAMES)}
        taken = [f"{port} ({name})" for name, port in ports.items() if not is_free(port)]
        if taken:
            fail(f"in use by another process: port {', '.join(taken)}")
        return ports
    if not (data_dir / ENDPOINTS).exists():
        return {}
    last = read_endpoints(data_dir)
    addresses = {
        **last["addresses"],
        **{f"{name}-metrics": address for name, address in last["metrics_addresses"].items()},
    }
    ports = {name: int(address.rpartition(":")[2]) for name, address in addresses.items()}
    if last["embedded_postgres_port"] is not None:
        ports["postgres"] = last["embedded_postgres_port"]
    return {name: port for name, port in ports.items() if is_free(port)}


def _port_of(url: str) -> int:
    return int(url.rpartition("@")[2].partition("/")[0].rpartition(":")[2])


def _listening(data_dir: Path, fleet: Fleet, url: str, embedded: EmbeddedPostgres | None) -> list[str]:
    """A line for each listener, and lines that say where the endpoints file and the logs are."""
    postgres = f"that of {POSTGRES_VARIABLE}" if embedded is None else f"{HOST}:{_port_of(url)}"
    width = max(map(len, fleet.addresses))
    return [
        f"{'Postgres':{width}}  {postgres}",
        *(
            f"{name:{width}}  {address}  metrics: {fleet.metrics_addresses[name]}"
            for name, address in fleet.addresses.items()
        ),
        f"addresses, admin key and Postgres URL: {data_dir / ENDPOINTS}",
        f"logs: {data_dir / 'logs'}",
        "ready, Ctrl-C stops",
    ]


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    with (data_dir / "up.lock").open("a+", encoding="ascii") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            fail(f"`anabranch up` runs in {data_dir} already (process {handle.read().strip() or 'unknown'})")
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    def on_signal(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sayers(log: IO[str]) -> tuple[Say, Say]:
    """``note`` writes a line into the log alone, ``say`` shows it as well."""
    lock = threading.Lock()

    def write(text: str, *, shown: bool) -> None:
        lines = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z {text}".splitlines()
        with lock:
            for line in lines:
                if shown:
                    print_line(line)
                print(printable(line), file=log, flush=True)

    return partial(write, shown=False), partial(write, shown=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
