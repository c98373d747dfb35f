"""Policies of databases and tables: the allowed keys and values, their defaults, and one clear error for the
rest.

They are kept as JSON in ``anabranch.databases.policy`` and ``anabranch.synced_tables.policy``, with only the
keys that were given, so that a later default applies where no value was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from anabranch.errors import ServerError
from anabranch.merge import COMPUTED, FUNCTION, check_policy, function_of
from anabranch.merge.model import Policy
from anabranch.values import Kind, Table

Order = Literal["server", "edit"]
Delete = Literal["rejects", "wins"]
OnRewind = Literal["dead_letter", "resupply"]
_COLUMN_POLICIES = ("lww", "reject", *sorted(COMPUTED))


def _column_policy(name: str) -> str:
    if name not in _COLUMN_POLICIES and not function_of(name):
        raise ValueError(f"a column's policy is one of {', '.join(_COLUMN_POLICIES)}, or {FUNCTION}NAME, not {name!r}")
    return name


ColumnPolicy = Annotated[str, AfterValidator(_column_policy)]

# A batch may wait on a device for seven days, and the server must then still recognise a repeat of it.
_SHORTEST_RETENTION_DAYS = 7

# Where the order of cells is the order of values, a sum is exact, and elements can be distinguished.
POLICY_KINDS: Mapping[str, frozenset[Kind]] = MappingProxyType(
    {
        "counter": frozenset({Kind.INT64}),
        "max": frozenset({Kind.INT64, Kind.DATE, Kind.TIME, Kind.TIMESTAMP}),
        "min": frozenset({Kind.INT64, Kind.DATE, Kind.TIME, Kind.TIMESTAMP}),
        "union": frozenset({Kind.ARRAY}),
    }
)
"""The kinds of column that a policy fits; one that is not listed fits all."""


class PolicyError(ServerError, ValueError):
    """A policy that can't be: the message names every wrong key."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def given(self) -> dict[str, Any]:
        """The keys that were given, as JSON takes them."""
        return self.model_dump(mode="json", exclude_unset=True)


class TablePolicy(_Model):
    """A table's own rules, which override its database's policy; ``columns`` holds the policies of columns by identity.
    ``every_device_sees_every_row``: the table is synced though its row-level security restricts who sees which rows."""

    order: Order | None = None
    resurrect: bool | None = None
    delete: Delete | None = None
    every_device_sees_every_row: bool = False
    columns: dict[str, ColumnPolicy] = Field(default_factory=dict)

    def in_sql(self, table: Table) -> TablePolicy:
        """The policy with its columns as SQL calls them; that of a column which ``table`` has no longer is left out."""
        if not self.columns:
            return self
        known = table.by_name
        columns = {known[name].sql_name: policy for name, policy in self.columns.items() if name in known}
        return self.model_copy(update={"columns": columns})


class DatabasePolicy(_Model):
    """The rules of a database. ``park_ms`` is how long a batch waits for the rows or batches that it depends on;
    ``retention_days`` how long the log, verdicts and tombstones are kept; ``max_absence_days`` how long a node may be
    away before its log is cut (None: the retention). ``on_rewind``: how a node treats its confirmed batches that a
    restored server has lost. ``pull_base_max_age_minutes``: how old the oldest change may be that a published base
    lacks, for pulls to be served from it (0: never). ``new_tables``: which tables that are made in the schema are
    registered by themselves: none, all, or those whose names are like the pattern, with * for any characters and ? for
    one."""

    order: Order = "server"
    resurrect: bool = False
    delete: Delete = "rejects"
    park_ms: Annotated[int, Field(ge=0, le=86_400_000)] = 30_000
    retention_days: Annotated[int, Field(ge=_SHORTEST_RETENTION_DAYS, le=36_500)] = 30
    max_absence_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    on_rewind: OnRewind = "dead_letter"
    pull_base_max_age_minutes: Annotated[int, Field(ge=0, le=525_600)] = 360
    new_tables: Annotated[str, Field(min_length=1, max_length=200)] = "none"

    @property
    def absence_days(self) -> int:
        """``max_absence_days``, or its default, ``retention_days``."""
        return self.retention_days if self.max_absence_days is None else self.max_absence_days


_M = TypeVar("_M", bound=_Model)


def _parse(model: type[_M], policy: Mapping[str, Any]) -> _M:
    try:
        return model.model_validate(dict(policy))
    except ValidationError as error:
        wrong = "; ".join(_wrong(".".join(str(part) for part in e["loc"]), e) for e in error.errors())
        raise PolicyError(f"the policy can't be taken: {wrong}") from error


def _wrong(key: str, error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        return f"{key} is no policy"
    text = error["msg"].removeprefix("Value error, ")
    return f"{key}: {text[:1].lower()}{text[1:]}"


def changed(policy: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's JSON object with ``changes`` applied: a key whose value is None goes, an object within (the columns)
    is changed in the same way, everything else is replaced. Neither argument is changed, and nothing is checked."""
    after = dict(policy)
    for key, value in changes.items():
        if value is None:
            after.pop(key, None)
        elif isinstance(value, Mapping):
            within = after.get(key)
            after[key] = changed(within if isinstance(within, Mapping) else {}, value)
        else:
            after[key] = value
    return after


def database_policy(policy: Mapping[str, Any]) -> DatabasePolicy:
    """A database's policy from its JSON object.

    Raises:
        PolicyError: a key is unknown, or a value is not one of its own.
    """
    return _parse(DatabasePolicy, policy)


def table_policy(policy: Mapping[str, Any]) -> TablePolicy:
    """A table's policy from its JSON object.

    Raises:
        PolicyError: a key is unknown, or a value is not one of its own.
    """
    return _parse(TablePolicy, policy)


def effective(database: DatabasePolicy, table: TablePolicy) -> Policy:
    """The rules of a table: the database's, with the table's own laid over them.

    Raises:
        ValueError: a policy that may be kept, but that the conflict rules don't know.
    """
    policy = Policy(
        order=table.order or database.order,
        resurrect=database.resurrect if table.resurrect is None else table.resurrect,
        delete=table.delete or database.delete,
        columns={column: name for column, name in table.columns.items() if name != "lww"},
    )
    check_policy(policy)
    return policy
