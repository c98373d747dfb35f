"""The decisions in docs/decisions: the skeleton of a new one, and the index of all.

``tools/decisions.py new --about Devices "A title that says what was decided"`` makes the next number's file, and
``tools/decisions.py index`` writes the index anew. ``tests/unit/test_documents.py`` holds their form.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "decisions"
SUBJECTS = (
    "Devices",
    "The write path",
    "Registration",
    "Changes made by SQL",
    "The contract",
    "Agreement and repair",
    "Rewind",
    "The read path",
    "The lake",
    "Retention",
    "Operation",
)
SECTIONS = ("Context", "Decision", "What it costs")
_HEAD = re.compile(r"\A# (\d{4})\. (.+)\n\n- Date: (\d{4}-\d\d-\d\d)\n- About: (.+)\n\n")
INTRODUCTION = """# Decisions

Each page tells one decision: the context, the decision, and the costs. A decision that is taken back keeps its page,
which then names the decision that took its place. `tools/decisions.py` makes the skeleton of a new page and this index.
"""


class DecisionError(ValueError):
    """A decision's file is not of the form that it has to have; the message says which and how."""


@dataclass(frozen=True)
class Decision:
    """One decision, by the head of its file."""

    file: str
    number: int
    title: str
    subject: str


def read(path: Path) -> Decision:
    """The decision in ``path``. Raises DecisionError where its head is not of the form."""
    head = _HEAD.match(path.read_text(encoding="utf-8"))
    if head is None:
        raise DecisionError(f"{path.name} has to begin with '# NNNN. Title' and the lines '- Date:' and '- About:'")
    number, title, _, subject = head.groups()
    if subject not in SUBJECTS:
        raise DecisionError(f"{path.name} is about {subject!r}; it has to be one of {', '.join(SUBJECTS)}")
    return Decision(path.name, int(number), title, subject)


def all_decisions(folder: Path = FOLDER) -> list[Decision]:
    """All decisions, by number."""
    return sorted((read(path) for path in folder.glob("[0-9]*.md")), key=lambda one: one.number)


def index(decisions: list[Decision]) -> str:
    """The index, by subject."""
    of: dict[str, list[Decision]] = defaultdict(list)
    for one in decisions:
        of[one.subject].append(one)
    parts = [INTRODUCTION]
    for subject in SUBJECTS:
        if subject in of:
            rows = [f"- [{one.number:04}. {one.title}]({one.file})" for one in of[subject]]
            parts.append("\n".join([f"## {subject}", "", *rows, ""]))
    return "\n".join(parts)


def file_name(number: int, title: str) -> str:
    """The name of a decision's file."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"'([st])\b", r"\1", title.lower()))
    return f"{number:04}-{'-'.join(words)}.md"


def skeleton(number: int, title: str, subject: str, day: str) -> str:
    """A new decision's file, with its sections empty."""
    sections = "\n".join(f"## {section}\n" for section in SECTIONS)
    return f"# {number:04}. {title}\n\n- Date: {day}\n- About: {subject}\n\n{sections}"


def main() -> int:
    """Return 0, or 1 where a decision's file is not of the form."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("new", help="make the file of a new decision")
    new.add_argument("title")
    new.add_argument("--about", choices=SUBJECTS, required=True)
    commands.add_parser("index", help="write the index anew")
    asked = parser.parse_args()
    try:
        decisions = all_decisions()
    except DecisionError as error:
        print(error, file=sys.stderr)
        return 1
    if asked.command == "new":
        number = max((one.number for one in decisions), default=0) + 1
        path = FOLDER / file_name(number, asked.title)
        path.write_text(
            skeleton(number, asked.title, asked.about, datetime.now(UTC).date().isoformat()), encoding="utf-8"
        )
        print(path)
        decisions = all_decisions()
    (FOLDER / "README.md").write_text(index(decisions), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
