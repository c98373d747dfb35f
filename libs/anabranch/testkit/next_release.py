"""The release after this one: the current code with one more migration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anabranch
from anabranch.store import revisions

REVISION = "9001"
_MIGRATION = '''"""The changes of the next release."""

from alembic import op

from anabranch.store.session.table_locks import take_tables

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None
works_from = "{works_from}"


def upgrade() -> None:
    op.execute("""{first}""")
    take_tables({tables!r})
    op.execute("""{then}""")
'''


class NextRelease:
    """A copy in ``folder``. Its migration runs the SQL ``first``, takes ``tables``, and runs the SQL ``then``.
    ``works_from``: the oldest revision whose release works with the resulting schema."""

    def __init__(self, folder: Path, first: str, tables: Sequence[str], then: str, works_from: str) -> None:
        libs = Path(anabranch.__path__[0]).parent
        self._folder = folder
        skipped = shutil.ignore_patterns("__pycache__")
        for name in ("libs", "services"):
            shutil.copytree(libs.parent / name, folder / name, ignore=skipped)
        text = _MIGRATION.format(
            revision=REVISION,
            before=revisions.head(),
            works_from=works_from,
            first=first,
            tables=list(tables),
            then=then,
        )
        versions = folder / "libs" / "anabranch" / "store" / "migrations" / "versions"
        (versions / f"{REVISION}_next.py").write_text(text, encoding="utf-8")

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables for processes that run it."""
        return {"PYTHONPATH": os.pathsep.join(str(self._folder / name) for name in ("libs", "services"))}

    def migrate(self, url: str) -> subprocess.Popen[str]:
        """Start its ``anabranch database migrate``; return the process."""
        command = [sys.executable, "-m", "anabranch.cli.entry", "database", "migrate", "--postgres-url", url]
        return subprocess.Popen(
            command, env={**os.environ, **self.environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
