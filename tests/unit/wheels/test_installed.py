"""Each wheel where only those below it are installed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .environments import Environment

IMPORT_ALL = """
import importlib, pkgutil, sys

missing, left_out = (argument.split() for argument in sys.argv[1:])
sys.argv[1:] = []

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in missing:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())

def walk(path, prefix):
    for module in pkgutil.iter_modules(path, prefix):
        if module.name.startswith("anabranch") and module.name not in left_out:
            found = importlib.import_module(module.name)
            if module.ispkg:
                walk(found.__path__, f"{module.name}.")

walk(None, "")
print(*sorted(name for name in sys.modules if name.startswith("anabranch")))
"""
"""Imports every module of ours that is there but for some, on a Python that has no module of certain names."""
ONLY_UNIX = "fcntl grp pwd resource termios"
EXTRAS = "anabranch.embedded anabranch_compactor"
"""Packages whose requirements are extras of the server's."""
FIND = "import importlib.util as u, sys; print(*(name for name in sys.argv[1:] if u.find_spec(name)))"
OPEN = "import sys, anabranch.client as c; c.SyncedDb(sys.argv[1], c.RemoteDb('127.0.0.1:1'), 'shop').close()"


@pytest.fixture(scope="module")
def device(installed: Callable[..., Environment]) -> Environment:
    return installed("device")


@pytest.mark.slow
def test_a_device_has_all_that_its_wheel_needs_and_nothing_of_the_server(device: Environment) -> None:
    imported = set(device.python(IMPORT_ALL, ONLY_UNIX, "").split())
    assert {"anabranch.client.db", "anabranch.cli.dead", "anabranch.v1.ingest_pb2_grpc"} <= imported
    rooms = {name.split(".")[1] for name in imported if "." in name}
    assert not rooms & {"bench", "columnar", "demo", "embedded", "faults", "runtime", "scenario", "store", "testkit"}
    elsewhere = ("anabranch_ingest", "psycopg", "sqlalchemy", "pydantic", "typer", "pytest")
    assert device.python(FIND, *elsewhere).split() == []


@pytest.mark.slow
def test_a_device_opens_its_file_and_looks_at_its_letters(device: Environment) -> None:
    file = str(device.folder / "device.db")
    device.python(OPEN, file)
    done = device.run("anabranch", "dead", "list", file)
    assert (done.returncode, done.stdout) == (0, "no dead letters\n"), done.stderr
    done = device.run("anabranch", "status")
    assert done.returncode == 1
    assert "the other commands need the package anabranch-server" in done.stderr


@pytest.mark.slow
def test_a_server_works_without_the_testkit(installed: Callable[..., Environment]) -> None:
    server = installed("device", "server")
    imported = set(server.python(IMPORT_ALL, "", EXTRAS).split())
    assert {"anabranch.store.migrate", "anabranch.cli.up", "anabranch_ingest.servicer"} <= imported
    assert "Usage" in server.run("anabranch", "--help").stdout
    done = server.run("anabranch", "demo")
    assert done.returncode == 1
    assert done.stderr == "anabranch: `anabranch demo` needs the package anabranch-testkit, of the same version\n"
    done = server.run("anabranch", "up", "--data-dir", str(server.folder / "data"))
    assert done.returncode == 1
    assert "needs the package psutil, which anabranch-server[embedded] brings" in done.stdout + done.stderr
