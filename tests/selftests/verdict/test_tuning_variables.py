"""Settings that change what is measured: found on the nodes, set aside, named beside a failure."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.absence import Absence, Kind
from fixtures.records.model import Measurement, RankResult
from fixtures.records.tuning_variables import FAMILIES, KNOWN
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads.runtime import process_group, tuning_variables
from fixtures.workloads.runtime.ranks import Ranks
from tests.selftests import rank_job, support
from tests.selftests.judging import judged

pytestmark = pytest.mark.cpu


def test_the_environment_comes_before_the_user_s_file_and_that_before_the_host_s(
    tmp_path: Path,
) -> None:
    own, host = tmp_path / "own.conf", tmp_path / "host.conf"
    host.write_text("NCCL_A=host\nNCCL_B = host\nNCCL_C=host\n# NCCL_D=comment\n")
    own.write_text("NCCL_B=own\nNCCL_C=own\n")
    found = tuning_variables.nccl_settings({"NCCL_C": "env", "HOME": "/x"}, [own, host])
    assert {name: value for name, (value, _) in found.items()} == {
        "NCCL_A": "host", "NCCL_B": "own", "NCCL_C": "env",
    }  # fmt: skip
    assert found["NCCL_A"][1] == str(host)
    assert found["NCCL_C"][1] == "environment"


def test_files_are_those_that_nccl_reads(tmp_path: Path) -> None:
    named = tuning_variables.configuration_files(
        {"NCCL_CONF_FILE": "/site/nccl.conf", "HOME": "/h"}
    )
    assert named == [Path("/site/nccl.conf"), Path("/etc/nccl.conf")]
    usual = tuning_variables.configuration_files({"HOME": "/h"})
    assert usual == [Path("/h/.nccl.conf"), Path("/etc/nccl.conf")]


def rank_of(tmp_path: Path, **spec: Any) -> Ranks:
    addresses = {"n0": "127.0.0.1", "n1": "127.0.0.2"}
    given = {"device": "cuda", "addresses": addresses, "nics": 8, **spec}
    return rank_job.rank_of(tmp_path, world_size=2, **{"nodes": ["n0", "n1"], **given})


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
    ("spec", "found"),
    [
        ({"nics": 0}, {}),
        ({"nodes": ["n0"]}, {}),
        ({"addresses": {}}, {}),
        ({}, {"NCCL_SOCKET_IFNAME": "eth7"}),
    ],
    ids=["data would take it too", "one node", "no address", "the site's own"],
)
def test_elsewhere_the_interface_is_nccl_s_choice(
    tmp_path: Path, spec: dict[str, Any], found: dict[str, str]
) -> None:
    assert process_group._bootstrap_interface(rank_of(tmp_path, **spec), found) is None


def test_known_settings_have_values_and_all_others_names_only(tmp_path: Path) -> None:
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_MAX_NCHANNELS=8\nNCCL_SITE_TOKEN=secret\n")
    env = {"NCCL_P2P_DISABLE": "1", "CUDA_API_KEY": "secret", "HOME": "/x", "PATH": "/bin"}
    taken = tuning_variables.take(env, [conf])
    assert taken == {
        "known": {
            "NCCL_MAX_NCHANNELS": ["8", str(conf)], "NCCL_P2P_DISABLE": ["1", "environment"],
        },
        "others": ["CUDA_API_KEY", "NCCL_SITE_TOKEN"],
    }  # fmt: skip
    assert "secret" not in str(taken)


def test_what_would_blind_or_falsify_a_measurement_is_set_aside() -> None:
    env = {"NCCL_DEBUG": "WARN", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "NCCL_ALGO": "Ring"}
    taken = tuning_variables.take(env, [])
    assert env == {"NCCL_ALGO": "Ring"}
    assert taken["set_aside"] == {
        "NCCL_DEBUG": ["WARN", "environment"],
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ["1", "environment"],
    }
    assert list(taken["known"]) == ["NCCL_ALGO"]


def test_nccl_logs_what_the_suite_reads_whatever_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group.os, "environ", {"NCCL_DEBUG": "WARN"})
    process_group.prepare(rank_of(tmp_path, nodes=["n0"]), "nccl")
    assert process_group.os.environ["NCCL_DEBUG"] == "INFO"
    assert process_group.os.environ["NCCL_DEBUG_FILE"].startswith(str(tmp_path))


# --- beside a failure


def judged_with(limits: Thresholds, key: str, *found: RankResult, **more: Any) -> Verdict:
    workload = limits.criteria[key].workload
    return judged(limits, key, support.record(*found, workload=workload), **more)


def with_settings(rank: RankResult, **known: str) -> RankResult:
    entries = {name: [value, "environment"] for name, value in known.items()}
    return dataclasses.replace(rank, facts={"settings": {"known": entries}})


def slow(k: int, node: str, **known: str) -> RankResult:
    return with_settings(support.rank(k, node, support.busbw(*[30.0] * 5, nvls=True)), **known)


def test_a_failed_row_names_the_setting_that_can_explain_it(limits: Thresholds) -> None:
    channels = {"NCCL_MAX_NCHANNELS": "8", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    ranks = [slow(k, "worker0", **channels) for k in range(2)]
    verdict = judged_with(limits, "allreduce.nvls", *ranks)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason == "NCCL_MAX_NCHANNELS=8 was set in the environment"
    assert verdict.next_step.startswith("measure again without NCCL_MAX_NCHANNELS; ")


def test_a_setting_of_one_node_is_that_node_s(limits: Thresholds) -> None:
    ranks = [slow(k, "worker0") for k in range(2)]
    ranks += [slow(k, "worker1", NCCL_P2P_DISABLE="1") for k in (2, 3)]
    verdict = judged_with(limits, "allreduce.pair", *ranks, nodes=("worker0", "worker1"))
    assert verdict.outcome is Outcome.FAIL
    assert "NCCL_P2P_DISABLE=1 was set in the environment of worker1" in verdict.reason


def test_a_pass_and_a_wrong_element_name_no_setting(limits: Thresholds) -> None:
    fast = [
        with_settings(
            support.rank(k, "worker0", support.busbw(*[120.0] * 5, nvls=True)), NCCL_ALGO="Ring"
        )
        for k in range(2)
    ]
    assert judged_with(limits, "allreduce.nvls", *fast).reason == ""
    wrong = [
        with_settings(
            support.rank(k, "worker0", support.value("errors", "elements", 7)), NCCL_ALGO="Ring"
        )
        for k in range(2)
    ]
    failed = judged_with(limits, "allreduce.errors", *wrong)
    assert (failed.outcome, failed.reason) == (Outcome.FAIL, "")


def test_a_measurement_that_decides_nothing_is_explained_by_no_setting(limits: Thresholds) -> None:
    """More of it is needed, or a fact; "measure again without NCCL_ALGO" led nowhere."""
    undecided = Absence(metric="busbw", kind=Kind.UNKNOWN, why="more slices are needed")
    ranks = [
        dataclasses.replace(slow(k, "worker0", NCCL_ALGO="Ring"), measurements=[],
                            absent=[undecided])
        for k in range(2)
    ]  # fmt: skip
    verdict = judged_with(limits, "allreduce.nvls", *ranks)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "more slices are needed" in verdict.reason
    assert "NCCL_ALGO" not in verdict.line


def test_a_product_in_another_type_says_what_forced_it(limits: Thresholds) -> None:
    shipped = loader.load(support.SHIPPED)
    checks = {
        "batches": 20.0, "overlap": 1.0, "operand_std": 1.0, "relative_error": 2.9e-4,
        "clock_ceiling": 0.9,
    }  # fmt: skip
    products = Measurement(
        metric="fp32", unit="TFLOPS", samples=[52.0] * 20, checks=checks,
        conditions={"power_limit": "default"},
    )  # fmt: skip
    ranks = [
        with_settings(support.rank(k, "worker0", products), NVIDIA_TF32_OVERRIDE="1")
        for k in range(2)
    ]
    verdict = judged_with(shipped, "gemm.fp32", *ranks)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "relative_error is" in verdict.reason
    assert verdict.reason.endswith("NVIDIA_TF32_OVERRIDE=1 was set in the environment")


def test_no_setting_is_listed_twice() -> None:
    names = [name for names in KNOWN.values() for name in names]
    assert len(names) == len(set(names))
    assert all(name.startswith(FAMILIES) for name in names)
