"""What a rack whose nodes share one NVLink domain has of its own: IMEX, and NICs beside NVLink."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.cluster.population import Population
from fixtures.plan.items import planned_list
from fixtures.plan.jobs import Job, jobs_for
from fixtures.thresholds import loader
from fixtures.workloads.devices.nvml_fields import NotOffered
from fixtures.workloads.health import imex
from fixtures.workloads.runtime import rank_main
from fixtures.workloads.runtime.spec import describe
from tests.selftests.support import SHIPPED

pytestmark = pytest.mark.cpu

UP = """\
Nodes:
Node #0   - 10.0.0.1   - READY           - Version: 580.82
Node #1 * - 10.0.0.2   - READY           - Version: 580.82

 Nodes From\\To  0   1
       0        C   C
       1        C   C
Domain State: UP
"""


def node(root: Path, said: str = UP, *, channels: bool = True, channel: int | None = 0) -> Path:
    """The files of a node with IMEX, and a nvidia-imex-ctl that says this; its path."""
    (root / "proc").mkdir()
    lines = ["Character devices:", "195 nvidia", *(["234 nvidia-caps-imex-channels"] * channels)]
    (root / "proc" / "devices").write_text("\n".join(lines))
    folder = root / "dev" / "nvidia-caps-imex-channels"
    folder.mkdir(parents=True)
    (folder / "channel").touch()
    if channel is not None:
        (folder / f"channel{channel}").touch()
    command = root / "nvidia-imex-ctl"
    command.write_text(f"#!/bin/sh\ncat <<'end'\n{said}end\n")
    command.chmod(0o755)
    return command


@pytest.mark.parametrize("channel", [0, 1, 7, 2047])
def test_imex_is_ready_where_a_channel_opens_and_the_domain_is_up(tmp_path: Path, channel: int):
    """Slurm's switch/nvidia_imex keeps channel 0 and gives a job one of its own."""
    assert imex.state(tmp_path, str(node(tmp_path, channel=channel))) == ("ready", "")


@pytest.mark.parametrize(
    ("broken", "value", "note"),
    [
        ({"channels": False}, "no channels", "the driver offers no IMEX"),
        ({"channel": None}, "no channel", "nvidia-caps-imex-channels has none"),
        ({"said": UP.replace("State: UP", "State: DOWN")}, "domain DOWN", "the domain is DOWN"),
        ({"said": UP.replace("0.2   - READY      ", "0.2   - UNAVAILABLE")}, "domain UP",
         "10.0.0.2 UNAVAILABLE"),
        ({"said": UP.replace("State: UP", "State: DEGRADED").replace("READY", "LOST")},
         "domain DEGRADED", "10.0.0.1 LOST, 10.0.0.2 LOST"),
        ({"said": "Failed to connect to the IMEX service\n"}, "no answer", "Failed to connect"),
        ({"said": ""}, "no answer", "says nothing"),
    ],
)  # fmt: skip
def test_imex_that_is_down_is_named(tmp_path: Path, broken: dict[str, Any], value: str, note: str):
    state, said = imex.state(tmp_path, str(node(tmp_path, **broken)))
    assert state == value
    assert note in said


def test_a_domain_of_which_nobody_tells_is_not_measured(tmp_path: Path):
    node(tmp_path)
    with pytest.raises(NotOffered, match="is not on the PATH"):
        imex.state(tmp_path, "no-such-imex-ctl")


def jobs(model: str, gpus: int) -> list[Job]:
    order = {
        "nodes": 4, "gpus_per_node": gpus, "gpu_model": model, "nics_per_node": gpus,
        "nic_gbps": 400.0,
    }  # fmt: skip
    limits = loader.load_with_contract(SHIPPED, order)
    people = Population(
        origin="cluster", nodes=("n0", "n1", "n2", "n3"), gpus_per_node=gpus, gpu_model=model,
        ordered=True, nics_per_node=gpus, nic_gbps=400.0,
    )  # fmt: skip
    return jobs_for(planned_list(limits, people), limits, people)


def test_the_nics_of_a_rack_are_driven_in_a_job_of_their_own():
    planned = {job.name: [name for name, _ in job.workloads] for job in jobs("GB200", 4)}
    assert planned["cluster-rails_nic"] == ["rails_nic"]
    assert "rails" in planned["cluster"]
    assert "rails_nic" not in planned["cluster"]
    assert not any("rails_nic" in name for name in (job.name for job in jobs("H200 SXM", 8)))


def test_its_ranks_have_the_variable_before_any_library_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("NCCL_MNNVL_ENABLE", raising=False)
    seen = []

    def identify(nodes: list[str]) -> Any:
        import os

        seen.append(os.environ.get("NCCL_MNNVL_ENABLE"))
        raise RuntimeError("far enough")

    monkeypatch.setattr(rank_main, "identify", identify)
    for module in (
        "fixtures.workloads.collectives.rails_nic",
        "fixtures.workloads.collectives.rails",
    ):
        monkeypatch.delenv("NCCL_MNNVL_ENABLE", raising=False)
        with pytest.raises(RuntimeError, match="far enough"):
            rank_main.run_spec({"schema": 1, "nodes": ["n0"], "workloads": [{"module": module}]})
    assert seen == ["0", None]
    assert describe("fixtures.workloads.collectives.rails_nic").environment == {
        "NCCL_MNNVL_ENABLE": "0"
    }
    assert (
        SimpleNamespace(**describe("fixtures.workloads.collectives.rails").environment)
        == SimpleNamespace()
    )


def test_a_channel_that_is_closed_and_a_command_that_hangs_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    command = str(node(tmp_path))
    asked: list[Any] = []

    def hangs(*_: Any, timeout: float, **__: Any) -> None:
        asked.append(timeout)
        raise imex.subprocess.TimeoutExpired("nvidia-imex-ctl", timeout)

    with monkeypatch.context() as patch:
        patch.setattr(imex.subprocess, "run", hangs)
        state, note = imex.state(tmp_path, command)
        assert (state, asked) == ("no answer", [20])
        assert "timed out" in note
    monkeypatch.setattr(imex.os, "access", lambda _, mode: mode != imex.os.R_OK | imex.os.W_OK)
    assert imex.state(tmp_path, command)[0] == "channel closed"
    (tmp_path / "proc" / "devices").unlink()
    assert imex.state(tmp_path, command)[0] == "no channels"
