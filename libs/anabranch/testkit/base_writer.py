"""Publishes bases without Spark: the rows of a database's tables, as a Pull has them, in files as the compactor leaves
them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from ulid import ULID

from anabranch.columnar.file_columns import EXACT_TEXTS, OWN, file_table
from anabranch.columnar.manifest import (
    Base,
    Bucket,
    File,
    Manifest,
    TableFiles,
    epoch_folder,
    manifest_path,
    table_folder,
    to_json,
)
from anabranch.columnar.proof import Sum
from anabranch.store.catalog.databases import load_database
from anabranch.store.lake import compactions
from anabranch.store.log.pull_reader import PullOptions, PullReader, PullSource
from anabranch.store.session.engine import Session
from anabranch.testkit.row_proof import rows_sum
from anabranch.values import Cell, Table
from anabranch.values.parquet import file_codecs, may_need_text

_OPTIONS = PullOptions(10_000, 60_000, 60_000, 1 << 20)


@dataclass
class FileRows:
    """Rows of one file: cells in the table's order, at one position; ``deleted`` ones have their key alone."""

    rows: Sequence[Sequence[Cell]]
    position: int
    deleted: bool = False
    delta: bool = False
    bucket: int = 0


def write_base(
    table: Table, folder: Path, run_id: str, files: Sequence[FileRows], buckets: int = 1, row_group_rows: int = 1_000
) -> TableFiles:
    """Files of a table's base, with the sums of what they show."""
    written = []
    latest: list[dict[tuple[Cell, ...], Sequence[Cell] | None]] = [{} for _ in range(buckets)]
    for number, one in enumerate(files):
        path = f"{table_folder('base', table.name)}/{run_id}/part-{number}.parquet"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            _file_rows(table, one),
            folder / path,
            row_group_size=row_group_rows,
            write_page_checksum=True,
            store_schema=False,
        )
        size = (folder / path).stat().st_size
        written.append(File(path, len(one.rows), size, "0", one.position, one.position, one.bucket, one.delta))
        for row in one.rows:
            key = tuple(row[i] for i in table.key_index)
            latest[one.bucket][key] = None if one.deleted else row
    sums = [_sum(table, [row for row in of.values() if row is not None]) for of in latest]
    base = Base(tuple(Bucket(one.count, f"{one.total:032x}") for one in sums), tuple(written))
    return TableFiles(table.id, file_table(table), base=base)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """A manifest's own file."""
    path = folder / manifest_path(manifest.run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(manifest)), encoding="utf-8")


@dataclass
class BaseWriter:
    """Writes below ``root``; ``conn`` is in autocommit."""

    conn: Session
    url: str
    db_name: str
    root: Path
    previous: str = ""
    published: list[Manifest] = field(default_factory=list)

    def publish(
        self, files: Mapping[str, Sequence[FileRows]] | None = None, *, buckets: int = 1, upto: int | None = None
    ) -> Manifest:
        """Publish a base of every table at position ``upto``, or the head: of ``files`` where they are given, else of
        the tables' current rows."""
        database = load_database(self.conn, self.db_name)
        upto = compactions.read_head(self.conn, database.id) if upto is None else upto
        run_id = str(ULID())
        folder = self.root / epoch_folder(database.name, database.epoch)
        given = files or {}
        tables = {}
        for name, table in database.tables.items():
            what = given.get(name) or _dealt(self._rows(database.id, database.schema_name, table), upto, buckets)
            tables[name] = write_base(table, folder, run_id, what, buckets)
        after = self.published[-1].to_position if self.published else database.floor_ms
        manifest = Manifest(
            run_id, database.name, database.epoch, after, upto, database.schema_version, self.previous, tables
        )
        content = to_json(manifest)
        write_manifest(folder, manifest)
        compactions.publish(
            self.conn,
            database.id,
            run_id=run_id,
            epoch=database.epoch,
            after=after,
            upto=upto,
            changes=0,
            root=f"file:{self.root}",
            manifest=content,
            now_ms=1,
        )
        self.published.append(manifest)
        self.previous = run_id
        return manifest

    def files(self, table: str) -> list[Path]:
        """The files of a table's base in the newest manifest."""
        manifest = self.published[-1]
        base = manifest.tables[table].base
        folder = self.root / epoch_folder(manifest.database, manifest.epoch)
        return [folder / file.path for file in base.files] if base is not None else []

    def _rows(self, database_id: int, schema: str, table: Table) -> list[list[Cell]]:
        source = PullSource(self.url, _OPTIONS)
        reader = PullReader(source, database_id, schema)
        codecs = file_codecs(table.columns)
        found: list[list[Cell]] = []
        try:
            reader.begin([table])
            reader.open_table(table)
            while (batch := reader.next_batch()) is not None:
                cells = [codec.pulled_cells(values) for codec, values in zip(codecs, batch.columns, strict=True)]
                found += map(list, zip(*cells, strict=True))
        finally:
            reader.close()
            source.close()
        return found


def _dealt(rows: Sequence[Sequence[Cell]], position: int, buckets: int) -> list[FileRows]:
    """Deal rows to buckets; a reader does not depend on which row is in which bucket."""
    return [FileRows(rows[number::buckets], position, bucket=number) for number in range(buckets)]


def _sum(table: Table, rows: Sequence[Sequence[Cell]]) -> Sum:
    columns = [[row[i] for row in rows] for i in range(len(table.columns))]
    return rows_sum(table, columns)


def _file_rows(table: Table, one: FileRows) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    texts: list[list[tuple[str, str]]] = [[] for _ in one.rows]
    file = file_table(table)
    for i, (codec, column) in enumerate(zip(file_codecs(table.columns), file.columns, strict=True)):
        values, exact = codec.write([row[i] for row in one.rows])
        columns[column.file_name] = values
        if exact is not None and may_need_text(column.column):
            for at, text in enumerate(exact):
                if text is not None:
                    texts[at].append((column.file_name, text))
    count = len(one.rows)
    own = pa.StructArray.from_arrays(
        [
            pa.repeat(pa.scalar(one.position, pa.int64()), count),
            pa.repeat(pa.scalar(one.deleted), count),
            pa.array([found or None for found in texts], EXACT_TEXTS),
        ],
        names=["position", "deleted", "exact"],
    )
    return pa.table({**columns, OWN: own})
