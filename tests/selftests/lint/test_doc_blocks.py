"""What the pages tell a reader to paste runs as it stands, and their commands are parsed for real.

README.md, docs/on-a-cluster.md and docs/sandbox.md are run block by block in a shell. What a test
cannot have stands in SUBSTITUTED and SANDBOX_ORDER; nothing else is changed.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.plugin import options as plugin_options
from fixtures.sandbox import Sandbox
from fixtures.sandbox.cleanup import remove
from fixtures.thresholds import loader
from reports import __main__ as reports_command
from reports.console import plugin as reports_plugin
from tests.selftests import support
from tests.selftests.judged_runs import key_of
from tests.selftests.pages import blocks, first_cells
from tests.selftests.sandboxes import on
from tests.selftests.support import CHECKOUT, DATA

pytestmark = pytest.mark.cpu

README = CHECKOUT / "README.md"
ON_A_CLUSTER = CHECKOUT / "docs" / "on-a-cluster.md"
SANDBOX = CHECKOUT / "docs" / "sandbox.md"
CARD = CHECKOUT / "docs" / "reference-card.md"
PAGES = [
    *sorted(p for p in (CHECKOUT / "docs").glob("*.md") if p.name != "changes.md"),
    README,
    CHECKOUT / "deploy" / "README.md",
]
"""All but the page of changes, whose commands may be of the past."""

ADDRESS = "https://git.example.com/gpu-cluster-acceptance.git"
SUBSTITUTED = {
    ADDRESS: '"$ADDRESS"',  # no network: a link of that name to this checkout is cloned
    "--partition gpu": "--partition main",  # the name of the sandbox's partition
    # Sandboxes of other tests run beside this one, and `down` is for its own.
    "python -m fixtures.sandbox ": 'python -m fixtures.sandbox --state-dir "$STATE" ',
}
SANDBOX_ORDER = {"nodes": "worker[0-1]", "gpus_per_node": 2, "gpu_model": "cpu"}
"""In the place of `cluster:` in the order of the page, whose nodes no test has."""
SELECTION = "-k 'environment and not drift'"
"""In PYTEST_ADDOPTS: the smallest run that has a job on every node."""
SCARE = re.compile(
    r"warning|deprecat|traceback|\berror\b|not found|no such|denied|fatal|unrecognized", re.I
)
OF_THE_HOST = re.compile(r"^WARNING: Location '\S+' is ignored")
"""pip on an index in this host's own settings that lacks a package: no line of ours."""
MAX_WORDS = 1200
VENV = Path(sys.prefix)
SHELL_TIMEOUT_S = 600
FIRST_CONTACT_S = 1800


def shell_blocks(page: Path) -> list[str]:
    return [b.text for b in blocks(page.read_text(encoding="utf-8")) if b.is_shell]


def run_blocks(
    script: str, folder: Path, timeout_s: float = SHELL_TIMEOUT_S, **env: str
) -> list[tuple[str, int, str]]:
    """Paste lines into a shell; return each with its exit status and all that it said."""
    for page_text, ours in SUBSTITUTED.items():
        script = script.replace(page_text, ours)
    lines = [line for line in script.splitlines() if line.strip()]
    (folder / "address").mkdir(exist_ok=True)
    address = folder / "address" / ADDRESS.rpartition("/")[2]
    if not address.is_symlink():
        address.symlink_to(CHECKOUT)
    mark = "[status of line"
    pasted = "\n".join(f'{line}\necho "{mark} {k}: $?]"' for k, line in enumerate(lines))
    outer = ("PYTEST_", "SLURM_", "SBATCH_", "COV_", "VIRTUAL_ENV", "MAKE")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(outer)}
    clean["ADDRESS"] = str(address)
    done = subprocess.run(
        ["bash", "-c", pasted], cwd=folder, env=clean | env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
    )  # fmt: skip
    said = re.split(rf"^{re.escape(mark)} \d+: (\d+)\]\n", done.stdout, flags=re.MULTILINE)
    assert len(said) == 2 * len(lines) + 1, done.stdout
    return [(line, int(said[2 * k + 1]), said[2 * k]) for k, line in enumerate(lines)]


def frightening(said: str) -> list[str]:
    lines = [line for line in said.splitlines() if not OF_THE_HOST.match(line)]
    return [line for line in lines if SCARE.search(line)]


@pytest.fixture(scope="module")
def git(machine: None) -> None:
    if shutil.which("git") is None or not (CHECKOUT / ".git").exists():
        pytest.skip("no git checkout here: a clone cannot be tried")


# --- README.md


def test_the_readme_is_a_screen_and_a_half():
    text = README.read_text(encoding="utf-8")
    assert len(re.sub(r"<!--.*?-->", "", text).split()) <= MAX_WORDS
    assert [b.language for b in blocks(text)] == ["", ""], "one command, and what it prints"
    assert len(re.findall(r"!\[", text)) == 2


def test_the_first_command_of_the_readme_ends_in_an_acceptance(git: None, tmp_path: Path):
    """With MAKEFLAGS=--dry-run: make says what it would do. The whole of it is the slow test."""
    (block,) = shell_blocks(README)
    done = run_blocks(block, tmp_path, MAKEFLAGS="--dry-run")
    assert [(line, status) for line, status, _ in done if status] == []
    assert re.search(r"-m fixtures\b", done[-1][2]), done[-1][2]
    assert (tmp_path / "gpu-cluster-acceptance" / "thresholds.yaml").exists()


@pytest.mark.slow
def test_a_stranger_comes_to_the_screen_of_the_readme_and_nothing_frightens(
    git: None, tmp_path: Path
):
    from tests.selftests.tools.test_demonstration import pattern, sample

    (block,) = shell_blocks(README)
    done = run_blocks(block, tmp_path, FIRST_CONTACT_S)
    said = done[-1][2]
    assert [(line, status) for line, status, _ in done if status] == [], said
    command, *screen = sample()
    printed = said.splitlines()
    assert command in printed
    first = next(k for k, line in enumerate(printed) if re.fullmatch(pattern(screen[0]), line))
    for expected, line in zip(screen, printed[first:], strict=False):
        assert re.fullmatch(pattern(expected), line), f"README: {expected!r}, printed: {line!r}"
    alarming = [line for _, _, each in done for line in frightening(each)]
    assert alarming == [], "\n".join(alarming)


# --- docs/on-a-cluster.md


@pytest.fixture(scope="module")
def cluster_page(
    git: None, shared_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, str]]:
    """Command of the page -> its exit status and all that it said, run from top to bottom."""
    if not (VENV / "bin" / "activate").exists():
        pytest.skip(f"{VENV} is not a virtual environment: there is nothing to activate")
    folder = tmp_path_factory.mktemp("site")
    install, *rest = shell_blocks(ON_A_CLUSTER)
    checkout = folder / "gpu-cluster-acceptance"
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True)
    key_of(home / ".ssh", "id_ed25519")
    env = {**on(shared_sandbox), "HOME": str(home)}
    # `make setup` says what it would do, and the environment of these tests is in its place.
    before, after = install.split("make setup\n")
    done = run_blocks(before + "make setup\n", folder, MAKEFLAGS="--dry-run", **env)
    (checkout / ".venv").symlink_to(VENV)
    activate = f"cd {checkout.name}\n{after}"
    done += run_blocks(activate, folder, **env)
    (order,) = orders()
    order["cluster"] = SANDBOX_ORDER
    (checkout / "order.yaml").write_text(yaml.safe_dump(order), encoding="utf-8")
    plan, run, again, sign = rest
    for script, addopts in (
        (plan + run, SELECTION), (again, f"{SELECTION} --plan"), (sign, ""),
    ):  # fmt: skip
        done += run_blocks(activate + script, folder, PYTEST_ADDOPTS=addopts, **env)
    return {line: (status, said) for line, status, said in done}


def orders() -> list[dict[str, Any]]:
    """The orders that the page shows."""
    shown = blocks(ON_A_CLUSTER.read_text(encoding="utf-8"))
    return [yaml.safe_load(block.text) for block in shown if block.language == "yaml"]


def test_every_line_of_on_a_cluster_runs_and_nothing_frightens(cluster_page):
    commands = "\n".join(cluster_page)
    for command in ("git clone", "make setup", "activate", "--plan", "--resume", "--retest",
                    "reports verify", "reports sign"):  # fmt: skip
        assert command in commands, command
    for line, (status, said) in cluster_page.items():
        assert status == 0, (line, said)
        assert frightening(said) == [], line


def test_the_plan_of_on_a_cluster_submits_nothing_and_the_run_leaves_a_verdict(cluster_page):
    (plan,) = [said for line, (_, said) in cluster_page.items() if line.endswith("--plan")]
    assert re.search(r"^total .* jobs?, ", plan, re.M), plan
    assert "report" not in plan
    runs = [said for line, (_, said) in cluster_page.items() if line.endswith("--partition main")]
    assert len(runs) == 1
    assert re.search(r"^=+ DEMONSTRATION =+$", runs[0], re.M), runs[0]
    (sign,) = [said for line, (_, said) in cluster_page.items() if " sign " in line]
    assert re.search(r"^signature .*/signatures/SHA256-\S+\.sig by SHA256:\S+$", sign, re.M), sign


def test_the_order_of_on_a_cluster_is_one_that_the_suite_takes(tmp_path: Path):
    (order,) = orders()
    assert order["base"] == "thresholds.yaml"
    shutil.copy(CHECKOUT / "thresholds.yaml", tmp_path)
    (tmp_path / "order.yaml").write_text(yaml.safe_dump(order), encoding="utf-8")
    cluster = loader.load(tmp_path / "order.yaml").cluster
    assert cluster is not None
    assert (cluster.node_count, cluster.gpu_model) == (32, "H200 SXM")


# --- docs/sandbox.md


def test_the_sandbox_of_the_page_is_broken_found_and_taken_down(git: None, tmp_path: Path):
    (block,) = shell_blocks(SANDBOX)
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    script = f"cd {shlex.quote(str(CHECKOUT))}\n{block}"
    addopts = f"-p no:cacheprovider --run-dir={tmp_path / 'run'}"
    with tempfile.TemporaryDirectory(prefix="s-") as state:  # a socket's path has to be short
        try:
            done = run_blocks(script, tmp_path, PATH=path, STATE=state, PYTEST_ADDOPTS=addopts,
                              PYTHONDONTWRITEBYTECODE="1")  # fmt: skip
            left = [home.name for home in Path(state).glob("*/")]
        finally:
            for home in Path(state).glob("*/"):
                remove(home)
    # The run ends with 1: it finds the fault that the page has put in.
    expected = [(line, int(line.startswith("pytest "))) for line, *_ in done]
    assert [(line, status) for line, status, _ in done] == expected, done
    (judged,) = [said for line, _, said in done if line.startswith("pytest ")]
    assert "1 node at fault (1 row): worker0" in judged
    assert "mlx5_3" in judged
    assert (tmp_path / "run" / "good-nodes.txt").read_text().split() == ["worker1"]
    assert left == []


# --- every command of every page, through the parser that takes it

PLACEHOLDERS = {
    "RUN": "/runs/1", "RUN1": "/runs/1", "RUN2": "/runs/2", "RUN3": "/runs/3", "OTHER": "/runs/2",
    "THIRD": "/runs/3", "RUN_A": "/runs/1", "RUN_B": "/runs/2", "A": "/runs/1", "B": "/runs/2",
    "DIR": "/out", "KEY": "/key", "FILE": __file__, "N": "node1", "G": "0", "STATE": "/state",
    "T": "/limits.yaml", "$run": "/runs/1",
}  # fmt: skip


class OptionsOfPytest:
    """The options that the plugin adds, as an argparse parser: pytest's own group of them."""

    def __init__(self) -> None:
        self.parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
        for own in ("-m", "-k", "-p", "-n", "--junitxml"):
            self.parser.add_argument(own)
        for own in ("-x", "-q", "-v", "-s", "--lf"):
            self.parser.add_argument(own, action="store_true")
        for plugin in (plugin_options, reports_plugin):
            if add := getattr(plugin, "pytest_addoption", None):
                add(self)

    def getgroup(self, *_: str) -> OptionsOfPytest:
        return self

    def addoption(self, *names: str, **more: Any) -> None:
        self.parser.add_argument(*names, **more)


@functools.cache
def pytest_parser() -> argparse.ArgumentParser:
    return OptionsOfPytest().parser


def commands(text: str) -> Iterator[str]:
    """Yield whole commands of a page: of its blocks, indented or fenced, and in backticks."""
    text = text.replace("\\\n", " ")
    text = re.sub(r"\$\([^)]*\)", "x", text)  # what a shell puts in its place
    lines = re.findall(r"`((?:pytest|python -m reports [a-z]+) [^`\n]+)`", text)
    lines += re.findall(r"^ *\$? ?((?:pytest|python -m reports [a-z]+) .*)$", text, re.MULTILINE)
    for line in lines:
        line = line.partition("  #")[0].partition(" # ")[0].strip()
        if "..." not in line and "[" not in re.sub(r"\[\d[\d,-]*\]", "", line) and "|" not in line:
            yield line


def arguments(line: str, values: Mapping[str, str] = PLACEHOLDERS) -> list[str]:
    """Return the words of a command line, with values for its placeholders."""
    found = []
    for word in shlex.split(line):
        option, equals, value = word.partition("=")
        found.append(f"{option}={values.get(value, value)}" if equals else values.get(word, word))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(CHECKOUT)))
def test_every_command_of_a_page_is_taken_by_its_parser(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    parsed: list[argparse.Namespace] = []

    def keep(options: argparse.Namespace) -> int:
        parsed.append(options)
        return 0

    monkeypatch.setattr(reports_command, "_carry_out", keep)
    found = list(commands(page.read_text(encoding="utf-8")))
    refused = []
    for line in found:
        words = arguments(line)
        try:
            if words[0] == "pytest":
                pytest_parser().parse_args(words[1:])
            else:
                reports_command.main(words[3:])
        except (SystemExit, argparse.ArgumentError) as error:
            refused.append(f"{line}: {error} {capsys.readouterr().err}")
    assert refused == []
    assert page != CARD or (len(parsed) > 15 and len(found) > 30)


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("export RUN --prometheus FILE", False), ("export RUN --prometheus --out FILE", True),
        ("dosier RUN --node N", False),
    ],
)  # fmt: skip
def test_a_command_that_does_not_run_is_found(line, taken, monkeypatch, capsys):
    monkeypatch.setattr(reports_command, "_carry_out", lambda _: 0)
    words = arguments(f"python -m reports {line}")
    if taken:
        assert reports_command.main(words[3:]) == 0
    else:
        with pytest.raises(SystemExit):
            reports_command.main(words[3:])


def test_every_table_of_commands_on_the_card_is_read():
    cells = first_cells(CARD.read_text(encoding="utf-8"))
    found = [cell for cell in cells if cell.startswith(("pytest ", "python -m reports "))]
    assert sorted(found) == sorted(commands(CARD.read_text(encoding="utf-8")))


# --- the cheap commands of the card, on a recorded run

CHEAP = ("limits", "tables", "compare", "predict", "energy", "rejudge", "export")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Values for the placeholders of the card: a recorded run, judged."""
    root = tmp_path_factory.mktemp("recorded")
    support.judged(DATA / "h200-1x4", root / "run")
    run = str(root / "run")
    return {"RUN": run, "OTHER": run, "FILE": str(root / "file"), "KEY": "", "N": "node0"}


def test_the_cheap_commands_of_the_card_run_on_a_recorded_run(
    recorded: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    # What the run was judged to be is confirmed by a replay; test_main.py has that.
    monkeypatch.setattr(
        reports_command,
        "confirmed_verdict",
        lambda source, *_: reports_command.read_verdict(source),
    )
    text = CARD.read_text(encoding="utf-8")
    lines = [n for n in first_cells(text) if n.startswith("python -m reports ")]
    ran = []
    for line in lines:
        words = arguments(line, recorded)
        if words[3] not in CHEAP:
            continue
        status = reports_command.main(words[3:])
        out, err = capsys.readouterr()
        # 1 and 2 are verdicts: something differs, a prediction that the suite does not stand for.
        assert status in (0, 1, 2), (line, err)
        assert "Traceback" not in out + err
        assert out.strip() or Path(recorded["FILE"]).read_text().strip(), line
        ran.append(words[3])
    assert set(ran) == set(CHEAP)
