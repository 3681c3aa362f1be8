"""`python -m fixtures.setup`: what each goal provides and makes, and under which interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.errors import ConfigError
from fixtures.setup import command, install, system
from fixtures.setup.environment import Asked, Environment
from fixtures.setup.system import SetupError

pytestmark = pytest.mark.cpu


@pytest.fixture
def host_of(monkeypatch, tmp_path) -> Any:
    """A host of no cluster and without a GPU; what is provided, made and set up there."""
    seen = SimpleNamespace(provided=[], made=[], wheels=[], cluster=False, nvidia=False,
                           misfit=None,                            removed=[])  # fmt: skip
    environment = Environment(tmp_path, tmp_path / ".venv")
    monkeypatch.setattr(command, "Environment", lambda: environment)
    monkeypatch.setattr(command, "relaunch", lambda *_, **__: None)
    monkeypatch.setattr(system, "in_cluster", lambda: seen.cluster)
    monkeypatch.setattr(system, "has_nvidia", lambda: seen.nvidia)
    monkeypatch.setattr(system, "provide", lambda **given: seen.provided.append(given))
    monkeypatch.setattr(Environment, "misfit", lambda self, asked: seen.misfit)
    monkeypatch.setattr(Environment, "remove", lambda self: seen.removed.append(self))
    monkeypatch.setattr(
        install, "set_up", lambda environment, asked, **more: seen.made.append((asked, more))
    )
    monkeypatch.setattr(install, "make_wheelhouse", lambda *given: seen.wheels.append(given))
    return seen


def provided(seen: Any, *argv: str) -> dict[str, Any]:
    assert command.main([*argv]) == 0
    return seen.provided.pop()


def test_each_goal_provides_what_it_needs_of_the_system(host_of):
    for goal, programs, named in (
        ("packages", system.SLURM, "make sandbox-packages"),
        ("site-packages", system.SLURM | system.ACCOUNTING, "make site-packages"),
        ("run", {}, "make setup"), ("accept", system.SLURM, "make accept"),
        ("development", {}, "make setup-dev"), ("test", system.SLURM | system.TESTS, "make test"),
        ("wheelhouse", {}, "make wheelhouse"),
    ):  # fmt: skip
        given = provided(host_of, goal)
        assert (given["programs"], given["command"]) == (programs, named)
        assert given["rows"] is (goal != "wheelhouse")
        assert given["judged"] is (goal == "accept")
        assert given["offline"] is False


def test_a_host_of_a_cluster_needs_no_sandbox_and_is_not_judged(host_of):
    host_of.cluster = True
    for goal in ("accept", "test"):
        given = provided(host_of, goal)
        assert (given["programs"], given["rows"], given["judged"]) == ({}, False, False)
    assert provided(host_of, "site-packages")["programs"] == system.SLURM | system.ACCOUNTING
    host_of.cluster, host_of.nvidia = False, True
    assert provided(host_of, "accept")["judged"] is False


def test_environments_are_made_for_the_goals_that_use_them(host_of, tmp_path):
    for goal, development in (
        ("run", False), ("accept", False), ("development", True), ("test", True)
    ):  # fmt: skip
        assert command.main([goal]) == 0
        assert host_of.made.pop() == (
            Asked(False, "", ""), {"wheelhouse": "", "development": development}
        )  # fmt: skip
    for goal in ("packages", "site-packages", "wheelhouse"):
        assert command.main([goal]) == 0
    assert host_of.made == []
    ((checkout, folder, asked),) = host_of.wheels
    assert (checkout, folder, asked) == (
        tmp_path,
        Path("wheelhouse").absolute(),
        Asked(False, "", ""),
    )


def test_what_does_not_fit_is_removed_first(host_of, capsys):
    host_of.misfit = "is half made"
    assert command.main(["run"]) == 0
    assert "/.venv is half made: it is made anew" in capsys.readouterr().out
    assert (len(host_of.removed), len(host_of.made)) == (1, 1)
    host_of.misfit = None
    command.main(["run"])
    assert (len(host_of.removed), len(host_of.made)) == (1, 2)


def test_variables_of_make_are_passed_on(host_of, tmp_path):
    line = ("run", "--python-given", "--torch=own", "--torch-index=I")
    assert provided(host_of, *line)["offline"] is False
    assert host_of.made.pop()[0] == Asked(True, "own", "I")
    (tmp_path / "a.whl").touch()
    given = provided(host_of, *line, f"--wheelhouse={tmp_path}")
    assert given["offline"] is True
    asked, more = host_of.made.pop()
    assert (asked, more["wheelhouse"]) == (Asked(True, "own", ""), str(tmp_path))
    for torch in ("none", "own", ""):
        assert command.main(["run", f"--torch={torch}"]) == 0


def test_a_goal_that_cannot_be_reached_is_one_message(host_of, capsys, monkeypatch, tmp_path):
    assert command.main(["run", "--torch=cuda"]) == 1
    assert "TORCH=cuda is unknown" in capsys.readouterr().err
    assert command.main(["run", f"--wheelhouse={tmp_path}"]) == 1
    assert "no wheels in" in capsys.readouterr().err
    assert host_of.provided == []
    for error, status, said in (
        (ConfigError("no"), 1, "ERROR: no\n"), (OSError("disk"), 1, "ERROR: disk\n"),
        (KeyboardInterrupt(), 130, "interrupted: the same command begins again"),
    ):  # fmt: skip

        def fails(*_: Any, error: BaseException = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(command, "reach", fails)
        assert command.main(["run"]) == status
        assert said in capsys.readouterr().err


def test_a_folder_of_wheels_counts_from_here_or_from_home(tmp_path, monkeypatch):
    (tmp_path / "wheels").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SetupError, match="WHEELHOUSE=wheels: no wheels in /"):
        command.folder_of_wheels("wheels")
    (tmp_path / "wheels" / "a.whl").touch()
    for name in ("wheels", "~/wheels", str(tmp_path / "wheels")):
        assert command.folder_of_wheels(name) == tmp_path / "wheels"


# --- the interpreter


@pytest.fixture
def launched(monkeypatch, tmp_path) -> Any:
    """What was started in place of this process, of an environment that says its origin."""
    seen = SimpleNamespace(calls=[], starts=lambda name: True, same=False)
    seen.origin = SimpleNamespace(executable="/opt/python")
    seen.environment = SimpleNamespace(
        path=tmp_path / ".venv", checkout=tmp_path, origin=lambda: seen.origin
    )
    monkeypatch.setattr(os, "execv", lambda *given: seen.calls.append(given))
    monkeypatch.setattr(os, "chdir", lambda path: None)
    monkeypatch.setattr(command, "starts", lambda name: seen.starts(name))
    monkeypatch.setattr(command, "is_this_interpreter", lambda origin: seen.same)
    return seen


def relaunched(seen: Any, *, given: bool = False) -> list[str]:
    """The interpreters that were started, in their order."""
    seen.calls.clear()
    command.relaunch(seen.environment, ["run", "--python-given", "-x"], given=given)
    for executable, argv in seen.calls:
        assert argv == [executable, "-m", "fixtures.setup", "run", "-x", "--relaunched"]
    return [executable for executable, _ in seen.calls]


def test_the_interpreter_of_an_environment_goes_on(launched):
    assert relaunched(launched) == ["/opt/python"]
    assert relaunched(launched, given=True) == []  # PYTHON= asks for this one
    launched.same = True
    assert relaunched(launched) == []
    launched.same, launched.origin = False, None
    assert relaunched(launched) == []
    launched.origin = SimpleNamespace(executable="/opt/python")
    launched.starts = lambda name: False
    assert relaunched(launched) == []


def test_an_activated_environment_is_left_for_its_base(launched, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(launched.environment.path))
    base = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for given in (False, True):
        assert relaunched(launched, given=given) == ["/opt/python", base]
    launched.origin = None
    assert relaunched(launched) == [base]


def test_an_interpreter_that_is_old_or_not_there_is_passed_over(tmp_path):
    assert command.starts(sys.executable) is True
    assert command.starts(str(tmp_path / "nothing")) is False
    (tmp_path / "old").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "old").chmod(0o755)
    assert command.starts(str(tmp_path / "old")) is False
