"""Parts that ``database`` and ``table`` share: a session with the catalog, and one clear line for each error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.cli.installation import find_postgres
from anabranch.cli.printable import say
from anabranch.store import migrate, revisions
from anabranch.store.catalog.databases import UnknownDatabaseError
from anabranch.store.catalog.judging import RegistrationError, SeveralRefusedError
from anabranch.store.session.engine import Session, connect
from anabranch.store.session.errors import PostgresError, UnreachableError, is_conninfo_error

REFUSED = 2
"""Exit code when the command was understood and could not be carried out."""

PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", help='A JSON object of policies, as in \'{"order": "edit"}\'.', show_default=False),
]


def refuse(reason: str, message: str) -> typer.Exit:
    """Print one line with its reason to standard error; return the exception to raise."""
    say(f"anabranch: {_one_line(message)} ({reason})", err=True)
    return typer.Exit(REFUSED)


def _one_line(message: str) -> str:
    return " ".join(message.split())


@contextmanager
def clear_errors() -> Iterator[None]:
    """End the command with exit code 2 for every error that a user can do something about."""
    try:
        yield
    except SeveralRefusedError as error:
        for one in error.errors:
            say(f"anabranch: {_one_line(str(one))}", err=True)
        raise typer.Exit(REFUSED) from error
    except RegistrationError as error:
        say(f"anabranch: {_one_line(str(error))}", err=True)
        raise typer.Exit(REFUSED) from error
    except migrate.MigrationError as error:
        raise refuse("SCHEMA_NOT_CURRENT", str(error)) from error
    except UnknownDatabaseError as error:
        raise refuse("UNKNOWN_DATABASE", str(error)) from error
    except UnreachableError as error:
        raise refuse("UNAVAILABLE", f"Postgres can't be reached: {error}") from error
    except PostgresError as error:
        raise refuse("INVALID_URL" if is_conninfo_error(error) else "POSTGRES", str(error)) from error


@contextmanager
def catalog_session(postgres_url: str | None, data_dir: Path | None, name: str) -> Iterator[Session]:
    """Open a session with the Postgres that the options name. Its schema must fit this release."""
    url = find_postgres(postgres_url, data_dir)
    with clear_errors():
        _require_schema(url)
        with connect(url, application_name=f"anabranch-{name}", autocommit=True) as conn:
            yield conn


def _require_schema(url: str) -> None:
    if not migrate.fits(url):
        found = migrate.current(url)
        what = "there is no schema anabranch" if found is None else f"schema anabranch is at revision {found}"
        raise refuse(
            "SCHEMA_NOT_CURRENT",
            f"{what}, and this release works with {revisions.head()}: run `anabranch database migrate`",
        )


def read_policy(text: str | None) -> dict[str, Any]:
    """Parse the JSON object of ``--policy``."""
    try:
        policy = json.loads(text) if text else {}
    except ValueError as error:
        raise refuse("INVALID_POLICY", f"the policy is no JSON: {error}") from error
    if not isinstance(policy, dict):
        raise refuse("INVALID_POLICY", "the policy is no JSON object")
    return policy
