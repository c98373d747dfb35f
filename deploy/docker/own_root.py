"""Copy what an image needs of its base to a folder: Python, and the libraries that packages load.

Run by the base's Python while an image is built: ``python3 own_root.py PACKAGES ROOT``. PACKAGES is the folder of the
virtual environment, which is looked at and not copied. Each library is one that the loader names for a program or for a
library of PACKAGES or of Python. Debian's packages that files come from are noted in ``var/lib/dpkg/status.d``, so that
scanners find them. Standard library only.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

TAKEN = (
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/ssl",
    "/usr/lib/ssl",
    "/usr/share/ca-certificates",
    "/usr/share/zoneinfo",
)
"""Beside Python and libraries: names of users and hosts, certificates, time zones."""
LEFT_OUT = shutil.ignore_patterns(
    *("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data", "config-*"),
    *("site-packages", "dist-packages", "right", "posix"),
)
ELF = b"\x7fELF"
COMMAND_S = 300


def libraries(folders: list[Path]) -> set[str]:
    """The paths of all libraries, and of the loader, that programs and libraries in ``folders`` take from this system.

    Raises:
        RuntimeError: the loader does not find one of them.
    """
    # One that stands in PACKAGES finds its neighbours by its own path, as it will in the image.
    found: set[str] = set()
    for path in sorted(each for folder in folders for each in _programs(folder)):
        said = subprocess.run(["ldd", path], capture_output=True, text=True, check=False, timeout=COMMAND_S).stdout
        if "not found" in said:
            raise RuntimeError(f"{path} needs a library that is not there:\n{said}")
        found.update(re.findall(r"(?:=> |^\s+)(/\S+) \(", said, re.MULTILINE))
    return found


def _programs(folder: Path) -> Iterator[Path]:
    for path in [folder] if folder.is_file() else folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == ELF:
                    yield path


def take(root: Path, path: Path) -> None:
    """Copy a file or a folder to its place under ``root``; a link is taken with what it leads to."""
    real = path.parent.resolve() / path.name
    to = root / real.relative_to("/")
    if to.exists() or to.is_symlink():
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    if real.is_symlink():
        to.symlink_to(real.readlink())
        take(root, real.parent / real.readlink())
    elif real.is_dir():
        shutil.copytree(real, to, symlinks=True, ignore=LEFT_OUT)
    else:
        shutil.copy2(real, to)


def note_packages(root: Path) -> None:
    """Note Debian's packages whose files were taken; a base of another kind has none."""
    if shutil.which("dpkg-query") is None:
        return
    notes = root / "var/lib/dpkg/status.d"
    notes.mkdir(parents=True)
    files = [f"/{path.relative_to(root)}" for path in root.rglob("*") if path.is_file()]
    # Debian knows some files by the names that they had before /lib became a link.
    files += [file.removeprefix("/usr") for file in files if file.startswith("/usr/lib")]
    command = ["dpkg-query", "--search", *files]
    # Its status tells only that Python made some of the files (of bytecode), which no package has.
    asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_S)
    for name in sorted(set(re.findall(r"^([a-z0-9][a-z0-9.+-]+)(?::\w+)?: /", asked.stdout, re.MULTILINE))):
        about = subprocess.run(["dpkg-query", "--status", name], capture_output=True, check=True, timeout=COMMAND_S)
        (notes / name).write_bytes(about.stdout)


def main() -> None:
    """Make the folder."""
    packages, root = (Path(argument) for argument in sys.argv[1:])
    root.mkdir()
    for link in (path for path in Path("/").iterdir() if path.is_symlink()):
        (root / link.name).symlink_to(link.readlink())
    python = Path(sys.executable)
    paths = sysconfig.get_paths()
    library = [Path(one) for one in dict.fromkeys((paths["stdlib"], paths["platstdlib"]))]
    for path in (python, *library, *(Path(one) for one in TAKEN if Path(one).exists())):
        take(root, path)
    # Of the copy, as the parts that are left out need more.
    programs = [packages, *(root / one.resolve().relative_to("/") for one in (python, *library))]
    for one in sorted(libraries(programs)):
        if not one.startswith((f"{packages}/", f"{root}/")):
            take(root, Path(one))
    note_packages(root)
    (root / "tmp").mkdir(mode=0o1777)
    (root / "tmp").chmod(0o1777)


if __name__ == "__main__":
    main()
