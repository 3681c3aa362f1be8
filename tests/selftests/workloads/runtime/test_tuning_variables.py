"""Settings of NCCL, CUDA and PyTorch that a rank was started with, and where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.workloads.runtime import tuning_variables

pytestmark = pytest.mark.cpu


def test_the_environment_comes_before_files_and_the_first_file_before_others(tmp_path: Path):
    own, system = tmp_path / "own", tmp_path / "system"
    own.write_text(" NCCL_ALGO = Ring \n#NCCL_PROTO=LL\nOTHER=1\n")
    system.write_text("NCCL_ALGO=Tree\nNCCL_PROTO=Simple\nNCCL_NTHREADS=8\n")
    environment = {"NCCL_NTHREADS": "16", "PATH": "/bin"}
    found = tuning_variables.nccl_settings(environment, [own, tmp_path / "missing", system])
    assert found == {
        "NCCL_ALGO": ("Ring", str(own)), "NCCL_PROTO": ("Simple", str(system)),
        "NCCL_NTHREADS": ("16", "environment"),
    }  # fmt: skip


def test_nccl_s_files_are_the_named_one_or_the_user_s_and_the_system_s():
    etc = Path("/etc/nccl.conf")
    for environment, first in (
        ({"NCCL_CONF_FILE": "/a", "HOME": "/home/me"}, "/a"), ({"HOME": "/h"}, "/h/.nccl.conf"),
        ({}, "/.nccl.conf"),
    ):  # fmt: skip
        assert tuning_variables.configuration_files(environment) == [Path(first), etc]


def test_the_environment_of_this_process_is_read_where_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "conf").write_text("NCCL_PROTO=LL\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "conf"))
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    found = tuning_variables.nccl_settings()
    assert found["NCCL_ALGO"] == ("Ring", "environment")
    assert found["NCCL_PROTO"] == ("LL", str(tmp_path / "conf"))
    assert tuning_variables.take()["known"]["NCCL_ALGO"] == ["Ring", "environment"]
    assert "NCCL_DEBUG" not in tuning_variables.os.environ


def test_settings_are_taken_by_what_may_be_recorded_of_them(tmp_path: Path):
    (tmp_path / "conf").write_text("NCCL_DEBUG_FILE=/x\nNCCL_PROTO=LL\n")
    environment = {
        "NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO", "NCCL_SECRET": "s", "PATH": "/bin",
        "CUDA_LAUNCH_BLOCKING": "1", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    }  # fmt: skip
    taken = tuning_variables.take(environment, [tmp_path / "conf"])
    assert taken == {
        "known": {
            "CUDA_LAUNCH_BLOCKING": ["1", "environment"], "NCCL_ALGO": ["Ring", "environment"],
            "NCCL_PROTO": ["LL", str(tmp_path / "conf")],
        },
        "set_aside": {
            "NCCL_DEBUG": ["INFO", "environment"],
            "NCCL_DEBUG_FILE": ["/x", str(tmp_path / "conf")],
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ["1", "environment"],
        },
        "others": ["NCCL_SECRET"],
    }  # fmt: skip
    assert not set(tuning_variables.SET_ASIDE) & environment.keys()
    assert environment["NCCL_ALGO"] == "Ring"
    assert tuning_variables.take({}, []) == {}


def test_a_setting_without_a_value_does_not_take_the_next_line(tmp_path):
    (file := tmp_path / "nccl.conf").write_text("NCCL_ALGO =\n NCCL_PROTO = LL \n")
    found = tuning_variables.nccl_settings({}, files=[file])
    assert found == {"NCCL_ALGO": ("", str(file)), "NCCL_PROTO": ("LL", str(file))}
