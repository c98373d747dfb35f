"""The entry point of the command. ``anabranch dead`` needs only the packages that a device has; every other command is
in ``anabranch.cli.app``, which comes with the server."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command; return its exit code."""
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
