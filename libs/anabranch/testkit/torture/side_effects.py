"""Tables of the fault run whose own code writes into another synced table, and how that is judged.

The default of a column of ``numbered`` counts up a row of ``tally``, and so does a CHECK of ``checked``. No batch names
``tally``: a write there is an effect of the batch that caused it. How often Postgres evaluates a default or a CHECK
can't be predicted for every batch, such as one that writes the values already stored. So the judge takes these effects
from the log, and compares each batch's with its own rows there: as many steps of the counter as rows that it made or
changed, and each number assigned by one of its own steps. Rows and sums show that nothing is missing in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.testkit.torture.registers import At, Logged
from anabranch.values import Cell

TALLY = "tally"
NUMBERED, CHECKED = "numbered", "checked"
REFUSED = "refused"
"""A title that the CHECK refuses, after it has counted."""
TALLIES = (TALLY,)
_CAUSES = {NUMBERED: (("insert",), ()), CHECKED: (("insert", "update"), ("none",))}
"""By table, which of its changes count, and which may: each row of ``tally`` has the name of its table."""


def sql(schema: str) -> str:
    """The tables and their functions."""
    return f"""
create table {schema}.{TALLY} (id text primary key, n bigint);
insert into {schema}.{TALLY} values ('{NUMBERED}', 0), ('{CHECKED}', 0);
create function {schema}.next_number() returns bigint language sql volatile as
$f$ update {schema}.{TALLY} set n = n + 1 where id = '{NUMBERED}' returning n $f$;
create function {schema}.count_check(title text) returns boolean language plpgsql as
$f$ begin
    update {schema}.{TALLY} set n = n + 1 where id = '{CHECKED}';
    return title is distinct from '{REFUSED}';
end $f$;
create table {schema}.{NUMBERED} (id text primary key, title text, number bigint default {schema}.next_number());
create table {schema}.{CHECKED} (
    id text primary key, title text constraint checked_counted check ({schema}.count_check(title))
);
"""


@dataclass
class SideEffects:
    """By batch of a node, its changes of these tables as the log has them, in their order."""

    changes: Mapping[str, Sequence[Logged]] = field(default_factory=dict)

    def handed_out(self, batch: str, at: At) -> Mapping[str, Cell]:
        """The values that defaults gave to a row that the batch made."""
        for change in self.changes.get(batch, ()):
            if at[0] == NUMBERED and change.at == at and change.kind == "insert":
                return {"number": change.cells["number"]}
        return {}

    def of_tally(self, batch: str) -> Sequence[Logged]:
        """The steps of counters that a batch caused."""
        return [change for change in self.changes.get(batch, ()) if change.at[0] == TALLY]

    def faults(self, batch: str, rows: Mapping[At, Mapping[str, Cell]]) -> list[str]:
        """Differences, in words, between a batch's effects and those that its rows require. ``rows``: all before it."""
        found = []
        own = self.changes.get(batch, ())
        for table, (surely, perhaps) in _CAUSES.items():
            at = (TALLY, table)
            first = last = _number(rows[at])
            for change in own:
                if change.at == at:
                    if change.kind != "update" or _number(change.cells) <= last:
                        found.append(f"{batch} makes of {at} at {last} {change.kind} {dict(change.cells)}")
                    last = _number(change.cells)
            least = sum(change.at[0] == table and change.kind in surely for change in own)
            most = least + sum(change.at[0] == table and change.kind in perhaps for change in own)
            if not least <= last - first <= most:
                found.append(
                    f"{batch} counts {at} from {first} to {last}, and has {least} to {most} changes of {table}"
                )
            if table == NUMBERED:
                made = [change for change in own if change.at[0] == table and change.kind == "insert"]
                handed = sorted(int(str(change.cells["number"])) for change in made)
                if handed != list(range(first + 1, last + 1)):
                    found.append(f"{batch} counts {at} from {first} to {last}, and its rows have {handed}")
        return found


def broken(touched: Collection[At], rows: Mapping[At, Mapping[str, Cell]]) -> set[str]:
    """The constraints of these tables that rows break."""
    refused = (at for at in touched if at[0] == CHECKED and rows.get(at, {}).get("title") == REFUSED)
    return {"checked_counted" for _ in refused}


def _number(cells: Mapping[str, Cell]) -> int:
    value = cells["n"]
    assert isinstance(value, int), f"{TALLY} holds {value!r}"
    return value
