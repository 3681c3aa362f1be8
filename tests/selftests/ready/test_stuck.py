"""A driver that hangs for a day leaves one process behind, not one for every check."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from fixtures.ready import stuck
from fixtures.ready.children import Child

pytestmark = pytest.mark.cpu

FILE = stuck.FOLDER / stuck.NAME


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def left(pid: int) -> Child:
    return Child("the driver", pid, -1, messages=[{"asking": "the driver about GPU 3"}])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root keeps the note")
def test_who_is_left_behind_is_written_down_and_not_asked_again(tmp_path: Path, sleeper):
    stuck.remember(tmp_path, [left(sleeper.pid)])
    assert stuck.still(tmp_path) == {
        "the driver": f"the driver about GPU 3: no answer to an earlier check "
        f"(process {sleeper.pid})"
    }
    assert (tmp_path / stuck.FOLDER).stat().st_mode & 0o777 == 0o700
    sleeper.kill()
    sleeper.wait()
    assert stuck.still(tmp_path) == {}


def test_who_has_ended_is_not_written_down(tmp_path: Path):
    process = subprocess.Popen(["true"])
    began = time.monotonic()
    stuck.remember(tmp_path, [left(process.pid)])
    process.wait()
    assert not (tmp_path / FILE).exists()
    assert time.monotonic() - began < 10


def test_another_process_of_the_same_number_is_not_the_one(tmp_path: Path, sleeper):
    (tmp_path / stuck.FOLDER).mkdir(parents=True)
    (tmp_path / FILE).write_text(json.dumps([["the driver", "it", sleeper.pid, "1"]]))
    assert stuck.still(tmp_path) == {}


@pytest.mark.parametrize("text", ["", "{", "7", "[[1]]", '[["a", "b", "c", "d"]]', "[null]"])
def test_a_broken_note_hinders_nothing(tmp_path: Path, text: str):
    (tmp_path / stuck.FOLDER).mkdir(parents=True)
    (tmp_path / FILE).write_text(text)
    assert stuck.still(tmp_path) == {}
