"""A row of the drill table: a fault put in below the workload, and who must be named for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fixtures.sandbox import Sandbox, emulation
from fixtures.sandbox.processes import run as command
from tests.selftests import support
from tests.selftests.sandboxes import refuse

Inject = Callable[[Sandbox], AbstractContextManager[Any]]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault; what `inject` gives, if anything, are more arguments for pytest."""

    criterion: str
    name: str
    where: str
    culprit: str
    """The node that must be named, or the nodes."""
    inject: Inject
    select: str
    """What `pytest -k` takes: the tests of that area."""
    says: str = ""
    """What the red line must say, as far as it matters."""
    device: str = ""
    """The GPU (UUID) or the port that must be named, where the fault is in one."""
    destructive: bool = False
    """It shows in jobs that are made to fail: only the tests that `select` takes, in minutes."""
    alone: bool = False
    """Its sandbox is too large, or too slow, for all tests: only those that `select` takes."""
    also: tuple[str, ...] = ()
    """Criteria that the same fault breaks as well; every other row must not be red."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run of pytest made of a fault."""

    named: tuple[str, ...]
    """The nodes named by the red rows of the fault's criterion."""
    devices: tuple[str, ...]
    """What else they name: GPUs by UUID, ports, facts."""
    lines: tuple[str, ...]
    others: tuple[str, ...]
    """Red rows that the fault does not explain: criterion and subject."""
    rows: list[dict[str, Any]]
    said: str


def emulated(**shape: Any) -> Any:
    """Return a fixture: a sandbox of this shape with emulated GPUs, for the tests of one module.

    It skips with the reason where there can be none, and fails where there must be one.
    """

    @pytest.fixture(scope="module")
    def up(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
        refuse(request, Sandbox.refusal() or emulation.refusal())
        with Sandbox.up(**shape) as sandbox:
            yield sandbox

    return up


def named(found: Outcome, fault: Fault) -> None:
    """Hold that the fault's node and part are named in its words, and nothing else is red."""
    assert found.named == (fault.culprit,), found.said
    assert fault.says in found.lines[0], found.lines
    assert found.others == ()
    red = {r["criterion"] for r in found.rows if r["outcome"] == "FAIL"}
    assert red == {fault.criterion, *fault.also}
    if fault.device:
        assert found.devices == (fault.device,)


@contextmanager
def bound(sandbox: Sandbox, node: str, files: Mapping[str, Path]) -> Iterator[None]:
    """Show on the node, at each place of `files`, the file or folder that it names there."""
    with ExitStack() as undo:
        for place, shown in files.items():
            bind = ("mount", "--bind", str(shown), place)
            command(sandbox.inside(node, *bind), env=sandbox.environ)
            undo.callback(command, sandbox.inside(node, "umount", place), env=sandbox.environ)
        yield


def drill(
    sandbox: Sandbox, fault: Any, into: Path, *, whole: bool = False, training: bool = True
) -> Outcome:
    """Put the fault in, run the tests of its area (or all of them), take the fault out again."""
    destructive = getattr(fault, "destructive", False)
    selected_only = not whole or destructive or getattr(fault, "alone", False)
    selected = ["-k", fault.select] if selected_only else []
    selected += ["--allow-destructive"] if destructive else []
    # What is made to fail is a training.
    marks = "multinode" if training or destructive else "multinode and not training"
    with fault.inject(sandbox) as more:
        arguments = [*more] if isinstance(more, (list, tuple)) else []
        run = support.run_pytest(
            "-m", marks, "-q", *selected, "--cluster", "slurm", f"--run-dir={into}",
            *arguments, timeout_s=600 if destructive or whole else 180, **sandbox.env,
        )  # fmt: skip
    verdict = into / "verdict.json"
    assert verdict.exists(), run.stdout + run.stderr
    rows = json.loads(verdict.read_text(encoding="utf-8"))["criteria"]
    red = [r for r in rows if r["outcome"] == "FAIL"]
    mine = [r for r in red if r["criterion"] == fault.criterion]
    explained = {fault.criterion, *getattr(fault, "also", ())}
    return Outcome(
        named=tuple(sorted({(r["worst"] or {}).get("node") or r["subject"] for r in mine})),
        devices=tuple(sorted({w for r in mine if (w := _device(r["worst"] or {}))})),
        lines=tuple(f"{r['value']} {'; '.join(r['notes'])}" for r in mine),
        others=tuple(
            f"{r['criterion']} {r['subject']}"
            for r in red
            if r["criterion"] not in explained
            or r["subject"] not in (*fault.culprit.split(), "cluster")
        ),
        rows=rows,
        said=run.stdout + run.stderr,
    )


def _device(worst: dict[str, Any]) -> str:
    return str(worst.get("part") or worst.get("uuid") or "")
