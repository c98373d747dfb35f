"""Files beside those of tasks: several runs may be at them at once, and what a reader may still follow stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import fs

from anabranch.columnar.manifest import MANIFESTS, Manifest, manifest_path, to_json
from anabranch.store.lake.compactions import Published
from anabranch_compactor.files import lake_files
from anabranch_compactor.files.lake_files import LakeFiles, RootError
from anabranch_compactor.files.orphans import needed, remove_orphans, run_of

RUN = "01M8G6S35ND833VCQH1GH2B9V6"


def test_two_runs_that_tell_the_same_manifest_are_not_in_each_others_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = LakeFiles(str(tmp_path))
    moved = fs.LocalFileSystem.move

    class Overtaken(fs.LocalFileSystem):  # type: ignore[misc]
        """Another run tells it right before this one's draft is put in its place."""

        def move(self, source: str, target: str) -> None:
            monkeypatch.setattr(told, "_files", fs.LocalFileSystem())
            told.put("m/a.json", "text")
            moved(self, source, target)

    monkeypatch.setattr(told, "_files", Overtaken())
    told.put("m/a.json", "text")
    assert [path.read_text() for path in (tmp_path / "m").iterdir()] == ["text"]


def test_what_another_run_has_removed_is_gone(tmp_path: Path) -> None:
    files = LakeFiles(str(tmp_path))
    files.remove("changes/table=t/x.parquet")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        files.remove("folder")


def test_a_draft_that_a_killed_run_left_is_an_orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(fs.LocalFileSystem):  # type: ignore[misc]
        def move(self, source: str, target: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(lake_files, "file_system", lambda folder: (Killed(), folder))
    with pytest.raises(KeyboardInterrupt):
        LakeFiles(str(tmp_path)).put(manifest_path(RUN), "text")
    [draft] = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert run_of(str(draft.relative_to(tmp_path))) == RUN
    monkeypatch.undo()
    assert remove_orphans(LakeFiles(str(tmp_path)), {manifest_path(RUN)}, 2**45) == 1
    assert not draft.exists()


def test_files_that_an_earlier_release_names_are_needed_also_where_this_one_makes_nothing_of_them() -> None:
    content = to_json(Manifest(RUN, "app", "E", 0, 1, 1))
    file = {"path": f"base/table=t/{RUN}/a.parquet"}
    content["tables"] = {"t": {"changes": [], "conflicts": [], "base": {"buckets": [], "files": [file]}}}
    found = needed([Published(RUN, "E", 0, 1, 1, "file:/x", content, 1)])
    assert found == {manifest_path(RUN), file["path"]}


@pytest.mark.parametrize("root", ["/proc/version/lake", "nowhere://bucket/lake", "file:lake"])
def test_a_root_that_is_no_place_for_files_is_named(root: str) -> None:
    with pytest.raises(RootError, match=root.removeprefix("file:")):
        LakeFiles(root).prepare()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / MANIFESTS).write_text("in the way")
    with pytest.raises(RootError, match=RUN):
        LakeFiles(str(tmp_path)).put(manifest_path(RUN), "text")
