"""Which runs somebody may still follow: each one until the next was published, and for the grace after that."""

from __future__ import annotations

from anabranch.columnar.file_columns import file_table
from anabranch.columnar.manifest import File, Manifest, TableFiles, to_json
from anabranch.store.catalog import registration
from anabranch.store.catalog.databases import load_database
from anabranch.store.lake import compactions
from anabranch.store.session.engine import connect
from anabranch.values import Column, Kind, Table

COLUMNS = file_table(Table("t", (Column("id", Kind.STRING, "text"),), ("id",)))


def test_a_run_is_followed_until_the_next_is_published_and_for_the_grace_after_that(migrated_url: str) -> None:
    with connect(migrated_url, application_name="test", autocommit=True) as conn:
        conn.execute("create schema app")
        registration.create_database(conn, "app", "app")
        database = load_database(conn, "app")
        number, epoch = database.id, database.epoch

        def publish(upto: int, at: int) -> None:
            files = TableFiles(1, COLUMNS, (File(f"file {upto}", 1, 1, "0", upto, upto),))
            manifest = to_json(Manifest(f"R{upto}", "app", epoch, upto - 1, upto, 1, "", {"t": files}))
            compactions.publish(
                conn, number, run_id=f"R{upto}", epoch=epoch, after=upto - 1, upto=upto, changes=1, root="file:/x",
                manifest=manifest, now_ms=at,
            )  # fmt: skip

        def followed(since: int) -> list[str]:
            return [run.run_id for run in compactions.recently_published(conn, number, epoch, since)]

        def named() -> list[str]:
            return [
                run.run_id for run in compactions.all_published(conn, number) if run.manifest["tables"]["t"]["changes"]
            ]

        assert followed(0) == []
        publish(1, 100)
        publish(2, 1_000)
        publish(3, 9_000)
        # At 500 the first one was the newest; from 1,000 on the second.
        assert followed(500) == ["R1", "R2", "R3"]
        assert compactions.forget_files(conn, number, 500) == 0
        assert followed(1_001) == followed(9_000) == ["R2", "R3"]
        assert compactions.forget_files(conn, number, 9_000) == 1
        assert named() == ["R2", "R3"]
        assert followed(9_001) == ["R3"]
        assert compactions.forget_files(conn, number, 10_000) == 1
        assert named() == followed(10_000) == ["R3"]
        assert compactions.forget_files(conn, number, 10_000) == 0
