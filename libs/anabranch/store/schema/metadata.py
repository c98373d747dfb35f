"""Parts that the declarations of tables share: their MetaData, types, and the reference to a database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ForeignKey, Integer, MetaData, Text
from sqlalchemy.types import UserDefinedType

from anabranch.store.revisions import SCHEMA

METADATA = MetaData(
    schema=SCHEMA,
    # As Postgres names what a migration gives no name.
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
    },
)

BYTE_ORDERED = Text(collation="C")
"""Text in the order of its bytes: every id that people see, and every name and key that is looked up."""


class Xid8(UserDefinedType[Any]):
    """A transaction's number that is never used again."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Its name in Postgres."""
        return "xid8"


def of_database() -> Column[int]:
    """The database that a row belongs to, and goes with."""
    return Column("database_id", Integer, ForeignKey(f"{SCHEMA}.databases.id", ondelete="CASCADE"), nullable=False)
