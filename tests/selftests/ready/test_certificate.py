"""The certificate on a node is a foreign file: what cannot be trusted is "could not tell"."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fixtures.ready import certificate
from fixtures.ready.certificate import CannotTell, node_of, read
from tests.selftests.ready_nodes import NODE, certified, of_node

pytestmark = pytest.mark.cpu


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(certified()))
    path.chmod(0o644)
    return path


def test_a_file_of_this_user_or_of_root_is_read(file: Path):
    assert read(file) == json.loads(file.read_text())
    os_root = file.stat().st_uid == 0
    if os_root:
        assert read(file, euid=1000)["schema"] == certificate.SCHEMA


def refused(path: Path, **more: Any) -> str:
    with pytest.raises(CannotTell) as error:
        read(path, **more)
    return str(error.value)


def test_a_file_of_another_user_is_not_read(file: Path):
    if os.geteuid() != 0:
        pytest.skip("only root gives a file away")
    os.chown(file, 1234, 1234)
    assert "owned by user 1234, expected root or user 0" in refused(file)
    assert read(file, euid=1234)


def test_a_file_that_others_may_write_is_not_read(file: Path):
    for mode in (0o664, 0o646):
        file.chmod(mode)
        assert "others may write it" in refused(file)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON"), ("{", "no JSON"), ("\xff\xfe", "not of schema|no JSON"),
        ("[]", "not of schema 1"), ('"x"', "not of schema 1"), ('{"schema": 2}', "not of schema 1"),
        ("[" * 200_000, "nested too deeply|no JSON"),
    ],
    ids=["empty", "cut", "odd", "list", "text", "schema", "deep"],
)  # fmt: skip
def test_what_is_no_certificate_is_said_in_a_line(file: Path, text: str, why: str):
    file.write_text(text, encoding="latin-1")
    said = refused(file)
    assert any(word in said for word in why.split("|")), said
    assert "\n" not in said


def test_a_giant_file_is_not_read(file: Path):
    with file.open("r+b") as opened:
        opened.truncate(certificate.MOST_BYTES + 1)
    assert "is above 64 MiB" in refused(file)


def test_a_link_a_folder_a_pipe_and_nothing_are_refused(tmp_path: Path, file: Path):
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "pipe")  # opened without waiting for a writer
    for name in ("link", "pipe", "missing", "."):
        assert refused(tmp_path / name)


# --- one node of it


def test_the_first_name_that_is_certified_counts():
    found = node_of(certified(), ("", "other", NODE))
    assert (found.node, len(found.gpus), len(found.nics)) == (NODE, 2, 4)
    assert found.limits["ecc_corrected"] == 2e7


def test_of_a_node_in_several_runs_the_last_counts():
    first, last = certified(), certified()
    last["parts"][0]["run"], last["parts"][0]["limits"] = "/runs/last", {}
    other = certified(node="gpu17")
    data = {**first, "parts": [*first["parts"], *last["parts"], *other["parts"]]}
    found = node_of(data, (NODE,))
    assert (found.run, found.limits) == ("/runs/last", {})
    assert node_of(data, ("gpu17", NODE)).node == "gpu17"


def test_a_node_that_is_not_certified_is_not_known():
    with pytest.raises(CannotTell, match="has no node gpu17"):
        node_of(certified(), ("gpu17",))


@pytest.mark.parametrize("field", ["since", "gpus", "nics", "mounts"])
@pytest.mark.parametrize("value", [None, "x", [[]], {"a": 1}])
def test_a_part_of_another_shape_is_not_known(field: str, value: Any):
    data = certified()
    of_node(data)[field] = value
    if (field, value) == ("mounts", None):
        of_node(data)["mounts"] = [1]
    with pytest.raises(CannotTell, match="is not what was installed"):
        node_of(data, (NODE,))


def test_states_and_counts_that_are_not_known_here_are_left_out():
    data = certified()
    gpu = of_node(data)["gpus"][0]
    gpu["states"]["invented"], gpu["counts"] = "x", ["ecc_sram", "invented"]
    found = node_of(data, (NODE,)).gpus[0]
    assert "invented" not in found["states"]
    assert found["counts"] == ["ecc_sram"]
