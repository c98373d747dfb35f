"""Which file column holds which column, over changes of a table; manifests come back as they went."""

from __future__ import annotations

import json

import pytest

from anabranch.columnar.file_columns import FileTable, file_table
from anabranch.columnar.manifest import (
    Base,
    Bucket,
    EndedRegistration,
    File,
    Manifest,
    ManifestError,
    TableFiles,
    from_json,
    to_json,
)
from anabranch.columnar.proof import Sum
from anabranch.values import Column, Kind, Table
from anabranch.values.parquet import file_type, may_need_text

ID = Column("id", Kind.STRING, "text")


def table(*columns: Column) -> Table:
    return Table("t", (ID, *columns), ("id",))


def names(files: FileTable) -> list[str]:
    return [column.file_name for column in files.columns]


def test_a_column_keeps_its_file_column_while_its_type_does() -> None:
    first = file_table(table(Column("n", Kind.INT64, "integer"), Column("s", Kind.STRING, "varchar(5)")))
    wider = file_table(table(Column("s", Kind.STRING, "text"), Column("n", Kind.INT64, "bigint")), first.ever)
    assert names(wider) == ["id", "s", "n"]
    assert wider.gone == ()


def test_a_column_that_comes_back_with_another_type_gets_a_new_file_column() -> None:
    first = file_table(table(Column("n", Kind.INT64, "integer")))
    without = file_table(table(), first.ever)
    assert [column.file_name for column in without.gone] == ["n"]
    as_text = file_table(table(Column("n", Kind.STRING, "text")), without.ever)
    assert names(as_text) == ["id", "n (2)"]
    again = file_table(table(Column("n", Kind.INT64, "bigint")), as_text.ever)
    assert names(again) == ["id", "n"]
    decimal = file_table(table(Column("n", Kind.DECIMAL, "numeric(12,2)")), again.ever)
    assert names(decimal) == ["id", "n (3)"]
    assert names(file_table(table(Column("n", Kind.DECIMAL, "numeric(14,2)")), decimal.ever)) == ["id", "n (4)"]


@pytest.mark.parametrize("name", ["anabranch", "Anabranch", "ANABRANCH"])
def test_our_own_name_is_taken_in_any_case(name: str) -> None:
    assert names(file_table(table(Column(name, Kind.STRING, "text")))) == ["id", f"{name} (2)"]


def test_names_that_differ_in_case_alone_never_meet_in_one_file() -> None:
    first = file_table(table(Column("Name", Kind.STRING, "text")))
    assert names(file_table(table(Column("name", Kind.STRING, "text")), first.ever)) == ["id", "name (2)"]


@pytest.mark.parametrize(
    ("postgres_type", "held"),
    [
        ("numeric(12,2)", "decimal128(12, 2)"),
        ("numeric(38,38)", "decimal128(38, 38)"),
        ("numeric(39,2)", "string"),
        ("numeric(3,5)", "string"),
        ("numeric(5,-2)", "string"),
        ("numeric", "string"),
        ("price", "string"),
    ],
)
def test_a_numeric_is_a_decimal_where_its_declared_digits_fit(postgres_type: str, held: str) -> None:
    column = Column("n", Kind.DECIMAL, postgres_type)
    assert str(file_type(column)) == held
    assert may_need_text(column) == (held != "string")


def test_a_manifest_comes_back_as_it_went() -> None:
    files = file_table(table(Column("tags", Kind.ARRAY, "text[]", Kind.STRING)), (file_table(table()).columns))
    file = File("changes/table=t/R/part-0.parquet", 5, 1_000, "ff", 1, 9)
    base = Base((Bucket(3, "a"), Bucket()), (File("base/x", 3, 10, "a", 1, 9, 1, True),))
    ended = EndedRegistration(3, 0, file_table(table()), Base((Bucket(),), (File("base/old", 1, 9, "b", 0, 0),)))
    made = Manifest(
        "R", "db", "E", 0, 9, 2, "Q", {"t": TableFiles(4, files, (file,), 5, "ff", (file,), base, (ended,))}
    )
    read = from_json(json.loads(json.dumps(to_json(made))))
    assert to_json(read) == to_json(made)
    found = read.tables["t"]
    assert (found.changes, found.base, found.columns.table.key_columns) == ((file,), base, ("id",))
    assert found.columns.table.by_name["tags"].element_kind is Kind.STRING
    assert found.ended is not None
    assert [(one.last_position, one.base) for one in found.ended] == [(0, ended.base)]
    assert read.paths == {file.path, "base/x", "base/old"}


def test_a_manifest_of_an_earlier_release_tells_no_registrations() -> None:
    files = TableFiles(4, file_table(table()), ended=())
    content = to_json(Manifest("R", "db", "E", 0, 9, 2, "", {"t": files}))
    del content["tables"]["t"]["ended"]
    assert from_json(content).tables["t"].ended is None
    assert from_json(to_json(from_json(content))).tables["t"].ended is None


def test_a_manifest_of_another_format_is_refused() -> None:
    with pytest.raises(ManifestError, match="format 4"):
        from_json({"format": 4})


def test_sums_go_round_at_their_end() -> None:
    one = Sum(1, 2**128 - 1)
    assert one + one == Sum(2, 2**128 - 2)
    assert (one + one) - one == one
    assert Sum() - one == Sum(-1, 1)
