"""Faults of a running sandbox: which processes, files and commands each of them touches."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fixtures.paths import CHECKOUT
from fixtures.sandbox import faults, light, network, node, processes, startup
from fixtures.sandbox.cgroups import Cgroups
from fixtures.sandbox.errors import SandboxError
from tests.selftests.sandbox import parts
from tests.selftests.sandbox.parts import DEAD, Calls

pytestmark = pytest.mark.cpu


@pytest.fixture
def sandbox(tmp_path):
    return parts.cluster(parts.state(tmp_path / "ab1"))


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    return parts.clock(monkeypatch, faults, processes)


@pytest.fixture
def ran(monkeypatch) -> Calls:
    calls = Calls("")
    monkeypatch.setattr(faults, "run", calls)
    return calls


class Rank:
    """A process that keeps the signals that it gets; it ends on one of them."""

    pid = DEAD.pid

    def __init__(self, ends_on: int | None = None) -> None:
        self.got: list[int] = []
        self.ends_on = ends_on

    @property
    def alive(self) -> bool:
        return self.ends_on not in self.got

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.got.append(number)


# --- power and daemons


def test_a_power_loss_ends_what_is_recorded_and_what_is_in_the_nodes_group(sandbox, monkeypatch):
    killed = []
    monkeypatch.setattr(faults, "kill_all", lambda find: killed.append([*find()]))
    member = parts.living()
    monkeypatch.setattr(
        Cgroups, "members", lambda self, name: [member] if name == "worker1" else []
    )
    sandbox.state.processes = {"worker1": DEAD, "worker0": member}
    faults.kill_node(sandbox, "worker1")
    init = processes.Process(DEAD.pid + 1, 1)
    sandbox.state.processes["worker1.init"] = init
    faults.kill_node(sandbox, "worker1")
    assert killed == [[DEAD, member], [init, DEAD, member]]


def test_a_node_that_was_killed_is_made_anew(sandbox, monkeypatch, ran):
    steps = []
    monkeypatch.setattr(Cgroups, "remove", lambda self, name: steps.append("remove"))
    for module, name in ((network, "disconnect"), (node, "start"), (node, "release"),
                         (light, "start")):  # fmt: skip
        monkeypatch.setattr(module, name, lambda *given, name=name: steps.append(name))
    with pytest.raises(SandboxError, match=r"worker1 runs; .* kill-node worker1` kills it"):
        faults.revive(sandbox, "worker1")
    sandbox.state.processes["worker1"] = DEAD
    faults.revive(sandbox, "worker1")
    assert steps == ["disconnect", "remove", "start", "release"]
    (call,) = ran
    assert call[0] == ["/fake/scontrol", "update", "NodeName=worker1", "State=DOWN",
                       "Reason=power loss"]  # fmt: skip
    sandbox.state.light = True
    steps.clear()
    faults.revive(sandbox, "worker1")
    assert steps == ["start"]
    assert len(ran) == 1


def test_a_daemon_has_twenty_seconds_to_end_on_sigterm(sandbox, clock):
    sandbox.state.processes["slurmctld"] = process = Rank(ends_on=signal.SIGTERM)
    faults.stop_daemon(sandbox, "slurmctld")
    assert process.got == [signal.SIGTERM]
    assert clock[0] == 0
    sandbox.state.processes["slurmctld"] = Rank(ends_on=signal.SIGKILL)
    with pytest.raises(SandboxError, match="slurmctld of sandbox ab1 did not end on SIGTERM"):
        faults.stop_daemon(sandbox, "slurmctld")
    assert clock[0] == pytest.approx(20, abs=0.1)


def test_slurmctld_is_started_again_and_waited_for(sandbox, monkeypatch):
    started, waited = Calls(), Calls()
    monkeypatch.setattr(startup, "start_slurmctld", started)
    monkeypatch.setattr(startup, "wait_for_daemon", waited)
    monkeypatch.setattr(startup, "controller_listening", Calls("condition"))
    faults.start_controller(sandbox)
    assert len(started) == 1
    log = sandbox.state.home / "slurmctld.out"
    assert waited == [(sandbox.state, "slurmctld", "condition", log)]


# --- configuration


def test_only_the_nodes_slurmd_is_told_to_register(sandbox, monkeypatch):
    lines = {1: ["slurmd", "-D", "-N", "worker1"], 2: ["slurmstepd", "-D"], 3: None,
             4: ["slurmd", "-D", "-N", "worker0"]}  # fmt: skip
    ranks = {pid: Rank() for pid in lines}

    def process(pid: int) -> SimpleNamespace:
        if lines[pid] is None:
            raise psutil.NoSuchProcess(pid)
        return SimpleNamespace(cmdline=lambda: lines[pid])

    for pid, rank in ranks.items():
        rank.pid = pid
    monkeypatch.setattr(psutil, "Process", process)
    sandbox.processes = lambda name: [*ranks.values()]
    faults.reregister(sandbox, "worker1")
    assert [pid for pid, rank in ranks.items() if rank.got == [signal.SIGHUP]] == [1]
    assert [pid for pid, rank in ranks.items() if rank.got] == [1]


def test_a_changed_file_is_restored_and_read_again(sandbox, monkeypatch):
    reloaded = []
    file = sandbox.state.home / "gres.conf"
    file.write_text("Count=2\n")
    monkeypatch.setattr(
        faults, "reload_configuration", lambda s, name: reloaded.append((name, file.read_text()))
    )
    change = faults.reconfigured(
        sandbox, "worker1", "gres.conf", lambda text: text.replace("2", "1")
    )
    with pytest.raises(ZeroDivisionError), change:
        1 / int(file.read_text() == "Count=2\n")
    assert reloaded == [("worker1", "Count=1\n"), ("worker1", "Count=2\n")]
    with (
        pytest.raises(SandboxError, match=r"gres\.conf has no line to change like that"),
        faults.reconfigured(sandbox, "worker1", "gres.conf", str),
    ):
        pass
    assert len(reloaded) == 2


def test_a_configuration_is_read_when_slurmd_says_so_anew(sandbox, monkeypatch, clock):
    log = sandbox.state.node_home("worker1") / "slurmd.log"
    log.parent.mkdir(parents=True)
    log.write_text("CPU frequency setting not configured\n")
    said = ["CPU frequency setting not configured\n"]

    def register(_sandbox, name: str) -> None:
        with log.open("a") as file:
            file.write(said.pop() if said else "another line\n")

    monkeypatch.setattr(faults, "reregister", register)
    faults.reload_configuration(sandbox, "worker1")
    assert clock[0] == 0
    with pytest.raises(SandboxError, match="slurmd of worker1 did not read its configuration"):
        faults.reload_configuration(sandbox, "worker1")  # what it said before does not count
    assert clock[0] == pytest.approx(10, abs=0.1)


def test_a_node_is_drained_with_a_reason_and_resumed(sandbox, ran):
    faults.drain(sandbox, "worker1", reason="drill", resume=False)
    faults.drain(sandbox, "worker1", reason="drill", resume=True)
    assert [call[0][3:] for call in ran] == [["State=DRAIN", "Reason=drill"], ["State=RESUME"]]


# --- slow ranks


def test_a_slow_rank_runs_for_its_part_of_each_period(sandbox, monkeypatch, clock):
    monkeypatch.setattr(os, "setpriority", Calls())
    for factor, runs, stands in (
        (2, 0.025, 0.025),
        (5, 0.01, 0.04),
        (50, 0.01, 0.49),
        (1, 0.05, 0),
    ):
        rank, periods = Rank(), []
        clock[0] = 1000.0

        def kill(number: int, rank=rank, periods=periods) -> None:
            rank.got.append(number)
            periods.append(clock[0])

        rank.kill = kill
        sandbox.processes = lambda name, rank, job, one=rank: [one]
        stop = iter([False, False, True])
        faults.duty_cycle(
            sandbox, "worker1", rank=0, factor=factor, job=7, stop=lambda stop=stop: next(stop)
        )
        assert rank.got == [signal.SIGSTOP, signal.SIGCONT] * 2 + [signal.SIGCONT]
        between = [b - a for a, b in itertools.pairwise(periods)]
        assert between[:3] == pytest.approx([stands, runs, stands]), factor


def test_new_ranks_are_looked_for_four_times_a_second(sandbox, monkeypatch, clock):
    monkeypatch.setattr(os, "setpriority", Calls())
    asked = []

    def found(name: str, *, rank: int, job: int | None) -> list[Rank]:
        asked.append((clock[0], name, rank, job))
        return [Rank()]

    sandbox.processes = found
    clock[0] = 1000.0
    faults.duty_cycle(
        sandbox, "worker1", rank=3, factor=2, job=None, stop=lambda: clock[0] > 1000.95
    )
    assert {call[1:] for call in asked} == {("worker1", 3, None)}
    assert len(asked) == 4
    assert all(0.25 < b[0] - a[0] < 0.36 for a, b in itertools.pairwise(asked))


def test_slowing_ends_with_the_sandbox_and_a_factor_is_one_or_more(sandbox, monkeypatch, clock):
    monkeypatch.setattr(os, "setpriority", Calls())
    sandbox.processes = lambda *_, **__: []
    with pytest.raises(SandboxError, match=r"a factor of 0\.5 would be faster"):
        faults.duty_cycle(sandbox, "worker1", rank=0, factor=0.5, job=None, stop=lambda: True)
    stops = iter([False, True])
    sandbox.state.home = Path("/nowhere")
    faults.duty_cycle(sandbox, "worker1", rank=0, factor=1, job=None, stop=lambda: next(stops))
    assert next(stops) is True


def test_a_rank_is_slowed_by_a_process_that_ends_with_its_input(sandbox, monkeypatch):
    started = []

    class Helper:
        def __init__(self, argv, **more) -> None:
            started.append((argv, more["cwd"]))

        def __enter__(self):
            return self

        def __exit__(self, *_) -> None:
            started.append("left")

        def communicate(self, timeout: float) -> None:
            started.append("told")

    monkeypatch.setattr(subprocess, "Popen", Helper)
    for job, last in ((None, ["--until-eof"]), (7, ["--until-eof", "--job", "7"])):
        started.clear()
        with faults.slow(sandbox, "worker1", rank=3, factor=20, job=job):
            assert len(started) == 1
        (argv, folder), *rest = started
        assert rest == ["told", "left"]
        assert folder == CHECKOUT
        assert argv[:3] == [sys.executable, "-m", "fixtures.sandbox"]
        assert argv[5:] == [
            "slow",
            "worker1",
            "--id",
            "ab1",
            "--rank",
            "3",
            "--factor",
            "20",
            *last,
        ]
