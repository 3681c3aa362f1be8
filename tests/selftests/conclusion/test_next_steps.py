"""The commands that a run prints work when they are pasted: real path, quoted, needed options."""

from __future__ import annotations

import csv
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.conclusion.next_steps import RunCommand
from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.run.options import NEEDED_AGAIN, RunOptions, needed_again
from fixtures.verdict.causes import NEXT_STEP, RESUME
from reports.exports import github
from reports.pages.artefacts import Artefacts
from tests.selftests import derive_runs, judged_runs, support

pytestmark = pytest.mark.cpu

PRINTED = re.compile(r"`(pytest [^`]*--(?:retest|resume)=[^`]*)`")
PLACEHOLDER = re.compile(r"--(?:retest|resume)(?:=RUN)?(?![=\w])|python -m reports \w+ RUN\b")


def parsed(command: str) -> RunOptions:
    """What pytest makes of a pasted command."""
    words = shlex.split(command)
    assert words[0] == "pytest"
    code = (
        "import sys, json; from _pytest.config import _prepareconfig\n"
        "config = _prepareconfig(sys.argv[1:])\n"
        "from fixtures.plugin.options import options_of\n"
        "print(json.dumps({'keyword': config.option.keyword, 'args': config.args,\n"
        "    **{k: v for k, v in vars(options_of(config)).items()}}, default=str))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words[1:]], cwd=support.CHECKOUT, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [Path(a).name for a in found.pop("args")] == ["tests"], "no option is taken for a path"
    given = {name: found[name] for name in (*NEEDED_AGAIN, "resume", "retest")}
    paths = {n: Path(v) for n in ("thresholds", "resume", "retest") if (v := given[n]) is not None}
    lists = {n: tuple(v) for n, v in given.items() if isinstance(v, list)}
    return RunOptions(**{**given, **paths, **lists})


def test_a_text_is_completed_once_and_for_a_shell():
    command = RunCommand("/runs/a b/RUN", ("--partition=gpu", "--setup=module load cuda"))
    text = command.completed("check it, then `pytest -m multinode --retest=RUN -k worker1`")
    assert text == (
        "check it, then `pytest -m multinode --retest='/runs/a b/RUN' --partition=gpu "
        "'--setup=module load cuda' -k worker1`"
    )
    assert command.completed(text) == text
    assert command.completed("`python -m reports judge RUN --thresholds FILE`") == (
        "`python -m reports judge '/runs/a b/RUN' --thresholds FILE`"
    )
    assert command.completed("look at RUNNER") == "look at RUNNER"


def test_what_a_run_needs_again_is_what_pytest_reads(tmp_path):
    options = RunOptions(
        thresholds=tmp_path / "a b.yaml", partition="gpu", setup=("module load x", "ulimit -l"),
        allow_destructive=True, nodelist="worker[0-3]", time_limit=30,
    )  # fmt: skip
    assert needed_again(RunOptions()) == ()
    assert set(NEEDED_AGAIN) <= set(RunOptions.__dataclass_fields__)
    command = RunCommand("/runs/it's here", needed_again(options)).completed(RESUME)
    (pasted,) = PRINTED.findall(command)
    again = parsed(pasted)
    assert again.resume == Path("/runs/it's here")
    assert needed_again(again) == needed_again(options)


@pytest.fixture(scope="module")
def red(tmp_path_factory) -> Path:
    """A run with a slow GPU and a lost record, that was made in a folder with a blank."""
    root = tmp_path_factory.mktemp("it is") / "run"
    derive_runs.derive(support.DATA / "sandbox-2x2-cpu", root, "slow-gpu")
    (root / "records" / "memory@worker0.json").unlink()
    with support.edited(root / "run.json") as run:
        run |= {"path": "/shared/my runs/7", "options": ["--partition=gpu"]}
    support.judged(root, root.parent / "judged")
    made = RunDirectory(root.parent / "judged")
    artefacts = Artefacts(made, read_json(made.verdict))
    for name in artefacts.names:
        artefacts.write(name)
    return made.root


def texts_of(root: Path) -> dict[str, str]:
    """All that people read of a run, as they read it."""
    verdict = read_json(root / "verdict.json")
    with (root / "results.csv").open(newline="", encoding="utf-8") as file:
        cells = "\n".join(row["next_step"] for row in csv.DictReader(file))
    return {
        "verdict.json": "\n".join(v["next_step"] for v in verdict["criteria"]),
        "report.html": html.unescape(html.unescape((root / "report.html").read_text())),
        "junit.xml": html.unescape((root / "junit.xml").read_text()),
        "node-reasons.txt": (root / "node-reasons.txt").read_text(),
        "results.csv": cells,
        "annotations": "\n".join(github.annotate(verdict)),
        "summary": html.unescape(github.markdown(verdict)),
    }


def test_every_file_names_the_run_s_path_and_no_placeholder(red):
    path = "'/shared/my runs/7' --partition=gpu"
    for name, text in texts_of(red).items():
        assert PLACEHOLDER.findall(text) == [], name
        printed = [c.replace('\\"', '"') for c in PRINTED.findall(text)]
        if name not in ("node-reasons.txt", "summary"):  # these say why, not what to do
            assert printed, name
        assert [c for c in printed if f"={path}" not in c] == [], name


def test_the_command_of_a_failure_selects_its_row_and_reads_its_run(red):
    verdict = read_json(red / "verdict.json")
    (row,) = [v for v in verdict["criteria"] if v["outcome"] == "FAIL"]
    (command,) = PRINTED.findall(row["next_step"])
    options = parsed(command)
    assert (options.retest, options.partition) == (Path("/shared/my runs/7"), "gpu")
    assert shlex.split(command)[-2:] == ["-k", row["subject"]]


def test_no_next_step_of_the_judge_is_left_without_the_path():
    command = RunCommand("/runs/7")
    for text in NEXT_STEP.values():
        assert PLACEHOLDER.findall(command.completed(text)) == []


def test_a_printed_command_goes_on_with_the_run_when_it_is_pasted(tmp_path):
    """Printed by a replay, in a terminal; of a run on this host, in a folder with a blank."""
    root = tmp_path / "the runs" / "first"
    limits = tmp_path / "my limits.yaml"
    limits.write_text(f"schema: 1\nbase: {support.SHIPPED}\n")
    only = ("--tier", "probe", "-k", "environment", "-q", "-p", "no:html")
    first = support.run_pytest(
        "--cluster", "local", f"--run-dir={root}", f"--thresholds={limits}", *only
    )
    assert first.returncode == 0, first.stdout + first.stderr
    (record,) = (root / "records").glob("environment@*.json")
    record.unlink()
    shutil.rmtree(root / "jobs")  # what the ranks wrote would make it again
    judged_runs.end_on_this_evidence(root)
    RunDirectory(root).write_manifest()  # as of a run that never had it
    again = support.run_pytest(
        "--cluster", "replay", f"--from={root}", f"--run-dir={tmp_path / 'again'}",
        f"--thresholds={limits}", *only[2:],
    )  # fmt: skip
    assert again.returncode == 2
    commands = set(PRINTED.findall(" ".join(again.stdout.split())))
    (command,) = commands
    assert shlex.split(command)[2:] == [
        "multinode", f"--resume={root}", f"--thresholds={limits}",
    ]  # fmt: skip
    pasted = command.replace("pytest", f"{sys.executable} -m pytest", 1)
    done = subprocess.run(
        ["bash", "-c", f"{pasted} --ignore=tests/selftests -q -p no:html -p no:cacheprovider"],
        cwd=support.CHECKOUT, capture_output=True, text=True, timeout=900,
        env={k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "SLURM_"))},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(record.parent.glob("environment@*.json")), "by the number of a new attempt"
    assert read_json(root / "run.json")["path"] == str(root)
