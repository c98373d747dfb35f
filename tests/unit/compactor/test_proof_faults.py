"""Made faults in files, for each thing that is proved: the proof by columns, as compactor, janitor and snapshot ask it,
and the one row by row take the same files and refuse the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from tests.unit.compactor.test_columns import LATE, TABLE, decoded

from anabranch.columnar.base_proof import PublishedBase
from anabranch.columnar.encode import ColumnEncoder
from anabranch.columnar.evidence import Evidence, EvidenceError
from anabranch.columnar.file_columns import BASE, CHANGES, CONFLICT_FIELDS, CONFLICTS, OWN, file_table
from anabranch.columnar.manifest import Base, Bucket, File, Manifest, TableFiles, epoch_folder
from anabranch.columnar.proof import Sum, open_file
from anabranch.testkit import row_proof
from anabranch.values import Cell, key_text
from anabranch.values.canonical import RowEncoder
from anabranch.values.cells import TIMESTAMP_INFINITY
from anabranch.values.messages import column_writer
from anabranch.wire.effects import INSERT, EffectBuilder
from anabranch_compactor import history, write
from anabranch_compactor.base_rows import base_table
from anabranch_compactor.decode import conflict_decoder
from anabranch_compactor.files.parquet_files import write_files
from anabranch_compactor.prove import file_sum
from anabranch_compactor.shape import Shape

SHAPE, BUILDER = Shape(file_table(TABLE)), EffectBuilder(TABLE)
PULLED = "a base as pulls carry it"
NAMES = TABLE.column_names
Row = tuple[Cell, ...]
_NIL, _MAX = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
FULL: Row = ("a", 1, True, 5, 0.0, b"\x00\xff", "1.50", "2.5000000000", 10**15, TIMESTAMP_INFINITY, 19_000,
             86_400_000_000, '{"a": 1}', _NIL, ("x", None), (1, 2), "1 day")  # fmt: skip
OTHER: Row = ("b", 2, False, 6, -0.0, b"", "1.5", "-2.5000000000", 0, -1, -1, 0,
              '{"a":1}', _MAX, (), (12,), "24:00:00")  # fmt: skip
EMPTY: Row = ("c", 3, *[None] * (len(NAMES) - 2))
FAR: Row = ("d", 4, None, None, float("nan"), None, "NaN", "NaN", LATE, LATE, *[None] * 7)
LAST = 6
"""The last position of the effects."""


def put(row: Row, **cells: Cell) -> Row:
    return tuple(cells.get(name, cell) for name, cell in zip(NAMES, row, strict=True))


@cache
def the_changes() -> tuple[pa.Table, list[Sum]]:
    """By key, and then by position: inserts in rows 0, 2, 4 and 6, an update in 1, a delete in 3, nothing done in 5."""
    changed = put(FULL, number=7, price="NaN")
    inserts = [BUILDER.insert(row) for row in (FULL, OTHER, EMPTY, FAR)]
    nothing = BUILDER.none([EMPTY[i] for i in TABLE.key_index])
    effects = [*inserts, BUILDER.update(FULL, changed), BUILDER.delete(OTHER), nothing]
    rows = decoded([effect.data for effect in effects], [effect.type for effect in effects])
    filled = history.filled(SHAPE, history.in_order(SHAPE, rows), ColumnEncoder(TABLE))
    [table] = history.changes_of(SHAPE, filled)
    return table, [Sum() + Sum(len(effects), sum(int.from_bytes(effect.hash, "big") for effect in effects))]


@cache
def the_conflicts() -> tuple[pa.Table, list[Sum]]:
    """A value that lost for each column of FULL, and of OTHER; then NULL, and values that no column holds."""
    lost = [pair for row in (FULL, OTHER, FAR) for pair in zip(NAMES[2:], row[2:], strict=True)]
    sent = [(name, column_writer(TABLE.by_name[name])(cell).SerializeToString()) for name, cell in lost]
    sent += [("price", column_writer(TABLE.by_name["price"])("1e2").SerializeToString()), ("gone", b"\x12\x00")]
    count = len(sent)
    key = key_text([FULL[i] for i in TABLE.key_index])
    texts = {name: [f"{name} {i}" for i in range(count)] for name in
             ("batch_id", "losing_batch", "losing_node", "winning_batch", "winning_node")}  # fmt: skip
    rows = pa.RecordBatch.from_pydict(
        {
            "position": pa.array([i % (LAST + 1) for i in range(count)], pa.int64()),
            "batch_id": texts["batch_id"],
            "ordinal": pa.array(range(count), pa.int32()),
            "key": [key] * count,
            "column_name": [name for name, _ in sent],
            **{name: values for name, values in texts.items() if name != "batch_id"},
            "cause": pa.array([i % 2 for i in range(count)], pa.int32()),
            "losing_value": pa.array([value for _, value in sent], pa.binary()),
        }
    )
    [read] = conflict_decoder(TABLE)(rows)
    own = rows.to_pydict()
    hashes = [
        row_proof.conflict_hash(
            [values[i] for name, values in own.items() if name != "losing_value" and (name != "cause" or values[i])],
            sent[i][1],
        )
        for i in range(count)
    ]
    return write._conflict_table(SHAPE, read), [Sum() + Sum(count, sum(hashes))]


@cache
def the_base() -> tuple[pa.Table, list[Sum]]:
    """Four rows, and a fifth that is deleted."""
    rows = [FULL, OTHER, EMPTY, FAR, ("e", 5, *EMPTY[2:])]
    cells = decoded([BUILDER.insert(row).data for row in rows], [INSERT] * len(rows))
    cells = cells.append_column("deleted", pa.array([row[0] == "e" for row in rows]))
    hashes = [RowEncoder(TABLE).hash(row) for row in rows]
    return base_table(SHAPE, cells), [Sum() + Sum(4, sum(hashes[:4])), Sum() + Sum(1, hashes[4])]


@cache
def the_pulled() -> tuple[pa.Table, list[Sum]]:
    table, [live, _] = the_base()
    return table.slice(0, 4), [live]


THINGS = {CHANGES: the_changes, CONFLICTS: the_conflicts, BASE: the_base, PULLED: the_pulled}


def by_columns(what: str, root: Path, path: Path, rows: int) -> Mapping[str, Callable[[], list[Sum]]]:
    """Each way in which the product asks."""
    file = File(path.name, rows, path.stat().st_size if path.exists() else 0, "0", 0, LAST)
    changes, conflicts = ((file,) if what == part else () for part in (CHANGES, CONFLICTS))
    base = Base((Bucket(),), (file,)) if what == PULLED else None
    table = TableFiles(7, SHAPE.file_table, changes, conflicts=conflicts, base=base)
    manifest = Manifest("R", "db", "E", 0, LAST, 1, "", {"kinds": table})

    def compactor() -> list[Sum]:
        with open_file(fs.LocalFileSystem(), str(path)) as opened:
            found = file_sum(what, SHAPE, opened)
        if found.sum.count and (found.first_position < 0 or found.last_position > LAST):
            raise ValueError("the compactor asks for the positions beside")
        return [found.live, found.sum - found.live] if what == BASE else [found.sum]

    if what == PULLED:
        return {"snapshot": lambda: [PublishedBase(str(root), manifest).bucket_sum("kinds", 0)]}
    if what == BASE:
        return {"compactor": compactor}
    return {"compactor": compactor, "janitor": lambda: [Evidence(str(root), manifest).sum(what, -1, LAST)]}


def by_rows(what: str, path: Path) -> list[Sum]:
    def ask(deleted: bool) -> Sum:
        def keep(own: Mapping[str, Any]) -> bool:
            return 0 <= int(own["position"]) <= LAST and bool(own.get("deleted")) is deleted

        return row_proof.file_sum(BASE if what == PULLED else what, SHAPE.file_table, path, keep)

    return [ask(deleted) for deleted in ((False, True) if what == BASE else (False,))]


Edit = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class Fault:
    """``edit``: what is wrong with the rows. ``damage``: with the file. ``seen``: whether a proof is to refuse it."""

    edit: Edit = lambda table: table
    damage: Callable[[Path], object] = lambda path: None
    seen: bool = True


def rows_at(*places: int | None) -> Edit:
    return lambda table: table.take(pa.array(places))


def cell(name: str, at: int, of: int | None) -> Edit:
    """The value of a column as another row has it, or NULL."""

    def edit(table: pa.Table) -> pa.Table:
        places = [of if place == at else place for place in range(table.num_rows)]
        where = table.schema.get_field_index(name)
        return table.set_column(where, table.schema.field(where), table.column(name).take(pa.array(places)))

    return edit


def own(name: str, at: int, value: Any) -> Edit:
    """Another value in our struct."""

    def edit(table: pa.Table) -> pa.Table:
        struct = table.column(OWN).combine_chunks()
        fields = list(struct.type)
        parts = [struct.field(field.name) for field in fields]
        place = struct.type.get_field_index(name)
        values = parts[place].to_pylist()
        values[at] = value
        parts[place] = pa.array(values, fields[place].type)
        return table.set_column(table.num_columns - 1, OWN, pa.StructArray.from_arrays(parts, fields=fields))

    return edit


def one_more(name: str) -> Edit:
    """A row more, with NULL in our struct."""

    def edit(table: pa.Table) -> pa.Table:
        return pa.concat_tables([table, own(name, 0, None)(table.slice(0, 1))])

    return edit


def without(name: str) -> Edit:
    return lambda table: table.drop_columns([name])


def turned_over(path: Path) -> None:
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:4] + bytes(byte ^ 0xFF for byte in content[4:half]) + content[half:])


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def far(table: pa.Table) -> int:
    """The first row that needs an exact text."""
    return next(at for at, texts in enumerate(exact(table)) if texts)


def exact(table: pa.Table) -> list[list[tuple[str, str]] | None]:
    found: list[list[tuple[str, str]] | None] = table.column(OWN).combine_chunks().field("exact").to_pylist()
    return found


def another_text(table: pa.Table) -> pa.Table:
    at = far(table)
    return own("exact", at, [(name, text + "0") for name, text in exact(table)[at] or ()])(table)


OF_ALL = {
    "nothing": Fault(seen=False),
    "another order": Fault(lambda table: table.take(pa.array(range(table.num_rows - 1, -1, -1))), seen=False),
    "a row less": Fault(lambda table: table.slice(1)),
    "a row more": Fault(lambda table: pa.concat_tables([table, table.slice(0, 1)])),
    "a row twice, another missing": Fault(lambda table: table.take(pa.array([0, 0, *range(2, table.num_rows)]))),
    "no row": Fault(lambda table: table.slice(0, 0)),
    "an exact text less": Fault(lambda table: own("exact", far(table), None)(table)),
    "an exact text that is another": Fault(another_text),
    "no file": Fault(damage=Path.unlink),
    "a file cut short": Fault(damage=cut_short),
    "bytes turned over": Fault(damage=turned_over),
}  # fmt: skip


def of_cells(at: int, other: int, empty: int | None) -> dict[str, Fault]:
    found: dict[str, Fault] = {}
    for name in NAMES:
        found[f"{name}: another row's"] = Fault(cell(name, at, other))
        found[f"{name}: NULL"] = Fault(cell(name, at, None))
        found[f"{name}: not in the file"] = Fault(without(name))
        if empty is not None:
            found[f"{name}: a value for NULL"] = Fault(cell(name, empty, at))
    return found


def of_conflicts() -> dict[str, Fault]:
    found: dict[str, Fault] = {}
    count = len(NAMES) - 2
    for i, name in enumerate(NAMES[2:]):
        found[f"{name}: another loser's"] = Fault(cell(name, i, count + i))
        found[f"{name}: NULL"] = Fault(cell(name, i, None))
        found[f"{name}: not in the file"] = Fault(without(name))
    for name in CONFLICT_FIELDS:
        value: Any = 5 if name in ("position", "ordinal") else "number" if name == "column" else "another"
        found[f"{name}: another"] = Fault(own(name, 0, value))
        found[f"{name}: NULL"] = Fault(own(name, 0, None))
    found["column: one that never was"] = Fault(own("column", 0, "never"))
    found["position: beyond the stretch"] = Fault(own("position", 0, LAST + 1))
    found["bytes that are others"] = Fault(own("untyped", -1, b"\x12\x01x"))
    found["bytes for a typed value"] = Fault(own("untyped", 0, b"\x12\x01x"))
    found["a row more, at no position"] = Fault(one_more("position"))
    found["no bytes"] = Fault(own("untyped", -1, None))
    # The key is proven by its text; its columns are beside that.
    found["id: NULL"] = Fault(cell("id", 0, None), seen=False)
    found["id: not in the file"] = Fault(without("id"), seen=False)
    return found


FAULTS: dict[str, dict[str, Fault]] = {
    CHANGES: {
        **of_cells(0, 2, 4),
        "an update's value": Fault(cell("number", 1, 0)),
        "an insert for an update": Fault(own("type", 1, "insert")),
        "nothing done for a delete": Fault(own("type", 3, "none")),
        "a delete less": Fault(rows_at(0, 1, 2, 4, 5, 6)),
        "a type that there is not": Fault(own("type", 0, "upsert")),
        "no type": Fault(own("type", 0, None)),
        "a row more, of no type": Fault(one_more("type")),
        "a row more, at no position": Fault(one_more("position")),
        "another changed column": Fault(own("changed", 1, ["number", "free"])),
        "a changed column less": Fault(own("changed", 1, ["number"])),
        "a changed column that there is not": Fault(own("changed", 1, ["number", "price", "never"])),
        "a changed column without a name": Fault(own("changed", 1, ["number", "price", None])),
        "no changed columns": Fault(own("changed", 1, None)),
        "a position beyond the stretch": Fault(own("position", 0, LAST + 1)),
        # An effect's hash has none of this: what was not changed, who wrote it, what was before.
        "a value that an update left": Fault(cell("flag", 1, 2), seen=False),
        "another node": Fault(own("node", 0, "another"), seen=False),
        "another batch": Fault(own("batch", 0, "another"), seen=False),
        "not complete": Fault(own("complete", 0, False), seen=False),
    },
    CONFLICTS: of_conflicts(),
    BASE: {
        **of_cells(0, 1, 2),
        "a deleted row that lives": Fault(own("deleted", 4, False)),
        "a row deleted": Fault(own("deleted", 0, True)),
        "a deleted row less": Fault(rows_at(0, 1, 2, 3)),
        "a position beyond the run": Fault(own("position", 0, LAST + 1)),
        "a deleted row, neither deleted nor not": Fault(own("deleted", 4, None)),
        "a row more, neither deleted nor not": Fault(one_more("deleted")),
    },
    PULLED: of_cells(0, 1, 2),
}
CASES = [(what, name) for what, faults in FAULTS.items() for name in (*OF_ALL, *faults)]
_REFUSALS = (EvidenceError, OSError, ValueError, KeyError, TypeError, pa.ArrowException)


def asked(ask: Callable[[], list[Sum]]) -> list[Sum] | None:
    """None where the rows are refused without a sum."""
    try:
        return ask()
    except _REFUSALS:
        return None


@pytest.mark.parametrize(("what", "name"), CASES, ids=[f"{what}: {name}" for what, name in CASES])
def test_both_proofs_refuse_the_same_faults(tmp_path: Path, what: str, name: str) -> None:
    fault = (OF_ALL | FAULTS[what])[name]
    table, wanted = THINGS[what]()
    rows = fault.edit(table)
    folder = tmp_path / epoch_folder("db", "E")
    [written] = write_files(fs.LocalFileSystem(), str(folder), "part", rows.schema, [rows])
    path = folder / written.name
    fault.damage(path)
    found = {who: asked(ask) for who, ask in by_columns(what, tmp_path, path, rows.num_rows).items()}
    found["row by row"] = asked(lambda: by_rows(what, path))
    assert {who: sums == wanted for who, sums in found.items()} == dict.fromkeys(found, not fault.seen)
    assert len({str(sums) for sums in found.values() if sums is not None}) <= 1, found


@pytest.mark.parametrize("what", [CHANGES, CONFLICTS])
def test_the_janitor_finds_a_damaged_page_in_columns_that_no_sum_has(tmp_path: Path, what: str) -> None:
    table, wanted = THINGS[what]()
    folder = tmp_path / epoch_folder("db", "E")
    [written] = write_files(fs.LocalFileSystem(), str(folder), "part", table.schema, [table])
    path = folder / written.name
    ask = by_columns(what, tmp_path, path, table.num_rows)["janitor"]
    content, group = path.read_bytes(), pq.read_metadata(path).row_group(0)
    for number in range(group.num_columns):
        column = group.column(number)
        start = column.dictionary_page_offset or column.data_page_offset
        last = start + column.total_compressed_size - 1
        path.write_bytes(content[:last] + bytes((content[last] ^ 1,)) + content[last + 1 :])
        with pytest.raises(EvidenceError, match=path.name):
            ask()
    path.write_bytes(content)
    assert ask() == wanted
