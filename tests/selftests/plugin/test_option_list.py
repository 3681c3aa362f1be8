"""The options of the suite: which take a value, and which of these is a path."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest

from fixtures.plugin import option_list

pytestmark = pytest.mark.cpu


def test_flags_take_no_value_and_the_others_do():
    takes = option_list.takes_value()
    for name in ("--plan", "--sandbox-light", "--require-sandbox", "--allow-destructive"):
        assert takes[name] is False, name
    for name in ("--budget", "--sandbox-nodes", "--resume", "--calibrate-with", "--cluster"):
        assert takes[name] is True, name


def test_paths_are_known_by_their_type():
    paths = option_list.path_options()
    assert {"--resume", "--from", "--thresholds", "--run-dir", "--sandbox-bundle"} <= paths
    assert not {"--plan", "--sandbox-nodes", "--cluster", "--budget"} & paths


def test_options_that_are_repeated_take_values_too():
    recorder = option_list._Recorder()
    group = recorder.getgroup("any")
    assert group is recorder
    group.addoption("-x", "--xs", action="append", type=int)
    group.addoption("--text")
    group.addoption("--flag", action="store_true")
    group.addoption("--count", action="count")
    assert recorder.types == {
        "-x": int, "--xs": int, "--text": str, "--flag": None, "--count": None
    }  # fmt: skip


def test_a_file_that_is_not_there_is_refused(tmp_path):
    (tmp_path / "file").touch()
    assert option_list._existing_file(str(tmp_path / "file")) == tmp_path / "file"
    with pytest.raises(argparse.ArgumentTypeError):
        option_list._existing_file(str(tmp_path / "nothing"))


def test_every_option_is_in_a_group_of_the_suite():
    groups = []
    option_list.add_options(
        SimpleNamespace(
            getgroup=lambda name, text="": groups.append(name) or option_list._Recorder()
        )
    )
    assert "acceptance-sandbox" in groups
    assert all(name.startswith("acceptance") for name in groups)
