"""Runs with verdict, pages and manifest, as if this version had made them; keys to sign them."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures.conclusion.run_verdict import RunVerdict, conclude
from fixtures.paths import version
from fixtures.records.evidence_digest import evidence_sha256
from fixtures.records.files import append_line
from fixtures.records.run_directory import RunDirectory
from fixtures.run.run import PAGE_VERSIONS
from fixtures.thresholds import loader
from fixtures.verdict.model import Verdict
from reports import __main__ as command
from tests.selftests import support


def judged_run(source: Path, into: Path) -> Path:
    """Copy a recorded run, judge it by the shipped limits, and render it."""
    root = Path(shutil.copytree(source, into))
    assert made_whole(root) in (0, 1, 2)
    return root


def made_whole(root: Path, **more: Any) -> int:
    """Judge the evidence at `root` by the shipped limits, and write all that a run leaves.

    `more`: what run.json says besides. Returns the status of `render`.
    """
    with support.edited(root / "run.json") as run:
        run["versions"] |= PAGE_VERSIONS
        run |= {"suite_version": version(), "thresholds": loader.load(support.SHIPPED).identity()}
        run |= more
    judged = root.with_name(f"{root.name}-judged")
    support.judged(root, judged)
    for name in ("limits.csv", "ledger.jsonl"):  # a run writes them while it goes on
        text = (judged / name).read_text(encoding="utf-8")
        # The judgement ended on its own copy of the evidence.
        text = re.sub(r', "evidence_sha256": "[0-9a-f]*"', "", text)
        (root / name).write_text(text, encoding="utf-8")
    if json.loads((root / "run.json").read_text(encoding="utf-8")).get("ended"):
        append_line(root / "ledger.jsonl", {"schema": 1, "event": "end", "interrupted": ""})
    (root / "jobs").mkdir(exist_ok=True)
    (root / "jobs" / "out.txt").write_text("what a rank printed\n")
    return command.main(["render", str(root)])


def end_on_this_evidence(root: Path) -> None:
    """Let the ledger of a run that was made by hand end on the evidence that is there."""
    directory = RunDirectory(root)
    *before, end = directory.ledger.read_text(encoding="utf-8").splitlines(keepends=True)
    line = json.loads(end)
    assert line["event"] == "end"
    line["evidence_sha256"] = evidence_sha256(directory)
    directory.ledger.write_text("".join(before) + json.dumps(line) + "\n", encoding="utf-8")


KEPT = 40
"""Judgements that are kept, of which each takes a megabyte or two."""


@contextmanager
def tools(folder: Path, name: Callable[[Path], str]) -> Iterator[pytest.MonkeyPatch]:
    """The suite's commands in this process; they judge evidence of one name once."""
    judged: dict[str, Path] = {}

    def replay(source: Path, into: Path, *options: str) -> Any:
        given = [o.partition("=")[2] for o in options if o.startswith("--thresholds=")]
        limits = Path(given[0]) if given else support.SHIPPED
        key = hashlib.sha256(f"{name(source)}{limits}".encode()).hexdigest()
        if key not in judged:
            if len(judged) == KEPT:
                shutil.rmtree(judged.pop(next(iter(judged))))
            try:
                support.judged(source, folder / key, limits)
            except Exception as error:
                shutil.rmtree(folder / key, ignore_errors=True)
                raise command.CommandError(str(error) or repr(error)) from error
            judged[key] = folder / key
        shutil.copytree(judged[key], into)
        return json.loads((into / "verdict.json").read_text(encoding="utf-8"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "load", functools.cache(loader.load))
        patch.setattr(command, "commit", lambda: None)
        patch.setattr(command, "_replay", replay)
        yield patch


def key_of(folder: Path, name: str = "key") -> Path:
    """A new key NAME, with NAME.pub beside it; the test is skipped where none can be made."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen on the PATH")
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
    subprocess.run(make, check=True)
    return folder / name


# --- runs in which nothing was measured


def concluded(rows: Sequence[Verdict], **given: Any) -> RunVerdict:
    """The verdict on a whole run over an ordered cluster with these rows."""
    settled = {"whole_scope": True, "ordered": True, "origin": "cluster", "demonstration": False}
    return conclude(rows, **{"planned": len(rows), **settled, **given})


def verdict_of(rows: Sequence[Verdict], *, interrupted: str = "", **scope: Any) -> Any:
    """Its verdict.json; `scope`: what it says of its nodes besides."""
    known = {"tier": "standard", "whole": True, "origin": "cluster", "gpus_per_node": 8,
             "gpu_model": "H200 SXM", "nodes": ["worker0", "worker1", "worker2"]}  # fmt: skip
    return {
        **vars(concluded(rows, interrupted=interrupted)), "schema": 1,
        "run_id": "20261120-141500-3fa2", "scope": known | scope,
        "criteria": [row.to_json() for row in rows],
    }  # fmt: skip


def written(root: Path, verdict: Any, **run: Any) -> RunDirectory:
    """A directory with these rows; `run`: what its run.json says."""
    said = {"schema": 2, "id": verdict["run_id"], "nonce": "n", **run}
    directory = support.run_directory(root, **said)
    directory.verdict.write_text(json.dumps(verdict), encoding="utf-8")
    return directory
