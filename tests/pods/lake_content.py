"""The content of a lake, read from outside by the manifest that was published last."""

from __future__ import annotations

from collections import Counter

from anabranch.columnar.lake import LakeTable
from anabranch.columnar.manifest import from_json
from anabranch.columnar.row_states import INSERT
from anabranch.store.lake import compactions
from anabranch.store.session.engine import connect
from anabranch.values.parquet import file_codecs

from .trial import DATABASE, Trial


def claimed(trial: Trial) -> str:
    """The folder of the machine that the claim `lake` is, as far as a root in it: `lake`, as the chart has it."""
    claim = trial.release.one("v1/persistentvolumeclaims", "lake")
    volume = trial.release.api.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
    return f"{volume['spec']['local']['path']}/lake"


def judge_content(trial: Trial, root: str, prefix: str, rows: int) -> None:
    """The table's rows in the lake are those of Postgres, nobody writing; and of the ``rows`` keys that begin with
    ``prefix`` each was inserted once. ``root``: where the lake is to be found from here."""
    with connect(trial.url, application_name="anabranch-pods-test", autocommit=True) as conn:
        row = conn.execute("select id from anabranch.databases where name = %s", (DATABASE,)).fetchone()
        assert row is not None
        newest = max(compactions.all_published(conn, row[0]), key=lambda one: one.to_position)
    table = LakeTable(root, from_json(newest.manifest), "todo", file_codecs)
    changes = table.changes(table.registrations[-1])
    twice = [place for place, count in Counter(one.place for one in changes).items() if count > 1]
    assert not twice, twice[:10]
    inserted = Counter(str(one.key[0]) for one in changes if one.type == INSERT)
    mine = {key: count for key, count in inserted.items() if key.startswith(prefix)}
    assert len(mine) == rows
    assert set(mine.values()) == {1}
    assert {str(key[0]) for key in table.rows()} == {key for (key,) in trial.sql("select id from shop.todo")}
