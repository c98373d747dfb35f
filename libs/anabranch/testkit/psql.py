"""Postgres's own command line programs, for measurements that use no code of this project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from anabranch.embedded.binaries import PostgresUnavailableError, find_binaries

_TIME = re.compile(r"^Time: ([0-9.]+) ms", re.MULTILINE)
_LATENCY = re.compile(r"^latency average = ([0-9.]+) ms", re.MULTILINE)


def program(name: str) -> Path:
    """Find ``psql`` or ``pgbench``: that of the embedded Postgres, else the machine's.

    Raises:
        PostgresUnavailableError: neither is there.
    """
    try:
        return Path(find_binaries(for_root=os.geteuid() == 0).program(name))
    except PostgresUnavailableError:
        found = shutil.which(name)
        if found is None:
            raise
        return Path(found)


def _run(arguments: list[str], timeout_s: float) -> str:
    ran = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout_s, check=False)
    if ran.returncode:
        raise RuntimeError(f"{Path(arguments[0]).name} failed: {ran.stderr.strip()}")
    return ran.stdout


def copy_s(url: str, copy: str, *, timeout_s: float = 900.0) -> float:
    """Seconds that ``psql`` takes to read a ``copy … to stdout``, which it throws away; its start is not among them.

    Raises:
        PostgresUnavailableError: there is no psql.
        RuntimeError: it failed; the message is its own.
    """
    printed = _run(
        [str(program("psql")), "-X", "-d", url, "-c", r"\timing on", "-c", rf"\o {os.devnull}", "-c", copy], timeout_s
    )
    found = _TIME.search(printed)
    if found is None:
        raise RuntimeError(f"psql printed no time: {printed!r}")
    return float(found[1]) / 1_000


def transaction_s(url: str, script: Path, transactions: int, *, timeout_s: float = 120.0) -> float:
    """Seconds that ``pgbench`` takes on average for ``script``, run ``transactions`` times by one client with prepared
    statements.

    Raises:
        PostgresUnavailableError: there is no pgbench.
        RuntimeError: it failed; the message is its own.
    """
    options = ["-n", "-c", "1", "-M", "prepared", "-t", str(transactions), "-f", str(script)]
    printed = _run([str(program("pgbench")), *options, url], timeout_s)
    found = _LATENCY.search(printed)
    if found is None:
        raise RuntimeError(f"pgbench printed no latency: {printed!r}")
    return float(found[1]) / 1_000
