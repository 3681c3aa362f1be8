"""NCCL's settings from environment and files, and the interface on which its ranks meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.workloads.runtime import nccl_settings, process_group
from fixtures.workloads.runtime.identity import Identity
from fixtures.workloads.runtime.ranks import Ranks

pytestmark = pytest.mark.cpu


def test_the_environment_comes_before_the_user_s_file_and_that_before_the_host_s(
    tmp_path: Path,
) -> None:
    own, host = tmp_path / "own.conf", tmp_path / "host.conf"
    host.write_text("NCCL_A=host\nNCCL_B = host\nNCCL_C=host\n# NCCL_D=comment\n")
    own.write_text("NCCL_B=own\nNCCL_C=own\n")
    found = nccl_settings.settings({"NCCL_C": "env", "HOME": "/x"}, [own, host])
    assert found == {"NCCL_A": "host", "NCCL_B": "own", "NCCL_C": "env"}


def test_files_are_those_that_nccl_reads(tmp_path: Path) -> None:
    named = nccl_settings.configuration_files({"NCCL_CONF_FILE": "/site/nccl.conf", "HOME": "/h"})
    assert named == [Path("/site/nccl.conf"), Path("/etc/nccl.conf")]
    usual = nccl_settings.configuration_files({"HOME": "/h"})
    assert usual == [Path("/h/.nccl.conf"), Path("/etc/nccl.conf")]


def rank_of(tmp_path: Path, **spec: Any) -> Ranks:
    fields = {
        "nodes": ["n0", "n1"], "ranks_per_node": 1, "directory": str(tmp_path), "device": "cuda",
        "addresses": {"n0": "127.0.0.1", "n1": "127.0.0.2"}, "nics": 8, **spec,
    }  # fmt: skip
    return Ranks(fields, Identity(rank=0, local_rank=0, world_size=2, node="n0"))


def test_nccl_s_ranks_meet_on_the_interface_of_slurm_s_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NCCL_SOCKET_IFNAME", "NCCL_DEBUG_FILE", "NCCL_CONF_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(process_group.os, "environ", dict(process_group.os.environ))
    process_group.prepare(rank_of(tmp_path), "nccl")
    assert process_group.os.environ["NCCL_SOCKET_IFNAME"] == "=lo"


@pytest.mark.parametrize(
    ("spec", "settings"),
    [
        ({"nics": 0}, {}),
        ({"nodes": ["n0"]}, {}),
        ({"addresses": {}}, {}),
        ({}, {"NCCL_SOCKET_IFNAME": "eth7"}),
    ],
    ids=["data would take it too", "one node", "no address", "the site's own"],
)
def test_elsewhere_the_interface_is_nccl_s_choice(
    tmp_path: Path, spec: dict[str, Any], settings: dict[str, str]
) -> None:
    assert process_group._bootstrap_interface(rank_of(tmp_path, **spec), settings) is None
