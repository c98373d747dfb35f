"""Migrations run on Postgres 14 and newer: told by the server's number, and held in the migrations' text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anabranch.store import migrate, revisions

MIGRATIONS = Path(migrate.__file__).parent / "migrations" / "versions"
NEWER_THAN_14 = {
    "unique … nulls not distinct (15)": r"nulls\s+(not\s+)?distinct",
    "merge (15)": r"\bmerge\s+into\b",
    "security_invoker (15)": r"security_invoker",
    "set null on some columns (15)": r"set\s+(null|default)\s*\(",
    "regexp functions (15)": r"regexp_(like|count|substr|instr)\s*\(",
    "any_value (16)": r"\bany_value\s*\(",
    "is json (16)": r"\bis\s+(not\s+)?json\b",
    "json constructors (16, 17)": r"\bjson_(array|object|scalar|serialize|exists|value|query|table)\s*\(",
    "storage in create table (16)": r"^\s*\w+\s+\w+\s+storage\s+",
    "virtual columns (18)": r"\bvirtual\b",
    "uuidv7 (18)": r"\buuidv[47]\s*\(",
    "temporal keys (18)": r"without\s+overlaps",
    "returning old, new (18)": r"returning\s+(with\s*\(|old\.|new\.)",
}


@pytest.mark.parametrize("version_num", [140000, 140012, 150000, 180001])
def test_fourteen_and_newer_will_do(version_num: int) -> None:
    migrate.require_server(version_num)


@pytest.mark.parametrize("version_num", [90624, 130000, 130099])
def test_an_older_server_is_refused_with_both_versions(version_num: int) -> None:
    with pytest.raises(migrate.MigrationError, match=rf"Postgres {version_num // 10_000}\b.*Postgres 14 or newer"):
        migrate.require_server(version_num)


@pytest.mark.parametrize("file", sorted(MIGRATIONS.glob("*.py")), ids=lambda file: file.name)
def test_migrations_use_nothing_that_fourteen_lacks(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    found = [name for name, pattern in NEWER_THAN_14.items() if re.search(pattern, text, re.IGNORECASE | re.MULTILINE)]
    assert found == []


def test_the_patterns_find_what_they_look_for() -> None:
    samples = [
        "create unique index i on t (a) nulls not distinct",
        "merge into t using s on true",
        "with (security_invoker = true)",
        "on delete set null (a)",
        "select regexp_like(a, 'b')",
        "select any_value(a)",
        "check (a is json)",
        "select json_object('a': 1)",
        "    a text storage external,",
        "generated always as (1) virtual",
        "default uuidv7()",
        "primary key (a, b without overlaps)",
        "update t set a = 1 returning old.a",
    ]
    for pattern, sample in zip(NEWER_THAN_14.values(), samples, strict=True):
        assert re.search(pattern, sample, re.IGNORECASE | re.MULTILINE), sample


def test_every_migration_follows_another() -> None:
    assert len(list(MIGRATIONS.glob("*.py"))) >= 1
    assert revisions.head() == max(re.match(r"\d+", file.name)[0] for file in MIGRATIONS.glob("*.py"))  # type: ignore[index]
