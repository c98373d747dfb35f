"""The contract's chores: generate stubs, check that they are current, lint, and look for breaking changes.

Stubs are made by `buf generate` from `protos/` into `libs/anabranch/v1` and committed. `check` makes
them again in a temporary folder and compares names and bytes.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUF = ROOT / ".venv" / "bin" / "buf"
PACKAGE = Path("anabranch/v1")
STUBS = ROOT / "libs" / PACKAGE
GENERATED = re.compile(r".+_pb2(_grpc)?\.pyi?")
INIT = '"""Generated from protos/anabranch/v1 by `make protos`. Do not edit."""\n'
BASELINE = ROOT / "protos" / "baseline.binpb"
RELEASE_TAG = "v[0-9]*"


def buf(*arguments: str) -> None:
    """Run the pinned buf; its own messages say what is wrong."""
    environment = {**os.environ, "BUF_CACHE_DIR": str(ROOT / ".cache" / "buf")}
    subprocess.run([BUF, *arguments], cwd=ROOT, check=True, env=environment)


def generated_names(folder: Path) -> set[str]:
    """Names of generated stubs in `folder`, with the package's `__init__.py`."""
    if not folder.is_dir():
        return set()
    return {path.name for path in folder.iterdir() if GENERATED.fullmatch(path.name) or path.name == "__init__.py"}


def generate_into(folder: Path) -> Path:
    """Generate every stub below `folder` and return the folder of the package."""
    template = folder / "buf.gen.yaml"
    template.write_text((ROOT / "buf.gen.yaml").read_text().replace("out: libs", f"out: {folder}"))
    buf("generate", "--template", str(template))
    package = folder / PACKAGE
    if not generated_names(package):
        raise SystemExit("protos/ generated nothing")
    for stub in package.glob("*_pb2_grpc.pyi"):  # mypy-protobuf writes one for files without a service, too
        if not stub.with_suffix(".py").exists():
            stub.unlink()
    (package / "__init__.py").write_text(INIT)
    return package


def generate() -> None:
    """Replace the committed stubs; those of a proto that is gone go too."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate_into(Path(folder))
        STUBS.mkdir(parents=True, exist_ok=True)
        for name in generated_names(STUBS) - generated_names(fresh):
            (STUBS / name).unlink()
        for name in sorted(generated_names(fresh)):
            shutil.copyfile(fresh / name, STUBS / name)


def check() -> None:
    """Exit with the list of stale, missing and left-over stubs, if there are any."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate_into(Path(folder))
        names = sorted(generated_names(fresh) | generated_names(STUBS))
        _, differing, unreadable = filecmp.cmpfiles(fresh, STUBS, names, shallow=False)
    if differing or unreadable:
        listed = ", ".join(sorted(differing + unreadable))
        raise SystemExit(f"stubs that are not what protos/ generates: {listed}; run `make protos`")


def lint() -> None:
    """buf's STANDARD and COMMENTS rules."""
    buf("lint")


def breaking() -> None:
    """Compare with the last release; before the first one, with the baseline that is committed."""
    described = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "--match", RELEASE_TAG],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    released = described.returncode == 0
    buf("breaking", "--against", f".git#tag={described.stdout.strip()}" if released else str(BASELINE))


def baseline() -> None:
    """Take the contract as it is for what must not be broken until the first release."""
    buf("build", "--exclude-source-info", "--output", str(BASELINE))


def main() -> None:
    """Run the one command named on the command line."""
    commands = {command.__name__: command for command in (generate, check, lint, breaking, baseline)}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        raise SystemExit(f"usage: protos.py {'|'.join(commands)}")
    try:
        commands[sys.argv[1]]()
    except subprocess.CalledProcessError as error:
        raise SystemExit(error.returncode) from None


if __name__ == "__main__":
    main()
