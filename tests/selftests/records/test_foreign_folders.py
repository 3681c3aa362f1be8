"""Folders that others write: bounded, no link is followed, and what was not looked at is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fixtures.records import foreign_folders
from fixtures.records.foreign_files import RecordError
from fixtures.records.foreign_folders import files_in, folders_in, list_folder, walk

pytestmark = pytest.mark.cpu


def odd_folder(root: Path) -> Path:
    """Return a folder with one of each: file, folder, link, linked folder, odd names."""
    folder = root / "jobs"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "rank0.jsonl").touch()
    (root / "outside").mkdir()
    (root / "outside" / "secret").touch()
    (folder / "x").symlink_to(root / "outside")
    (folder / "a" / "y").symlink_to(root / "outside")
    (folder / "z").symlink_to(root / "outside" / "secret")
    (folder / "new\nline").touch()
    (folder / "new\u2028line").touch()
    (folder / os.fsdecode(b"\xff")).touch()
    os.mkfifo(folder / "pipe")
    return folder


def test_links_to_folders_and_odd_names_are_named_and_not_followed(tmp_path: Path) -> None:
    folder = odd_folder(tmp_path)
    found = list_folder(folder)
    assert [p.name for p in found.files] == ["pipe", "z"]
    assert [p.name for p in found.folders] == ["a"]
    assert found.refused == [
        "\\udcff: a name that is not one line of text",
        "new\\nline: a name that is not one line of text",
        "new\\u2028line: a name that is not one line of text",
        "x: a linked folder, which is not followed",
    ]
    assert files_in(folder, "p*") == [folder / "pipe"]
    assert folders_in(folder) == [folder / "a"]


def test_a_walk_names_what_it_left_out_by_its_path(tmp_path: Path) -> None:
    folder = odd_folder(tmp_path)
    found = walk(folder)
    assert [str(p.relative_to(folder)) for p in found.files] == ["a/rank0.jsonl", "pipe", "z"]
    assert "jobs/a/y: a linked folder, which is not followed" in found.refused
    assert not [p for p in found.files if p.name == "secret"]


def test_a_missing_folder_is_empty_and_a_linked_one_is_refused(tmp_path: Path) -> None:
    assert list_folder(tmp_path / "none") == foreign_folders.Listing()
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").touch()
    (tmp_path / "jobs").symlink_to("real")
    with pytest.raises(RecordError, match="jobs: is a link, expected a folder"):
        list_folder(tmp_path / "jobs")
    assert walk(tmp_path / "jobs").refused == ["jobs: is a link, expected a folder"]
    assert len(list_folder(tmp_path / "jobs", named=True).files) == 1
    with pytest.raises(RecordError, match="a: is not a folder, expected a folder"):
        list_folder(tmp_path / "real" / "a")


def test_more_entries_than_any_run_has_are_refused(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    assert len(list_folder(tmp_path, most=3).files) == 3
    with pytest.raises(RecordError, match="expected at most 2 entries"):
        list_folder(tmp_path, most=2)
    with pytest.raises(RecordError, match="expected at most 2 files"):
        walk(tmp_path, most=2)


def test_a_folder_without_permission_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "open").touch()
    real = os.open

    def denied(path: Path, *args: object, **kwargs: object) -> int:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(foreign_folders.os, "open", denied)
    found = walk(tmp_path)
    assert found.files == [tmp_path / "open"]
    assert found.refused == [f"{tmp_path.name}/closed: Permission denied"]
