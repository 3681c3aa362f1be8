"""`python -m fixtures.sandbox` as people type it: what it prints, and what it refuses."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.backends import choose as backends
from fixtures.sandbox import __main__ as command
from fixtures.sandbox import cluster, network
from fixtures.sandbox.cluster import Sandbox
from fixtures.sandbox.config import OPEN_PARTITION
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.processes import Process
from fixtures.sandbox.state import REGISTRY, State, boot_id
from fixtures.sandbox.tools import Tools
from tests.selftests.sandbox.parts import AS_ROOT

pytestmark = pytest.mark.cpu

DEAD = Process(2**22 + 1, 1)
"""No process has a number as high as that."""


def made(home: Path, *, killed: str = "", **more: Any) -> Sandbox:
    """A sandbox of two nodes in its files alone; without a process of its own but this one."""
    home.mkdir(parents=True, exist_ok=True)
    living = Process.of(os.getpid())
    assert living is not None
    state = State(
        id=home.name, home=home, owner=None, boot=boot_id(), nodes=2, gpus=2, cpus=4, cgroup=2,
        memory=True,
        processes={name: DEAD if name == killed else living for name in ("worker0", "worker1")},
        **more,
    )  # fmt: skip
    state.save()
    return Sandbox(state, Tools())


def said_by(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> str:
    command.print_environment(sandbox)
    return capsys.readouterr().out


# --- what up prints


def test_what_up_prints_is_for_eval(tmp_path, capsys):
    text = said_by(made(tmp_path / "a folder" / "ab1"), capsys)
    conf = tmp_path / "a folder" / "ab1" / "slurm.conf"
    script = 'eval "$(cat)"; env | grep ^SLURM_CONF='
    done = subprocess.run(["sh", "-euc", script], input=text, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"SLURM_CONF={conf}\n", "")
    assert all(line.startswith(("#", "export SLURM_CONF=")) for line in text.splitlines())


def test_the_down_that_is_printed_finds_the_sandbox(tmp_path, capsys):
    text = said_by(made(tmp_path / "ab1"), capsys)
    down = text.splitlines()[-1].removeprefix("# ")
    options = command.arguments().parse_args(shlex.split(down)[3:])
    assert (options.verb, options.id, options.state_dir) == ("down", "ab1", tmp_path)


def test_in_the_usual_place_it_needs_no_option():
    state = SimpleNamespace(home=REGISTRY / "ab1")
    sandbox: Any = SimpleNamespace(state=state, id="ab1")
    assert Sandbox.command(sandbox, "down") == "python -m fixtures.sandbox down --id ab1"


def test_gpus_that_are_none_have_one_name(tmp_path, capsys):
    emulated = said_by(made(tmp_path / "ab1"), capsys)
    assert "2 x Emulated GPU" in emulated
    assert "fake" not in emulated
    uuids = {"worker0": ["GPU-1"], "worker1": ["GPU-2"]}
    real = said_by(made(tmp_path / "ab2", gpu_uuids=uuids, gpu_model="h200"), capsys)
    assert "2 x h200" in real


# --- a node that is dead

ON_A_NODE = (
    "fault worker1 ib-port-down", "fault worker1 xid gpu1", "fault worker1 --clear",
    "cut-link worker1", "cut-link worker1 --restore", "slow-link worker1 --rate 10mbit",
    "freeze worker1 --rank 0", "slow worker1 --rank 0 --factor 2", "exec worker1 -- true",
    "kill-node worker1",
)  # fmt: skip


@AS_ROOT
@pytest.mark.parametrize("line", ON_A_NODE)
def test_nothing_can_be_done_to_a_dead_node(line, tmp_path, monkeypatch, capsys):
    sandbox = made(tmp_path / "ab1", killed="worker1")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(cluster, "find", lambda **_: sandbox.tools)
    before = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file())
    assert command.main(["--state-dir", str(tmp_path), *line.split()]) == 1
    said = capsys.readouterr().err
    revive = f"python -m fixtures.sandbox --state-dir {tmp_path} revive worker1 --id ab1"
    assert f"worker1 of sandbox ab1 is dead (kill-node): `{revive}`" in said
    assert said.count("\n") == 1
    assert before == sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*") if p.is_file())


@pytest.mark.parametrize(
    "act",
    [
        lambda s: s.fault("worker1", "ib-port-down"),
        lambda s: s.cut_link("worker1"),
        lambda s: s.slow_link("worker1", "10mbit"),
        lambda s: s.freeze("worker1", rank=0),
        lambda s: s.slow("worker1", 0, 2),
    ],
    ids=["fault", "cut-link", "slow-link", "freeze", "slow"],
)
def test_nor_from_python(act, tmp_path):
    with pytest.raises(SandboxError, match="worker1 of sandbox ab1 is dead"):
        act(made(tmp_path / "ab1", killed="worker1"))


def test_the_nodes_that_live_are_as_before(tmp_path, monkeypatch):
    cut: list[str] = []
    monkeypatch.setattr(network, "set_link", lambda tools, state, name, *, up: cut.append(name))
    made(tmp_path / "ab1", killed="worker1").cut_link("worker0")
    assert cut == ["worker0"]


# --- auto


def test_a_sandbox_that_runs_and_is_not_used_is_said(tmp_path):
    made(tmp_path / "ab1")
    mine = made(tmp_path / "ab2")
    mine.state.owner = mine.state.processes["worker0"]
    mine.state.save()
    (line,) = backends.sandboxes_not_used(tmp_path)
    assert "this host has the sandbox ab1, which is not used" in line
    assert 'eval "$(python -m fixtures.sandbox env --id ab1)"' in line
    assert list(backends.sandboxes_not_used(tmp_path / "nothing")) == []


def test_env_says_what_up_said(tmp_path, monkeypatch, capsys):
    sandbox = made(tmp_path / "ab1")
    said = said_by(sandbox, capsys)
    monkeypatch.setattr(cluster, "find", lambda **_: sandbox.tools)
    assert command.main(["--state-dir", str(tmp_path), "env"]) == 0
    assert capsys.readouterr().out == said


# --- each verb


class Recorded:
    """A sandbox that keeps what it is asked to do."""

    def __init__(self, home: Path) -> None:
        self.state = made(home).state
        self.id = home.name
        self.nodes = self.state.names
        self.environ = {"SLURM_CONF": "x", "PATH": os.environ["PATH"]}
        self.env = {"SLURM_CONF": "x"}
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            self.calls.append((name, given, more))
            return {"inside": ["nsenter", *given[1:]], "fault": "mlx5_1", "node_states": {
                "worker0": "idle"}}.get(name)  # fmt: skip

        return call

    def command(self, *verb: str) -> str:
        return " ".join(verb)

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append(("exit", (), {}))


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """The sandbox that every verb is for; commands are not run, and return 7."""
    sandbox = Recorded(tmp_path / "ab1")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(Sandbox, "attach", lambda id=None, *, state_dir=None: sandbox)
    monkeypatch.setattr(subprocess, "call", lambda argv, env: ran(sandbox, argv, env))
    return sandbox


def ran(sandbox: Recorded, argv: list[str], env: dict[str, str]) -> int:
    sandbox.calls.append(("call", tuple(argv), env))
    return 7


@pytest.mark.parametrize(
    ("line", "name", "given", "more"),
    [
        ("kill-node worker1", "kill_node", ("worker1",), {}),
        ("revive worker1", "revive", ("worker1",), {}),
        ("cut-link worker1", "cut_link", ("worker1",), {"restore": False}),
        ("cut-link worker1 --restore", "cut_link", ("worker1",), {"restore": True}),
        ("slow-link worker1 --rate 10mbit", "slow_link", ("worker1", "10mbit"), {}),
        ("slow-link worker1 --restore", "slow_link", ("worker1", None), {}),
        ("freeze worker1 --rank 0 --job 3", "freeze", ("worker1",),
         {"pid": None, "rank": 0, "job": 3, "thaw": False}),
        ("freeze worker1 --pid 9 --thaw", "freeze", ("worker1",),
         {"pid": 9, "rank": None, "job": None, "thaw": True}),
        ("fault worker1 ib-port-down mlx5_1", "fault", ("worker1", "ib-port-down", "mlx5_1"), {}),
        ("fault worker1 --clear", "clear_faults", ("worker1",), {}),
        ("drain worker1", "drain", ("worker1",), {"resume": False}),
        ("drain worker1 --resume", "drain", ("worker1",), {"resume": True}),
    ],
)  # fmt: skip
def test_a_verb_does_what_it_says_to_its_node(recorded, line, name, given, more):
    assert command.main(line.split()) == 0
    asked = [call for call in recorded.calls if call[0] != "require_alive"]
    assert asked == [(name, given, more)]
    alive = ("require_alive", ("worker1",), {}) in recorded.calls
    assert alive is (line.split()[0] not in ("revive", "drain"))


def test_a_fault_is_named_with_its_part_and_node(recorded, capsys):
    command.main(["fault", "worker1", "ib-port-down"])
    assert capsys.readouterr().out.startswith("ib-port-down: mlx5_1 of worker1; --clear ")
    command.main(["fault", "mlx5_1", "gpu-missing"])  # the culprit is the node itself
    assert capsys.readouterr().out.startswith("gpu-missing: mlx5_1; --clear ")
    for line in ("fault worker1", "fault worker1 lost --clear"):
        assert command.main(line.split()) == 1
        assert "fault NODE KIND, or fault NODE --clear; kinds: " in capsys.readouterr().err


def test_only_a_drain_needs_no_root(recorded, capsys, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert command.main(["drain", "worker1"]) == 0
    assert command.main(["kill-node", "worker1"]) == 1
    assert "sandbox: kill-node needs root" in capsys.readouterr().err
    assert len(recorded.calls) == 1


def test_a_command_on_a_node_gives_its_exit_status(recorded, capsys):
    assert command.main(["exec", "worker1", "--", "ls", "--", "/"]) == 7
    assert recorded.calls[-1] == ("call", ("nsenter", "ls", "--", "/"), recorded.environ)
    assert command.main(["exec", "worker1"]) == 1
    assert "which command?" in capsys.readouterr().err


@pytest.mark.parametrize("until_eof", [True, False])
def test_a_rank_is_slowed_until_ctrl_c_or_the_end_of_the_input(recorded, monkeypatch, until_eof):
    slowed: list[Any] = []
    monkeypatch.setattr(command, "duty_cycle", lambda *given, **more: slowed.append((given, more)))
    monkeypatch.setattr(command, "input_ended", lambda: "asked")
    line = "slow worker1 --rank 3 --factor 20 --job 4"
    assert command.main([*line.split(), *(["--until-eof"] if until_eof else [])]) == 0
    ((given, more),) = slowed
    assert given == (recorded, "worker1")
    stop = more.pop("stop")
    assert more == {"rank": 3, "factor": 20.0, "job": 4}
    assert stop() == ("asked" if until_eof else False)


def test_the_end_of_the_input_is_noticed(monkeypatch):
    reader, writer = os.pipe()
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(reader, size))
    ready: list[list[int]] = [[], [0], [0]]
    monkeypatch.setattr("select.select", lambda *_: (ready.pop(0), [], []))
    os.write(writer, b"x")
    os.close(writer)
    assert [command.input_ended() for _ in range(3)] == [False, False, True]
    os.close(reader)


# --- run, down and status


@AS_ROOT
def test_a_command_runs_in_the_sandbox_that_runs_or_in_one_of_its_own(
    recorded, tmp_path, monkeypatch
):
    recorded.state.save()
    started: list[Any] = []

    def up(**given: Any) -> Recorded:
        started.append(given)
        return recorded

    monkeypatch.setattr(Sandbox, "up", up)
    where = ["--state-dir", str(tmp_path), "run"]
    for options in ([], ["--id", "ab1"]):
        assert command.main([*where, *options, "--", "srun", "true"]) == 7
        assert recorded.calls.pop() == ("call", ("srun", "true"), recorded.environ)
    assert started == []
    line = "--id ab2 --nodes 3 --gpus 1 --cpus 2 --light --accounting --any-user --bundle /b"
    assert command.main([*where, *line.split(), "--platform", "hgx-h100", "--", "srun"]) == 7
    assert [call[0] for call in recorded.calls] == ["call", "exit"]
    assert started.pop() == {
        "nodes": 3, "gpus": 1, "cpus": 2, "light": True, "accounting": True, "bundle": Path("/b"),
        "platform": "hgx-h100", "id": "ab2", "state_dir": tmp_path, "persistent": False,
        "site": {"partitions": OPEN_PARTITION},
    }  # fmt: skip
    recorded.state.owner = DEAD
    recorded.state.save()
    assert command.main([*where, "srun"]) == 7  # nobody attaches to one without an owner
    (given,) = started
    assert (given["nodes"], given["gpus"]) == (2, None)


def test_up_leaves_one_that_stays(recorded, monkeypatch, capsys):
    started: list[Any] = []
    monkeypatch.setattr(Sandbox, "up", lambda **given: started.append(given) or recorded)
    assert command.main(["up"]) == 0
    assert started[0]["persistent"] is True
    assert started[0]["site"] is None
    assert started[0]["state_dir"] == REGISTRY
    assert "export SLURM_CONF=x\n" in capsys.readouterr().out


def test_down_takes_one_or_all_of_them(recorded, tmp_path, monkeypatch, capsys):
    removed: list[str] = []
    swept: list[Path] = []
    monkeypatch.setattr(command, "remove", lambda home: removed.append(home.name))
    monkeypatch.setattr(command, "sweep", lambda registry: swept.append(registry))
    (tmp_path / "ab2").mkdir()
    (tmp_path / "a file").touch()
    where = ["--state-dir", str(tmp_path), "down"]
    assert command.main([*where, "--all"]) == 0
    assert removed == ["ab1", "ab2"]
    assert capsys.readouterr().out == "ab1 is down\nab2 is down\n"
    assert command.main([*where, "--id", "ab2"]) == 0
    assert removed == ["ab1", "ab2", "ab2"]
    assert command.main([*where, "--id", "ab9"]) == 1
    assert "no sandbox ab9 is running" in capsys.readouterr().err
    assert swept == []
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert command.main(where) == 0
    assert swept == []
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert command.main(where) == 0
    assert swept == [tmp_path]
    assert [call[0] for call in recorded.calls] == ["down", "down"]


@AS_ROOT
def test_status_lists_the_nodes_of_each(recorded, tmp_path, capsys):
    where = ["--state-dir", str(tmp_path), "status"]
    (tmp_path / "ab1" / "state.json").unlink()
    assert command.main(where) == 0
    assert capsys.readouterr().out == "no sandbox is running\n"
    living = recorded.state.processes["worker0"]
    for owner, said in ((None, "persistent"), (living, f"owner {living.pid}"), (DEAD, "ownerless")):
        recorded.state.owner = owner
        recorded.state.processes["worker1"] = DEAD
        recorded.state.subnet = "198.18.7"
        recorded.state.save()
        assert command.main(where) == 0
        assert capsys.readouterr().out.splitlines() == [
            f"ab1  {said}  SLURM_CONF={tmp_path}/ab1/slurm.conf",
            "  worker0  198.18.7.2  idle", "  worker1  198.18.7.3  unknown  (killed)",
        ]  # fmt: skip
    (tmp_path / "ab1" / "emulation.log").write_text("\n")
    command.main(where)
    assert len(capsys.readouterr().out.splitlines()) == 3
    (tmp_path / "ab1" / "emulation.log").write_text("no gcc\nmore\n")
    command.main(where)
    assert capsys.readouterr().out.splitlines()[1] == "  no gcc"


def test_leftovers_and_bundles_are_printed(recorded, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "leftovers", lambda id, *, registry: [f"link {id}", str(registry)])
    monkeypatch.setattr(command, "make_bundle", lambda folder: folder / "x.tar.gz")
    assert command.main(["--state-dir", str(tmp_path), "leftovers", "--id", "ab1"]) == 0
    assert capsys.readouterr().out == f"link ab1\n{tmp_path}\n"
    assert command.main(["bundle", "/out"]) == 0
    assert capsys.readouterr().out == "/out/x.tar.gz\n"


def test_ctrl_c_is_the_exit_status_of_a_shell(recorded, monkeypatch):
    def interrupted(_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_verb", interrupted)
    assert command.main(["status"]) == 128 + 2
