"""Runs with one thing wrong, with every file that a run leaves: what a forger begins with."""

from __future__ import annotations

import datetime
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from fixtures.cluster.population import Population
from fixtures.paths import THRESHOLDS, version
from fixtures.plan.items import planned_list
from fixtures.records.run_directory import RunDirectory
from fixtures.run import run as run_module
from fixtures.statistics.mtbf import Decision
from fixtures.thresholds import loader
from reports import __main__ as command
from reports.evidence import statement
from reports.pages import artefacts, certificate
from tests.selftests import judged_runs, support
from tests.selftests.fleets import as_attempt
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
    later = as_attempt(json.loads(path.read_text(encoding="utf-8")), 2)
    path.with_name(f"{SLOW}.attempt2.json").write_text(json.dumps(later), encoding="utf-8")
    with support.edited(path) as record:
        for m in record["ranks"][SLOW_GPU]["measurements"]:
            if m.get("samples") and m["unit"] != "MHz":
                m["samples"] = [x * 0.7 for x in m["samples"]]


def _lost_record(root: Path) -> None:
    """The job of one record failed."""
    (root / "records" / f"{LOST}.json").unlink()
    _write_missing(root, [(LOST, 1, "job failed")])


def _write_missing(root: Path, missing: Iterable[tuple[str, int, str]]) -> None:
    """Write missing.jsonl: of each line the name of the record, the attempt and the kind."""
    run = json.loads((root / "run.json").read_text(encoding="utf-8"))
    created = datetime.datetime.fromisoformat(run["created"]).timestamp()
    lines = []
    for name, attempt, kind in missing:
        workload, placement = name.split("@")
        lines.append({
            "schema": 1, "workload": workload, "placement": placement, "attempt": attempt,
            "kind": kind, "reason": "it ended with exit status 1", "job": str(6 + attempt),
            "nonce": run["nonce"], "time": created + 10 * attempt,
        })  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (root / "jobs" / "missing.jsonl").write_text(text, encoding="utf-8")


def _failed_burn_in(root: Path) -> None:
    """Ranks of a node died again and again in the burn-in of an order with an MTBF."""
    _write_missing(root, [("burnin@gpu0001", k, "rank died") for k in range(1, 31)])
    with support.edited(root / "run.json") as run:
        items = planned_list(
            loader.load(THRESHOLDS), Population.of_run(run).by_model(), tier="burnin",
            destructive=False, optional=(),
        )  # fmt: skip
        run |= {"tier": "burnin", "scope": [[*i.key] for i in items], "planned": len(items)}


BASES: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "failed once": (_slow_gpu, {}),
    "not measured": (_lost_record, {}),
    "faster NICs ordered": (lambda root: None, {"nic_gbps": 800.0}),
    "failed in the burn-in": (_failed_burn_in, {"mtbf_node_days": 0.0003}),
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
        """Write the run of one base below a folder in which others may be; within `tools`.

        The healthy run is that of all of them, as nothing changes it.
        """
        healthy = cls(folder / "healthy", folder / "healthy.yaml", folder / "none")
        if not healthy.root.exists():
            healthy = cls.made(*HEALTHY, folder / "healthy", folder / "none")
        genuine = cls.made(*BASES[base], folder / base.replace(" ", "-"), healthy.root)
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

    def copied(self, root: Path) -> Genuine:
        """A copy that may be changed."""
        return replace(self, root=Path(shutil.copytree(self.root, root, symlinks=True)))

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
        judged_runs.end_on_this_evidence(self.root)
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
    """Outcome of each row, and of the ordered MTBF, which has no row: it is not accepted where the
    verdict says that the run contradicts its evidence."""
    verdict = json.loads((root / "verdict.json").read_text(encoding="utf-8"))
    basis = verdict["basis"]
    rows = {(row["criterion"], row["subject"]): row["outcome"] for row in verdict["criteria"]}
    if mtbf := basis.get("mtbf"):
        accepted = mtbf["decision"] == Decision.ACCEPT and not basis.get("order")
        rows["mtbf", "run"] = "PASS" if accepted else "FAIL"
    return rows


@contextmanager
def tools(folder: Path) -> Iterator[None]:
    """The commands in this process, and of the pages an empty certificate: the forger makes them
    all anew, and nothing that is asked here is read from them."""

    def evidence(root: Path) -> str:
        return RunDirectory(root).manifest.read_text(encoding="utf-8")

    # `render` and `verify` judge the same evidence.
    with judged_runs.tools(folder / "replayed", evidence) as patch:
        patch.setattr(artefacts, "NAMES", (certificate.NAME, statement.NAME))
        patch.setattr(certificate, "page", lambda *_: "")
        yield
