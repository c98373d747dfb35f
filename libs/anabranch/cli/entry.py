"""Where the command begins. ``anabranch dead`` needs what a device has, and nothing more; everything else is
``anabranch.cli.app``, and needs the server's packages."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command; gives its exit code."""
    if sys.argv[1:2] == ["dead"]:
        from anabranch.cli import dead

        return dead.main(sys.argv[2:])
    try:
        from anabranch.cli.app import app
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        print('anabranch: only "anabranch dead" works here: the other commands need anabranch[server]', file=sys.stderr)
        return 1
    app()
    return 0


if __name__ == "__main__":
    sys.exit(main())
