"""The lock of whoever syncs a file: one holder, in this process and others, until it lets go or dies."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from anabranch.client.errors import FileFailed
from anabranch.client.file.lease import Lease

HOLD = """
import sys
from pathlib import Path
from anabranch.client.file.lease import Lease
lease = Lease(Path(sys.argv[1]))
print(lease.acquire(), flush=True)
sys.stdin.readline()
"""


def test_one_holder_until_it_lets_go(tmp_path: Path) -> None:
    one, other = Lease(tmp_path / "device"), Lease(tmp_path / "device")
    assert one.acquire()
    assert one.acquire()
    assert not other.acquire()
    assert one.held
    assert not other.held
    one.release()
    assert other.acquire()
    assert (one.taken, other.taken) == (1, 1)
    assert [file.name for file in tmp_path.iterdir()] == ["device-sync"]


def test_of_many_at_one_moment_exactly_one_gets_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        for number in range(20):
            leases = [Lease(tmp_path / f"device{number}") for _ in range(16)]
            assert list(pool.map(Lease.acquire, leases)).count(True) == 1
            for lease in leases:
                lease.release()


def test_the_death_of_its_holder_frees_it(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "device")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "device")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert not lease.acquire()
        holder.kill()
    assert lease.acquire()


def test_a_lock_that_cannot_be_had_is_no_other_holder(tmp_path: Path) -> None:
    with pytest.raises(FileFailed, match="device-sync"):
        Lease(tmp_path / "missing" / "device").acquire()
