"""The ended registrations of tables, which changes of the lake belong to.

A manifest lists them. One of an earlier release does not: then they are read from all runs published since the epoch
began, without the rows that their tables held, which no file has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from anabranch.columnar.file_columns import FileTable
from anabranch.columnar.manifest import EndedRegistration, Manifest, from_json
from anabranch.store.catalog.databases import Database
from anabranch.store.lake.run_shapes import SHAPES
from anabranch.store.session.engine import Session

Ended = Mapping[str, tuple[EndedRegistration, ...]]
_BEFORE_ALL, _AFTER_ALL = -2, 2**63 - 1


def ended_registrations(conn: Session, database: Database, manifest: Manifest | None) -> Ended:
    """By table, the registrations that had ended when ``manifest`` was published, its newest."""
    if manifest is None:
        return {}
    listed = {name: files.ended for name, files in manifest.tables.items() if files.ended is not None}
    if len(listed) == len(manifest.tables):
        return listed
    values = {"db": database.id, "epoch": database.epoch, "after": _BEFORE_ALL, "upto": _AFTER_ALL}
    rows = conn.execute(SHAPES, values).fetchall()
    return {**_found(from_json(content) for *_, content in rows), **listed}


def with_ended(conn: Session, database: Database, manifest: Manifest) -> Manifest:
    """The manifest with the registrations that have ended, also where an earlier release has written it."""
    ended = ended_registrations(conn, database, manifest)
    tables: dict[str, Any] = {
        name: replace(files, ended=ended.get(name, ())) for name, files in manifest.tables.items()
    }
    return manifest.with_tables(tables)


def _found(manifests: Iterable[Manifest]) -> dict[str, tuple[EndedRegistration, ...]]:
    found: dict[str, dict[int, EndedRegistration]] = {}
    before: dict[str, FileTable] = {}
    for manifest in manifests:
        for name, files in manifest.tables.items():
            done = found.setdefault(name, {})
            ended = [one for one in manifest.former if one.columns.table.name == name]
            for one in ended:
                done[one.columns.table.id] = EndedRegistration(one.columns.table.id, one.last_position, one.columns)
            last = before.get(name)
            if last is not None and last.table.id not in (files.table_id, *done):
                done[last.table.id] = EndedRegistration(last.table.id, manifest.from_position, last)
            before[name] = files.columns
    return {name: tuple(done[number] for number in sorted(done)) for name, done in found.items()}
