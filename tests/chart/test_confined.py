"""P08: every program as the chart and compose run it, with a root file system that can't be written, as nobody in
particular, without capabilities, does one unit of its work.

What is confined is the program itself, by the kernel's means; the images add nothing to it but their file system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import psycopg
import pytest

from anabranch.ports import free_port
from anabranch.runtime.children import Child, Program
from anabranch.runtime.fleet import SERVICES
from anabranch.runtime.health import PROBE_OPTIONS, becomes_ready
from anabranch.store.nodes import key_administration
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases
from anabranch.v1 import retention_pb2, retention_pb2_grpc

PATIENCE_S = 60.0
CONFINE = """
set -eu
kept="$1"; root="$2"; shift 2
mount -t tmpfs tmpfs /mnt
mkdir /mnt/kept /mnt/root
mount --bind "$kept" /mnt/kept
mount --bind "$root" /mnt/root; mount -o remount,bind,ro /mnt/root
awk '{print $5}' /proc/self/mountinfo | sort -r | while read -r where; do
    case "$where" in
        /mnt|/mnt/*|/proc|/proc/*|/dev|/dev/*|/sys|/sys/*) ;;
        *) mount -o remount,bind,ro "$where" ;;
    esac
done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir /tmp/kept
mount --bind /mnt/kept /tmp/kept
case "$root" in
    /tmp/*) mkdir -p "$root"; mount --bind /mnt/root "$root"; mount -o remount,bind,ro "$root" ;;
esac
mount -o remount,bind,ro /mnt
cd /tmp
exec setpriv --reuid 10001 --regid 10001 --clear-groups --bounding-set -all --inh-caps -all --no-new-privs "$@"
"""
"""In a mount namespace of its own: everything is read-only but /tmp, which is new and empty, and what is kept, which a
cluster would mount, as /tmp/kept. This checkout may lie in /tmp itself."""
ROOT = Path(__file__).parents[2]
ALL = ("unshare", "--mount", "--propagation", "private", "sh", "-c", CONFINE, "sh")


def confined(kept: Path, command: Sequence[str]) -> list[str]:
    return [*ALL, str(kept), str(ROOT), *command]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder that the confined may write to; a skip with its reason where nothing can be confined here."""
    folder = tmp_path / "kept"
    folder.mkdir()
    lacking = [name for name in ("unshare", "setpriv") if shutil.which(name) is None]
    if lacking:
        pytest.skip(f"{' and '.join(lacking)} (util-linux) not found: programs can't be confined")
    if os.geteuid() != 0:
        pytest.skip("not root: programs can't be confined")
    os.chown(folder, 10_001, 10_001)
    for command, lacks in (
        (["true"], "this kernel lets nobody be confined here"),
        ([sys.executable, "-c", "import anabranch"], "nobody in particular may read this checkout or its Python"),
    ):
        tried = subprocess.run(confined(folder, command), capture_output=True, text=True, check=False, timeout=60)
        if tried.returncode:
            pytest.skip(f"{lacks}: {tried.stderr.strip()[-300:]}")
    return folder


def test_the_confinement_is_one(kept: Path) -> None:
    """Or the other tests would say nothing."""
    script = """
import os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
assert os.getuid() == 10001 and os.getgroups() == [], (os.getuid(), os.getgroups())
assert all(int(status[name], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")), status
assert status["NoNewPrivs"].strip() == "1"
for folder in (FOLDERS):
    try:
        open(os.path.join(folder, "written"), "w")
    except OSError:
        continue
    raise AssertionError(folder)
open("/tmp/kept/written", "w").close()
"""
    folders = ["/", "/var/tmp", "/usr/local", "/mnt", str(Path(__file__).parent), sys.prefix, str(Path.home())]
    command = [sys.executable, "-c", script.replace("(FOLDERS)", repr(folders))]
    done = subprocess.run(confined(kept, command), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (kept / "written").exists()


def environment(url: str, more: Mapping[str, str]) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "LANG")}
    return {**own, "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", "ANABRANCH_POSTGRES_URL": url, **more}


def run(kept: Path, url: str, *arguments: str, **more: str) -> str:
    """A confined command, which must succeed; gives what it says."""
    command = confined(kept, [sys.executable, "-m", "anabranch.cli.entry", *arguments])
    done = subprocess.run(
        command, env=environment(url, more), capture_output=True, text=True, check=False, timeout=PATIENCE_S * 3
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _print_log(child: Child) -> None:
    print(child.log_tail())


@contextmanager
def services(kept: Path, url: str, folder: Path) -> Iterator[dict[str, str]]:
    """All services, confined and ready; gives their addresses."""
    addresses = {name: f"127.0.0.1:{free_port()}" for name in SERVICES}
    with ExitStack() as block:
        for name, module in SERVICES.items():
            more = {
                "ANABRANCH_LISTEN_ADDRESS": addresses[name],
                "ANABRANCH_METRICS_ADDRESS": f"127.0.0.1:{free_port()}",
                "ANABRANCH_END_WITH_STDIN": "true",
            }
            command = confined(kept, [sys.executable, "-m", module])
            child = Child(
                Program(name, command, environment(url, more), folder / f"{name}.log"), restarts=False, say=print
            )
            child.start()
            block.callback(child.stop, 20.0)
            block.callback(_print_log, child)
        deadline = time.monotonic() + PATIENCE_S
        for name, address in addresses.items():
            with grpc.insecure_channel(address, options=PROBE_OPTIONS) as channel:
                while not becomes_ready(channel, 1.0):
                    assert time.monotonic() < deadline, name
        yield addresses


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_services_and_commands_do_their_work(kept: Path, databases: TestDatabases, tmp_path: Path) -> None:
    url = databases.fresh()
    assert "is now at revision" in run(kept, url, "database", "migrate")
    with services(kept, url, tmp_path) as addresses:
        where = [f"--{name}={addresses[full]}" for name, full in (
            ("ingest", "ingest"), ("snapshot", "snapshot"), ("resolver", "conflict-resolver"))]  # fmt: skip
        assert "works: one device wrote a row and another read it" in run(kept, url, "smoke", *where)
        with connect(url, application_name="test", autocommit=True) as conn:
            key = key_administration.create(conn, subject="test", role="admin", database=None, now_ms=1)
        with grpc.insecure_channel(addresses["retention-janitor"]) as channel:
            swept = retention_pb2_grpc.RetentionJanitorServiceStub(channel).RunSweep(
                retention_pb2.RunSweepRequest(db_name="anabranch-smoke"),
                metadata=(("authorization", f"Bearer {key}"),),
                timeout=PATIENCE_S,
            )
        assert not swept.unfinished
    with psycopg.connect(url) as conn:
        assert conn.execute("select count(*) from anabranch.log").fetchone() == (2,)
    databases.release(url)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_compactor_does_its_work(kept: Path, databases: TestDatabases, tmp_path: Path) -> None:
    """It is a process beside the command, and has such itself: where this Python lies in a folder of one user's, nobody
    else can start it a second time."""
    again = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    command = confined(kept, [sys.executable, "-c", again])
    tried = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    if tried.returncode:
        pytest.skip(f"nobody in particular may start this Python: {tried.stderr.strip()[-300:]}")
    url = databases.fresh()
    run(kept, url, "database", "migrate")
    with services(kept, url, tmp_path) as addresses:
        run(kept, url, "smoke", f"--ingest={addresses['ingest']}", f"--snapshot={addresses['snapshot']}")
        said = run(kept, url, "compact", "--root", "/tmp/kept/lake", "--db", "anabranch-smoke")
    assert "2 changes" in said
    assert list(kept.rglob("*.parquet"))
    databases.release(url)
