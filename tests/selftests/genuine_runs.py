"""Runs with one thing wrong, with every file that a run leaves: what a forger begins with."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from fixtures.paths import THRESHOLDS, version
from fixtures.records.run_directory import RunDirectory
from fixtures.run import run as run_module
from fixtures.thresholds import loader
from reports import __main__ as command
from reports import artefacts, page
from tests.selftests import judged_runs, support
from tests.tools.fleet_run import Fleet

Json = Any
GREEN = ("PASS", "RECORDED", "NOT_APPLICABLE", "WAIVED")
SLOW_GPU = 1
"""The GPU of the second node that is slow in the first attempt of the base "failed once"."""
SLOW = "gemm@gpu0002"
LOST = "memory@gpu0001"


# --- genuine runs


def _ordered(run: Json, ordered: Mapping[str, Any]) -> str:
    """The text of a customer's limits file: the shipped one with the order of the run."""
    order = {k: v for k, v in run["contract"].items() if v is not None} | dict(ordered)
    text = THRESHOLDS.read_text(encoding="utf-8")
    assert text.count("\ncluster: {}\n") == 1
    return text.replace("\ncluster: {}\n", f"\ncluster: {json.dumps(order)}\n")


def _slow_gpu(root: Path) -> None:
    """One GPU is slow in the first attempt, and well in the second."""
    path = root / "records" / f"{SLOW}.json"
    later = shutil.copy(path, path.with_name(f"{SLOW}.attempt2.json"))
    with support.edited(later) as record:
        record["attempt"] = 2
        for rank in record["ranks"]:
            for m in rank["measurements"]:
                # Another attempt measures other numbers.
                if m.get("samples"):
                    m["samples"] = [x * 1.0001 for x in m["samples"]]
    with support.edited(path) as record:
        for m in record["ranks"][SLOW_GPU]["measurements"]:
            if m.get("samples") and m["unit"] != "MHz":
                m["samples"] = [x * 0.7 for x in m["samples"]]


def _lost_record(root: Path) -> None:
    """The job of one record failed."""
    workload, placement = LOST.split("@")
    (root / "records" / f"{LOST}.json").unlink()
    run = json.loads((root / "run.json").read_text(encoding="utf-8"))
    line = {
        "schema": 1, "workload": workload, "placement": placement, "attempt": 1,
        "kind": "job failed", "reason": "it ended with exit status 1", "job": "7",
        "nonce": run["nonce"],
    }  # fmt: skip
    (root / "jobs" / "missing.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")


BASES: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "failed once": (_slow_gpu, {}),
    "not measured": (_lost_record, {}),
    "faster NICs ordered": (lambda root: None, {"nic_gbps": 800.0}),
}
"""Name -> what is wrong with the run, and what its order asks for beside what it has."""


HEALTHY: tuple[Callable[[Path], None], dict[str, Any]] = (lambda root: None, {})


@dataclass
class Genuine:
    """A run directory with all that a run leaves, and what the suite says of it."""

    root: Path
    limits: Path
    healthy: Path
    """A run of the same nodes with nothing wrong."""
    status: int = -1
    rows: dict[tuple[str, str], str] | None = None

    @classmethod
    def make(cls, base: str, folder: Path) -> Genuine:
        """Write the run of one base; call within `tools`."""
        healthy = cls.made(*HEALTHY, folder / "healthy", folder / "none")
        genuine = cls.made(*BASES[base], folder / "run", healthy.root)
        assert genuine.rows is not None
        assert set(genuine.rows.values()) - set(GREEN), "something is wrong with it"
        return genuine

    @classmethod
    def made(
        cls, plant: Callable[[Path], None], ordered: dict[str, Any], root: Path, healthy: Path
    ) -> Genuine:
        limits = root.with_suffix(".yaml")
        root.parent.mkdir(parents=True, exist_ok=True)
        Fleet(root, 2, 2).write()
        plant(root)
        with support.edited(root / "run.json") as run:
            limits.write_text(_ordered(run, ordered), encoding="utf-8")
            loaded = loader.load(limits)
            assert loaded.cluster is not None
            run["thresholds"] = {"sha256": loaded.sha256, "path": str(limits)}
            run["contract"] = loaded.cluster.model_dump(mode="json")
            run["population"] |= ordered
            run["versions"] |= run_module.PAGE_VERSIONS
            run |= {"suite_version": version(), "path": str(root), "options": []}
        genuine = cls(root, limits, healthy)
        genuine._write_ledger(root.with_suffix(".judged"))
        genuine.made_anew(root)
        genuine.status, lines = genuine.verified(root)
        assert genuine.status == 0, lines
        genuine.rows = rows_of(root)
        return genuine

    def _write_ledger(self, folder: Path) -> None:
        """Write what the run would have noted: the verdicts after each attempt."""
        last = self.root / "records" / f"{SLOW}.attempt2.json"
        content = last.read_bytes() if last.exists() else None
        lines = b""
        if content is not None:
            last.unlink()
            support.judged(self.root, folder / "first", self.limits)
            lines = (folder / "first" / "ledger.jsonl").read_bytes()
            last.write_bytes(content)
        support.judged(self.root, folder / "last", self.limits)
        lines += (folder / "last" / "ledger.jsonl").read_bytes()
        (self.root / "ledger.jsonl").write_bytes(lines)
        shutil.copy(folder / "last" / "limits.csv", self.root)

    def made_anew(self, root: Path, *, verdict: bool = True) -> None:
        """Let the suite write all that follows from the evidence; `verdict`: verdict.json too."""
        directory = RunDirectory(root)
        directory.write_manifest()
        if verdict:
            directory.verdict.unlink(missing_ok=True)
            said = self._run("render", root)
            assert said[0] in (0, 1, 2), said
            return
        stated = json.loads(directory.verdict.read_text(encoding="utf-8"))
        made = artefacts.Artefacts(directory, stated, self.limits)
        for name in made.names:
            made.write(name)

    def verified(self, root: Path, *more: str) -> tuple[int, list[str]]:
        return self._run("verify", root, *more)

    def signed(self, key: Path) -> int:
        return self._run("sign", self.root, f"--key={key}")[0]

    def _run(self, what: str, root: Path, *more: str) -> tuple[int, list[str]]:
        out = StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            status = command.main([what, str(root), f"--thresholds={self.limits}", *more])
        return status, out.getvalue().splitlines()

    def gained(self, root: Path) -> tuple[list[str], list[str]]:
        """What a forgery at `root` gains in rows that nobody objects to, and what is said of it."""
        status, lines = self.verified(root)
        assert self.rows is not None
        if status != self.status:
            return [], lines
        before, now = not_green(self.rows), not_green(rows_of(root))
        return [
            f"{criterion}: {number} rows are not green, {now[criterion]} in the forged run"
            for criterion, number in before.items()
            if now[criterion] < number
        ], lines


def not_green(rows: Mapping[tuple[str, str], str]) -> Counter[str]:
    """Criterion -> rows of it that are not green, whatever the forger calls their subjects."""
    return Counter(criterion for (criterion, _), outcome in rows.items() if outcome not in GREEN)


def rows_of(root: Path) -> dict[tuple[str, str], str]:
    verdict = json.loads((root / "verdict.json").read_text(encoding="utf-8"))
    return {(row["criterion"], row["subject"]): row["outcome"] for row in verdict["criteria"]}


@contextmanager
def tools(folder: Path) -> Iterator[None]:
    """The commands in this process, and no report, which says nothing that is asked here."""

    def evidence(root: Path) -> str:
        return RunDirectory(root).manifest.read_text(encoding="utf-8")

    # `render` and `verify` judge the same evidence.
    with judged_runs.tools(folder / "replayed", evidence) as patch:
        patch.setitem(artefacts._MAKERS, page.NAME, lambda _: "")
        yield
