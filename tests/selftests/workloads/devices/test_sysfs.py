"""Small files of the system: their text, their number, and why they give none."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.workloads.devices import sysfs

pytestmark = pytest.mark.cpu


def test_text_and_number_of_a_file_are_none_where_it_holds_none(tmp_path: Path):
    cases = (("7\n", "7", 7), (" a b \n", "a b", None), ("\n", None, None), ("-1", "-1", None))
    for k, (held, text, number) in enumerate(cases):
        path = tmp_path / str(k)
        path.write_text(held)
        assert (sysfs.text_of(path), sysfs.number_of(path)) == (text, number)
    assert sysfs.text_of(tmp_path / "missing") is None
    assert sysfs.number_of(tmp_path / "missing") is None


def test_matching_paths_are_sorted(tmp_path: Path):
    for name in ("b1", "a1", "c2"):
        (tmp_path / name).touch()
    assert sysfs.matching(tmp_path, "*1") == [tmp_path / "a1", tmp_path / "b1"]


def test_the_reason_names_the_file_from_sys_or_proc_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "sys/class/dmi/id/bios_version"
    assert sysfs.why_unreadable(path) == "/sys/class/dmi/id/bios_version is not there"
    path.parent.mkdir(parents=True)
    path.write_text("\n")
    assert sysfs.why_unreadable(path) == "/sys/class/dmi/id/bios_version holds ''"
    process = tmp_path / "proc/1/mem"
    for error, says in (
        (PermissionError(13, "Permission denied"), "can be read by root only"),
        (OSError(5, "Input/output error"), ": Input/output error"),
    ):

        def read(*_: object, error: OSError = error, **__: object) -> str:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", read)
            assert sysfs.why_unreadable(process).startswith("/proc/1/mem")
            assert sysfs.why_unreadable(process).endswith(says)
    assert sysfs.why_unreadable(Path("/run/nothing/here")) == "/run/nothing/here is not there"
