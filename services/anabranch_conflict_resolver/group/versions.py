"""Histories of rows as they are written."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.store.group.versions import VersionRow
from anabranch_conflict_resolver.group.table import SyncedTable
from anabranch_conflict_resolver.group.view import View


def changed_versions(tables: Mapping[str, SyncedTable], view: View) -> tuple[list[VersionRow], list[VersionRow]]:
    """The histories that the group began, and those that it changed."""
    new: list[VersionRow] = []
    old: list[VersionRow] = []
    for at in view.changed:
        version = view.states[at].version
        assert version is not None
        audience = view.audiences.get(at) if version.tombstone_batch is not None else None
        (old if at in view.versioned else new).append(VersionRow(tables[at[0]].table.id, at[1], version, audience))
    return new, old
