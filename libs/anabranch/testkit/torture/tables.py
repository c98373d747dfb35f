"""The tables of the fault run, their rules, and what they ask of their rows, told twice: as SQL and for the judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from anabranch.schema import Cell
from anabranch.testkit.torture.judge import At

NAME = "torture"
SQL = f"""
create schema {NAME};
create table {NAME}.shared (id text primary key, title text, note text, n bigint, top bigint, tags text[]);
insert into {NAME}.shared select 's' || lpad(g::text, 2, '0'), 'title ' || g, '', 0, 0, array['t0']
from generate_series(0, 29) g;
create table {NAME}.strict (
    id text primary key,
    shared_id text not null constraint strict_shared references {NAME}.shared (id),
    code text constraint strict_code unique,
    qty bigint constraint strict_qty check (qty >= 0)
);
"""
PARK_MS = 5_000
COLUMNS: Mapping[str, str] = {"n": "counter", "top": "max", "tags": "union"}


def policies(order: str) -> Mapping[str, Mapping[str, Any]]:
    """The policies of the tables where ``shared`` has ``order``."""
    return {"shared": {"order": order, "columns": dict(COLUMNS)}, "strict": {}}


def rules(order: str) -> Mapping[str, tuple[str, Mapping[str, str]]]:
    """The same for the judge."""
    return {"shared": (order, COLUMNS), "strict": ("server", {})}


def broken(touched: Collection[At], rows: Mapping[At, Mapping[str, Cell]]) -> Collection[str]:
    """The constraints that rows break, or have broken by being gone."""
    found: set[str] = set()
    codes = Counter(row["code"] for (table, _), row in rows.items() if table == "strict" and row["code"] is not None)
    pointed_to = {row["shared_id"] for (table, _), row in rows.items() if table == "strict"}
    for table, key in touched:
        row = rows.get((table, key))
        if table == "shared":
            found |= {"strict_shared"} if row is None and key in pointed_to else set()
        elif row is not None:
            found |= {"strict_shared"} if ("shared", str(row["shared_id"])) not in rows else set()
            found |= {"strict_code"} if row["code"] is not None and codes[row["code"]] > 1 else set()
            found |= {"strict_qty"} if isinstance(row["qty"], int) and row["qty"] < 0 else set()
    return found
