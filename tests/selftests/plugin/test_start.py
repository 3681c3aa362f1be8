"""What is installed beside pytest: which pytest it is for, and what it adds to its arguments."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import fixtures
from fixtures import plugin
from fixtures.plugin import start

pytestmark = pytest.mark.cpu

CHECKOUT = Path(fixtures.__path__[0]).parent


@pytest.mark.parametrize(
    ("argv", "original", "yes"),
    [
        (["/v/bin/pytest", "-x"], ["python", "/v/bin/pytest", "-x"], True),
        (["-m", "-x"], ["python", "-O", "-m", "pytest", "-x"], True),
        (["-m"], ["python", "-Ompytest"], True),
        (["-m"], ["python", "-mpip"], False),
        (["-m"], ["python", "mpytest"], False),
        (["-m", "pytest"], ["python", "-m", "pip", "pytest"], False),
        (["-c", "pytest"], ["python", "-c", "pass", "pytest"], False),
        (["train.py", "pytest"], ["python", "train.py", "pytest"], False),
        ([], ["python"], False),
    ],
)
def test_it_is_known_that_pytest_starts(argv, original, yes):
    assert start.starts_pytest(argv, original) is yes


def test_an_option_for_sbatch_may_stand_behind_a_blank():
    given = ["--sbatch-args", "--comment=x", "--sbatch-args=--qos=y", "-q"]
    assert start.joined(given) == ["--sbatch-args=--comment=x", "--sbatch-args=--qos=y", "-q"]


@pytest.fixture
def two(tmp_path, monkeypatch) -> tuple[str, str]:
    """Two checkouts with an option --plan and one with a value; the current folder is neither."""
    for name in ("mine", "other"):
        for folder in ("fixtures/plugin", "tests/sub", "runs/RUN/tests"):
            (tmp_path / name / folder).mkdir(parents=True)
        (tmp_path / name / "fixtures" / "plugin" / "option_list.py").write_text(
            "def takes_value():\n    return {'--plan': False, '--from': True}\n"
        )
        (tmp_path / name / "fixtures" / "suggestions.py").write_text(
            "def closest(word, known):\n    return [k for k in known if k[:4] == word[:4]]\n"
        )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return str(tmp_path / "mine"), str(tmp_path / "other")


def test_a_run_directory_is_no_checkout_whatever_it_holds(two):
    mine, _ = two
    assert start.checkout_above(mine) == mine
    assert start.checkout_above(f"{mine}/tests/sub") == mine
    assert start.checkout_above(str(Path(mine).parent)) is None
    run = Path(mine, "runs", "RUN")
    (run / "fixtures" / "plugin").mkdir(parents=True)
    (run / "fixtures" / "plugin" / "option_list.py").touch()
    assert start.checkout_above(str(run)) == str(run)
    (run / "run.json").touch()
    assert start.checkout_above(str(run / "tests")) == mine
    assert start.checkout_above(str(run)) == mine
    (Path(mine) / "run.json").touch()
    assert start.checkout_above(mine) is None


def test_options_of_a_checkout_are_read_from_it(two):
    assert start.options_of(two[0]) == {"--plan": False, "--from": True}


def test_the_suite_is_meant_by_its_options_and_marks(two, monkeypatch):
    mine, other = two
    for arguments, chosen in (
        (["--plan"], mine), (["--plan=x"], mine), (["-m", "multinode"], mine),
        (["-m", "not singlenode"], mine), (["-msinglenode and x"], mine), (["-m", "cpu"], None),
        (["-k", "multinode"], None), (["multinode"], None), ([], None), (["-x"], None),
        (["-m", "multinodes"], None), (["--plam"], None),
    ):  # fmt: skip
        assert start.chosen_checkout(arguments, {}, mine) == chosen, arguments
    assert start.chosen_checkout(["--plan"], {}, "/") is None
    assert start.chosen_checkout([], {"PYTEST_ADDOPTS": "--plan"}, mine) == mine
    assert start.chosen_checkout([], {"PYTEST_ADDOPTS": "'--plan"}, mine) is None
    # In a checkout also by an option that is misspelt.
    monkeypatch.chdir(f"{other}/tests")
    for arguments, chosen in (
        (["--plam"], other), (["--xyz"], None), (["-plan"], None), (["--plan"], other), ([], None)
    ):  # fmt: skip
        assert start.chosen_checkout(arguments, {}, mine) == chosen, arguments


def test_the_checkout_whose_tests_are_named_is_the_one(two):
    mine, other = two
    for word, chosen in (
        (other, other), (f"{other}/tests", other), (f"{other}/tests/sub/test_x.py::test", other),
        (f"{other}/fixtures", mine), (f"{other}/testsuite", mine), ("/nowhere", mine),
    ):  # fmt: skip
        assert start.chosen_checkout(["--plan", word], {}, mine) == chosen, word
    assert start.chosen_checkout(["--from", f"{other}/tests"], {}, mine) == mine
    assert start.chosen_checkout(["--plan", "-x", f"{other}/tests"], {}, mine) == other


def test_arguments_in_a_file_are_read_in_its_place(two, tmp_path):
    mine, other = two
    (tmp_path / "arguments").write_text(f"--plan\n{other}/tests\n")
    assert start.chosen_checkout([f"@{tmp_path}/arguments"], {}, mine) == other
    assert start.chosen_checkout([f"@{tmp_path}/nothing"], {}, mine) is None
    assert start.chosen_checkout([f"{tmp_path}/arguments"], {}, mine) is None


def test_the_configuration_of_the_suite_is_named_unless_the_user_names_one(two):
    mine, _ = two
    named = f"--config-file={mine}/pyproject.toml"
    assert start.settled(["--plan"], {}, mine) == [named, "--plan"]
    joined = [named, "--plan", "--sbatch-args=--qos=y"]
    assert start.settled(["--plan", "--sbatch-args", "--qos=y"], {}, mine) == joined
    for own in (["-c", "x.ini"], ["-cx.ini"], ["--config-file=x.ini"]):
        assert start.settled(["--plan", *own], {}, mine) == ["--plan", *own]
    assert start.settled(["--plan"], {"PYTEST_ADDOPTS": "-c x.ini"}, mine) == ["--plan"]
    foreign = ["-x", "--sbatch-args", "-y"]
    assert start.settled(foreign, {}, mine) == foreign


def test_srun_s_options_are_joined_too_and_only_options():
    given = ["--srun-args", "-n", "--srun-args", "x", "-q"]
    assert start.joined(given) == ["--srun-args=-n", "--srun-args", "x", "-q"]


# --- when Python starts


@pytest.fixture
def started(two, monkeypatch) -> SimpleNamespace:
    """A Python that starts pytest; its end is kept."""
    seen = SimpleNamespace(ended=[], said=[], home=two[0])

    def ends(status: int) -> None:
        seen.ended.append(status)
        raise SystemExit(status)

    flags = SimpleNamespace(optimize=0)
    monkeypatch.setattr(start, "sys", SimpleNamespace(
        argv=["/bin/pytest", "--plan"], orig_argv=["python", "/bin/pytest"], flags=flags,
        stderr=SimpleNamespace(write=seen.said.append, flush=lambda: None),
    ))  # fmt: skip
    monkeypatch.setattr(os, "_exit", ends)
    return seen


def test_the_arguments_of_a_pytest_that_is_meant_are_settled(started):
    start.start(started.home)
    assert start.sys.argv == [
        "/bin/pytest", f"--config-file={started.home}/pyproject.toml", "--plan"
    ]  # fmt: skip
    start.sys.argv = ["train.py", "--plan"]
    start.start(started.home)
    assert start.sys.argv == ["train.py", "--plan"]


def test_a_python_without_assertions_is_refused_where_the_suite_is_meant(started, two, monkeypatch):
    start.sys.flags.optimize = 1
    with pytest.raises(SystemExit):
        start.start(started.home)
    assert started.ended == [4]
    assert "PYTHONOPTIMIZE" in started.said[0]
    start.sys.argv = ["/bin/pytest", "-x"]
    start.start(started.home)  # another project's tests
    monkeypatch.chdir(two[1])
    with pytest.raises(SystemExit):
        start.start(started.home)
    assert started.ended == [4, 4]


# --- when pytest loads its plug-ins


@pytest.fixture
def manager(monkeypatch) -> SimpleNamespace:
    """pytest's plug-in manager with the configuration of this checkout."""
    monkeypatch.setattr(start, "loaded", False)
    imported: list[str] = []
    config = SimpleNamespace(inipath=CHECKOUT / "pyproject.toml")
    return SimpleNamespace(
        imported=imported, config=config, get_plugin=lambda name: config,
        import_plugin=imported.append,
    )  # fmt: skip


def test_the_plug_ins_are_loaded_with_the_configuration_of_a_checkout(manager, tmp_path):
    for path in (None, tmp_path / "pytest.ini"):
        manager.config.inipath = path
        start.pytest_addoption(None, manager)
        assert (manager.imported, start.loaded) == ([], False)
    manager.config.inipath = CHECKOUT / "pyproject.toml"
    start.pytest_addoption(None, manager)
    assert (tuple(manager.imported), start.loaded) == (plugin.PLUGINS, True)


def test_a_pytest_or_checkout_that_cannot_do_is_one_line(manager, two, monkeypatch):
    del manager.config.inipath
    with pytest.raises(pytest.UsageError, match="does not say which configuration it reads"):
        start.pytest_addoption(None, manager)
    manager.config.inipath = Path(two[0], "pyproject.toml")
    with pytest.raises(pytest.UsageError, match=r"`fixtures` is in .*leave it out of PYTHONPATH"):
        start.pytest_addoption(None, manager)
    manager.config.inipath = CHECKOUT / "pyproject.toml"
    monkeypatch.setattr(plugin, "unfit", lambda: "lacks pydantic")
    with pytest.raises(pytest.UsageError, match="lacks pydantic"):
        start.pytest_addoption(None, manager)
    monkeypatch.setitem(sys.modules, "fixtures.plugin", None)
    with pytest.raises(pytest.UsageError, match="is not a whole checkout"):
        start.pytest_addoption(None, manager)
    assert manager.imported == []
