"""The setting of a scenario: its tables, where principals have their audiences from, and its first nodes."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, JsonValue, Tag, model_validator

Name: TypeAlias = Annotated[str, Field(min_length=1)]
Claims: TypeAlias = dict[Name, JsonValue]
Version: TypeAlias = Annotated[int, Field(ge=1)]
"""A schema version of a database."""


class Strict(BaseModel):
    """A mapping of which every key is known."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TableSpec(Strict):
    """A table: its columns' Postgres types by name, its key, further constraints as SQL, its policy, and whose its rows
    are, as SQL over its columns; None: everybody's."""

    name: Name
    columns: Annotated[dict[Name, Name], Field(min_length=1)]
    key: Name | Annotated[list[Name], Field(min_length=1)]
    constraints: list[str] = []
    policy: dict[str, Any] = {}
    audience: Name | None = None

    @property
    def key_columns(self) -> list[str]:
        """The key's columns, in its order."""
        return [self.key] if isinstance(self.key, str) else self.key

    @model_validator(mode="after")
    def _key_is_there(self) -> TableSpec:
        missing = [name for name in self.key_columns if name not in self.columns]
        if missing:
            raise ValueError(f"the key names {missing[0]!r}, which is no column")
        return self


class SetSpec(Strict):
    """Where principals have audiences from: prefixes by claim, and queries with ``:principal``."""

    claims: dict[Name, Name] = {}
    memberships: list[Name] = []


class AudiencesSpec(SetSpec):
    """Where principals have their audiences from, and those for writing where these are others."""

    write: SetSpec | None = None

    @property
    def given(self) -> dict[str, Any]:
        """As the file gives it."""
        return self.model_dump(exclude_unset=True, exclude_none=True)


class NodeSpec(Strict):
    """A node: whose it is (a principal called like the node unless it is said), what its token claims, which tables and
    audiences it has chosen (None: all), and the schema version that its app was built for (None: whatever is there)."""

    principal: Name | None = None
    claims: Claims = {}
    tables: list[Name] | None = None
    audiences: list[Name] | None = None
    schema_: Version | None = Field(default=None, alias="schema")


def _form_of_nodes(given: Any) -> str | None:
    return "list[nodes]" if isinstance(given, list) else "dict[nodes]" if isinstance(given, dict) else None


Nodes: TypeAlias = Annotated[
    Annotated[list[Name], Tag("list[nodes]")] | Annotated[dict[Name, NodeSpec], Tag("dict[nodes]")],
    Discriminator(_form_of_nodes, custom_error_type="nodes", custom_error_message="a list of names, or nodes by name"),
]
"""The names, or what is said of each by its name."""
