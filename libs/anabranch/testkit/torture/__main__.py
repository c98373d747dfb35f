"""``python -m anabranch.testkit.torture --seconds 60 --seed 1``: one run; exit code 1 where it is not clean."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from anabranch.testkit.own_folder import own_folder
from anabranch.testkit.torture.run import torture


def main() -> int:
    """Run, and print the report."""
    parser = argparse.ArgumentParser(prog="torture", description="One fault run.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long; longer where something was not done yet")
    parser.add_argument("--seed", type=int, help="as an earlier run printed it; left out, a new one")
    parser.add_argument("--folder", type=Path, help="where its files go and stay; left out, away when it is over")
    parser.add_argument(
        "--no-lake", action="store_true", help="without compactor and janitor, which take minutes on a busy machine"
    )
    parser.add_argument("--no-ddl", action="store_true", help="without tables that DDL changes meanwhile")
    options = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    with own_folder("torture") as temporary:
        folder = options.folder or temporary
        folder.mkdir(parents=True, exist_ok=True)
        try:
            report = torture(
                folder,
                options.seconds,
                seed,
                lambda line: print(line, flush=True),
                with_lake=not options.no_lake,
                with_ddl=not options.no_ddl,
            )
        except AssertionError as error:
            print(f"seed {seed}: BROKEN {error}", flush=True)
            return 1
    print(report)
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main())
