"""Rules about imports that import-linter can't say, and the size of what a device installs."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import anabranch

LIBS = Path(anabranch.__file__).parent
PLAIN = (
    *("calendar", "canonical", "cells", "decimals", "effect_hashes", "keys", "kinds", "pieces", "postgres_binary"),
    *("postgres_text", "postgres_types", "python", "sqlite", "table"),
)
VALUES = {"anabranch.errors", "anabranch.values", *(f"anabranch.values.{name}" for name in PLAIN)}
PURE = {
    "errors.py": set(),
    "merge": {"anabranch.merge", *VALUES},
    "values/__init__.py": VALUES,
    **{f"values/{name}.py": VALUES for name in PLAIN},
}
"""Part of the libs that uses nothing but the standard library, to the packages of ours that it may import."""
NOT_ON_A_DEVICE = {
    "sqlalchemy",
    "alembic",
    "psycopg",
    "adbc-driver-postgresql",
    "pyspark",
    "pydantic",
    "pandas",
}


SERVICES = ("compactor", "conflict_resolver", "ingest", "retention_janitor", "snapshot")
LOADED = """
import importlib, sys
importlib.import_module(f"anabranch_{sys.argv[1]}.__main__")
print(sorted({name.partition(".")[0] for name in sys.modules} & {"alembic", "sqlalchemy"}))
"""


def imported_modules(source: Path) -> Iterator[str]:
    """Absolute names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source} has a relative import"
            assert node.module is not None
            yield node.module


@pytest.mark.parametrize("part", sorted(PURE))
def test_the_rules_use_nothing_but_the_standard_library(part: str) -> None:
    path = LIBS / part
    sources = [path] if path.is_file() else sorted(path.rglob("*.py"))
    assert sources
    for source in sources:
        for module in imported_modules(source):
            ours = module in PURE[part] or (part == "merge" and module.startswith("anabranch.merge."))
            assert ours or module.partition(".")[0] in sys.stdlib_module_names, f"{source} imports {module}"


def requirements(distribution: str, extra: str | None) -> set[str]:
    """Names that one installed distribution asks for, with one of its extras or none."""
    found = set()
    for line in importlib.metadata.requires(distribution) or []:
        named = re.match(r"[A-Za-z0-9._-]+", line)
        condition = line.partition(";")[2]
        wanted = re.findall(r"""extra\s*==\s*['"]([^'"]+)""", condition)
        assert named is not None
        if not wanted or extra in wanted:
            found.add(re.sub(r"[-_.]+", "-", named.group()).lower())
    return found


def test_a_device_installs_nothing_of_the_server() -> None:
    seen: set[str] = set()
    waiting = requirements("anabranch", "client")
    assert {"grpcio", "pyarrow"} <= waiting, "the client extra was not found"
    while waiting:
        name = waiting.pop()
        seen.add(name)
        try:
            waiting |= requirements(name, None) - seen
        except importlib.metadata.PackageNotFoundError:
            continue  # asked for on other platforms or Python versions only: not installed here
    assert not seen & NOT_ON_A_DEVICE
    assert len(seen) < 15, sorted(seen)


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_loads_neither_sqlalchemy_nor_alembic(service: str) -> None:
    """They would cost it a third of its start. That it loads them later neither, import rules hold."""
    command = [sys.executable, "-c", LOADED, service]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
