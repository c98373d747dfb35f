"""Why a table can't be synced: every reason at once, each with a name that programs can test."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from anabranch.store.catalog.policy import POLICY_KINDS, TablePolicy
from anabranch.store.catalog.relation import Relation
from anabranch.values import Column, Kind, postgres_types
from anabranch.values.postgres_types import Types


class TableRefusal(StrEnum):
    """Why something can't be registered."""

    UNKNOWN_DATABASE = "UNKNOWN_DATABASE"
    DATABASE_EXISTS = "DATABASE_EXISTS"
    INVALID_NAME = "INVALID_NAME"
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"
    RESERVED_SCHEMA = "RESERVED_SCHEMA"
    SCHEMA_TAKEN = "SCHEMA_TAKEN"
    INVALID_POLICY = "INVALID_POLICY"
    UNKNOWN_TABLE = "UNKNOWN_TABLE"
    ALREADY_SYNCED = "ALREADY_SYNCED"
    NOT_SYNCED = "NOT_SYNCED"
    BUSY = "BUSY"
    NOT_A_TABLE = "NOT_A_TABLE"
    NOT_PERMANENT = "NOT_PERMANENT"
    PARTITIONED = "PARTITIONED"
    INHERITANCE = "INHERITANCE"
    NO_PRIMARY_KEY = "NO_PRIMARY_KEY"
    KEY_TYPE = "KEY_TYPE"
    KEY_NOT_WRITABLE = "KEY_NOT_WRITABLE"
    VIRTUAL_COLUMN = "VIRTUAL_COLUMN"
    RESERVED_NAME = "RESERVED_NAME"
    NAME_CLASH = "NAME_CLASH"
    FOREIGN_KEY_OUTSIDE = "FOREIGN_KEY_OUTSIDE"
    RULES = "RULES"
    SUBSCRIPTION = "SUBSCRIPTION"
    ROW_SECURITY = "ROW_SECURITY"
    ROW_SECURITY_OF_OTHERS = "ROW_SECURITY_OF_OTHERS"
    MISSING_PRIVILEGE = "MISSING_PRIVILEGE"
    NOT_OWNED = "NOT_OWNED"
    AUDIENCE_EXPRESSION = "AUDIENCE_EXPRESSION"
    AUDIENCE_TYPE = "AUDIENCE_TYPE"
    AUDIENCE_NOT_IMMUTABLE = "AUDIENCE_NOT_IMMUTABLE"
    AUDIENCE_FUNCTION = "AUDIENCE_FUNCTION"
    AUDIENCE_LEFT_OUT = "AUDIENCE_LEFT_OUT"
    AUDIENCE_RULES = "AUDIENCE_RULES"
    MEMBERSHIP_QUERY = "MEMBERSHIP_QUERY"
    MEMBERSHIP_TABLE = "MEMBERSHIP_TABLE"
    RLS_ROLE = "RLS_ROLE"


STOPPING = frozenset(
    {
        TableRefusal.NO_PRIMARY_KEY,
        TableRefusal.KEY_TYPE,
        TableRefusal.KEY_NOT_WRITABLE,
        TableRefusal.RESERVED_NAME,
        TableRefusal.NAME_CLASH,
        TableRefusal.NOT_PERMANENT,
    }
)
"""The refusals that stop a table which is synced; the others are reported as drift."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One reason, and its explanation in words."""

    reason: TableRefusal
    text: str

    def __str__(self) -> str:
        return f"{self.text} ({self.reason})"


_RELATION_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "v": "a view",
        "m": "a materialized view",
        "f": "a foreign table",
        "S": "a sequence",
        "c": "a composite type",
    }
)
_PERSISTENCE: Mapping[str, str] = MappingProxyType(
    {
        "u": "unlogged: a crash empties it, and no standby has it",
        "t": "temporary: other sessions can't see it",
    }
)
_RESERVED = re.compile(r"(_db_|sqlite_)", re.IGNORECASE)
_ASCII_UPPER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def folded(name: str) -> str:
    """``name`` as SQLite compares names: only the letters A to Z lose their case."""
    return name.translate(_ASCII_UPPER)


def why_not(
    relation: Relation, known: Types, policy: TablePolicy, synced: Collection[str] = (), *, restricted: bool = False
) -> list[Refused]:
    """Every reason for which ``relation`` can't be synced; none where it can. ``synced`` are the names of the
    tables that its database has already. ``restricted``: it has an audience expression."""
    if relation.kind in _RELATION_KINDS:
        text = f'"{relation.name}" is {_RELATION_KINDS[relation.kind]}, not a table'
        return [Refused(TableRefusal.NOT_A_TABLE, text)]
    return [
        *_nature(relation),
        *_key(relation, known),
        *_names(relation, synced),
        *_writers(relation),
        *_readers(relation, policy, restricted),
        *policy_refusals(relation.snapshot(known), relation.key_columns, policy),
    ]


def _nature(relation: Relation) -> Iterator[Refused]:
    if relation.persistence in _PERSISTENCE:
        yield Refused(TableRefusal.NOT_PERMANENT, f"the table is {_PERSISTENCE[relation.persistence]}")
    if relation.kind == "p" or relation.is_partition:
        what = "partitioned" if relation.kind == "p" else f"a partition of {', '.join(relation.parents)}"
        yield Refused(TableRefusal.PARTITIONED, f"the table is {what}: rows can be written past it")
    elif relation.parents or relation.children:
        others = ", ".join((*relation.parents, *relation.children))
        yield Refused(TableRefusal.INHERITANCE, f"the table inherits or is inherited from ({others})")
    for column in relation.columns:
        if column.generated == "v":
            text = f'column "{column.name}" is generated when it is read: a change of it would reach nobody'
            yield Refused(TableRefusal.VIRTUAL_COLUMN, text)


def _key(relation: Relation, known: Types) -> Iterator[Refused]:
    if not relation.key_columns:
        yield Refused(TableRefusal.NO_PRIMARY_KEY, "the table has no primary key")
    by_name = {c.name: c for c in relation.columns}
    for name in relation.key_columns:
        column = by_name[name]
        reason = postgres_types.why_no_key(known, column.type_oid, column.modifier, column.deterministic)
        if reason is not None:
            yield Refused(TableRefusal.KEY_TYPE, f'key column "{name}" is {reason}')
        if column.generated or column.identity == "a":
            text = f'key column "{name}" is always generated by Postgres, and keys are made on devices'
            yield Refused(TableRefusal.KEY_NOT_WRITABLE, text)


def _names(relation: Relation, synced: Collection[str]) -> Iterator[Refused]:
    if _RESERVED.match(relation.name):
        text = f'names like "{relation.name}" belong to SQLite and to this product on a device'
        yield Refused(TableRefusal.RESERVED_NAME, text)
    yield from name_clashes(relation.name, synced)
    first: dict[str, str] = {}
    for column in relation.columns:
        if _RESERVED.match(column.name):
            yield Refused(TableRefusal.RESERVED_NAME, f'column names like "{column.name}" belong to this product')
        other = first.setdefault(folded(column.name), column.name)
        if other != column.name:
            text = f'columns "{other}" and "{column.name}" differ only in case, and SQLite takes both for one'
            yield Refused(TableRefusal.NAME_CLASH, text)


def name_clashes(name: str, synced: Collection[str]) -> Iterator[Refused]:
    """The synced tables that a device can't hold beside a table called ``name``."""
    for other in synced:
        if other != name and folded(other) == folded(name):
            text = f'the name differs only in case from synced table "{other}", and SQLite takes both for one'
            yield Refused(TableRefusal.NAME_CLASH, text)


def _writers(relation: Relation) -> Iterator[Refused]:
    """Refuse tables whose rows can be changed in ways that are not captured, or that our role may not write."""
    for key in relation.constraints.foreign_keys:
        if key.to_schema != relation.schema_name:
            text = f'foreign key "{key.name}" points outside the schema, to {key.to_schema}.{key.to_table}'
            yield Refused(TableRefusal.FOREIGN_KEY_OUTSIDE, text)
    if relation.rules:
        yield Refused(TableRefusal.RULES, f"the table has rewrite rules ({', '.join(relation.rules)})")
    if relation.subscriptions:
        text = f"subscriptions feed the table ({', '.join(relation.subscriptions)}), past all triggers for statements"
        yield Refused(TableRefusal.SUBSCRIPTION, text)
    if relation.missing_privileges:
        text = f"role {relation.role} lacks {', '.join(relation.missing_privileges)} on the table"
        yield Refused(TableRefusal.MISSING_PRIVILEGE, text)


def _readers(relation: Relation, policy: TablePolicy, restricted: bool) -> Iterator[Refused]:
    """Refuse tables that restrict who sees which rows, where no audience says so to devices: they get all rows."""
    if relation.row_security_forced or relation.row_security_active:
        text = f"row-level security hides rows from role {relation.role}"
        yield Refused(TableRefusal.ROW_SECURITY, text)
    elif relation.row_security and not (policy.every_device_sees_every_row or restricted):
        text = "its row-level security says who sees which rows, and every device would see every row"
        yield Refused(TableRefusal.ROW_SECURITY_OF_OTHERS, text)


def policy_refusals(
    columns: Collection[Column], key_columns: Collection[str], policy: TablePolicy
) -> Iterator[Refused]:
    """Column policies that name no column, or one that they don't fit."""
    by_name = {c.name: c for c in columns}
    for name, wanted in policy.columns.items():
        column = by_name.get(name)
        if column is None:
            text = f'the policy names column "{name}", which the table lacks'
        elif name in key_columns or column.generated:
            text = f'the policy names column "{name}", which no update writes'
        elif column.kind not in POLICY_KINDS.get(wanted, frozenset(Kind)):
            text = f'policy {wanted} does not fit column "{name}" of type {column.postgres_type}'
        else:
            continue
        yield Refused(TableRefusal.INVALID_POLICY, text)
