"""Faults that the login side injects: by the operator's command, or in the sandbox."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from fixtures import sandbox
from fixtures.errors import RunError
from fixtures.jobs import fault_injector
from fixtures.jobs.fault_injector import CommandFaultInjector, SandboxFaultInjector
from fixtures.sandbox import SandboxError, storage

pytestmark = pytest.mark.cpu


def test_without_a_command_of_the_operator_no_node_can_be_taken_down():
    assert CommandFaultInjector("reboot {node}").can_take_down() is True
    assert CommandFaultInjector(None).can_take_down() is False


def test_the_command_gets_the_node_and_two_minutes(monkeypatch):
    ran = []

    def run(argv, **options):
        ran.append((argv, options["timeout"]))
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(fault_injector.subprocess, "run", run)
    CommandFaultInjector("power 'off now' bmc-{node}").take_down("n1")
    assert ran == [(["power", "off now", "bmc-n1"], 120)]


@pytest.mark.parametrize(
    ("out", "err", "said"),
    [("", "one\ntwo\n", "ended with 3: two"), ("from stdout\n", "", "ended with 3: from stdout"),
     ("out\n", "err\n", "ended with 3: err"), ("", "", "ended with 3: no message")],
)  # fmt: skip
def test_a_command_that_fails_is_told_with_its_last_line(monkeypatch, out, err, said):
    monkeypatch.setattr(
        fault_injector.subprocess, "run",
        lambda argv, **_: subprocess.CompletedProcess(argv, 3, out, err),
    )  # fmt: skip
    with pytest.raises(RunError, match=said):
        CommandFaultInjector("off {node}").take_down("n1")


def test_a_real_cluster_s_storage_is_left_alone(tmp_path):
    with pytest.raises(RunError, match="only root"):
        CommandFaultInjector(None).broken_storage("n1", tmp_path, "full")


class FakeSandbox:
    def __init__(self) -> None:
        self.done: list[str] = []

    def kill_node(self, node: str) -> None:
        self.done.append(f"kill {node}")

    def revive(self, node: str) -> None:
        self.done.append(f"revive {node}")


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> FakeSandbox:
    fake = FakeSandbox()
    monkeypatch.setattr(sandbox.Sandbox, "attach", lambda: fake)

    def broken(kind):
        @contextmanager
        def context(of, node, directory, *fault):
            assert of is fake
            fake.done.append(f"{kind} {node} {' '.join(fault)}".strip())
            if node == "broken":
                raise SandboxError("no overlay")
            yield
            fake.done.append("healed")

        return context

    monkeypatch.setattr(storage, "read_only", broken("read_only"))
    monkeypatch.setattr(storage, "faulty_directory", broken("faulty"))
    return fake


def test_in_the_sandbox_nodes_are_killed_and_revived(attached):
    injector = SandboxFaultInjector()
    assert injector.can_take_down() is True
    injector.take_down("n1")
    injector.restore_node("n1")
    assert attached.done == ["kill n1", "revive n1"]


@pytest.mark.parametrize(
    ("fault", "begun"), [("read_only", "read_only n1"), ("full", "faulty n1 full")]
)
def test_in_the_sandbox_a_directory_breaks_for_a_while(attached, fault, begun):
    with SandboxFaultInjector().broken_storage("n1", Path("/x"), fault):
        assert attached.done == [begun]
    assert attached.done == [begun, "healed"]


def test_what_the_sandbox_cannot_do_is_an_error_of_the_run(attached):
    injector = SandboxFaultInjector()
    with (
        pytest.raises(RunError, match="no overlay"),
        injector.broken_storage("broken", Path("/x"), "full"),
    ):
        pass


def test_the_sandbox_is_attached_once(attached, monkeypatch):
    injector = SandboxFaultInjector()
    injector.take_down("n1")
    monkeypatch.setattr(sandbox.Sandbox, "attach", lambda: None)
    injector.take_down("n2")
    assert attached.done == ["kill n1", "kill n2"]
