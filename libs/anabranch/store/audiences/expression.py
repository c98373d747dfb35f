"""Audience expressions as a synced table has them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.limits import MAX_AUDIENCE_BYTES
from anabranch.values import Kind
from anabranch.values.postgres_text import array_printer

_print_names = array_printer(Kind.STRING)


@dataclass(frozen=True, slots=True)
class Audience:
    """The audience expression of a restricted table. ``columns``: those that it reads, in the table's order,
    by their names in SQL. ``is_list``: it gives text[], and not text."""

    expression: str
    columns: tuple[str, ...]
    is_list: bool

    @property
    def as_list(self) -> str:
        """SQL over the table's columns that gives text[]: without NULL, "" and repetitions, in order; empty for a row
        that is nobody's."""
        many = f"({self.expression})::text[]" if self.is_list else f"array[({self.expression})::text]"
        return (
            f'array(select distinct v collate "C" from unnest({many}) u(v) '
            f"where v <> '' and octet_length(v) <= {MAX_AUDIENCE_BYTES} order by 1)"
        )

    def meets(self, parameter: str) -> str:
        """SQL over the table's columns: whether the row is of one of the audiences in ``parameter``, SQL of text[]. It
        is written so that an index on the expression serves it."""
        if self.is_list:
            return f"(({self.expression})::text[] && {parameter})"
        return f"(({self.expression})::text = any({parameter}))"

    @property
    def meets_seen(self) -> str:
        """``meets`` for the audiences that ``SEE`` has named in this transaction: a COPY and a cursor take no
        parameters."""
        # Read once, and not for each row.
        return self.meets("(select pg_catalog.current_setting('anabranch.seen')::text[])::text[]")


SEE = b"select pg_catalog.set_config('anabranch.seen', $1::text, true)"
"""$1: audiences, as the text of an array (``array_text``)."""


def array_text(audiences: Iterable[str]) -> str:
    """Audiences as Postgres reads an array of them: in the order of their bytes, each once."""
    return _print_names(tuple(sorted(set(audiences))))
