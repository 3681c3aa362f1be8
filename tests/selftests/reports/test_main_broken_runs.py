"""Every `python -m reports` command on something that is not a run: one line, no traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.errors import ConfigError
from reports import __main__ as command
from tests.selftests import support

pytestmark = pytest.mark.cpu

WHOLE = support.DATA / "h200-1x2-training"


def empty(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


def missing(root: Path) -> None:
    shutil.rmtree(root)


def a_file(root: Path) -> None:
    shutil.rmtree(root)
    root.write_text("{}")


def no_verdict(root: Path) -> None:
    (root / "verdict.json").unlink()


def no_records(root: Path) -> None:
    shutil.rmtree(root / "records")


def records_are_a_file(root: Path) -> None:
    no_records(root)
    (root / "records").write_text("")


def written(name: str, text: str) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        (root / name).unlink()
        (root / name).write_text(text)

    return write


def folder(name: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        (root / name).unlink()
        (root / name).mkdir()

    return make


BROKEN: dict[str, Callable[[Path], None]] = {
    "empty directory": empty,
    "no directory": missing,
    "a file": a_file,
    "no verdict.json": no_verdict,
    "no records": no_records,
    "records are a file": records_are_a_file,
    "a verdict that is a list": written("verdict.json", "[]"),
    "a verdict that is no JSON": written("verdict.json", "{"),
    "a verdict without rows": written("verdict.json", '{"verdict": "ACCEPTED"}'),
    "a verdict whose rows are none": written(
        "verdict.json",
        json.dumps({"run_id": "x", "verdict": "ACCEPTED", "exit_status": 0, "reasons": [],
                    "scope": {}, "counts": {}, "criteria": [[], 3, {}]}),
    ),
    "a verdict that is a folder": folder("verdict.json"),
    "a run.json that is a list": written("run.json", "[]"),
    "a run.json that is no JSON": written("run.json", "{"),
    "a run.json of nothing": written("run.json", "{}"),
    "a run.json without a population": written("run.json", '{"schema": 2, "id": "x"}'),
    "a run.json that is a folder": folder("run.json"),
}  # fmt: skip
COMMANDS: dict[str, list[str]] = {
    "render": ["render", "RUN"],
    "judge": ["judge", "RUN", "--thresholds", str(support.SHIPPED), "--run-dir", "INTO"],
    "tables": ["tables", "RUN"],
    "sign": ["sign", "RUN", "--key", "no-key"],
    "verify": ["verify", "RUN"],
    "rejudge": ["rejudge", "RUN"],
    "export": ["export", "RUN", "--json"],
    "compare": ["compare", "RUN", "WHOLE"],
    "compare with it": ["compare", "WHOLE", "RUN"],
    "watch": ["watch", "RUN", "--once"],
    "summary": ["summary", "--github", "RUN"],
    "calibrate": ["calibrate", "RUN", "--out", "OUT"],
}
FINE = {
    ("tables", "no verdict.json"), ("tables", "no records"),
    *(("tables", name) for name in BROKEN if "run.json without" in name),
    *(("watch", name) for name in BROKEN if "verdict" in name or name == "no records"),
    ("watch", "a run.json without a population"),
    *((f"compare{which}", f"{what}") for which in ("", " with it")
      for what in ("no records", "a run.json without a population")),
}  # fmt: skip
"""What needs nothing of what is missing."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "run"
    shutil.copytree(WHOLE, root)
    support.judged(root, root.parent / "judged")
    shutil.copy(root.parent / "judged" / "verdict.json", root)
    return root


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """What a replay says, without the process in which it runs."""

    def replay(source: Path, into: Path, *_: str) -> dict:
        try:
            return support.judged(source, into)[1]
        except ConfigError as error:
            raise command.CommandError(str(error)) from None

    monkeypatch.setattr(command, "_replay", replay)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_run_is_one_line(whole, broken, name, tmp_path, capsys):
    root = tmp_path / "run"
    shutil.copytree(whole, root)
    BROKEN[broken](root)
    words = {"RUN": str(root), "WHOLE": str(whole), "INTO": str(tmp_path / "into"),
             "OUT": str(tmp_path / "proposal.yaml")}  # fmt: skip
    status = command.main([words.get(word, word) for word in COMMANDS[name]])
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    if name == "verify" and said.out:
        assert status == 1
        assert "WRONG" in said.out
        return
    if name in ("judge", "render") and status in (0, 1, 2):
        return  # it needs the records only, and says what is missing of them
    if name == "calibrate" and "left no proposal" in said.err:
        return  # the replay in its own process would have made one
    if (name, broken) in FINE:
        assert status in (0, 2), said
        return
    assert status in (command.INCOMPLETE, command.USAGE), said
    line = said.out if name == "summary" else said.err
    assert line.startswith("::error title=" if name == "summary" else "reports"), said
    assert line.count("\n") == 1, line
