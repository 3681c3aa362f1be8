"""Both wrappers in a real Slurm: the sick node is drained, healthy ones and their jobs go on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox, hardware_faults
from fixtures.sandbox.processes import run, wait_until
from reports.handover import ready
from tests.selftests.ready_nodes import certified
from tests.selftests.sandboxes import refuse

pytestmark = [pytest.mark.cpu]

OWN = "acceptance-ready: "
HEALTH_CHECK = """
HealthCheckProgram={dest}/healthcheck.sh
HealthCheckInterval=2
HealthCheckNodeState=ANY
"""


@pytest.fixture(scope="module")
def dest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hooks") / "ready"


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, dest: Path) -> Iterator[Sandbox]:
    """Three nodes with the Prolog, and the installation that it starts."""
    refuse(request, Sandbox.refusal())
    with Sandbox.up(nodes=3, gpus=2, site={"slurm": f"Prolog={dest}/prolog.sh"}) as up:
        data = certified()
        data["parts"] = [certified(node=n)["parts"][0] for n in up.nodes]
        ready.install(dest, data)
        variables = {**up.env, "READY_PYTHON": sys.executable}
        text = "".join(f"export {name}='{value}'\n" for name, value in variables.items())
        (dest / "ready.env").write_text(text)
        yield up


def slurm(site: Sandbox, *command: str) -> str:
    return run([site.tools.get(command[0], command[0]), *command[1:]], env=site.environ).strip()


def job(site: Sandbox, *options: str) -> str:
    return slurm(site, "sbatch", "--parsable", "-o", "/dev/null", "--wrap", "true", *options)


def state_of(site: Sandbox, number: str) -> str:
    return slurm(site, "squeue", "-h", "-t", "all", "-j", number, "-o", "%T")


def reason_of(site: Sandbox, node: str) -> str:
    return slurm(site, "sinfo", "-h", "-N", "-n", node, "-O", "Reason:300").strip()


def soon(condition: Callable[[], object], what: str) -> None:
    assert wait_until(lambda: bool(condition()), timeout_s=60, step_s=0.1), what


def wrapper(site: Sandbox, dest: Path, node: str, name: str = "healthcheck.sh") -> int:
    """The status of a wrapper that root starts on a node."""
    return subprocess.run(site.inside(node, str(dest / name)), env={"PATH": ""}).returncode


def test_the_prolog_drains_the_sick_node_and_jobs_start_elsewhere(site: Sandbox, dest: Path):
    healthy = job(site, "-N3")
    soon(lambda: state_of(site, healthy) == "COMPLETED", "a job on all nodes")
    hardware_faults.inject(site, "worker1", "nvlink-down", "gpu0")
    pinned, free = job(site, "-w", "worker1"), job(site, "-x", "worker1", "-N2")
    soon(lambda: "drain" in site.node_states()["worker1"], "drained by its own Prolog")
    assert reason_of(site, "worker1").startswith(f"{OWN}GPU 0 "), reason_of(site, "worker1")
    assert "17 of 18 NVLinks are up" in reason_of(site, "worker1")
    soon(lambda: state_of(site, free) == "COMPLETED", "a job of others")
    # Slurm holds a job whose Prolog failed, but for SchedulerParameters=nohold_on_prolog_fail.
    held = slurm(site, "squeue", "-h", "-j", pinned, "-o", "%T %r")
    assert held == "PENDING launch failed requeued held"
    assert {site.node_states()[n] for n in ("worker0", "worker2")} == {"idle"}
    # Repaired: the other wrapper gives back what this one took.
    hardware_faults.clear(site, "worker1")
    assert wrapper(site, dest, "worker1") == 0
    slurm(site, "scancel", pinned)
    after = job(site, "-w", "worker1")
    soon(lambda: state_of(site, after) == "COMPLETED", "a job on the repaired node")


def test_what_cannot_be_told_drains_nothing_and_starts_jobs(site: Sandbox, dest: Path):
    lines = (dest / "ready.env").read_text()
    try:
        # A status without its line is none, whatever ends with it.
        for python in ("/bin/true", "/bin/false", "/no/such/python"):
            (dest / "ready.env").write_text(f"{lines}READY_PYTHON={python}\n")
            statuses = [wrapper(site, dest, "worker2", name) for name in ready.WRAPPERS]
            assert statuses == [0, 0], python
        (dest / "ready.env").write_text(f"{lines}READY_OPTIONS=--certificate=/none\n")
        number = job(site, "-w", "worker2")
        soon(lambda: state_of(site, number) == "COMPLETED", "the job starts")
        assert wrapper(site, dest, "worker2") == 0
        assert site.node_states()["worker2"] == "idle"
    finally:
        (dest / "ready.env").write_text(lines)


def test_what_others_drained_is_neither_taken_nor_given_back(site: Sandbox, dest: Path):
    site.drain("worker0", reason="a disk is replaced")
    assert wrapper(site, dest, "worker0") == 0
    assert "drain" in site.node_states()["worker0"], "it is ready, and not ours to give back"
    hardware_faults.inject(site, "worker0", "ecc-off", "gpu1")
    assert wrapper(site, dest, "worker0") == 0
    assert reason_of(site, "worker0") == "a disk is replaced"
    hardware_faults.clear(site, "worker0")
    site.drain("worker0", resume=True)


def test_slurm_starts_the_health_check_which_takes_and_gives_back(site: Sandbox, dest: Path):
    conf = site.state.home / "slurm.conf"
    conf.write_text(conf.read_text() + HEALTH_CHECK.format(dest=dest))
    slurm(site, "scontrol", "reconfigure")
    hardware_faults.inject(site, "worker2", "remap-pending", "gpu1")
    soon(lambda: "drain" in site.node_states()["worker2"], "drained by HealthCheckProgram")
    assert reason_of(site, "worker2").startswith(f"{OWN}GPU 1 ")
    assert "row remapping pending" in reason_of(site, "worker2")
    others = job(site, "-N2")
    soon(lambda: state_of(site, others) == "COMPLETED", "a job of others")
    hardware_faults.clear(site, "worker2")
    soon(lambda: site.node_states()["worker2"] == "idle", "given back")
    assert {*site.node_states().values()} == {"idle"}
