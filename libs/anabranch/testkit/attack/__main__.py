"""``python -m anabranch.testkit.attack --seconds 60 --seed 1``: one attack, or with ``--leaks`` one hunt for leaks;
exit code 1 where it is not clean."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from anabranch.testkit.attack.leak_hunt import HuntReport, hunt
from anabranch.testkit.attack.run import Report, attack
from anabranch.testkit.own_folder import own_folder


def main() -> int:
    """Run, and print the report."""
    parser = argparse.ArgumentParser(prog="attack", description="One attack on a stack of its own.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, help="as an earlier run printed it; left out, a new one")
    parser.add_argument("--leaks", action="store_true", help="hunt for leaks of restricted tables")
    parser.add_argument("--folder", type=Path, help="where its files go and stay; left out, away when it is over")
    options = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    with own_folder("attack") as temporary:
        folder = options.folder or temporary
        folder.mkdir(parents=True, exist_ok=True)
        run: Callable[..., Report | HuntReport] = hunt if options.leaks else attack
        report = run(folder, options.seconds, seed, lambda line: print(line, flush=True))
    print(report)
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main())
