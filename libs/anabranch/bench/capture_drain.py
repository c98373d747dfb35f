"""Direct SQL on its way to a device: how many rows a second come through, and how long one takes.

The application writes over a connection of its own, by ``executemany`` in transactions of 100 rows; a device, a process
of its own, follows the log. The time is from the first statement until the device's file has every row. The lag is
measured at 1,000 rows a second, in transactions of 10 rows every 10 ms, from the end of COMMIT to the moment when the
device shows the row.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event

from anabranch.bench.cpu import Spent, spent
from anabranch.bench.device import device
from anabranch.bench.report import Result, percentile
from anabranch.bench.stage import Stage, stage
from anabranch.bench.workload import DATABASE, SCHEMA, TABLE
from anabranch.client import Change, SyncedDb
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.remote import remote_of

ROWS_A_SECOND = 15_000
LAG_P50_MS = 12.0
_TRANSACTION_ROWS = 100
_PACED_ROWS = 10
_PACE_S = 0.01
_PATIENCE_S = 120.0
_LOOK_S = 0.01
_INSERT = (
    f"insert into {SCHEMA}.{{table}} (id, title, done, position, score, changed)"
    " values (%s, %s, false, %s, null, '2024-01-01')"
)


def _device(pipe: Connection, addresses: dict[str, str], key: str, file: str, rows: int, paced: int) -> None:
    """Send the time at which ``rows`` rows are in its file; then, in one message, the time of arrival of each of
    ``paced`` more: a pipe that nobody reads meanwhile would hold the device up."""
    came: list[tuple[str, int]] = []
    all_came = Event()

    def changed(change: Change) -> None:
        came.append((str(change.key[0]), time.time_ns()))
        if len(came) >= paced:
            all_came.set()

    with SyncedDb(file, remote=remote_of(addresses, key), db_name=DATABASE) as db:
        pipe.send(("ready", time.time_ns()))
        # Rows come in the order in which they were written. Counting them at every look would cost what is measured.
        while db.execute(f"SELECT 1 FROM {TABLE} WHERE id = ?", (_name("row", rows - 1),)).fetchone() is None:
            time.sleep(_LOOK_S)
        [there] = db.execute(f"SELECT count(*) FROM {TABLE}").fetchone()
        assert there == rows, f"{there} rows came of {rows}"
        db.on_change(changed)
        pipe.send(("all", time.time_ns()))
        all_came.wait(_PATIENCE_S)
        pipe.send(came)
        pipe.recv()


def _name(series: str, number: int) -> str:
    """The key of a row."""
    return f"{series}-{number:07d}"


def _write(conn: Session, table: str, numbers: Sequence[int], name: str) -> int:
    """Write rows in one transaction; return the time at which its COMMIT came back, in nanoseconds."""
    with conn.cursor() as cursor:
        statement = _INSERT.format(table=table).encode()
        cursor.executemany(statement, [(_name(name, n), f"a title of {n}", n) for n in numbers])
    conn.commit()
    return time.time_ns()


def _bare(conn: Session, rows: int) -> float:
    """Rows a second into a table without capture."""
    conn.execute(f"create table {SCHEMA}.bare (like {SCHEMA}.{TABLE} including all)".encode())
    conn.commit()
    started = time.perf_counter()
    for first in range(0, rows, _TRANSACTION_ROWS):
        _write(conn, "bare", range(first, first + _TRANSACTION_ROWS), "bare")
    return rows / (time.perf_counter() - started)


def _lags(conn: Session, pipe: Connection, rows: int) -> list[float]:
    """Milliseconds from COMMIT to the device, for each row."""
    committed: dict[str, int] = {}
    due = time.perf_counter()
    for first in range(0, rows, _PACED_ROWS):
        time.sleep(max(0.0, due - time.perf_counter()))
        due += _PACE_S
        numbers = range(first, first + _PACED_ROWS)
        moment = _write(conn, TABLE, numbers, "paced")
        committed.update((_name("paced", n), moment) for n in numbers)
    if not pipe.poll(_PATIENCE_S):
        raise TimeoutError(f"the device says nothing within {_PATIENCE_S:g} s")
    came = [(name, moment) for name, moment in pipe.recv() if name in committed]
    if len(came) < len(committed):
        raise TimeoutError(f"{len(committed) - len(came)} rows did not come within {_PATIENCE_S:g} s")
    return [(moment - committed[name]) / 1e6 for name, moment in came]


def _await(pipe: Connection, wanted: str) -> int:
    """The time that the device reports for ``wanted``. Raises TimeoutError."""
    if not pipe.poll(_PATIENCE_S):
        raise TimeoutError(f"the device does not say {wanted!r} within {_PATIENCE_S:g} s")
    name, moment = pipe.recv()
    assert name == wanted, f"{name} came before {wanted}"
    return int(moment)


def _run(on: Stage, file: Path, rows: int, paced: int) -> tuple[float, float, list[float], float, Spent]:
    """Rows a second to the device, and of the bare writer; the lags; seconds that the writer took; what the rows cost
    until they were there."""
    with device(on, _device, str(file), rows, paced, patience_s=_PATIENCE_S) as pipe:
        _await(pipe, "ready")
        with connect(on.url, application_name="anabranch-bench-backend") as conn:
            bare = _bare(conn, rows)
            started = time.time_ns()
            with spent() as cost:
                for first in range(0, rows, _TRANSACTION_ROWS):
                    written = _write(conn, TABLE, range(first, first + _TRANSACTION_ROWS), "row")
                arrived = _await(pipe, "all")
            lags = _lags(conn, pipe, paced)
        pipe.send("done")
    return rows / ((arrived - started) / 1e9), bare, lags, (written - started) / 1e9, cost


def capture(rows: int = 100_000, paced: int = 5_000) -> Result:
    """``rows`` rows by direct SQL to a device; then the lag of ``paced`` rows. The baseline is the rate that is asked
    for; the rate of a bare writer is among the details."""
    with stage() as on, tempfile.TemporaryDirectory(prefix="anabranch-bench-") as folder:
        rate, bare, lags, wrote_s, cost = _run(on, Path(folder) / "device.db", rows, paced)
    p50 = percentile(lags, 0.5)
    return Result(
        bench="capture",
        value=rate,
        baseline=ROWS_A_SECOND,
        unit="rows/s",
        target=1.0,
        direction="at least",
        conditions={f"lag p50 ≤ {LAG_P50_MS:g} ms at 1,000 rows/s": p50 <= LAG_P50_MS},
        details={
            "rows": rows,
            "bare_rows_per_s": round(bare),
            "writer_rows_per_s": round(rows / wrote_s),
            "lag_p50_ms": round(p50, 2),
            "lag_p99_ms": round(percentile(lags, 0.99), 2),
            **cost.details(rows, "row"),
        },
    )
