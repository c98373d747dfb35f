"""A change that breaks clients that are out there is found before it is committed, also before the first release."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BUF = ROOT / ".venv" / "bin" / "buf"
BASELINE = ROOT / "protos" / "baseline.binpb"


def against_baseline(tmp_path: Path, change: tuple[str, str, str] | None) -> subprocess.CompletedProcess[str]:
    """Compare a copy of the contract, changed, with the baseline."""
    shutil.copytree(ROOT / "protos" / "anabranch", tmp_path / "protos" / "anabranch")
    shutil.copyfile(ROOT / "buf.yaml", tmp_path / "buf.yaml")
    if change is not None:
        name, before, after = change
        file = tmp_path / "protos" / "anabranch" / "v1" / name
        assert before in file.read_text()
        file.write_text(file.read_text().replace(before, after))
    command = [str(BUF), "breaking", "--against", str(BASELINE)]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)


def test_the_contract_as_it_is_breaks_nothing(tmp_path: Path) -> None:
    done = against_baseline(tmp_path, None)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("position.proto", "bytes token = 3;", "bytes token = 4;"), 'Previously present field "3"'),
        (("batch.proto", "int64 basis = 2;", "string basis = 2;"), "basis"),
        (("errors.proto", "REASON_ROW_EXISTS = 1;", "REASON_ROW_THERE = 1;"), "ROW_EXISTS"),
        (("change.proto", "rpc FindCommon(", "rpc FindShared("), "FindCommon"),
    ],
    ids=["number", "type", "name of a reason", "call"],
)
def test_a_break_is_named(tmp_path: Path, change: tuple[str, str, str], said: str) -> None:
    done = against_baseline(tmp_path, change)
    assert done.returncode == 100, done.stdout + done.stderr
    assert said in done.stdout
