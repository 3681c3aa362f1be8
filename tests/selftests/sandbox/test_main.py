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
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.processes import Process
from fixtures.sandbox.state import REGISTRY, State, boot_id
from fixtures.sandbox.tools import Tools

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
