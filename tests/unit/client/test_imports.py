"""The client imports on systems that lack what only Unix has, every module of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

IMPORT_ALL = """
import importlib, pkgutil, sys

UNIX = {"fcntl", "resource", "pwd", "grp", "termios"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in UNIX:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in UNIX:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())

import anabranch.client

for module in pkgutil.walk_packages(anabranch.client.__path__, "anabranch.client."):
    importlib.import_module(module.name)
# The command that a device has.
importlib.import_module("anabranch.cli.entry")
importlib.import_module("anabranch.cli.dead")

device, lease = sys.argv[1:]
db = anabranch.client.SyncedDb(device, anabranch.client.RemoteDb("127.0.0.1:1"), "todo")
print(db.status().leader)
db.close()
from pathlib import Path
from anabranch.client.file.lease import Lease
one, other = Lease(Path(lease)), Lease(Path(lease))
print(one.acquire(), other.acquire())
"""


def test_every_module_of_the_client_imports_without_what_only_unix_has(tmp_path: Path) -> None:
    device, lease = f"{tmp_path}/device.db", f"{tmp_path}/lease"
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, device, lease], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True", "False"]
