"""What pip installs into `.venv`: which stages, with which options, and what stops it first."""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.setup import install, lock, torch_build
from fixtures.setup.environment import Asked, Environment, Origin
from fixtures.setup.install import Pip
from fixtures.setup.system import SetupError
from fixtures.setup.torch_build import Torch
from tests.selftests import setup_stubs

pytestmark = pytest.mark.cpu

NONE = Torch("none", "TORCH=none")
CPU = Torch("cpu", "no GPU", "torch==1+cpu", ("--index-url", "I"), 0.2, 0.9)


@pytest.fixture
def home(tmp_path) -> Environment:
    """A small checkout whose `.venv` is a folder."""
    made = Environment(setup_stubs.checkout(tmp_path / "checkout"))
    (made.path / "bin").mkdir(parents=True)
    return made


@pytest.fixture
def pips(monkeypatch) -> list[list[str]]:
    """The arguments with which pip was called; it succeeds unless `fails` names one."""
    calls: list[list[str]] = []

    def run(pip: Pip, what: str, *arguments: str, log: Path | None) -> int:
        wanted = setup_stubs.required(arguments)
        calls.append([what, *(a for a in arguments if not a.startswith("/")), "of", *wanted])
        if log:
            log.write_text("pip's words\n")
        return int(any(word in wanted or f"{word}==1.0" in wanted for word in failing))

    monkeypatch.setattr(Pip, "_run", run)
    failing.clear()
    return calls


failing: list[str] = []
"""Requirements that pip cannot install."""


# --- pip


def test_pip_is_quiet_unless_it_writes_to_a_terminal(pips, monkeypatch, tmp_path):
    for terminal, quiet in ((False, ["--quiet"]), (True, [])):
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda t=terminal: t))
        assert Pip(("pip",)).install("a") == 0
        assert pips.pop() == ["install", *quiet, "a", "of", "a"]
        Pip(("pip",)).wheel(tmp_path, "a")
        assert pips.pop()[: 3 + len(quiet)] == ["wheel", *quiet, "--wheel-dir", "a"]
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    failing.append("b")
    assert Pip(("pip",), "/wheels").install("b") == 1
    assert pips == [["install", "--no-index", "--find-links", "b", "of", "b"]]
    assert Pip(("pip",)).wheel(tmp_path, "b") == 1


def test_pip_is_started_for_the_environment_and_its_words_are_kept(tmp_path):
    log = tmp_path / "log"
    pip = Pip(("sh", "-c", 'echo "$PIP_USER $@" >&2; exit 3', "pip"))
    assert pip._run("install", "a", log=log) == 3
    assert log.read_text() == "0 install --disable-pip-version-check a\n"
    assert Pip(("sh", "-c", "exit 0"))._run("x", log=None) == 0


def test_the_pip_of_this_interpreter_serves_an_environment_without_one(home, monkeypatch):
    for status, command in (
        (0, (str(home.python), "-m", "pip")),
        (1, (sys.executable, "-m", "pip", "--python", str(home.python))),
    ):
        monkeypatch.setattr(
            subprocess, "run", lambda *_, status=status, **__: SimpleNamespace(returncode=status)
        )
        assert install.pip_of(home, "/wheels") == Pip(command, "/wheels")


# --- the stages of a run


def steps(home: Environment, torch: Torch) -> list[str]:
    """Run all steps; return their names."""
    found = install.run_steps(home, Pip(("pip",)), torch)
    assert [step() for _, step in found] == [0] * len(found)
    return [name for name, _ in found]


KNOWN = ["--no-deps", "--no-build-isolation", "--require-hashes", "--requirement"]
"""What pip is told about packages of constraints.txt."""


def test_every_choice_of_torch_has_its_stages_and_all_else_is_known(home, pips, capsys):
    suite, tuning = "the packages of the suite", "fine-tuning"
    assert steps(home, CPU) == ["torch==1+cpu", suite, tuning]
    assert [call[2:] for call in pips] == [
        ["--no-deps", "--index-url", "I", "torch==1+cpu", "of", "I", "torch==1+cpu"],
        [*KNOWN, "of", "small-suite==1.0"], [*KNOWN, "of", "small-finetune==1.0"],
    ]  # fmt: skip
    pips.clear()
    assert steps(home, Torch("default", "", "torch==1")) == ["torch==1", suite, tuning]
    assert pips[0][2:] == [*KNOWN, "of", "torch==2.13.0"]
    pips.clear()
    # Another index has other packages in versions of its own.
    index = Torch("index", "", "torch==1", ("--index-url", "U"))
    assert steps(home, index) == ["torch==1", suite, tuning]
    assert pips[0][2:5] == ["--index-url", "U", "torch==1"]
    assert pips[1][2:] == [*KNOWN, "of", "small-suite==1.0"]
    pips.clear()
    assert steps(home, Torch("borrowed", "")) == [suite, tuning]
    assert pips[0][2:] == [*KNOWN, "of", "small-suite==1.0"]
    pips.clear()
    capsys.readouterr()
    assert steps(home, NONE) == [suite]
    assert "without the extra finetune" in capsys.readouterr().out


def test_a_borrowed_torch_keeps_its_numpy_and_cuda_and_nothing_else(home, pips, monkeypatch):
    text = "# --- torch: x\ntorch==2\nnvidia-nccl-cu13==2\ntriton==3\nsympy==1\n# --- run: x\n"
    text += "setuptools==84\nnumpy==2\nnvidia-ml-py==13\npandas==3\n"
    (home.checkout / "constraints.txt").write_text(text)
    packages = home.path / "lent"
    monkeypatch.setattr(torch_build, "torch_of_interpreter", lambda: packages)
    for has_numpy in (False, True):
        pips.clear()
        steps(home, Torch("borrowed", ""))
        wanted = [call[call.index("of") + 1 :] for call in pips]
        numpy = [] if has_numpy else ["numpy==2"]
        assert wanted[:3] == [
            ["setuptools==84"], ["sympy==1"],
            ["setuptools==84", *numpy, "nvidia-ml-py==13", "pandas==3"],
        ]  # fmt: skip
        (packages / "numpy").mkdir(parents=True, exist_ok=True)
    pips.clear()
    steps(home, CPU)
    assert [call[call.index("of") + 1 :] for call in pips][2] == ["sympy==1"]
    pips.clear()
    steps(home, Torch("default", "", "torch==2"))
    assert pips[1][pips[1].index("of") + 1 :] == [
        "torch==2", "nvidia-nccl-cu13==2", "triton==3", "sympy==1"
    ]  # fmt: skip


def test_a_run_without_fine_tuning_is_a_run(home, pips, capsys):
    failing.append("small-finetune")
    assert install.install_finetune(home, Pip(("pip",))) == 0
    assert "fine-tuning will not be applicable" in capsys.readouterr().out
    assert (home.path / "finetune.log").read_text() == "pip's words\n"
    failing.clear()
    assert install.install_finetune(home, Pip(("pip",))) == 0
    assert capsys.readouterr().out == ""
    failing.append("small-lint")
    assert install.install_development(home, Pip(("pip",))) == 1
    assert pips[-1][-2:] == ["small-finetune==1.0", "small-lint==1.0"]
    assert capsys.readouterr().err == "pip's words\n"


def test_wheels_of_a_wheelhouse_have_versions_and_no_known_hashes(home, pips):
    assert Pip(("pip",), "/wheels").install_known(lock.read(home.checkout)[:1]) == 0
    (call,) = pips
    assert "--require-hashes" not in call
    assert call[-1] == "small-suite==1.0"


# --- before anything is installed


def checked(home: Environment, torch: Torch, wheelhouse: str = "", **more: Any) -> None:
    install.check_before(home, torch, wheelhouse, **{"development": False, **more})


def free(monkeypatch, gb: float) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=gb * 1e9))


def test_sizes_and_minutes_are_said_first(home, monkeypatch, capsys):
    """0.9 GB of packages, a third as much to download; tests and lint 0.4 GB more."""
    free(monkeypatch, 100)
    checked(home, CPU)
    said = capsys.readouterr().out
    assert "torch: no GPU" in said
    assert "about 0.5 GB to download, 1.8 GB on disk; 1 to 3 min" in said
    checked(home, CPU, development=True)
    assert "2.2 GB on disk" in capsys.readouterr().out
    checked(home, NONE, "/wheels")
    assert "about 0.9 GB on disk" in capsys.readouterr().out


def test_too_little_room_is_said_and_nothing_is_left(home, monkeypatch):
    free(monkeypatch, 1.81)
    checked(home, CPU)
    free(monkeypatch, 1.79)
    with pytest.raises(SetupError, match=r"has 1\.8 GB free, and .venv takes about 1\.8 GB"):
        checked(home, CPU)
    assert not home.path.exists()


def test_a_wheelhouse_must_have_torch_where_it_has_to_come_from_there(home, monkeypatch, tmp_path):
    free(monkeypatch, 100)
    home.write_origin(torch="none", torch_index="")
    with pytest.raises(SetupError, match=r"has no wheel of torch, .*TORCH=none"):
        checked(home, Torch("wheelhouse", ""), str(tmp_path))
    assert home.path.exists()  # one that works is left
    checked(home, Torch("borrowed", ""), str(tmp_path))
    (tmp_path / "torch-1-py3.whl").touch()
    checked(home, Torch("wheelhouse", ""), str(tmp_path))


def test_the_remedy_depends_on_where_wheels_come_from():
    assert install.remedy("/wheels").startswith("/wheels must hold the wheels for Python ")
    assert "pip's proxy" in install.remedy("")


def test_packages_that_change_keep_the_choice_of_torch():
    def origin(torch: str) -> Origin:
        return Origin(
            executable="p", prefix="p", version="3", machine="m", venv="v", torch=torch,
            torch_index="I",
        )  # fmt: skip

    for torch, asked in (("none", "none"), ("default", "own"), ("cpu", ""), ("borrowed", "")):
        assert install.as_before(origin(torch)) == Asked(False, asked, "I")


# --- setting up


@pytest.fixture
def made(home, pips, monkeypatch) -> Any:
    """The parts of a set-up that are not its order."""
    free(monkeypatch, 100)
    seen = SimpleNamespace(home=home, borrowed=None, torch=CPU, asked=[], created=[], pips=pips)

    def choose(asked: Asked, **more: Any) -> Torch:
        seen.asked.append((asked, more["borrows"]))
        return seen.torch

    monkeypatch.setattr(install, "pip_of", lambda environment, wheelhouse: Pip(("pip",)))
    monkeypatch.setattr(torch_build, "torch_of_interpreter", lambda: seen.borrowed)
    monkeypatch.setattr(torch_build, "choose", choose)
    monkeypatch.setattr(Environment, "create", lambda self: seen.created.append(self))
    monkeypatch.setattr(Environment, "packages_folder", lambda self: self.path)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0))
    return seen


def set_up(made: Any, asked: Asked | None = None, *, development: bool = False) -> int:
    """Set up; return how often pip was called."""
    made.pips.clear()
    install.set_up(made.home, asked or Asked(False, "", ""), wheelhouse="", development=development)
    return len(made.pips)


def test_only_what_is_missing_is_installed(made, capsys):
    assert set_up(made) == 3
    said = capsys.readouterr().out
    assert "1 of 3: torch==1+cpu" in said
    assert "3 of 3: fine-tuning" in said
    assert made.created == [made.home]
    assert set(made.home.installed()) == {"run"}
    assert set_up(made) == 0
    assert capsys.readouterr().out == ""
    assert set_up(made, development=True) == 1
    assert "1 of 1: what tests and lint need" in capsys.readouterr().out
    assert set(made.home.installed()) == {"run", "development"}
    assert len(made.created) == 1
    assert set_up(made, development=True) == 0
    setup_stubs.know(made.home.checkout, None, "small-more==1")
    assert set_up(made) == 3


def test_an_environment_that_is_there_keeps_its_torch(made):
    set_up(made, Asked(True, "own", "I"))
    assert made.asked.pop() == (Asked(True, "own", "I"), False)
    made.home.unmark()
    set_up(made, Asked(False, "", "other"))
    assert made.asked.pop() == (Asked(False, "", "I"), False)
    origin = made.home.origin()
    assert origin is not None
    assert (origin.torch, origin.torch_index) == ("cpu", "I")


def test_a_torch_that_is_lent_is_borrowed_unless_another_is_asked_for(made, tmp_path):
    made.borrowed, made.torch = tmp_path / "lent", Torch("borrowed", "")
    set_up(made)
    assert made.asked.pop()[1] is True
    lines = (made.home.path / "borrowed.pth").read_text().splitlines()
    assert lines == list(dict.fromkeys([str(tmp_path / "lent"), *site.getsitepackages()]))
    (made.home.path / "borrowed.pth").unlink()
    (made.home.path / ".python").unlink()
    made.home.unmark()
    made.torch = CPU
    set_up(made, Asked(False, "own", ""))
    assert made.asked.pop()[1] is False
    assert not (made.home.path / "borrowed.pth").exists()


def test_a_pip_that_fails_leaves_it_half_made(made):
    failing.append("small-suite")
    with pytest.raises(SetupError, match="pip could not install the packages of the suite"):
        set_up(made)
    assert made.home.installed() == {}


def test_a_command_pytest_is_made_where_pip_made_none(home, monkeypatch):
    ran = []
    monkeypatch.setattr(subprocess, "run", lambda argv, **more: ran.append((argv, more)))
    install.finish(home)
    command = home.path / "bin" / "pytest"
    assert command.read_text() == f'#!/bin/sh\nexec "{home.python}" -m pytest "$@"\n'
    assert command.stat().st_mode & 0o777 == 0o755
    command.write_text("pip's")
    install.finish(home)
    assert command.read_text() == "pip's"
    plugin = home.checkout / "fixtures" / "plugin" / "install.py"
    assert ran[0] == ([home.python, plugin], {"check": True})


# --- wheels


@pytest.fixture
def wheels(home, pips, monkeypatch, tmp_path) -> Any:
    """A wheelhouse is made; no environment is."""
    monkeypatch.setattr(Environment, "create", lambda self: self.path.mkdir())
    monkeypatch.setattr(install, "pip_of", lambda environment: Pip(("pip",)))
    monkeypatch.setattr(torch_build, "pinned_version", lambda checkout: "2.1")
    monkeypatch.setattr(torch_build, "torch_of_interpreter", lambda: lent[0])
    lent = [None]

    def make(torch: str = "", index: str = "", lends: Path | None = None) -> list[list[str]]:
        pips.clear()
        lent[0] = lends
        install.make_wheelhouse(home.checkout, tmp_path / "wheels", Asked(False, torch, index))
        return [call[call.index("of") + 1 :] for call in pips]

    return make


def test_torch_is_among_the_wheels_unless_it_is_lent_or_left_out(wheels, tmp_path, capsys):
    suite, torch, tuning = "small-suite==1.0", "torch==2.13.0", "small-finetune==1.0"
    assert wheels() == [[suite, torch], [tuning]]
    assert "with torch==2.1" in capsys.readouterr().out
    assert wheels(lends=tmp_path) == [[suite], [tuning]]
    assert "has it and lends it; `make wheelhouse TORCH=own`" in capsys.readouterr().out
    assert wheels("own", lends=tmp_path) == [[suite, torch], [tuning]]
    capsys.readouterr()
    assert wheels("none", lends=tmp_path) == [[suite]]
    said = capsys.readouterr().out
    assert "without torch: TORCH=none" in said
    assert "without the extra finetune, which needs torch" in said


def test_an_index_for_torch_is_asked_for_torch_alone(wheels, pips):
    wheels(index="https://i.example")
    asked = [call for call in pips if "--index-url" in call]
    assert [call[-2:] for call in asked] == [["https://i.example", "torch==2.1"]]
    assert [call for call in pips if call not in asked and "--require-hashes" not in call] == []
    wheels()
    assert not any("--index-url" in call for call in pips)


def test_wheels_that_cannot_be_made_are_an_error_and_of_fine_tuning_a_line(wheels, capsys):
    failing.append("small-finetune")
    wheels()
    assert "fine-tuning will not be applicable" in capsys.readouterr().out
    failing.append("small-suite")
    with pytest.raises(SetupError, match="pip could not make the wheels"):
        wheels()
