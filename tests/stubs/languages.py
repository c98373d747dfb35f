"""Each language's program, built, run against real services, and compared with what the Python client sees.

`make stubs-test` runs this file; `make test` does not collect it, because building takes minutes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.stack import Stack
from anabranch.testkit.story import Story
from anabranch.v1 import value_pb2, verdict_pb2
from anabranch.values import Cell, Kind
from anabranch.values.canonical import RowEncoder
from anabranch.values.messages import column_reader
from anabranch.values.sqlite import RowCodec

from . import vectors
from .programs import PROGRAMS, Program

pytestmark = pytest.mark.timeout(900)
KINDS = (
    "id text primary key, yes boolean, n bigint, x double precision, t text, b bytea, d numeric, ts timestamptz,"
    " day date, tod time, j jsonb, u uuid, a text[], span interval, qty bigint constraint kinds_qty check (qty >= 0)"
)
STORED: list[dict[str, Any]] = json.loads(vectors.FILE.read_text())


@pytest.fixture(scope="module")
def stack(databases: TestDatabases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    url = databases.fresh()
    with Stack(url, folder=tmp_path_factory.mktemp("stack")) as running:
        yield running
    databases.release(url)


@pytest.fixture(scope="module", params=sorted(PROGRAMS))
def program(request: pytest.FixtureRequest) -> Program:
    made = PROGRAMS[request.param]
    if not made.is_made:
        pytest.skip(f"{made.language}: its stubs could not be made here (`make stubs` says why)")
    made.make()
    return made


def test_the_python_program_can_reach_stubs_alone() -> None:
    python = PROGRAMS["python"]
    assert python.is_made
    for module, found in (("anabranch.v1.ingest_pb2_grpc", True), ("anabranch.client", False)):
        command = [sys.executable, "-c", f"import {module}"]
        done = subprocess.run(
            command, env={**os.environ, **python.environment}, capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode == 0) == found, done.stderr
        assert found or "No module named 'anabranch.client'" in done.stderr


def test_bytes_are_read_and_written_alike(program: Program) -> None:
    told = {one["name"]: one for one in program.run("conformance")["vectors"]}
    assert told.keys() == {vector["name"] for vector in STORED}
    for vector in STORED:
        one = told[vector["name"]]
        assert one["decoded"] == vector["bytes"], vector["name"]
        assert one["json"] == vector["json"], vector["name"]
        if not vector.get("json_inexact"):
            assert one["parsed"] == vector["bytes"], vector["name"]


def test_a_session_is_what_the_python_client_sees(program: Program, stack: Stack, tmp_path: Path) -> None:
    story = Story(stack, tmp_path, {"kinds": KINDS})
    try:
        told = program.run(
            "session",
            {
                "ANABRANCH_INGEST": stack.addresses["ingest"],
                "ANABRANCH_SNAPSHOT": stack.addresses["snapshot"],
                "ANABRANCH_KEY": stack.new_key(f"user-{program.language}", database=story.name),
                "ANABRANCH_DATABASE": story.name,
            },
        )
        refusals(told)
        described(told, story)
        verdicts(told, story)
        log(told, story)
        node = story.node("reader")
        assert told["as_of"] >= told["followed"]["position"]
        rows = node.db.execute(f"SELECT {', '.join(told['columns'])} FROM kinds").fetchall()
        table = story.database.tables["kinds"]
        load, encode = RowCodec(table).load, RowEncoder(table).encode
        assert {row[0]: encode(row) for row in pulled(story, told)} == {row[0]: encode(load(row)) for row in rows}
        by_name = [dict(zip(told["columns"], row, strict=True)) for row in told["rows"]]
        contents(by_name)
        story.check()
    finally:
        story.close()


def refusals(told: dict[str, Any]) -> None:
    assert told["unauthenticated"] == {
        "code": "UNAUTHENTICATED", "domain": "anabranch", "reason": "UNAUTHENTICATED",
    }  # fmt: skip
    assert told["refused"] == {
        "code": "OUT_OF_RANGE", "domain": "anabranch", "reason": "INVALID_POSITION",
    }  # fmt: skip


def described(told: dict[str, Any], story: Story) -> None:
    kinds = {c.name: f"COLUMN_KIND_{c.kind.name}" for c in story.database.tables["kinds"].columns}
    assert told["tables"] == {"kinds": kinds}
    assert set(kinds.values()) == set(value_pb2.ColumnKind.keys()[1:])


def verdicts(told: dict[str, Any], story: Story) -> None:
    stored = {
        verdict.batch_id: verdict
        for (raw,) in story.sql("select verdict from anabranch.batches where database_id = %s", [story.database.id])
        for verdict in [verdict_pb2.Verdict.FromString(raw)]
    }
    applied = [*told["sent"], told["followed"]]
    assert [one["status"] for one in applied] == ["APPLIED"] * 8
    assert stored.keys() == {one["id"] for one in [*applied, *told["rejected"]]}
    for one in applied:
        assert stored[one["id"]].status == verdict_pb2.VERDICT_STATUS_APPLIED
        assert stored[one["id"]].position == one["position"]
    checked, exists = told["rejected"]
    for one in (checked, exists):
        assert stored[one["id"]].status == verdict_pb2.VERDICT_STATUS_REJECTED
        assert one["table"] == "kinds"
    assert (checked["reason"], checked["key"]) == ("CONSTRAINT", "bad")
    assert (checked["constraint"], checked["sqlstate"]) == ("kinds_qty", "23514")
    assert (exists["reason"], exists["key"], exists["constraint"]) == ("ROW_EXISTS", "row 0", "")
    assert exists["server_t"] == "updated \U0001f600"


def log(told: dict[str, Any], story: Story) -> None:
    """The log that was paged is the one in Postgres, but for the batch that came later."""
    rows = story.sql(
        "select position, batch_id, effect from anabranch.log where database_id = %s and batch_id <> %s"
        " order by position, batch_id, ordinal",
        [story.database.id, told["followed"]["id"]],
    )
    counts: dict[tuple[int, str], int] = {}
    digest = hashlib.sha256()
    for position, batch_id, effect in rows:
        counts[position, batch_id] = counts.get((position, batch_id), 0) + 1
        digest.update(struct.pack(">I", len(effect)) + effect)
    assert [tuple(one) for one in told["log"]] == [(*place, count) for place, count in counts.items()]
    assert told["effects"] == digest.hexdigest()
    assert told["pages"] > 24, "an effect of 20,000 letters comes in parts, over pages of 4,096 bytes"


READERS: dict[Kind, Callable[[str], Cell]] = {
    Kind.BOOL: lambda text: {"true": True, "false": False}[text],
    Kind.DOUBLE: lambda text: float(struct.unpack(">d", bytes.fromhex(text))[0]),
    Kind.BYTES: bytes.fromhex,
    Kind.ARRAY: lambda text: _nested(json.loads(text)),
    **dict.fromkeys((Kind.INT64, Kind.TIMESTAMP, Kind.DATE, Kind.TIME), int),
}


def _nested(elements: list[Any]) -> tuple[Any, ...]:
    return tuple(_nested(e) if isinstance(e, list) else e for e in elements)


def pulled(story: Story, told: dict[str, Any]) -> Iterator[tuple[Cell, ...]]:
    """The told rows as cells."""
    table = story.database.tables["kinds"]
    assert told["columns"] == [c.name for c in table.columns]
    readers = [READERS.get(column.kind, str) for column in table.columns]
    for row in told["rows"]:
        yield tuple(None if text is None else read(text) for read, text in zip(readers, row, strict=True))


def contents(rows: list[dict[str, Any]]) -> None:
    """The vector's rows came through, as written."""
    by_id = {row["id"]: row for row in rows}
    assert len(by_id) == len(rows) == len(vectors.limits_rows().rows) + 5
    for row in vectors.limits_rows().rows:
        told = by_id[row.values[0].string_value]
        for name, value in zip(vectors.KINDS_COLUMNS[1:], row.values[1:], strict=True):
            arm = value.WhichOneof("kind")
            if (told["id"], name) in (("row 0", "t"), ("row 1", "t")):
                assert told["t"] == ("updated \U0001f600" if told["id"] == "row 0" else "followed")
            elif arm == "null_value":
                assert told[name] is None, (told["id"], name)
            elif arm == "double_value" and math.isnan(value.double_value):
                assert told[name] == "7ff8000000000000"
            elif arm == "double_value":
                assert told[name] == struct.pack(">d", value.double_value).hex()
            elif arm == "bool_value":
                assert told[name] == ("true" if value.bool_value else "false")
            elif arm == "bytes_value":
                assert told[name] == value.bytes_value.hex()
            elif arm == "array_value":
                column = _array_column(name)
                assert _nested(json.loads(told[name])) == column(value)
            else:
                assert told[name] == str(getattr(value, str(arm)))


def _array_column(name: str) -> Callable[[Any], Cell]:
    from anabranch.values import Column

    return column_reader(Column(name, Kind.ARRAY, "text[]", Kind.STRING))
