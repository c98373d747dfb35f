"""The revisions of schema ``anabranch`` that this release knows, read from the names of its migrations.

Every service reads them at its start, and needs neither Alembic nor SQLAlchemy for it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

SCHEMA = "anabranch"
VERSION_TABLE = "schema_revision"
CODE_TABLE = "code_revisions"
_FILE = re.compile(r"(\d{4})_\w+\.py")


@cache
def revisions() -> tuple[str, ...]:
    """All revisions that this release knows, the newest, which is its own, first.

    Raises:
        RuntimeError: this installation has no migrations.
    """
    folder = Path(__file__).parent / "migrations" / "versions"
    names = (_FILE.fullmatch(file.name) for file in folder.iterdir())
    found = tuple(sorted((name[1] for name in names if name), reverse=True))
    if not found:
        raise RuntimeError(f"this installation has no migrations: {folder} holds none")
    return found


def head() -> str:
    """The revision that this release works with."""
    return revisions()[0]
