"""The installed plug-in: options with a blank, from any folder; nothing in a run is executed."""

# Length: its hooks in this process, and what whole processes make of them, beside one hostile run.

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.plugin import install, invocation, option_list, start
from tests.selftests.sandboxes import copy_checkout
from tests.selftests.support import CHECKOUT, DATA

pytestmark = pytest.mark.cpu

RECORDED = DATA / "h200-1x2-training"

MANY = """
import contextlib, json, os, sys, traceback
import gpu_cluster_acceptance
import pandas, pydantic, pytest, submitit, xdist, pytest_html
from _pytest.config import UsageError, _prepareconfig

home = sys.argv[2]
sys.path.insert(0, home)
import reports.console.plugin, reports.console.live
import fixtures.plugin.verdict_fixture, fixtures.plugin.calibration, fixtures.plugin.session

for case in json.load(sys.stdin):
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.chdir(case["cwd"])
        os.environ.update(case["env"])
        # As Python has them when it starts `pytest ARGUMENTS`.
        sys.argv = ["pytest", *case["arguments"]]
        sys.orig_argv = [sys.executable, *sys.argv]
        found = {}
        try:
            gpu_cluster_acceptance.start(home)
            # Everything is imported already, too late for pytest to rewrite it.
            config = _prepareconfig([*sys.argv[1:], "--assert=plain"])
            found = {"root": str(config.rootpath), "inifile": str(config.inipath),
                     "paths": config.args, "plan": config.option.plan,
                     **{o: str(getattr(config.option, o, None)) for o in case["ask"]}}
        except UsageError as error:
            found = {"error": str(error)}
        except BaseException:
            found = {"error": traceback.format_exc()}
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with open(read) as answer:
        print(answer.read())
    os.waitpid(child, 0)
"""
"""Reads cases, and says for each what pytest makes of it before it collects anything.

All in processes forked from one that has imported what takes long.
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with this checkout's plug-in, and the packages of this one."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if Path(path).name.endswith("-packages")]
    (packages / "zz.pth").write_text("\n".join(ours))
    install.install(packages)
    command = folder / "bin" / "pytest"
    command.write_text(f'#!/bin/sh\nexec {folder}/bin/python -m pytest "$@"\n')
    command.chmod(0o755)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another checkout than the one that the plug-in was set up for."""
    return copy_checkout(tmp_path_factory.mktemp("other") / "suite", selftests=False)


@pytest.fixture
def hostile(tmp_path: Path, copied: Path) -> Iterator[list[Path]]:
    """Run directories that leave `trace` where anything in them is executed: near and far."""
    trap = f"open({str(tmp_path / 'trace')!r}, 'a').write(__file__)\n"
    runs = [tmp_path / "runs" / "RUN", copied / "reports" / "runs" / "RUN", copied / "RUN"]
    for run in runs:
        shutil.copytree(RECORDED, run)
        for name in ("conftest.py", "trap.py", "__init__.py", "test_trap.py"):
            (run / name).write_text(trap)
        shutil.copytree(run, run / "tests")
        (run / "fixtures" / "plugin").mkdir(parents=True)  # as if it were a checkout
        for name in ("__init__.py", "plugin/__init__.py", "plugin/option_list.py"):
            (run / "fixtures" / name).write_text(trap)
        (run / "pytest.ini").write_text("[pytest]\naddopts = -p trap\npythonpath = .\n")
        (run / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '-p trap'\n")
        shutil.copy(CHECKOUT / "thresholds.yaml", run)
    yield runs
    for run in runs[1:]:
        shutil.rmtree(run)


def environment(**more: str) -> dict[str, str]:
    outer = ("PYTEST_", "SLURM_", "SBATCH_", "COV_", "PYTHONPATH")
    return {k: v for k, v in os.environ.items() if not k.startswith(outer)} | more


def case(*arguments: str | Path, cwd: Path, ask: str = "", **env: str) -> dict[str, Any]:
    return {
        "arguments": list(map(str, arguments)), "cwd": str(cwd), "env": env,
        "ask": ask.split(),
    }  # fmt: skip


def parsed(prepared: Path, cases: list[dict[str, Any]], checkout: Path) -> list[dict[str, Any]]:
    """What pytest makes of each command line before it collects, by MANY."""
    done = subprocess.run(
        [prepared, "-c", MANY, "-", str(checkout)], input=json.dumps(cases), text=True,
        capture_output=True, env=environment(), timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(cases), done.stdout + done.stderr
    return answers


def pytest_of(prepared: Path, *arguments: str | Path, cwd: Path, **env: str) -> Any:
    return subprocess.run(
        [prepared, "-m", "pytest", "-p", "no:cacheprovider", *map(str, arguments)], cwd=cwd,
        env=environment(**env), capture_output=True, text=True, timeout=900,
    )  # fmt: skip


PATHS = sorted(option_list.path_options())
FILES = ("--thresholds", "--drills", "--sandbox-bundle")
DESTINATION = {"--from": "from_run"}
MISSPELT = ("--resum", "--form", "--threshold", "--guest-result")


# --- hooks, in this process


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A checkout: folders of tests that mirror its packages, one that does not, and a run."""
    for folder in (
        "tests/selftests/plan/sub", "tests/selftests/tools", "tests/selftests/strange",
        "tests/selftests/tests", "tests/selftests/plan/tools", "fixtures/plan/sub",
        "reports/runs/RUN",
        "fixtures/strange", "elsewhere",
    ):  # fmt: skip
        (tmp_path / "suite" / folder).mkdir(parents=True)
    for package in ("fixtures/plan", "fixtures/plan/sub"):
        (tmp_path / "suite" / package / "__init__.py").touch()
    (tmp_path / "suite" / "tests" / "test_a.py").touch()
    (tmp_path / "suite" / "fixtures" / "plan" / "items.py").touch()
    return tmp_path / "suite"


def config(suite: Path, *paths: str, cwd: Path | None = None, pyargs: bool = False) -> Any:
    return SimpleNamespace(
        rootpath=suite, option=SimpleNamespace(), inipath=suite / "pyproject.toml",
        invocation_params=SimpleNamespace(dir=cwd or suite),
        known_args_namespace=SimpleNamespace(file_or_dir=[*paths], pyargs=pyargs),
    )  # fmt: skip


def loaded(given: Any, *, unknown: tuple[str, ...] = ()) -> list[str]:
    """The arguments after the hook."""
    arguments = ["-q"]
    parser: Any = SimpleNamespace(
        parse_known_and_unknown_args=lambda args, namespace: (None, [*unknown]),
        optparser=SimpleNamespace(format_help=lambda: "--resume RUN\n--retest\n"),
    )
    invocation.pytest_load_initial_conftests(given, parser, arguments)
    return arguments


def test_paths_that_hold_tests_are_those_of_the_suite(suite):
    for path in (".", "tests", "tests/test_a.py", "tests/test_a.py::test", "tests/selftests",
                 "tests/selftests/plan/sub", "tests/selftests/tools",
                 "tests/nothing.py"):  # fmt: skip
        assert loaded(config(suite, path)) == ["-q"], path
    for path in ("reports/runs/RUN", "fixtures/plan/items.py", "tests/selftests/strange",
                 "fixtures",
                 "tests/selftests/plan/tools", "tests/selftests/tests"):  # fmt: skip
        with pytest.raises(pytest.UsageError, match=f"^{path} does not hold tests of this suite"):
            loaded(config(suite, path))
    assert loaded(config(suite, "fixtures", pyargs=True)) == ["-q"]
    shutil.rmtree(suite / "tests")
    assert loaded(config(suite, "fixtures")) == ["-q"]


def test_from_elsewhere_the_tests_of_the_suite_are_collected(suite):
    given = config(suite, cwd=suite / "elsewhere")
    assert loaded(given) == ["-q", str(suite / "tests")]
    assert given.known_args_namespace.file_or_dir == [str(suite / "tests")]
    for here in (suite, suite / "tests", suite / "tests/selftests/plan"):
        assert loaded(config(suite, cwd=here)) == ["-q"]
    assert loaded(config(suite, str(suite / "tests"), cwd=suite / "elsewhere")) == ["-q"]


def test_folders_that_are_called_after_tests_hold_no_conftest(suite):
    (suite / "tests" / "conftest.py").touch()
    loaded(config(suite))
    for stray in ("testing", "tests/test-run", "tests/selftests/plan/test-run"):
        (suite / stray).mkdir()
        (suite / stray / "conftest.py").touch()
        with pytest.raises(pytest.UsageError, match=f"{stray}/conftest.py: pytest would run it"):
            loaded(config(suite))
        shutil.rmtree(suite / stray)


def test_unknown_options_are_refused_with_those_that_were_meant(suite):
    with pytest.raises(pytest.UsageError, match=r"no option --resum, did you mean '--resume'\?$"):
        loaded(config(suite), unknown=("--resum=x",))
    with pytest.raises(pytest.UsageError, match=r"no option --xyz \(`pytest --help` lists"):
        loaded(config(suite), unknown=("--xyz",))
    given = config(suite)
    del given.known_args_namespace
    with pytest.raises(pytest.UsageError, match="does not say which paths it was given"):
        loaded(given)


def test_only_folders_of_tests_are_read(suite):
    given = config(suite)
    for path, unread in (
        ("tests", None), ("tests/selftests/plan", None), ("tests/test_a.py", None),
        ("reports", True), ("tests/selftests/strange", True), ("fixtures/plan/items.py", None),
    ):  # fmt: skip
        assert invocation.pytest_ignore_collect(suite / path, given) is unread, path
    assert invocation.pytest_ignore_collect(suite.parent, given) is None


def test_the_arguments_of_a_run_are_those_that_were_typed(suite, monkeypatch):
    named = f"--config-file={suite}/pyproject.toml"
    monkeypatch.setattr(sys, "argv", ["pytest", named, "-m", "multinode", "--config-file=mine"])
    assert invocation.typed_arguments(config(suite)) == ["-m", "multinode", "--config-file=mine"]


def marked(expression: str | None) -> Any:
    markers = ["gpu: needs GPUs", "multinode: all", "criterion(key): judged", "waits: long"]
    return SimpleNamespace(
        getini=lambda name: markers, option=SimpleNamespace(markexpr=expression, keyword="")
    )


def test_a_mark_that_no_test_has_is_refused():
    for known in ("", None, "gpu", "not (gpu and multinode)", "criterion(k=1)", "gpu or", "waits"):
        invocation.pytest_configure(marked(known))
    with pytest.raises(pytest.UsageError, match="no test has the mark 'gpus', did you mean 'gpu'"):
        invocation.pytest_configure(marked("multinode and not gpus"))
    with pytest.raises(pytest.UsageError, match=r"the mark 'quite' \(known: gpu, multinode\)"):
        invocation.pytest_configure(marked("quite"))


def test_what_selects_nothing_is_said_with_what_there_is():
    def said(keyword: str = "", marks: str = "", *, destructive: bool = True) -> str:
        given: Any = SimpleNamespace(
            option=SimpleNamespace(keyword=keyword, markexpr=marks), getoption=lambda _: destructive
        )
        return invocation.nothing_selected(given, ["gemm.bf16", "worker0"])

    lists = "`pytest --collect-only -q -m multinode` lists what there is"
    assert said() == f"Nothing selected; {lists}"
    both = said("worker0 and not (gemm.bf16)", "gpu")
    assert both == f"Nothing selected by -m 'gpu' and -k 'worker0 and not (gemm.bf16)'; {lists}"
    assert said("(worker7) or quite-another").endswith("; -k worker7: did you mean worker0?")
    assert said("xyz or gem.bf16").endswith("; -k gem.bf16: did you mean gemm.bf16?")
    assert said(destructive=False).endswith("Destructive checks also need --allow-destructive.")


# --- whole processes


def test_a_path_may_stand_behind_a_blank_and_nothing_in_it_is_executed(
    prepared, copied, hostile, tmp_path
):
    """Every option that takes a path, in every way to write it, from near and far."""
    away, inside, at_top = hostile
    link = tmp_path / "link"
    link.symlink_to(away)
    places = (
        (away, copied), (away, away), (away, tmp_path), (inside, copied), (inside, inside),
        (at_top, copied), (at_top, at_top / "tests"), (link, link),
    )  # fmt: skip
    spellings = itertools.cycle(
        (relative, slash) for relative in (False, True) for slash in ("", "/")
    )
    cases, wanted = [], []
    for k, option in enumerate(PATHS):
        name = DESTINATION.get(option, option[2:].replace("-", "_"))
        for run, cwd in places[k % 2 :: 2]:
            relative, slash = next(spellings)
            text = f"{os.path.relpath(run, cwd) if relative else run}{slash}"
            if option in FILES:
                text = str(Path(text) / "thresholds.yaml")
            cases.append(case("-m", "multinode", option, text, cwd=cwd, ask=name))
            wanted.append((name, text))
        next(spellings)  # the next option is spelt otherwise at each place
        cases += [
            case(f"{option}={text}", "--plan", "-n", "2", cwd=cwd, ask=name),
            case(cwd=away, PYTEST_ADDOPTS=f"{option} {away / 'thresholds.yaml'}", ask=name),
        ]
        wanted += [(name, text), (name, f"{away / 'thresholds.yaml'}")]
    answers = parsed(prepared, cases, copied)
    for asked, answer, (name, text) in zip(cases, answers, wanted, strict=True):
        assert "error" not in answer, (asked, answer)
        assert answer["root"] == str(copied), (asked, answer)
        assert answer["paths"] == (
            ["tests"] if asked["cwd"] == str(copied) else [str(copied / "tests")]
        ), (asked, answer)
        assert str(Path(text)) in answer[name], (asked, answer)
    assert not (tmp_path / "trace").exists()


def test_a_misspelt_option_and_a_second_path_execute_nothing_either(
    prepared, copied, hostile, tmp_path
):
    away, inside, _ = hostile
    cases = [case(o, run, cwd=copied) for o in MISSPELT for run in (away, inside)]
    cases += [case("-m", "multinode", o, away, cwd=tmp_path) for o in MISSPELT]
    said = ["did you mean '--"] * len(cases)
    cases += [case("--calibrate-with", away, run, cwd=copied) for run in (away, inside)]
    said += ["does not hold tests of this suite"] * 2
    for asked, answer, part in zip(cases, parsed(prepared, cases, copied), said, strict=True):
        assert part in answer["error"], (asked, answer)
    assert not (tmp_path / "trace").exists()


def test_a_folder_that_pytest_would_read_for_its_name_is_refused(prepared, copied, tmp_path):
    (stray := copied / "tests" / "test-run").mkdir()
    (stray / "conftest.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    try:
        (answer,) = parsed(prepared, [case("--resume", stray, cwd=copied)], copied)
    finally:
        shutil.rmtree(stray)
    assert str(stray) in answer["error"]
    assert not (tmp_path / "trace").exists()


def test_a_run_is_judged_from_its_own_folder_and_nothing_of_it_is_executed(
    prepared, hostile, tmp_path
):
    """The whole way, with workers: they get the arguments too. `home` is what is collected."""
    away, *_ = hostile
    done = pytest_of(
        prepared, "-m", "multinode", "--cluster", "replay", "--from", ".", "--run-dir",
        tmp_path / "out", "-n", "2", "-q", cwd=away,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "trace").exists()
    *_, command = json.loads((tmp_path / "out" / "run.json").read_text())["commands"]
    assert command.startswith("pytest -p no:cacheprovider -m multinode --cluster replay --from . ")


def test_the_checkout_that_is_named_or_entered_is_collected(prepared, copied, tmp_path):
    def root(*arguments: str | Path, cwd: Path) -> str | None:
        words = list(map(str, arguments))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(cwd)
            return start.chosen_checkout(words, {}, str(CHECKOUT))

    assert root("--plan", cwd=copied) == str(copied)
    assert root("--plan", cwd=tmp_path) == str(CHECKOUT)
    assert root("--plan", copied / "tests" / "test_compute.py", cwd=CHECKOUT) == str(copied)
    assert root("--from", copied / "tests", cwd=CHECKOUT) == str(CHECKOUT)
    assert root("-mmultinode", cwd=tmp_path) == str(CHECKOUT)
    for foreign in (["-x"], ["-m", "cpu"], ["--count", "5"], ["tests"]):
        assert root(*foreign, cwd=tmp_path) is None
    done = pytest_of(prepared, "--plan", "--budget", "20", "-q", cwd=copied)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "--budget '20': expected a duration" in done.stderr  # before anything is collected


def test_another_project_s_tests_are_left_alone(prepared, tmp_path):
    (tmp_path / "fixtures").mkdir()
    (tmp_path / "fixtures" / "__init__.py").write_text("")
    (tmp_path / "test_it.py").write_text("import fixtures\n\ndef test_it():\n    pass\n")
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--plan-of-mine')\n"
    )
    done = pytest_of(prepared, "-q", "--plan-of-mine", "x", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(".")


# --- the environment


def test_a_pytest_without_the_plugin_says_which_one_to_start(copied, hostile, tmp_path):
    _, inside, _ = hostile
    for name in ("pytest.ini", "pyproject.toml"):
        (inside / name).unlink()  # its own configuration nobody could keep such a pytest from
    without = tmp_path / "without"  # shadows the plug-in, should this Python have it
    without.mkdir()
    (without / f"{install.MODULE}.py").write_text(
        '"""PYTEST_DONT_REWRITE"""\n\ndef start(home):\n    pass\n'
    )
    arguments = (Path(sys.executable), "--collect-only", "-q", "-k", "nothing-of-this-name")
    done = pytest_of(*arguments, cwd=copied, PYTHONPATH=str(without))
    assert done.returncode == 5, done.stdout + done.stderr
    assert re.search(r"note: .* lacks this suite's plug-in: start .venv/bin/pytest", done.stdout)
    done = pytest_of(*arguments, "--resume", inside, cwd=copied, PYTHONPATH=str(without))
    assert done.returncode == 4, done.stdout + done.stderr
    assert "--resume needs: start .venv/bin/pytest" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("how", ["-O", "-OO", "PYTHONOPTIMIZE"])
def test_without_assertions_nothing_is_judged(prepared, how, tmp_path):
    flags, env = ([], {how: "2"}) if how.startswith("P") else ([how], {})
    for python in (prepared, sys.executable):  # with the plug-in, and perhaps without
        done = subprocess.run(
            [python, *flags, "-m", "pytest", "-m", "multinode", "--plan"], cwd=CHECKOUT,
            env=environment(**env), capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        assert done.returncode == 4, done.stdout + done.stderr
        assert "PYTHONOPTIMIZE" in done.stderr
        assert len((done.stdout + done.stderr).strip().splitlines()) == 1
