"""The tables of the fault run, their constraints in two forms (as SQL and for the judge), and their rules, drawn at
random."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.testkit.torture import side_effects
from anabranch.testkit.torture.registers import At, Rules
from anabranch.values import Cell

NAME = "torture"
SHARED = 30
"""Rows of ``shared``, by number; all of ``s00`` to ``s29`` are there at first."""
CODES = 60
WRITTEN = "written.transactions"
"""A table that is not synced: the marks of the transactions by SQL that were committed."""
SQL = f"""
create schema {NAME};
create table {NAME}.shared (id text primary key, title text, note text, n bigint, top bigint, tags text[]);
insert into {NAME}.shared select 's' || lpad(g::text, 2, '0'), 'title ' || g, '', 0, 0, array['t0']
from generate_series(0, {SHARED - 1}) g;
create table {NAME}.strict (
    id text primary key,
    shared_id text not null constraint strict_shared references {NAME}.shared (id),
    code text constraint strict_code unique,
    qty bigint constraint strict_qty check (qty >= 0)
);
create table {NAME}.parts (
    id text primary key,
    shared_id text not null constraint parts_shared references {NAME}.shared (id) on delete cascade,
    body text
);
create index on {NAME}.parts (shared_id);
{side_effects.sql(NAME)}
create schema written;
create table {WRITTEN} (mark text primary key);
"""
PARK_MS = 5_000
CASCADES: Mapping[str, Sequence[tuple[str, str]]] = {"shared": (("parts", "shared_id"),)}
"""By table, the rows that a cascade deletes with a row of it: the children's table, and the column with its key."""
CAUSED = frozenset(child for children in CASCADES.values() for child, _ in children)
"""Tables whose rows a cascade deletes."""
_COLUMNS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "shared": {
        "title": ("lww", "lww", "reject"),
        "note": ("lww", "function:torture_longer", "function:torture_blend"),
        "n": ("lww", "counter", "counter", "min"),
        "top": ("max", "max", "min"),
        "tags": ("union", "union", "lww"),
    },
    "strict": {"qty": ("lww", "lww", "max", "counter")},
    "parts": {"body": ("lww", "lww", "function:torture_blend", "reject")},
    side_effects.NUMBERED: {"title": ("lww", "lww", "reject")},
    side_effects.CHECKED: {"title": ("lww", "lww", "reject")},
    side_effects.TALLY: {},
}
_LOOSE = ("lww", "reject")
_BELONGS = ("strict", "parts")
"""Tables whose rows refer to one of ``shared``."""


@dataclass(frozen=True)
class Drawn:
    """Policies as they are registered: the database's, and the tables', which hold only the differences from it."""

    database: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]]

    @property
    def rules(self) -> Mapping[str, Rules]:
        """The tables' rules as the judge reads them."""
        found = {}
        for name, own in self.tables.items():
            merged = {**self.database, **own}
            columns = {column: policy for column, policy in own["columns"].items() if policy != "lww"}
            found[name] = Rules(merged["order"], merged["delete"], merged["resurrect"], columns)
        return found

    @property
    def computed(self) -> frozenset[str]:
        """Columns in which another value may be stored than was written."""
        policies = (policy for own in self.tables.values() for policy in own["columns"].items())
        return frozenset({"number", *(column for column, policy in policies if policy not in _LOOSE)})

    @property
    def refuses(self) -> bool:
        """Whether a concurrent change of the rows that every node changes can be refused."""
        hot = self.rules["shared"]
        return hot.delete == "rejects" or "reject" in hot.columns.values()

    def __str__(self) -> str:
        return f"database {dict(self.database)}, " + ", ".join(f"{n} {dict(p)}" for n, p in self.tables.items())


def draw(chance: random.Random) -> Drawn:
    """Draw the rules of a run. Every existing policy comes with some seed."""
    choices: Mapping[str, Sequence[Any]] = {
        "order": ("server", "edit"),
        "delete": ("rejects", "wins"),
        "resurrect": (False, True),
    }
    database = {name: chance.choice(values) for name, values in choices.items()}
    tables = {}
    for name, columns in _COLUMNS.items():
        own = {what: chance.choice(values) for what, values in choices.items() if chance.random() < 0.5}
        tables[name] = {**own, "columns": {column: chance.choice(found) for column, found in columns.items()}}
    hot = tables["shared"]["columns"]
    if hot["title"] != "lww":
        # There is always a column in which one value goes over another.
        hot["n"] = "lww"
    return Drawn(database, tables)


def broken(touched: Collection[At], rows: Mapping[At, Mapping[str, Cell]]) -> Collection[str]:
    """The constraints that rows break, or break because they were deleted."""
    found = side_effects.broken(touched, rows)
    gone = {key for table, key in touched if table == "shared" and (table, key) not in rows}
    codes: Counter[Cell] = Counter()
    for (table, _), row in rows.items():
        if table in _BELONGS:
            if row["shared_id"] in gone:
                found.add(f"{table}_shared")
            if table == "strict" and row["code"] is not None:
                codes[row["code"]] += 1
    for table, key in touched:
        row = rows.get((table, key), {})
        if not row or table not in _BELONGS:
            continue
        found |= {f"{table}_shared"} if ("shared", str(row["shared_id"])) not in rows else set()
        if table == "strict":
            found |= {"strict_code"} if row["code"] is not None and codes[row["code"]] > 1 else set()
            found |= {"strict_qty"} if isinstance(row["qty"], int) and row["qty"] < 0 else set()
    return found
