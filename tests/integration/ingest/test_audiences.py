"""A batch waits with the audiences that its caller's claims give by the rules of its database."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

import grpc
import jwt
import pytest
from ulid import ULID

from anabranch.store.catalog.registration import tell
from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import Device, IngestRig, batch_id
from anabranch.testkit.waiting import until
from anabranch.v1 import verdict_pb2

SECRET = secrets.token_urlsafe(48)
PENDING = verdict_pb2.VERDICT_STATUS_PENDING
TEAMS = {"claims": {"teams": "team"}}


@pytest.fixture(scope="module")
def rig(module_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestRig]:
    """One ingest process that takes tokens. Its polling is too slow to hide a notification that is missing."""
    environment = {"ANABRANCH_POLL_INTERVAL_MS": "30000", "ANABRANCH_JWT_HS256_SECRET": SECRET}
    with IngestRig(module_url, tmp_path_factory.mktemp("ingest"), environment=environment) as one:
        yield one


def set_rules(rig: IngestRig, db_name: str, rules: dict[str, Any]) -> None:
    """Set rules, and wait until the service goes by their schema version."""
    statement = "update anabranch.databases set audience_rules = %s::jsonb where name = %s returning id"
    with connect(rig.url, application_name="test", autocommit=True) as conn, conn.transaction():
        row = conn.execute(statement, (json.dumps(rules), db_name)).fetchone()
        assert row is not None
        tell(conn, row[0])
        row = conn.execute("select schema_version from anabranch.databases where id = %s", row).fetchone()
        assert row is not None
    until(lambda: device_of(rig, db_name).send().state.schema_version == row[0], 10.0)


def device_of(rig: IngestRig, db_name: str, **claims: object) -> Device:
    made = {"sub": f"user-{ULID()}", "exp": int(time.time()) + 600, "anabranch_database": db_name, **claims}
    return Device(rig.addresses[0], jwt.encode(made, SECRET, "HS256"), db_name)


def kept(rig: IngestRig, batch: str) -> tuple[list[str] | None, list[str] | None] | None:
    """The audiences with which a batch waits; None where it doesn't."""
    statement = "select read_audiences, write_audiences from anabranch.inbox where batch_id = %s"
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        row = conn.execute(statement, (batch,)).fetchone()
        return None if row is None else (row[0], row[1])


def sent(rig: IngestRig, device: Device) -> tuple[list[str] | None, list[str] | None] | None:
    """The audiences with which a new batch of the device waits."""
    payload = device.payload()
    assert device.send(payload, timeout_s=0.5).verdicts[0].status == PENDING
    return kept(rig, batch_id(payload))


@pytest.mark.parametrize(
    ("claims", "read"),
    [
        ({"teams": ["t2", "t1", "t1"]}, ["team:t1", "team:t2"]),
        ({"teams": "t1"}, ["team:t1"]),
        ({"teams": 12}, ["team:12"]),
        ({"teams": ['a,"b"', "{}", "\\", "NULL", "ä"]}, ["team:NULL", "team:\\", 'team:a,"b"', "team:{}", "team:ä"]),
        ({"teams": []}, []),
        ({"groups": ["t1"]}, []),
        ({"teams": ["a\0b", "\ud800", None, True, {"t": 1}]}, []),
    ],
)
def test_claims_give_audiences(rig: IngestRig, db_name: str, claims: dict[str, object], read: list[str]) -> None:
    set_rules(rig, db_name, TEAMS)
    assert sent(rig, device_of(rig, db_name, **claims)) == (read, None)


def test_without_rules_nothing_is_kept(rig: IngestRig, db_name: str) -> None:
    assert sent(rig, device_of(rig, db_name, teams=["t1"])) == (None, None)


def test_an_api_key_has_no_claims(rig: IngestRig, db_name: str) -> None:
    set_rules(rig, db_name, TEAMS)
    assert sent(rig, Device(rig.addresses[0], rig.new_key(f"user-{ULID()}"), db_name)) == ([], None)


def test_rules_of_writing_have_a_list_of_their_own(rig: IngestRig, db_name: str) -> None:
    set_rules(rig, db_name, {**TEAMS, "write": {"claims": {"edits": "team"}}})
    assert sent(rig, device_of(rig, db_name, teams=["t1", "t2"], edits="t2")) == (["team:t1", "team:t2"], ["team:t2"])
    assert sent(rig, device_of(rig, db_name, teams=["t1"])) == (["team:t1"], [])


def test_rules_without_claims_keep_nothing_for_reading(rig: IngestRig, db_name: str) -> None:
    membership = {"query": "select 'team:t1'", "tables": [], "traced": [], "printed": "SELECT 'team:t1'::text"}
    set_rules(rig, db_name, {"memberships": [membership], "write": {"memberships": [membership]}})
    assert sent(rig, device_of(rig, db_name, teams=["t1"])) == (None, [])


def test_new_rules_hold_for_calls_that_come_after_them(rig: IngestRig, db_name: str) -> None:
    device = device_of(rig, db_name, teams=["t1"], groups=["g1"])
    assert sent(rig, device) == (None, None)
    set_rules(rig, db_name, TEAMS)
    assert sent(rig, device) == (["team:t1"], None)
    set_rules(rig, db_name, {"claims": {"groups": "group"}})
    assert sent(rig, device) == (["group:g1"], None)


@pytest.mark.slow
def test_a_batch_that_waits_keeps_what_it_was_sent_with(rig: IngestRig, db_name: str) -> None:
    set_rules(rig, db_name, TEAMS)
    device = device_of(rig, db_name, sub="alice", teams=["t1"])
    payload = device.payload()
    device.send(payload, timeout_s=0.5)
    device.key = device_of(rig, db_name, sub="alice", teams=["t2"]).key
    assert device.send(payload, timeout_s=0.5).verdicts[0].status == PENDING
    assert kept(rig, batch_id(payload)) == (["team:t1"], None)
    assert sent(rig, device) == (["team:t2"], None)


def test_a_stream_goes_by_the_rules_of_now(rig: IngestRig, db_name: str) -> None:
    set_rules(rig, db_name, TEAMS)
    device = device_of(rig, db_name, teams=["t1"], groups=["g1"])
    first, second = device.payload(), device.payload()

    def requests() -> Iterator[Any]:
        yield device.stream_request(first, first=True)
        until(lambda: kept(rig, batch_id(first)) is not None, 10.0)
        set_rules(rig, db_name, {"claims": {"groups": "group"}})
        yield device.stream_request(second)

    with grpc.insecure_channel(device.address) as channel:
        # Nobody decides them here: no verdict comes.
        call = device.stream(channel, requests(), timeout_s=60.0)
        until(lambda: kept(rig, batch_id(second)) is not None, 30.0)
        call.cancel()
    assert kept(rig, batch_id(first)) == (["team:t1"], None)
    assert kept(rig, batch_id(second)) == (["group:g1"], None)
