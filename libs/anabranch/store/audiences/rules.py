"""Where principals have their audiences from, as ``anabranch.databases.audience_rules`` keeps it.

A *claim rule* maps a claim of a principal's token to a prefix: with ``{"teams": "team"}`` the claim ``teams: [t1, t2]``
gives ``team:t1`` and ``team:t2``. A *membership query* is SQL over synced tables with the parameter ``:principal``; it
gives audiences, one a row. What both give together is the principal's *read set*; its *write set* is the same, unless
rules of its own are given for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anabranch.limits import MAX_AUDIENCE_BYTES
from anabranch.store.cells.binary_cells import quote
from anabranch.values import Column, Table

MOST_CLAIMED = 10_000
"""The most audiences that a token's claims give."""


@dataclass(frozen=True, slots=True)
class NamesThen:
    """The names in SQL that a table had at some time, and those of its columns by identity."""

    table: str
    columns: Mapping[str, str]


def names_then(table: Table) -> NamesThen:
    """The names that a table has now."""
    return NamesThen(table.sql_name, {column.name: column.sql_name for column in table.columns})


@dataclass(frozen=True, slots=True)
class Membership:
    """A membership query. ``tables``: the synced tables that it reads, by identity. ``traced``: those of them of which
    a changed row tells whose audiences it may have changed; of the others any change may concern every principal.
    ``printed``: the query as Postgres prints it, with every name in full.

    ``then``: by identity, the names that its tables had when it was given; a table that is not there had its identities
    for names. Where a table, or a column of it, has been renamed since, ``printed`` is the query as it was given, and
    ``shadow`` stands before the statement that runs it: CTEs that have the names of then."""

    query: str
    tables: tuple[str, ...]
    traced: frozenset[str]
    printed: str
    then: Mapping[str, NamesThen] = field(default_factory=dict, compare=False)
    shadow: str = field(default="", compare=False)

    def called(self, table: Table) -> tuple[str, tuple[tuple[Column, str], ...]]:
        """The name by which the query knows a table, and those of its columns; one that has come since, under the name
        that another one had, is left out."""
        then = self.then.get(table.name)
        if then is None:
            then = NamesThen(table.name, {one.name: one.name for one in table.columns if not one.added_position})
        known = {one.name: then.columns[one.name] for one in table.columns if one.name in then.columns}
        taken = set(known.values())
        columns = tuple(
            (one, known.get(one.name, one.sql_name))
            for one in table.columns
            if one.name in known or one.sql_name not in taken
        )
        return then.table, columns


@dataclass(frozen=True, slots=True)
class SetRules:
    """The rules of one set: prefixes by claim, and membership queries."""

    claims: Mapping[str, str] = field(default_factory=dict)
    memberships: tuple[Membership, ...] = ()

    def claimed(self, claims: Mapping[str, Any]) -> frozenset[str]:
        """The audiences that a token's claims give. A claim is a text, a number or a list of these; what else it holds
        gives nothing. A name with dots is looked for as it is, and then within objects."""
        found: set[str] = set()
        for name, prefix in self.claims.items():
            for value in _values(_claim(claims, name)):
                audience = f"{prefix}:{value}"
                if len(found) < MOST_CLAIMED and is_audience(audience):
                    found.add(audience)
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class AudienceRules:
    """The rules of a database. ``write`` is None where who reads a row may write it. ``rls_role``: the role as which
    batches are applied and tables are pulled, so that row-level security decides, too; "" where it does not."""

    read: SetRules = field(default_factory=SetRules)
    write: SetRules | None = None
    rls_role: str = ""

    @property
    def memberships(self) -> tuple[Membership, ...]:
        """All membership queries."""
        return self.read.memberships + (self.write.memberships if self.write is not None else ())

    def __bool__(self) -> bool:
        return bool(self.read.claims or self.memberships or self.write is not None or self.rls_role)


NO_RULES = AudienceRules()
"""The rules of a database that gives no principal any audience."""


def is_audience(text: str) -> bool:
    """Whether a text may be an audience: it is not empty, not too long, and all of it is text."""
    if not 0 < len(text) <= MAX_AUDIENCE_BYTES or "\0" in text:
        return False
    try:
        return len(text.encode()) <= MAX_AUDIENCE_BYTES
    except UnicodeEncodeError:  # Half of a pair of surrogates: JSON can write it, and nothing else can hold it.
        return False


def rules_to_json(rules: AudienceRules) -> dict[str, Any]:
    """Rules as ``anabranch.databases.audience_rules`` keeps them."""
    made = _set_to_json(rules.read)
    if rules.write is not None:
        made["write"] = _set_to_json(rules.write)
    if rules.rls_role:
        made["rls"] = rules.rls_role
    return made


def rules_from_json(kept: Mapping[str, Any]) -> AudienceRules:
    """Rules as they were kept."""
    write = _set_from_json(kept["write"]) if "write" in kept else None
    return AudienceRules(_set_from_json(kept), write, kept.get("rls", ""))


def _set_to_json(rules: SetRules) -> dict[str, Any]:
    memberships = []
    for one in rules.memberships:
        made: dict[str, Any] = {
            "query": one.query,
            "tables": list(one.tables),
            "traced": sorted(one.traced),
            "printed": one.printed,
        }
        if one.then:
            made["then"] = {name: {"table": t.table, "columns": dict(t.columns)} for name, t in one.then.items()}
        memberships.append(made)
    return {"claims": dict(rules.claims), "memberships": memberships}


def _set_from_json(kept: Mapping[str, Any]) -> SetRules:
    memberships = tuple(
        Membership(
            one["query"],
            tuple(one["tables"]),
            frozenset(one["traced"]),
            one["printed"],
            {name: NamesThen(**then) for name, then in one.get("then", {}).items()},
        )
        for one in kept.get("memberships", ())
    )
    return SetRules(dict(kept.get("claims", {})), memberships)


def followed(rules: AudienceRules, schema_name: str, tables: Mapping[str, Table]) -> AudienceRules:
    """Rules whose queries find ``tables``, by identity, whatever these and their columns are called today."""

    def of_set(given: SetRules) -> SetRules:
        return replace(given, memberships=tuple(_followed(one, schema_name, tables) for one in given.memberships))

    return replace(rules, read=of_set(rules.read), write=None if rules.write is None else of_set(rules.write))


def _followed(one: Membership, schema_name: str, tables: Mapping[str, Table]) -> Membership:
    read = [tables[name] for name in one.tables if name in tables]
    if all(one.called(table) == (table.sql_name, tuple((c, c.sql_name) for c in table.columns)) for table in read):
        return one
    shadows = []
    for table in read:
        name, columns = one.called(table)
        selected = ", ".join(f"{quote(column.sql_name)} as {quote(then)}" for column, then in columns)
        relation = f"{quote(schema_name)}.{quote(table.sql_name)}"
        shadows.append(f"{quote(name)} as not materialized (select {selected} from {relation})")
    return replace(one, printed=one.query, shadow=f"with {', '.join(shadows)} ")


def claims_text(subject: str, claims: Mapping[str, Any]) -> str:
    """The claims of a principal as policies ask for them: the JSON of its token's, with its name as ``sub``."""
    return json.dumps({**claims, "sub": subject}, default=_plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    if name in claims:
        return claims[name]
    within: Any = claims
    for part in name.split("."):
        if not isinstance(within, Mapping) or part not in within:
            return None
        within = within[part]
    return within


def _values(claim: Any) -> Iterator[str]:
    if isinstance(claim, str):
        # A prefix alone would be an audience of all who have an empty claim.
        if claim:
            yield claim
    elif isinstance(claim, int) and not isinstance(claim, bool):
        yield str(claim)
    elif isinstance(claim, Sequence):
        for one in claim:
            if not isinstance(one, Sequence) or isinstance(one, str):
                yield from _values(one)
