"""The whole path on a real Slurm: a healthy run, and what submits nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox
from fixtures.thresholds import loader
from fixtures.verdict.model import Outcome
from reports.evidence import rejudge
from tests.selftests.sandboxes import (
    CHECKOUT,
    NODES_ONLY,
    Finished,
    ledger,
    measured,
    on,
    suite,
)
from tests.tools import schemas, soak

pytestmark = pytest.mark.cpu

FIELDS = {
    "criterion", "subject", "outcome", "value", "unit", "limit", "ceiling", "margin", "worst",
    "devices", "reason", "next_step", "record", "attempt", "notes",
}  # fmt: skip
"""Of a criterion in verdict.json (DESIGN.md 6): an interface to other tools."""

WITHOUT_TORCH = """\
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "pynvml"):
            print("IMPORTED", name, flush=True)
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


# --- a healthy cluster


def test_a_second_judge_agrees_and_every_file_has_its_schema(healthy: Finished) -> None:
    run = read_json(RunDirectory(healthy.root).run_json)
    limits = loader.load_with_contract(CHECKOUT / "thresholds.yaml", run["contract"])
    assert rejudge.compare(healthy.root, limits).wrong == []
    assert list(schemas.problems(healthy.root)) == []


def test_a_healthy_sandbox_is_a_demonstration(healthy: Finished) -> None:
    healthy.ended_as("DEMONSTRATION", 0)
    counts = healthy.verdict["counts"]
    assert counts["not_measured"] == counts["fail"] == counts["waived"] == 0
    assert counts["pass"] + counts["recorded"] + counts["not_applicable"] == counts["planned"]
    assert healthy.verdict["scope"]["whole"] is True
    passed = {key[0] for key, outcome in healthy.outcomes.items() if outcome == "PASS"}
    criteria = loader.load(CHECKOUT / "thresholds.yaml").criteria
    areas = {key.partition(".")[0] for key, c in criteria.items() if c.tier == "standard"}
    elsewhere = {"hostcopy", "p2p", "crosscheck", "rails_nic", "wiring"}
    assert areas >= elsewhere, "what needs real GPUs, a rack of them, or leaf switches"
    assert {name.partition(".")[0] for name in passed} == areas - elsewhere


@pytest.mark.slow
def test_another_measurement_of_rates_accuses_nobody_either(
    healthy: Finished, tmp_path: Path
) -> None:
    rates = "tests/test_compute.py", "tests/test_memory.py"
    again = soak.one_run(tmp_path / "again", (*soak.SANDBOX, *rates, "-k", "bf16 or triad"))
    # Other tests take this host's two cores away for seconds: a rate that then swings is not
    # measured, and accuses nobody. The runs of `tests.tools.soak` have the host to themselves.
    accused = [line for line in again.red if not line.startswith("NOT_MEASURED")]
    swings = [line for line in again.red if ": unstable: " in line]
    assert accused == []
    assert list(again.red) == swings
    assert again.verdict == ("INCOMPLETE" if swings else "DEMONSTRATION")
    assert again.passed + len(swings) >= 4
    assert again.limits == read_json(healthy.directory.run_json)["thresholds"]["sha256"]


@pytest.mark.slow
def test_the_second_healthy_run_accuses_nobody_either(healthy: Finished, tmp_path: Path) -> None:
    again = soak.one_run(tmp_path / "again")
    assert (again.verdict, again.red) == ("DEMONSTRATION", ())
    assert again.passed == healthy.verdict["counts"]["pass"]
    assert again.limits == read_json(healthy.directory.run_json)["thresholds"]["sha256"]


def test_the_run_directory_holds_every_file(healthy: Finished) -> None:
    names = ("run.json", "ledger.jsonl", "verdict.json", "report.html", "junit.xml", "results.csv",
             "good-nodes.txt", "bad-nodes.txt", "manifest.sha256")  # fmt: skip
    assert [n for n in names if not (healthy.root / n).is_file()] == []
    assert (healthy.root / "good-nodes.txt").read_text() == "worker0\nworker1\n"
    assert (healthy.root / "bad-nodes.txt").read_text() == ""
    assert healthy.root.stat().st_mode & 0o777 == 0o700
    records = {p.name for p in healthy.directory.records.iterdir()}
    for workload in ("inventory", "environment", "gemm", "allreduce"):
        assert {f"{workload}@worker0.json", f"{workload}@worker1.json"} <= records
    assert {"connectivity@all.json", "allreduce@all.json", "slurm@login.json"} <= records
    for job, ranks in (("node-worker0", 2), ("node-worker1", 2), ("cluster", 4)):
        files = healthy.directory.job(job)
        assert [p.name for p in sorted(files.glob("rank*.jsonl"))] == [
            f"rank{k}.jsonl" for k in range(ranks)
        ]
    assert set(measured(healthy.directory).values()) == {1}


def test_the_manifest_verifies(healthy: Finished) -> None:
    check = subprocess.run(
        ["sha256sum", "--check", "--strict", "manifest.sha256"],
        cwd=healthy.root, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert check.returncode == 0, check.stdout + check.stderr
    covered = (healthy.root / "manifest.sha256").read_text()
    for name in ("run.json", "ledger.jsonl", "records/gemm@worker0.json"):
        assert f"  {name}\n" in covered


def test_verdict_json_has_every_field_of_the_interface(healthy: Finished) -> None:
    verdict = healthy.verdict
    assert {"schema", "run_id", "verdict", "exit_status", "scope", "counts", "criteria"} <= set(
        verdict
    )
    assert set(verdict["counts"]) == {
        "planned", "pass", "fail", "not_measured", "not_applicable", "waived", "recorded",
    }  # fmt: skip
    for row in verdict["criteria"]:
        assert set(row) >= FIELDS
        assert row["outcome"] in set(Outcome)
        if row["outcome"] == "PASS":
            assert row["devices"]["planned"] == row["devices"]["measured"] > 0
            assert (healthy.directory.records / row["record"]).is_file()
            assert row["value"] is not None
            assert row["limit"]
        else:
            assert row["reason"]


def test_the_ledger_says_each_verdict_once_and_how_it_ended(healthy: Finished) -> None:
    lines = ledger(healthy.directory)
    said = [(n["criterion"], n["subject"]) for n in lines if n["event"] == "verdict"]
    assert sorted(said) == sorted(healthy.rows)
    assert [n["verdict"] for n in lines if n["event"] == "end"] == ["DEMONSTRATION"]
    assert lines[-1]["event"] == "end"


def test_the_stages_follow_each_other(healthy: Finished) -> None:
    """No job of a later stage starts before every job of the one before has delivered."""
    jobs = {p.parent.name: read_json(p) for p in healthy.directory.jobs.glob("*/job.json")}
    nodes = [jobs[f"node-worker{k}"] for k in range(2)]
    assert jobs["cluster"]["submitted"] >= max(job["ended"] for job in nodes)
    assert {job["state"] for job in jobs.values()} == {"COMPLETED"}


# --- what submits nothing


@pytest.mark.parametrize("option", ["--collect-only", "--plan"])
def test_what_only_shows_makes_no_run_and_starts_no_sandbox(
    option: str, checkout: Path, tmp_path: Path
) -> None:
    """With nothing but Python on the PATH a sandbox could not even be tried."""
    runs = checkout / "reports" / "runs"
    (runs / "earlier").mkdir(parents=True, exist_ok=True)
    link = runs / "latest"
    link.unlink(missing_ok=True)
    link.symlink_to("earlier")
    run = tmp_path / "run"
    empty = tmp_path / "bin"
    empty.mkdir()
    shown = suite(checkout, run, "-m", "multinode", "--cluster", "sandbox", option,
                  env={"PATH": str(empty)})  # fmt: skip
    assert shown.status == 0, shown.said
    assert ("test_a_small" if option == "--collect-only" else "GPU-hours") in shown.said
    assert not run.exists()
    assert {p.name for p in runs.iterdir()} == {"earlier", "latest"}
    assert link.readlink() == Path("earlier")


def test_the_login_side_imports_neither_torch_nor_pynvml(
    healthy: Finished, checkout: Path, tmp_path: Path
) -> None:
    for arguments in (
        ["--collect-only", "--cluster", "sandbox"],
        ["--cluster", "replay", f"--from={healthy.root}", f"--run-dir={tmp_path / 'again'}"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH, "-q", "-p", "no:cacheprovider", "-m", "multinode",
             *arguments],
            cwd=checkout, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "IMPORTED" not in done.stdout + done.stderr
    judged = Finished(0, "", RunDirectory(tmp_path / "again"))
    assert judged.outcomes == healthy.outcomes


def test_submitting_imports_neither_torch_nor_pynvml(
    shared_sandbox: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "-q", "-p", "no:cacheprovider", "-m", "multinode",
         f"--run-dir={tmp_path / 'run'}", *NODES_ONLY],
        cwd=checkout, env=env | on(shared_sandbox), capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "IMPORTED" not in done.stdout + done.stderr
