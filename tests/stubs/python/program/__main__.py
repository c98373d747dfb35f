"""A client of Anabranch on the generated stubs alone. ../README.md says what it does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .conformance import conformance
from .session import session


def main() -> None:
    """Do what the command line says, and tell it in one line of JSON."""
    commands = {"conformance": conformance, "session": session}
    if len(sys.argv) != 3 or sys.argv[1] not in commands:
        sys.exit("usage: program conformance|session FILE")
    print(json.dumps(commands[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))))


if __name__ == "__main__":
    main()
