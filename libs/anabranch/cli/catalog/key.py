"""``anabranch key``: API keys."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from anabranch import limits
from anabranch.cli.installation import DataDir, PostgresUrl, fail, find_postgres
from anabranch.cli.lines import listing, show
from anabranch.cli.printable import say, say_json
from anabranch.store.nodes import key_administration
from anabranch.store.nodes.api_keys import ApiKey, Role, split_key
from anabranch.store.session.engine import connect

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")
_APPLICATION_NAME = "anabranch-key"
_DAY_MS = 86_400_000

Subject = Annotated[str, typer.Argument(help="The principal: who calls with this key. Keep it when you replace a key.")]
KeyDatabase = Annotated[
    str | None, typer.Option("--database", help="The only database that the key opens. Left out: all of them.")
]
KeyRole = Annotated[Role, typer.Option("--role", help="device sends and reads; admin may make admin calls, too.")]
ExpiresDays = Annotated[
    int | None, typer.Option("--expires-days", help="Days until the key ends. Left out: never.", min=1)
]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@app.command()
def create(
    subject: Subject,
    database: KeyDatabase = None,
    role: KeyRole = "device",
    expires_days: ExpiresDays = None,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Make a key and print it. It is shown this once: only its hash is kept."""
    if not subject.strip():
        fail("the subject is empty")
    if len(subject.encode()) > limits.MAX_SUBJECT_BYTES:
        fail(f"the subject has more than {limits.MAX_SUBJECT_BYTES} bytes")
    now_ms = _now_ms()
    expires_ms = None if expires_days is None else now_ms + expires_days * _DAY_MS
    url = find_postgres(postgres_url, data_dir)
    with connect(url, application_name=_APPLICATION_NAME, autocommit=True) as conn:
        try:
            key = key_administration.create(
                conn, subject=subject, role=role, database=database, now_ms=now_ms, expires_ms=expires_ms
            )
        except key_administration.KeyOfNoDatabaseError:
            fail(f"there is no database {database!r}; `anabranch database create` makes one")
    say(key)


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list.")] = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show all keys, without their secrets."""
    now_ms = _now_ms()
    url = find_postgres(postgres_url, data_dir)
    with connect(url, application_name=_APPLICATION_NAME, autocommit=True) as conn:
        keys = key_administration.list_keys(conn)
    if as_json:
        say_json([_as_json(key, now_ms) for key in keys], indent=2)
        return
    header = ("id", "subject", "role", "database", "created", "expires", "state")
    rows = [
        (
            key.id,
            key.subject,
            key.role,
            key.database or "all",
            _time(key.created_ms),
            _time(key.expires_ms),
            _state(key, now_ms),
        )
        for key in keys
    ]
    console = Console()
    show(console, listing(header, rows, console.width))


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="A key's id, as `key list` shows it, or the whole key.")],
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """End a key. Services notice within seconds, and end its open streams."""
    parts = split_key(key)
    key_id = key if parts is None else parts[0]
    url = find_postgres(postgres_url, data_dir)
    with connect(url, application_name=_APPLICATION_NAME, autocommit=True) as conn:
        if not key_administration.revoke(conn, key_id, _now_ms()):
            fail(f"there is no key {key_id} that could be revoked")
    say(f"revoked {key_id}")


def _state(key: ApiKey, now_ms: int) -> str:
    if key.revoked_ms is not None:
        return "revoked"
    return "expired" if key.ended(now_ms) else "good"


def _time(ms: int | None) -> str:
    return "never" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _as_json(key: ApiKey, now_ms: int) -> dict[str, object]:
    return {
        "id": key.id,
        "subject": key.subject,
        "role": key.role,
        "database": key.database,
        "created_ms": key.created_ms,
        "expires_ms": key.expires_ms,
        "revoked_ms": key.revoked_ms,
        "state": _state(key, now_ms),
    }
