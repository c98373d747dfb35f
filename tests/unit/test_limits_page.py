"""docs/reference/limits.md is the code's: every limit with its default, every reason for one, every metric."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from anabranch import limits
from anabranch.runtime.config import ServiceSettings
from anabranch.runtime.metrics import METRICS
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.config import ResolverSettings
from anabranch_ingest.config import IngestSettings
from anabranch_snapshot.config import SnapshotSettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")
SECTIONS: dict[str, type[ServiceSettings]] = {
    "Every service": ServiceSettings,
    "ingest": IngestSettings,
    "conflict-resolver": ResolverSettings,
    "snapshot": SnapshotSettings,
}
NO_LIMITS = {
    "Every service": {
        "listen_address", "allow_plaintext_beyond_loopback", "tls_cert_file", "tls_key_file", "tls_client_ca_file",
        "postgres_url", "metrics_address", "otlp_endpoint", "metrics_interval_ms", "log_level", "drain_ms",
        "ready_interval_ms", "jwt_hs256_secret", "jwt_jwks_file", "jwt_jwks_url", "jwt_issuer", "jwt_audience",
        "jwt_database_claim", "jwt_role_claim", "end_with_stdin", "clock_offset_ms", "clock_file",
    },
    "ingest": {"append_sessions", "wait_default_ms", "answer_margin_ms", "poll_interval_ms"},
    "conflict-resolver": {
        "resolver_workers", "resolver_sessions", "group_target_ms", "group_lock_timeout_ms", "claim_idle_ms",
        "poll_interval_ms", "captured_poll_interval_ms", "busy_ms", "rest_ms", "writer_postgres_url", "trust_owners",
    },
    "snapshot": {
        "page_bytes", "poll_interval_ms", "heartbeat_ms", "recent_pages_bytes", "fan_out_pause_us",
        "fan_out_pause_max_ms", "outage_ms", "node_report_ms", "pull_batch_bytes", "base_proof_wait_ms",
        "base_retry_ms",
    },
}  # fmt: skip
"""Settings that bound nothing that a caller takes. Whoever adds a setting says here, or on the page, which it is."""
PINGS = {"DEVICE_PING_AFTER_MS", "SERVER_PING_AFTER_MS", "PING_ANSWER_MS", "LEAST_PING_INTERVAL_MS"}
"""Constants of ``limits`` that are about connections."""
OF_LIMITS = {"OVERLOADED", "MESSAGE_TOO_LARGE", "LIMIT_EXCEEDED", "EXPIRED", "TOO_SLOW", "UNAVAILABLE"}
OF_OTHER_CAUSES = {
    "UNSPECIFIED", "ROW_EXISTS", "ROW_DELETED", "ROW_NOT_FOUND", "ALREADY_DELETED", "CONCURRENT_UPDATE", "CONSTRAINT",
    "NO_EFFECT", "ID_REUSED", "FORBIDDEN", "INTERNAL", "REWOUND", "MERGE_FUNCTION", "TABLE_CHANGED",
    "DATABASE_FAILURE", "AWAITS_ROW", "MALFORMED", "INVALID_ID", "WRONG_DATABASE", "EMPTY", "UNKNOWN_TABLE",
    "UNKNOWN_COLUMN", "INVALID_VALUE", "NUL_IN_TEXT", "INCOMPLETE_KEY", "INVALID_COLUMNS", "GENERATED_COLUMN",
    "UNAUTHENTICATED", "CREDENTIALS_EXPIRED", "PERMISSION_DENIED", "UNKNOWN_DATABASE", "WRONG_PRINCIPAL",
    "NODE_FORKED", "INVALID_REQUEST", "BEHIND_FLOOR", "INVALID_POSITION", "INVALID_TOKEN", "SERVER_FAULT",
    "HISTORY_REWOUND", "APP_OUTDATED", "VALUE_NOT_CAST",
}  # fmt: skip
RAISED_IN = {
    "OVERLOADED": {
        "libs/anabranch/runtime/calls/admission.py", "libs/anabranch/runtime/credentials/keys.py",
        "libs/anabranch/runtime/credentials/key_set.py",
        "libs/anabranch/runtime/calls/limits.py",
        "libs/anabranch/runtime/calls/requests.py", "libs/anabranch/runtime/calls/strangers.py",
        "libs/anabranch/runtime/calls/streams.py", "services/anabranch_conflict_resolver/explain.py",
        "services/anabranch_conflict_resolver/explain_turns.py", "services/anabranch_ingest/queueing.py",
        "services/anabranch_ingest/quota.py", "services/anabranch_snapshot/change_servicer.py",
        "services/anabranch_snapshot/log.py",
        "services/anabranch_snapshot/pulls/turns.py",
    },
    "MESSAGE_TOO_LARGE": {"libs/anabranch/runtime/calls/requests.py", "services/anabranch_ingest/calls.py"},
    "LIMIT_EXCEEDED": {
        "libs/anabranch/wire/envelopes.py", "services/anabranch_conflict_resolver/batch/decode.py",
        "services/anabranch_conflict_resolver/explain.py", "services/anabranch_conflict_resolver/servicer.py",
    },
}  # fmt: skip
"""The modules that refuse for a limit. Another one has a limit that the page may lack."""
_ROW = re.compile(r"^\| `(\w+)` \| ([\d,]+) \| (.+) \| (.+) \|$", re.MULTILINE)
Rows = dict[str, tuple[int, str, str]]


def section(name: str) -> Rows:
    """The rows of a section: name to default, what happens beyond, and metrics."""
    found = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    rows = _ROW.findall(found[1])
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: (int(row[1].replace(",", "")), row[2], row[3]) for row in rows}


def own_settings(name: str) -> set[str]:
    shared = set() if SECTIONS[name] is ServiceSettings else set(ServiceSettings.model_fields)
    return set(SECTIONS[name].model_fields) - shared


@pytest.mark.parametrize("name", SECTIONS)
def test_every_setting_is_on_the_page_with_its_default_or_is_no_limit(name: str) -> None:
    rows = section(name)
    assert set(rows) | NO_LIMITS[name] == own_settings(name)
    assert not set(rows) & NO_LIMITS[name]
    fields = SECTIONS[name].model_fields
    assert {setting: row[0] for setting, row in rows.items()} == {setting: fields[setting].default for setting in rows}


def test_every_constant_is_on_the_page_with_its_value() -> None:
    rows = section("What a batch, a request and a name may have")
    constants = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert {name: row[0] for name, row in rows.items()} == {n: v for n, v in constants.items() if n not in PINGS}


def test_reasons_and_metrics_are_those_of_the_code() -> None:
    reasons = {name.removeprefix("REASON_") for name in errors_pb2.Reason.DESCRIPTOR.values_by_name}
    assert reasons == OF_LIMITS | OF_OTHER_CAUSES, "say on the page, or here, what a new reason is for"
    told = set(re.findall(r"^\| `([A-Z_]+)` \| (?:a call|a batch)", PAGE, re.MULTILINE))
    assert told == OF_LIMITS
    metrics = {metric.name for metric in METRICS}
    everything = [
        row for name in (*SECTIONS, "What a batch, a request and a name may have") for row in section(name).values()
    ]
    for _, beyond, seen in everything:
        assert set(re.findall(r"`([A-Z_]+)`", beyond)) <= reasons, beyond
        named = set(re.findall(r"`(anabranch_\w+)`", seen))
        assert named, seen
        assert named <= metrics, seen


@pytest.mark.slow
@pytest.mark.parametrize("reason", RAISED_IN)
def test_limits_are_enforced_where_the_page_was_written_for(reason: str) -> None:
    found = set()
    for room in ("libs/anabranch", "services"):
        for file in (ROOT / room).rglob("*.py"):
            where = str(file.relative_to(ROOT))
            if where.startswith(("libs/anabranch/v1/", "libs/anabranch/testkit/", "libs/anabranch/client/")):
                continue
            names = (
                node.attr
                for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
                if isinstance(node, ast.Attribute)
            )
            if f"REASON_{reason}" in names and where != "libs/anabranch/runtime/errors.py":
                found.add(where)
    assert found == RAISED_IN[reason]
