"""Find an installation: its Postgres, by the command line, the environment or the folder that ``up`` works in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from anabranch.cli.printable import say

ENDPOINTS = "endpoints.json"
POSTGRES_VARIABLE = "ANABRANCH_POSTGRES_URL"

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of a running `anabranch up`.", file_okay=False, show_default=False),
]
PostgresUrl = Annotated[
    str | None,
    typer.Option("--postgres-url", help=f"The Postgres that the services meet in. Left out: {POSTGRES_VARIABLE}."),
]


def fail(message: str) -> NoReturn:
    """Say what is wrong on standard error and end with exit code 1."""
    say(f"anabranch: {message}", err=True)
    raise typer.Exit(1)


def read_endpoints(data_dir: Path) -> dict[str, Any]:
    """Read the file that ``up`` wrote into its folder: ``addresses``, ``key``, ``postgres_url``. Fails where there is
    none."""
    file = data_dir / ENDPOINTS
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        fail(f"{file} does not exist: has `anabranch up --data-dir {data_dir}` been run?")
    except (OSError, ValueError) as error:
        fail(f"{file} can't be read: {' '.join(str(error).split())}")
    if not isinstance(found, dict) or "postgres_url" not in found:
        fail(f"{file} is not what `anabranch up` writes: start it again on {data_dir}")
    return found


def write_endpoints(data_dir: Path, content: dict[str, Any]) -> None:
    """Replace the file as one step; only its owner may read it, since it holds a key and a password."""
    write_private(data_dir / ENDPOINTS, json.dumps(content, indent=2) + "\n")


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner may read, or replace it, as one step."""
    draft = file.with_name(f"{file.name}.draft")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    draft.replace(file)


def find_postgres(postgres_url: str | None, data_dir: Path | None) -> str:
    """The URL of Postgres: that of the option, else of the folder given, else of the environment. Fails where there is
    none."""
    if postgres_url is not None:
        return postgres_url
    if data_dir is not None:
        return str(read_endpoints(data_dir)["postgres_url"])
    url = os.environ.get(POSTGRES_VARIABLE)
    if not url:
        fail(f"give --data-dir or --postgres-url, or set {POSTGRES_VARIABLE}")
    return url
