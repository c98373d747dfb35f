"""A base that Spark has published is read and proven without Spark, and a pull is served with it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.integration.compactor.conftest import TODO, Lake

from anabranch.columnar.base_proof import BaseProver, PublishedBase
from anabranch.columnar.base_reader import RowPlace
from anabranch.columnar.evidence import EvidenceError
from anabranch.store.catalog.databases import load_database
from anabranch.store.session.engine import connect
from anabranch.values.arrow import arrow_schema
from anabranch_snapshot.pulls.bases import lacks

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


OLD = "insert into todo select 'old' || i, repeat('x', 50), i % 2 = 0, i from generate_series(1, 2000) i"


def test_a_base_of_spark_is_read_and_proven_without_it(make_lake: Callable[..., Lake]) -> None:
    lake = make_lake("todo", f"{TODO}; {OLD}")
    lake.add_table(
        "odd", 'create table odd ("A b" timestamp, "anabranch" numeric(9,3), v boolean[], primary key ("A b"))'
    )
    writer = lake.writer()
    writer.insert("todo", [[f"{i:05}", f"title {i}", True, i] for i in range(500)])
    lake.compact()
    writer.update("todo", ("00001",), {"title": "changed"})
    writer.delete("todo", ("00002",))
    lake.compact()
    manifest = lake.manifest()
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        database = load_database(conn, "app")
    assert not lacks(manifest, database, list(database.tables.values()))
    base = PublishedBase(lake.root, manifest)
    prover = BaseProver(threading.Event())
    prover.prove(base, prover.unproven(base, ["todo", "odd"]))
    assert prover.unproven(base, ["todo", "odd"]) == []
    batches = [batch for batch, _ in base.reader("todo", 10_000).batches(RowPlace())]
    assert {batch.schema for batch in batches} == {arrow_schema(database.tables["todo"])}
    found = sorted(row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True))
    assert found == sorted(lake.sql("select * from todo"))
    assert any(file.delta for file in manifest.tables["todo"].base.files)  # type: ignore[union-attr]
    # Spark writes a checksum with each page, and it is looked at.
    whole = lake.paths("todo", "base")[0]
    with open(whole, "r+b") as file:
        content = file.read()
        file.seek(100)
        file.write(bytes(b ^ 0xFF for b in content[100:140]))
    with pytest.raises(EvidenceError):
        prover.prove(base, prover.unproven(base, ["todo"]))
