"""Starting, finding and ending a sandbox: what is refused, what is done in which order."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.sandbox import cleanup, cluster, faults, hardware_faults, network, resources, startup
from fixtures.sandbox.cgroups import Cgroups
from fixtures.sandbox.cluster import Sandbox
from fixtures.sandbox.errors import HeldError, SandboxError
from fixtures.sandbox.processes import Process
from fixtures.sandbox.state import State, load
from fixtures.sandbox.tools import Tools
from tests.selftests.sandbox import parts
from tests.selftests.sandbox.parts import DEAD, Calls

pytestmark = pytest.mark.cpu


def test_what_the_kernel_holds_turns_no_run_red(monkeypatch) -> None:
    """It is a warning, and taken down when this process ends."""

    def remove(home: Path) -> None:
        removed.append(home)
        raise HeldError("7 (rank), state D, waits in io_schedule")

    removed: list[Path] = []
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(cleanup, "remove", remove)
    monkeypatch.setattr(atexit, "register", at_exit.append)
    state = State("held", Path("/nowhere"), Process.of(os.getpid()), "", nodes=2, gpus=2)
    sandbox = Sandbox(state, Tools())
    with (
        pytest.warns(UserWarning, match=r"^sandbox held is not down yet: 7 .* io_schedule"),
        sandbox,
    ):
        pass
    (again,) = at_exit
    again()
    assert len(removed) == 2
    with pytest.raises(HeldError):
        sandbox.down()


def test_a_fork_of_the_owner_does_not_remove_it(monkeypatch, tmp_path):
    removed = Calls()
    monkeypatch.setattr(cleanup, "remove", removed)
    for owner, count in ((DEAD, 0), (None, 0), (parts.living(), 1)):
        Sandbox(parts.state(tmp_path / "ab1", owner=owner), Tools())._down_at_exit()
        assert len(removed) == count


def test_its_context_is_itself_and_ends_its_cleanup_process_once(monkeypatch, tmp_path):
    stopped = Calls()
    monkeypatch.setattr(cleanup, "remove", Calls())
    monkeypatch.setattr(cleanup, "stop_cleanup_process", stopped)
    sandbox = Sandbox(parts.state(tmp_path / "ab1"), Tools())
    helper = SimpleNamespace()
    sandbox._cleanup_process = helper
    with sandbox as entered:
        assert entered is sandbox
    sandbox.down()
    assert stopped == [(helper,)]


# --- up


@pytest.fixture
def started(monkeypatch, tmp_path) -> SimpleNamespace:
    """Where a sandbox can be started; what was called to do so. No process is started."""
    seen = SimpleNamespace(
        checked=Calls(), found=Calls(parts.tools()), shared=Calls([]), created=[], built=[],
        light=[], idle=[], steps=Calls(), downs=Calls(), exits=Calls(), stopped=Calls(),
        swept=Calls(), cgroup=1,
    )  # fmt: skip

    def create_state(registry: Path, id: str | None, **given):
        seen.created.append((registry, id, given))
        home = registry / (id or "new")
        more = {k: given[k] for k in ("nodes", "gpus", "light", "platform")}
        return parts.state(
            home, owner=parts.living(), cgroup=seen.cgroup, processes={}, **more
        )  # fmt: skip

    def build(state: State, **given):
        seen.built.append(given)
        return parts.tools(), Cgroups(seen.cgroup, {}, True)

    monkeypatch.setattr(cluster, "REGISTRY", tmp_path / "usual")
    for name, call in (("check_host", seen.checked), ("find", seen.found)):
        monkeypatch.setattr(cluster, name, call)
    monkeypatch.setattr(resources, "share_gpus", seen.shared)
    monkeypatch.setattr(cleanup, "sweep", seen.swept)
    monkeypatch.setattr(cleanup, "start_cleanup_process", Calls("helper"))
    monkeypatch.setattr(cleanup, "stop_cleanup_process", seen.stopped)
    monkeypatch.setattr(cleanup, "remove", seen.downs)
    monkeypatch.setattr(startup, "create_state", create_state)
    monkeypatch.setattr(startup, "build", build)
    monkeypatch.setattr(startup, "wait_idle", lambda *given, **more: seen.idle.append(more))
    monkeypatch.setattr(startup, "run_test_step", seen.steps)
    monkeypatch.setattr(cluster.light_nodes, "start_all", lambda *given: seen.light.append(given))
    monkeypatch.setattr(atexit, "register", seen.exits)
    monkeypatch.setattr(atexit, "unregister", Calls())
    return seen


def test_an_owned_sandbox_is_taken_down_at_the_end_of_its_owner(started, tmp_path):
    up = Sandbox.up(nodes=3, gpus=1, cpus=2)
    ((registry, id, given),) = started.created
    assert (registry, id) == (tmp_path / "usual", None)
    assert (given["nodes"], given["gpus"], given["light"]) == (3, 1, False)
    assert started.swept == [(tmp_path / "usual",)]
    assert started.shared == [(3, 1)]
    (built,) = started.built
    assert (built["cpus"], built["withheld"], built["site"]) == (2, {}, {})
    assert load(up.state.home).owner == parts.living()
    assert started.exits == [(up._down_at_exit,)]
    assert started.idle == [{"timeout_s": 30}]
    assert (started.steps, started.light, started.stopped, started.downs) == ([], [], [], [])


def test_a_persistent_sandbox_has_no_owner(started, tmp_path):
    up = Sandbox.up(
        persistent=True, state_dir=tmp_path / "mine", id="ab7", withheld={"worker0": 1},
        site={"slurm": "X=1"},
    )  # fmt: skip
    assert up.state.home == tmp_path / "mine" / "ab7"
    assert (up.state.nodes, up.state.gpus) == (2, 2)  # what a user gets who asks for nothing
    assert load(up.state.home).owner is None
    assert started.stopped == [("helper",)]
    assert started.exits == []
    (built,) = started.built
    assert (built["withheld"], built["site"]) == ({"worker0": 1}, {"slurm": "X=1"})


def test_a_light_sandbox_starts_its_nodes_in_batches_and_without_a_step(started):
    started.cgroup = 2
    Sandbox.up(nodes=300, light=True)
    assert len(started.light) == 1
    (idle,) = started.idle
    assert idle == {"timeout_s": 240, "step_s": 0.3}  # thousands of slurmd register
    assert (started.steps, started.shared) == ([], [])


def test_under_cgroup_v2_a_step_is_tried_first(started):
    started.cgroup = 2
    Sandbox.up()
    assert len(started.steps) == 1
    assert len(started.idle) == 2


def test_a_platform_sets_the_number_of_gpus(started):
    up = Sandbox.up(platform="gb200-nvl72")
    assert up.state.gpus == 4
    Sandbox.up(platform="gb200-nvl72", gpus=4)
    assert started.shared == []  # its GPUs are emulated on any host
    for more in ({"gpus": 8}, {"light": True}):
        with pytest.raises(SandboxError, match="a node of gb200-nvl72 has 4 GPUs"):
            Sandbox.up(platform="gb200-nvl72", **more)


def test_the_size_of_a_sandbox_is_limited(started):
    for fits in (
        {"nodes": 1}, {"nodes": 250}, {"nodes": 4096, "light": True}, {"gpus": 0}, {"gpus": 16},
        {"cpus": 1},
    ):  # fmt: skip
        Sandbox.up(**fits)
    for more, said in (
        ({"nodes": 0}, "1 to 250 nodes of 0 to 16 GPUs and at least 1 CPU, not 0 of 2"),
        ({"nodes": 251}, "1 to 250 nodes"), ({"nodes": 4097, "light": True}, "1 to 4096 nodes"),
        ({"gpus": -1}, "not 2 of -1"), ({"gpus": 17}, "not 2 of 17"), ({"cpus": -1}, "1 CPU"),
    ):  # fmt: skip
        with pytest.raises(SandboxError, match=said):
            Sandbox.up(**more)


def test_options_that_exclude_each_other_are_refused(started):
    bundle = Path("/bundle")
    Sandbox.up(accounting=True)
    assert started.found == [({"accounting": True},)]
    Sandbox.up(bundle=bundle)
    assert len(started.found) == 1  # its programs are found when it is unpacked
    with pytest.raises(SandboxError, match="a bundle has no database"):
        Sandbox.up(bundle=bundle, accounting=True)
    with pytest.raises(SandboxError, match="withhold no GPUs"):
        Sandbox.up(light=True, withheld={"worker0": 1})
    Sandbox.up(withheld={"worker0": 1})


def test_what_fails_to_start_is_taken_down(started, monkeypatch):
    monkeypatch.setattr(startup, "build", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Sandbox.up(id="ab7")
    assert [call[0].name for call in started.downs] == ["ab7"]
    assert started.exits == []


def test_why_no_sandbox_can_run_is_one_line(monkeypatch):
    found = Calls()
    monkeypatch.setattr(cluster, "find", found)
    monkeypatch.setattr(cluster, "check_host", Calls())
    assert Sandbox.refusal(bundle=Path("/bundle")) is None
    assert found == []
    assert Sandbox.refusal() is None
    assert found == [()]

    def refused() -> None:
        raise SandboxError("needs root")

    monkeypatch.setattr(cluster, "check_host", refused)
    assert Sandbox.refusal() == "needs root"


# --- attach


def test_the_only_sandbox_that_runs_is_attached_to(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "find", lambda *, bundle: Tools(bundle=str(bundle)))
    monkeypatch.setattr(cluster, "REGISTRY", tmp_path)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    with pytest.raises(SandboxError, match="no sandbox is running"):
        Sandbox.attach()
    parts.state(tmp_path / "ab1", owner=DEAD).save()
    with pytest.raises(SandboxError, match="no sandbox is running"):
        Sandbox.attach()
    parts.state(tmp_path / "ab2", bundle=Path("/bundle")).save()
    attached = Sandbox.attach()
    assert (attached.id, attached.tools) == ("ab2", {"bundle": "/bundle"})
    parts.state(tmp_path / "ab3").save()
    with pytest.raises(SandboxError, match=r"several sandboxes are running \(ab2, ab3\)"):
        Sandbox.attach()
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "ab3" / "slurm.conf"))
    assert Sandbox.attach().id == "ab3"
    assert Sandbox.attach("ab1").id == "ab1"
    with pytest.raises(SandboxError, match="no sandbox ab9 is running"):
        Sandbox.attach("ab9")
    parts.state(tmp_path / "other" / "ab5").save()
    assert Sandbox.attach(state_dir=tmp_path / "other").id == "ab5"


# --- what is done to nodes


@pytest.fixture
def sandbox(tmp_path) -> Sandbox:
    return Sandbox(parts.state(tmp_path / "ab1"), parts.tools())


def test_a_rank_or_a_process_is_frozen_and_thawed(sandbox, monkeypatch):
    sent, asked = Calls(), Calls([parts.living()])
    monkeypatch.setattr(faults, "signal_processes", sent)
    monkeypatch.setattr(Sandbox, "processes", lambda self, *given, **more: asked(*given, **more))
    pids = [os.getpid()]
    assert sandbox.freeze("worker1", rank=0, job=7) == pids
    assert sandbox.freeze("worker1", pid=3, thaw=True) == pids
    assert asked == [
        ("worker1", {"pid": None, "rank": 0, "job": 7}),
        ("worker1", {"pid": 3, "rank": None, "job": None}),
    ]
    assert [call[1] for call in sent] == [signal.SIGSTOP, signal.SIGCONT]
    for given in ({}, {"pid": 1, "rank": 0}):
        with pytest.raises(SandboxError, match="takes a pid or a rank"):
            sandbox.freeze("worker1", **given)
    asked.returns = [[]]
    for given, what in (({"pid": 3}, "process 3"), ({"rank": 4}, "process of rank 4")):
        with pytest.raises(SandboxError, match=f"worker1 has no {what};"):
            sandbox.freeze("worker1", **given)


def test_what_is_asked_of_a_node_is_passed_on(sandbox, monkeypatch):
    calls: dict[str, Calls] = {}
    for module, name in (
        (faults, "kill_node"), (faults, "stop_daemon"), (faults, "start_controller"),
        (faults, "drain"), (faults, "slow"), (faults, "reconfigured"), (faults, "reregister"),
        (faults, "revive"), (network, "set_link"), (network, "set_rate"),
        (hardware_faults, "inject"), (hardware_faults, "clear"),
    ):  # fmt: skip
        calls[name] = Calls(f"result of {name}")
        monkeypatch.setattr(module, name, calls[name])
    state, tools = sandbox.state, sandbox.tools
    sandbox.kill_node("worker1")
    assert calls["kill_node"] == [(sandbox, "worker1")]
    sandbox.cut_link("worker1")
    assert calls["set_link"].pop() == (tools, state, "worker1", {"up": False})
    assert calls["reregister"] == []
    sandbox.cut_link("worker1", restore=True)
    assert calls["set_link"].pop() == (tools, state, "worker1", {"up": True})
    assert calls["reregister"] == [(sandbox, "worker1")]
    sandbox.slow_link("worker1", "10mbit")
    assert calls["set_rate"] == [(tools, state, "worker1", "10mbit")]
    sandbox.drain("worker1", reason="drill")
    assert calls["drain"] == [(sandbox, "worker1", {"reason": "drill", "resume": False})]
    sandbox.stop_daemon("slurmctld")
    sandbox.start_controller()
    assert (len(calls["stop_daemon"]), len(calls["start_controller"])) == (1, 1)
    assert sandbox.slow("worker1", 3, 20, job=7) == "result of slow"
    assert calls["slow"] == [(sandbox, "worker1", {"rank": 3, "factor": 20, "job": 7})]
    assert sandbox.fault("worker1", "lost", "gpu0") == "result of inject"
    assert calls["inject"] == [(sandbox, "worker1", "lost", "gpu0")]
    sandbox.clear_faults("worker1")
    assert calls["clear"] == [(sandbox, "worker1")]
    change = str.upper
    assert sandbox.reconfigured("worker1", "gres.conf", change) == "result of reconfigured"
    assert calls["reconfigured"] == [(sandbox, "worker1", "gres.conf", change)]
    with pytest.raises(SandboxError, match="has no node 'worker9'"):
        sandbox.kill_node("worker9")


def test_a_revived_node_is_waited_for_even_where_it_is_drained(sandbox, monkeypatch):
    monkeypatch.setattr(faults, "revive", Calls())
    waited = Calls()
    monkeypatch.setattr(Sandbox, "wait_state", lambda self, *given, **more: waited(*given, **more))
    sandbox.revive("worker1")
    ((name, pattern, more),) = waited
    assert (name, more) == ("worker1", {"timeout_s": 30})
    assert "drained" in pattern


def test_where_memory_cannot_be_limited_the_nodes_start_again_without(sandbox, monkeypatch):
    fails = [True]

    def step(*_) -> None:
        if fails and fails.pop():
            raise SandboxError("the first step failed")

    done: list[str] = []
    monkeypatch.setattr(startup, "run_test_step", step)
    monkeypatch.setattr(startup, "write_cgroup_conf", lambda state: done.append(str(state.memory)))
    monkeypatch.setattr(Sandbox, "kill_node", lambda self, name: done.append(f"kill {name}"))
    monkeypatch.setattr(Sandbox, "revive", lambda self, name: done.append(f"revive {name}"))
    sandbox.run_test_step()
    assert done == ["False", "kill worker0", "kill worker1", "revive worker0", "revive worker1"]
    fails.append(True)
    with pytest.raises(SandboxError, match="the first step failed"):
        sandbox.run_test_step()  # its memory is not limited already
    sandbox.run_test_step()
    assert len(done) == 5
