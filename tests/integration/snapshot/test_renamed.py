"""Tables and columns that were renamed are read by their present names, and told by their identities."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.snapshot.audience_writer import SECRET, viewer
from tests.integration.snapshot.pulled import Pulled, jobs_of, pull_and_cut, rows
from tests.integration.snapshot.test_compare import Comparison, message

from anabranch.ranges import KeyRange, RangeSums
from anabranch.store.lake.log_files import read_rows
from anabranch.testkit.renaming import Names, rename
from anabranch.values.arrow import to_cells
from anabranch.values.canonical import RowEncoder, table_sum

ODD = Names('The "Item"', {"id": 'i"d', "title": "Title", "n": "select"})
SWAPPED = Names("job", {"id": "title", "title": "id", "n": "data", "data": "n"})
NAMES = {"odd": {"item": ODD}, "swapped": {"item": SWAPPED, "job": Names("item", {"id": "title", "title": "id"})}}


@pytest.fixture(scope="module")
def rig_environment() -> dict[str, str]:
    return {"ANABRANCH_PULL_BATCH_BYTES": "4096", "ANABRANCH_JWT_HS256_SECRET": SECRET}


@pytest.fixture(params=list(NAMES))
def renamed(restricted: Any, request: pytest.FixtureRequest) -> Any:
    """The place with a restricted table, which was written to and renamed."""
    writer = restricted.make_writer()
    writer.insert("item", ROWS)
    rename(restricted.conn, restricted.name, NAMES[request.param])
    return restricted


ROWS = rows(500)


@pytest.mark.slow
def test_a_pull_has_identities_and_goes_on_where_it_broke(renamed: Any) -> None:
    reader, writer = renamed.make_reader(), renamed.make_writer()
    writer.update("item", (ROWS[0][0],), {"title": "written under its new name", "n": 77})
    pulled = Pulled()
    cut = pull_and_cut(reader, pulled, b"")
    assert not cut.done
    pulled.all(reader.pull([("item", cut.resume)]))
    expected = sorted([(ROWS[0][0], "written under its new name", 77, ROWS[0][3]), *ROWS[1:]])
    assert pulled.rows["item"] == expected
    done = pulled.done["item"].sum
    table = writer.table("item")
    assert (done.count, int.from_bytes(done.hash, "big")) == table_sum(RowEncoder(table), expected)


def test_restricted_rows_are_pulled_by_their_audiences(renamed: Any) -> None:
    table = renamed.make_writer().table("job")
    columns = ", ".join(f'"{table.by_name[name].sql_name}"' for name in ("id", "team", "title"))
    renamed.conn.execute(
        f"insert into {renamed.schema}.\"{table.sql_name}\" ({columns}) values ('1', 'a', 'x'), ('2', 'b', 'y')"
    )
    reader = viewer(renamed, "alice", "a")
    assert jobs_of(Pulled().all(reader.pull([("job", b"")]))) == {"1": ("1", "a", "x")}


def test_a_table_is_compared_by_key_ranges(renamed: Any) -> None:
    reader, writer = renamed.make_reader(), renamed.make_writer()
    encoder = RowEncoder(writer.table("item"))
    expected = RangeSums()
    expected.add(encoder, [list(row) for row in ROWS])
    one = Comparison(reader, "item")
    opening, *parts = one.answer()
    assert (opening.sum.count, int.from_bytes(opening.sum.hash, "big")) == table_sum(encoder, ROWS)
    assert sum(s.count for part in parts for s in part.sums) == len(ROWS)
    one.ask(read=[message(KeyRange(8, encoder.key_hash(list(ROWS[0]))[0]))])
    found = [piece for part in one.answer() for piece in part.rows]
    assert any(ROWS[0][0].encode() in piece for piece in found)
    one.asked.put(None)
    assert list(one.call) == []


def test_what_the_compactor_reads_are_the_columns_of_the_registration(renamed: Any) -> None:
    table = renamed.make_writer().table("item")
    schema_name = renamed.schema.strip('"')
    with renamed.conn.transaction():
        renamed.conn.execute("set transaction isolation level repeatable read read only")
        [(snapshot,)] = renamed.conn.execute("select pg_export_snapshot()").fetchall()
        batches = read_rows(renamed.rig.url, snapshot, schema_name, table, 0, 10_000, 1 << 20)
        columns = [[to_cells(c, batch.column(c.name)) for c in table.columns] for batch in batches]
    found = [row for of_batch in columns for row in zip(*of_batch, strict=True)]
    assert sorted(found) == sorted(ROWS)
