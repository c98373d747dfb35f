"""The images as they are: what is in them, and each doing one real piece of its work with no rights at all.

`make images-test` runs this after `make images`. Containers have a root file system that can't be written, no
capability, and a uid that nobody knows.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import psycopg
import pytest

from anabranch.ports import free_port
from anabranch.runtime.fleet import SERVICES
from anabranch.runtime.health import PROBE_OPTIONS, becomes_ready
from anabranch.testkit.databases import TestDatabases
from anabranch.v1 import verdict_pb2

from .containers import COMPOSE, NAMED_UID, ROOT, UID, docker, image, lacking, run, running
from .device import Device

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
PATIENCE_S = 180.0
LAKE = COMPOSE["services"]["compactor"]["command"][-1]
MOUNTED = str(Path(LAKE).parent)
LARGEST_MB = {"service": 300, "compactor": 800}
PROGRAMS = """
import os, pathlib
folders = [pathlib.Path(name) for name in os.environ["PATH"].split(":") + ["/bin", "/sbin", "/usr/sbin"]]
print(*{path.name for folder in folders if folder.is_dir() for path in folder.iterdir() if os.access(path, os.X_OK)})
"""
LOADS = """
import ssl, zoneinfo, importlib, pathlib, sysconfig
assert ssl.create_default_context().cert_store_stats()["x509_ca"] > 50
zoneinfo.ZoneInfo("Europe/Berlin")
for path in pathlib.Path(sysconfig.get_paths()["platstdlib"]).glob("lib-dynload/*.so"):
    if "test" not in path.name and not path.name.startswith("_tkinter"):
        importlib.import_module(path.name.split(".")[0])
import adbc_driver_postgresql.dbapi, cryptography.hazmat.bindings._rust, grpc, psycopg, pydantic_core
import pyarrow.dataset, pyarrow.fs, pyarrow.parquet
pyarrow.fs.S3FileSystem(region="eu-central-1")
noted = any(pathlib.Path("/var/lib/dpkg", name).exists() for name in ("status", "status.d/libc6"))
print(noted or "debian" not in pathlib.Path("/etc/os-release").read_text())
"""


@pytest.fixture(params=["service", "compactor"])
def built(request: pytest.FixtureRequest) -> str:
    why = lacking(request.param)
    if why is not None:
        pytest.skip(why)
    return str(request.param)


def inside(name: str, script: str) -> str:
    """The output of a Python program in a container of the image, as it comes."""
    return docker("run", "--rm", "--read-only", "--network=none", "--cap-drop=ALL", image(name), "python", "-c", script)


def test_the_image_says_what_it_is_and_starts_as_nobody(built: str) -> None:
    (one,) = json.loads(docker("image", "inspect", image(built)))
    config = one["Config"]
    assert config["User"] == "10001:10001"
    assert config["Cmd"][0] == "anabranch"
    assert not config.get("Entrypoint")
    labels = config["Labels"]
    assert labels["org.opencontainers.image.version"] == image(built).rpartition(":")[2]
    assert re.fullmatch(r"[0-9a-f]{40}(-changed)?", labels["org.opencontainers.image.revision"])
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert "Usage: anabranch" in docker("run", "--rm", "--read-only", "--cap-drop=ALL", "--network=none", image(built))


def test_nothing_of_the_build_is_left(built: str) -> None:
    """Neither what reached the package index nor what built, and no package that the lock doesn't name."""
    names = "import importlib.metadata as m; print(*(each.metadata['Name'] for each in m.distributions()))"
    found = {name.lower().replace("_", "-") for name in inside(built, names).split()}
    lock = (ROOT / "deploy" / "docker" / f"{built}.lock").read_text()
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    ours = {name for name in found if name.startswith("anabranch")}
    assert ours == {"anabranch", "anabranch-server"}
    assert found <= locked | ours
    assert not re.search(
        r"pip|secret|https?:", docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image(built))
    )
    looked = "import pathlib as p; print(*p.Path('/run/secrets').glob('*'), *p.Path('/root/.cache').glob('*'))"
    assert not docker("run", "--rm", "--network=none", "--user=0", image(built), "python", "-c", looked).strip()


def test_it_is_no_larger_than_it_has_to_be(built: str) -> None:
    (one,) = json.loads(docker("image", "inspect", image(built)))
    assert one["Size"] / 1e6 < LARGEST_MB[built]


def test_the_services_image_has_no_program_but_python_and_those_of_packages() -> None:
    """No shell and no package manager, for whoever comes in; scanners find the packages of which it has libraries."""
    why = lacking("service")
    if why is not None:
        pytest.skip(why)
    found = set(inside("service", PROGRAMS).split())
    assert "anabranch" in found
    assert {name for name in found if name.startswith("python")} >= {"python3"}
    assert not found & {"sh", "bash", "dash", "busybox", "apt-get", "dpkg", "perl", "pip", "pip3", "tar", "mount"}


def test_what_packages_load_of_the_system_is_there(built: str) -> None:
    assert inside(built, LOADS).split() == ["True"]


def test_a_volume_of_the_lake_can_be_written_by_the_images_own_user(built: str) -> None:
    """Whichever image meets the volume first gives it its owner."""
    write = f"open('{MOUNTED}/written', 'w').close()"
    options = ("--rm", "--read-only", "--cap-drop=ALL", "--network=none", f"--mount=type=volume,dst={MOUNTED}")
    docker("run", *options, image(built), "python", "-c", write)


@dataclass(frozen=True)
class Shop:
    """A database with one synced table, the services on it, and keys for it."""

    url: str
    addresses: dict[str, str]
    key: str
    admin: str
    lake: Path


@pytest.fixture(scope="module")
def shop(databases: TestDatabases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    why = lacking("service")
    if why is not None:
        pytest.skip(why)
    print(f"uid {UID}")
    url = databases.fresh()
    lake = tmp_path_factory.mktemp("lake")
    lake.chmod(0o777)
    assert "is now at revision" in run("migration", url, "anabranch", "database", "migrate")
    with psycopg.connect(url) as conn:
        conn.execute("create schema shop")
        conn.execute("create table shop.todo (id text primary key, title text not null)")
    run("migration", url, "anabranch", "database", "create", "shop", "--schema", "shop")
    run("migration", url, "anabranch", "table", "add", "shop", "todo")
    key, admin = (
        run("migration", url, "anabranch", "key", "create", *arguments).strip()
        for arguments in (("tablet-1", "--database", "shop"), ("operator", "--role", "admin"))
    )
    addresses = {name: f"127.0.0.1:{free_port()}" for name in SERVICES}
    with ExitStack() as block:
        for name, address in addresses.items():
            mounts = [f"{lake}:{MOUNTED}:ro"] if COMPOSE["services"][name].get("volumes") else []
            block.enter_context(running(name, url, address, f"127.0.0.1:{free_port()}", mounts))
        deadline = time.monotonic() + PATIENCE_S
        for name, address in addresses.items():
            with grpc.insecure_channel(address, options=PROBE_OPTIONS) as channel:
                while not becomes_ready(channel, 1.0):
                    assert time.monotonic() < deadline, name
        yield Shop(url, addresses, key, admin, lake)
    databases.release(url)


def test_the_services_do_their_work(shop: Shop) -> None:
    device = Device(shop.addresses, "shop", shop.key)
    row = {"id": "1", "title": "milk"}
    verdict = device.insert("todo", row)
    assert verdict.status == verdict_pb2.VERDICT_STATUS_APPLIED, verdict
    assert verdict.batch_id in {batch.id for group in device.page().groups for batch in group.batches}
    assert device.pull("todo") == [row]
    assert not Device(shop.addresses, "shop", shop.admin).sweep().unfinished
    with psycopg.connect(shop.url) as conn:
        assert conn.execute("select title from shop.todo").fetchall() == [("milk",)]
    where = [f"--{name}={shop.addresses[full]}" for name, full in (
        ("ingest", "ingest"), ("snapshot", "snapshot"), ("resolver", "conflict-resolver"))]  # fmt: skip
    said = run("migration", shop.url, "anabranch", "smoke", *where)
    assert "works: one device wrote a row and another read it" in said


@pytest.mark.parametrize(
    "uid",
    [
        NAMED_UID,
        UID,
    ],
    ids=["named", "any"],
)
def test_the_compactor_does_its_work(shop: Shop, uid: int) -> None:
    why = lacking("compactor")
    if why is not None:
        pytest.skip(why)
    row = {"id": f"of {uid}", "title": "bread"}
    verdict = Device(shop.addresses, "shop", shop.key).insert("todo", row)
    assert verdict.status == verdict_pb2.VERDICT_STATUS_APPLIED, verdict
    lake = shop.lake / "lake"
    for folder in (path for path in lake.rglob("*") if path.is_dir()):
        # As a volume's group does in a cluster: what another uid's run has made can be added to.
        folder.chmod(0o777)
    command = ("anabranch", "compact", "--db", "shop", "--root", LAKE)
    run("compactor", shop.url, *command, mounts=[f"{shop.lake}:{MOUNTED}"], uid=uid, timeout_s=900)
    with psycopg.connect(shop.url) as conn:
        newest = "select root, changes, to_position from anabranch.compactions order by to_position desc limit 1"
        published = conn.execute(newest).fetchone()
    assert published is not None
    root, changes, to_position = published
    assert root == f"file:{LAKE}"
    assert changes >= 1
    assert to_position >= verdict.position
    assert list(lake.rglob("*.parquet"))
    # The groups that are cut are compared with the files first.
    assert not Device(shop.addresses, "shop", shop.admin).sweep().unfinished
    assert row in Device(shop.addresses, "shop", shop.key).pull("todo")
