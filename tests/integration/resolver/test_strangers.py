"""A role that may connect, and nothing more, stops no resolver: neither by notifications nor by locks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from anabranch.clock import Clock
from anabranch.runtime import metrics
from anabranch.store.catalog.registration import create_database
from anabranch.store.inbox.claim import heard, open_listener, session_options, silent_claims
from anabranch.store.session.channels import CATALOG_CHANNEL, INBOX_CHANNEL
from anabranch.store.session.engine import Session
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.strangers import stranger
from anabranch.testkit.waiting import until
from anabranch_conflict_resolver.config import ResolverSettings
from anabranch_conflict_resolver.loop.known import Known
from anabranch_conflict_resolver.loop.resolver import Resolver
from anabranch_conflict_resolver.loop.wakeups import Wakeups
from anabranch_conflict_resolver.loop.writers import Writers

OLD_CLAIM = 0x616E6162
"""The first key of the advisory locks that claims once were."""
CHANNELS = (INBOX_CHANNEL, CATALOG_CHANNEL)
FORGED = ["9" * 5_000, "99999999999", "-1", "", "x", "1e3", "1" * 11]


@pytest.fixture
def nobody(migrated_url: str) -> Iterator[Session]:
    with stranger(migrated_url) as session:
        yield session


def ignored() -> float:
    return metrics._totals["anabranch_notifications_ignored"].get((), 0)


def test_numbers_that_are_none_are_heard_as_none(migrated_url: str, nobody: Session) -> None:
    options = session_options(statement_timeout_ms=5_000, lock_timeout_ms=250, idle_timeout_ms=2_000)
    listener = open_listener(migrated_url, options)
    for payload in [*FORGED, "77"]:
        nobody.execute("select pg_notify(%s, %s)", (INBOX_CHANNEL, payload))
    found = []
    for number in heard(listener, 10.0):
        found.append(number)
        if number is not None:
            break
    listener.close()
    assert found == [None] * len(FORGED) + [77]


def test_a_held_advisory_lock_holds_up_no_group(rig: ResolverRig, nobody: Session) -> None:
    nobody.execute("select pg_advisory_lock(%s, %s)", (OLD_CLAIM, rig.database.id))
    nobody.execute("select pg_advisory_lock_shared(%s, 0)", (OLD_CLAIM,))
    rig.node("a").insert("todo", {"id": "1"})
    assert rig.group() == 1


@pytest.mark.parametrize(
    "statement",
    [
        "select from anabranch.claims for update",
        "select from anabranch.claims for key share",
        "lock table anabranch.claims in access share mode",
        "lock table anabranch.leads in access share mode",
        "lock table anabranch.schema_revision in access share mode",
    ],
)
def test_nobody_else_takes_our_locks(rig: ResolverRig, nobody: Session, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege), nobody.transaction():
        nobody.execute(statement.encode())


def test_the_holder_of_a_claim_that_waits_for_its_client_is_found(rig: ResolverRig, migrated_url: str) -> None:
    with rig.session() as holder, rig.session() as looks:
        wait_for_claim(holder, rig.database.id)
        looks.autocommit = True
        until(lambda: [claim.pid for claim in silent_claims(looks)] == [holder.info.backend_pid])
        holder.rollback()
        assert silent_claims(looks) == []


def test_a_release_that_claims_otherwise_commits_no_group(rig: ResolverRig) -> None:
    """Its statement does not say how it claimed."""
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="newer release"):
        rig.sql(
            "insert into anabranch.groups (database_id, position, batches, changes, chain, sums)"
            " values (%s, 1, 1, 1, '\\x00', '{}')",
            [rig.database.id],
        )
    assert rig.head == 0


def test_forged_notifications_end_no_listener_and_send_no_worker(
    rig: ResolverRig, migrated_url: str, nobody: Session
) -> None:
    """Those of numbers that no database has, too."""
    settings = ResolverSettings.model_validate({"postgres_url": migrated_url, "poll_interval_ms": 600_000})
    wakeups, stopping = Wakeups(), threading.Event()
    resolver = Resolver(settings, Writers(migrated_url), [], wakeups, Known(), stopping, Clock())
    with ThreadPoolExecutor(1) as pool:
        listening = pool.submit(resolver._listen)
        try:
            until(lambda: resolver._without_listener is None, beside=listening)
            before = ignored()
            forged = [(channel, text) for text in [*FORGED, "2147483647", "4711"] for channel in CHANNELS]
            for channel, text in forged:
                nobody.execute("select pg_notify(%s, %s)", (channel, text))
            taken: list[int | None] = []

            def woken() -> bool:
                # Again and again: after one of an unknown number the listener looks for itself, and drops the others.
                nobody.execute("select pg_notify(%s, %s)", (INBOX_CHANNEL, str(rig.database.id)))
                taken.append(wakeups.take(0.05))
                return rig.database.id in taken

            until(woken, beside=listening)
            assert set(taken) - {None} == {rig.database.id}
            assert 0 < ignored() - before <= len(forged)
        finally:
            stopping.set()
        listening.result(10)


def test_a_database_that_is_made_later_is_known_as_soon_as_it_is_heard_of(rig: ResolverRig, migrated_url: str) -> None:
    settings = ResolverSettings.model_validate({"postgres_url": migrated_url, "poll_interval_ms": 600_000})
    wakeups, stopping = Wakeups(), threading.Event()
    resolver = Resolver(settings, Writers(migrated_url), [], wakeups, Known(), stopping, Clock())
    with ThreadPoolExecutor(1) as pool, psycopg.connect(migrated_url, autocommit=True) as conn:
        listening = pool.submit(resolver._listen)
        try:
            until(lambda: resolver._without_listener is None, beside=listening)
            conn.execute("create schema later")
            made = create_database(conn, "later", "later")
            conn.execute(
                "insert into anabranch.captured (database_id, table_id, xid, type, depth, role, application)"
                " values (%s, 1, pg_current_xact_id(), 1, 1, '', '')",
                (made.id,),
            )
            taken: list[int | None] = []

            def woken() -> bool:
                conn.execute("select pg_notify(%s, %s)", (INBOX_CHANNEL, str(made.id)))
                taken.append(wakeups.take(0.05))
                return made.id in taken

            until(woken, beside=listening)
        finally:
            stopping.set()
        listening.result(10)
