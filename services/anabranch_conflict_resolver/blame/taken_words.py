"""Words for a value that another row has already."""

from __future__ import annotations

from anabranch.store.catalog.databases import Database


def taken_words(database: Database, table: str, name: str) -> str:
    """The refusal of a value that unique constraint ``name`` of ``table`` lets one row have."""
    known = database.constraints.get(table)
    columns = next((one.columns for one in known.unique if one.name == name), ()) if known else ()
    quoted = ", ".join(f'"{column}"' for column in columns)
    of = f" of column{'s' if len(columns) > 1 else ''} {quoted}" if columns else ""
    return f'another row of table "{table}" has this value{of} already (constraint "{name}")'
