"""The documents for `make docs`: every Markdown file of the checkout, laid out in build/documents as it lies here.

MkDocs takes documents from one folder that is not the checkout itself, and links between them reach beyond docs/: into
the chart's runbooks and the services' READMEs. So all of them are copied, and a link leads to the same page on the site
as in the checkout. Needs the standard library and git.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INTO = ROOT / "build" / "documents"


def documents() -> list[str]:
    """The Markdown files of the checkout, those that are not committed yet included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    return [name for name in found.stdout.splitlines() if (ROOT / name).is_file()]


def lay_out(into: Path = INTO) -> int:
    """Copy the documents; return their number."""
    shutil.rmtree(into, ignore_errors=True)
    names = documents()
    for name in names:
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, into / name)
    return len(names)


if __name__ == "__main__":
    print(f"{lay_out()} documents in {INTO.relative_to(ROOT)}")
