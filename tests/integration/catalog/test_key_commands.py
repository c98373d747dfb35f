"""``anabranch key``: keys made, listed and revoked, as services then find them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy.exc import InvalidRequestError
from typer.testing import CliRunner, Result

from anabranch.cli.app import app
from anabranch.store.catalog.registration import create_database
from anabranch.store.nodes.api_keys import ApiKey, afind, proves, split_key
from anabranch.store.nodes.key_administration import REVOKE
from anabranch.store.session.core import execute
from anabranch.store.session.engine import Session, aconnect


@pytest.fixture(autouse=True)
def shop(conn: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANABRANCH_POSTGRES_URL", raising=False)
    create_database(conn, "shop", "app")


def command(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["key", *arguments, "--postgres-url", url])


def listed(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(command(url, "list", "--json").stdout)
    return found


def found_by_a_service(url: str, key_id: str) -> ApiKey:
    async def find() -> ApiKey:
        async with await aconnect(url, application_name="test") as conn:
            return (await afind(conn, [key_id, "nobody"]))[key_id]

    return asyncio.run(find())


def test_a_key_is_listed_and_found_as_it_was_made(migrated_url: str) -> None:
    for_all = command(migrated_url, "create", "ann", "--role", "admin").stdout.strip()
    for_one = command(migrated_url, "create", "100% ben", "--database", "shop", "--expires-days", "2").stdout.strip()
    first, second = listed(migrated_url)
    assert (first["subject"], first["role"], first["database"], first["expires_ms"]) == ("ann", "admin", None, None)
    assert (second["subject"], second["role"], second["database"]) == ("100% ben", "device", "shop")
    assert second["expires_ms"] == second["created_ms"] + 2 * 86_400_000
    for text, told in ((for_all, first), (for_one, second)):
        parts = split_key(text)
        assert parts is not None
        key = found_by_a_service(migrated_url, parts[0])
        assert proves(key, parts[1])
        assert {name: getattr(key, name) for name in told if name != "state"} == {
            name: value for name, value in told.items() if name != "state"
        }


def test_a_key_for_no_database_is_not_made(migrated_url: str) -> None:
    """Above all it does not open every database."""
    refused = command(migrated_url, "create", "ann", "--database", "shops")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "there is no database 'shops'" in refused.stderr
    assert listed(migrated_url) == []


def test_a_key_is_revoked_once_by_its_id_or_by_itself(migrated_url: str) -> None:
    by_itself, by_id, kept = (command(migrated_url, "create", name).stdout.strip() for name in ("a", "b", "c"))
    ids = [parts[0] for key in (by_itself, by_id, kept) if (parts := split_key(key))]
    assert command(migrated_url, "revoke", by_itself).stdout == f"revoked {ids[0]}\n"
    assert command(migrated_url, "revoke", ids[1]).stdout == f"revoked {ids[1]}\n"
    before = listed(migrated_url)
    assert {key["id"]: key["state"] for key in before} == {ids[0]: "revoked", ids[1]: "revoked", ids[2]: "good"}
    again = command(migrated_url, "revoke", ids[1])
    assert again.exit_code == 1
    assert f"there is no key {ids[1]} that could be revoked" in again.stderr
    assert listed(migrated_url) == before, "when it was revoked stays as it was"


def test_a_statement_is_not_run_without_a_value_for_each_parameter(conn: Session) -> None:
    """NULL in its place would find nothing, and be silent."""
    with pytest.raises(InvalidRequestError, match="'key'"):
        execute(conn, REVOKE, now_ms=1)
