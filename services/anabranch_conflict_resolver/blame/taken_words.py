"""Words for a value that another row has already."""

from __future__ import annotations

from anabranch.store.catalog.databases import Database


def taken_words(database: Database, table: str, name: str) -> str:
    """The refusal of a value that unique constraint ``name`` of ``table``, as SQL calls it, lets one row have."""
    known = database.by_sql_name.get(table)
    unique = database.constraints[known.name].unique if known is not None else ()
    columns = next((one.columns for one in unique if one.name == name), ())
    of_table = known.by_name if known is not None else {}
    quoted = ", ".join(f'"{of_table[one].sql_name if one in of_table else one}"' for one in columns)
    of = f" of column{'s' if len(columns) > 1 else ''} {quoted}" if columns else ""
    return f'another row of table "{table}" has this value{of} already (constraint "{name}")'
