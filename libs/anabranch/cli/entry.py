"""Where the command begins. ``anabranch dead`` needs what a device has, and nothing more; everything else is
``anabranch.cli.app``, and comes with the server."""

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
        if error.name not in ("anabranch.cli.app", "typer"):
            raise
        print(
            "anabranch: only `anabranch dead` works here: the other commands need the package anabranch-server, "
            "of the same version",
            file=sys.stderr,
        )
        return 1
    app()
    return 0


if __name__ == "__main__":
    sys.exit(main())
