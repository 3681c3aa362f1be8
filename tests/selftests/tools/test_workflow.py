"""The blocks of the workflows run as they stand, and the jobs that each event starts are known."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fixtures.paths import CHECKOUT
from fixtures.sandbox.errors import SandboxError
from fixtures.sandbox.tools import check_host
from tests.tools import workflow

pytestmark = pytest.mark.cpu

TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in workflow.WORKFLOWS.glob("*.yml")}
RECORD = '#!/bin/sh\necho "$(basename "$0") $*" >> "$RECORD"\n'
READS = f"{RECORD}[ $1 != login ] || cat > /dev/null\n[ $1 != inspect ] || echo name@sha256:1\n"
DRY = f'{RECORD}exec /usr/bin/env -u MAKEFLAGS "$MAKE_OF_HOST" -C "$CHECKOUT" --dry-run "$@"\n'
"""make says what it would do: each target and each variable is there."""


def carried_out(todo: list[workflow.Block], folder: Path) -> list[str]:
    """Run blocks by `bash -e` with stand-ins for what acts on the world; return what was called."""
    record, programs = folder / "record", folder / "programs"
    for name in ("gh", "pipx", "pip-audit", "chown"):
        workflow.program(programs / name, RECORD)
    workflow.program(programs / "docker", READS)
    workflow.program(programs / "make", DRY)
    workflow.program(programs / "sudo", workflow.SUDO)
    workflow.program(folder / ".venv" / "bin" / "python", RECORD)
    path = f"{programs}:{os.environ['PATH']}"
    given = {"PATH": path, "RECORD": str(record), "CHECKOUT": str(CHECKOUT), "HOME": str(folder),
             "MAKE_OF_HOST": shutil.which("make") or "make"}  # fmt: skip
    for block in todo:
        (folder / "block").write_text(block.script)
        env = {**workflow.environment(block, str(folder)), **given}
        argv = ["bash", "-e", str(folder / "block")]
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, (block, done.stdout, done.stderr)
    return record.read_text().splitlines()


def calls(name: str, job: str, folder: Path, text: str = "") -> list[str]:
    return carried_out([b for b in workflow.blocks(text or TEXTS[name]) if b.job == job], folder)


JOBS = [(name, job) for name, text in TEXTS.items()
        for job in dict.fromkeys(b.job for b in workflow.blocks(text))]  # fmt: skip


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_every_block_runs_to_its_end(name, job, tmp_path):
    called = calls(name, job, tmp_path)
    check_calls(job, called)


EXPECTED = {
    "lint": ["make lint"],
    "cpu": ["make test ARGS=--junitxml=junit.xml"],
    "sandbox": ["make accept ARGS=--cluster sandbox", "chown", "python -m reports summary"],
    "bare": ["make test-bare"],
    "image": ["make image IMAGE=acceptance:test", "make test-image IMAGE=acceptance:test"],
    "publish": ["make image IMAGE=acceptance:test", "make test-image IMAGE=acceptance:test",
                "docker login ghcr.io", "docker push", "docker inspect", "docker logout",
                "make sbom"],
    "release": ["gh release create v1.0.0 --repo Owner/Name"],
    "known-faults": ["pipx install pip-audit", "pip-audit --requirement constraints.txt"],
}  # fmt: skip
"""Job -> what its blocks must call, in this order; a step that is taken out is seen."""


def check_calls(job: str, called: list[str]) -> None:
    left = iter(called)
    missing = [e for e in EXPECTED[job] if not any(c.startswith(e) for c in left)]
    assert missing == [], called


def test_what_is_published_is_what_was_tried(tmp_path):
    """TORCH_INDEX is the workflow's unless a block says otherwise: the two blocks agree on it."""
    for job in ("image", "publish"):
        folder = tmp_path / job
        folder.mkdir()
        words = [set(shlex.split(c)[2:]) for c in calls("ci", job, folder)
                 if re.match("make (test-)?image ", c)]  # fmt: skip
        assert len(words) == 2
        assert words[0] == words[1], job


# --- the graph of the jobs


def holds(condition: str, event: str, ref: str) -> bool:
    """Whether an `if:` of a job holds for an event: comparisons of github.* with && and ||."""
    text = re.sub(r"\s+", " ", condition).replace("&&", "and").replace("||", "or")
    text = re.sub(r"startsWith\((\S+), '(\S+)'\)", r"\1.startswith('\2')", text)
    text = text.replace("github.event_name", repr(event)).replace("github.ref", repr(ref))
    assert re.fullmatch(r"(and|or|startswith|'[\w/.]*'|[ =().])+", text), f"not read: {text}"
    return bool(eval(text))  # checked above: nothing but texts and comparisons


def started(text: str, event: str, ref: str) -> set[str]:
    """The jobs that an event starts: a job that needs one which is left out is left out too."""
    jobs = yaml.safe_load(text)["jobs"]
    found: set[str] = set()
    waiting = dict(jobs)
    while ready := [n for n, j in waiting.items() if not {*j.get("needs", [])} & {*waiting}]:
        for name in ready:
            job = waiting.pop(name)
            if {*job.get("needs", [])} <= found and holds(job.get("if", "'' == ''"), event, ref):
                found.add(name)
    assert not waiting, f"a circle, or a job that is not there: {waiting}"
    return found


TRIED = {"lint", "cpu", "sandbox", "bare"}


def check_graph(text: str) -> None:
    """What is started when, and that nothing is published before all that is tried has passed."""
    whole = yaml.safe_load(text)
    assert started(text, "pull_request", "refs/pull/1/merge") == TRIED | {"image"}
    assert started(text, "push", "refs/heads/develop") == TRIED
    assert started(text, "push", "refs/heads/main") == TRIED | {"publish"}
    assert started(text, "push", "refs/tags/v1") == TRIED | {"publish", "release"}
    assert {*whole["jobs"]["publish"]["needs"]} == TRIED
    assert whole["jobs"]["release"]["needs"] == ["publish"]
    assert whole[True]["push"] == {"branches": ["main", "develop"], "tags": ["v*"]}
    assert whole[True]["pull_request"] == {"branches": ["main"]}


def test_an_event_starts_the_jobs_that_it_should():
    check_graph(TEXTS["ci"])


def test_every_job_runs_in_a_bare_root_or_says_where_else():
    jobs = {job for _, job in JOBS}
    assert set(workflow.ELSEWHERE) < jobs
    assert jobs - set(workflow.ELSEWHERE) == {"lint", "sandbox"}


CHANGED = [
    ("      - run: make test-image IMAGE=acceptance:test TORCH_INDEX=\n", "", "publish"),
    ("needs: [lint, cpu, sandbox, bare]", "needs: [lint, cpu, sandbox]", "graph"),
    ("needs: [lint, cpu, sandbox, bare]", "needs: [lint, cpu, sandbox, image]", "graph"),
    ("make lint", "make lynt", "lint"),
    ("          sudo chown -R \"$(id -u):$(id -g)\" run .venv\n", "", "sandbox"),
    ("tags: [\"v*\"]", "tags: [\"release-*\"]", "graph"),
    ("docker logout ghcr.io", "docker logout $(", "publish"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "where"), CHANGED)
def test_a_changed_workflow_is_seen(old, new, where, tmp_path):
    assert TEXTS["ci"].count(old) >= 1
    text = TEXTS["ci"].replace(old, new)
    seen = (
        (lambda: check_graph(text))
        if where == "graph"
        else (lambda: check_calls(where, calls("ci", where, tmp_path, text)))
    )
    with pytest.raises(AssertionError):
        seen()


# --- in a bare Debian


@pytest.mark.slow
@pytest.mark.waits("a bare Debian is made, and a job of the workflow runs in it from the start")
@pytest.mark.parametrize("job", ["lint", "sandbox"])
def test_a_job_passes_in_a_bare_root(job):
    try:
        check_host()
    except SandboxError as error:
        pytest.skip(str(error))
    assert workflow.main([job]) == 0
