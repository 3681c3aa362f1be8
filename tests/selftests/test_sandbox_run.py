"""The whole path on a real Slurm: healthy, from everywhere and by everybody, and with nodes lost.

Faults are put in below the workload, and every one of them is then mended: `--resume` measures
what was missing and ends as a healthy run does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox
from fixtures.thresholds import loader
from fixtures.verdict.model import Outcome
from tests.selftests.cluster import (
    CHECKOUT,
    FILES,
    NODES_ONLY,
    SMALL,
    Finished,
    Suite,
    Waiting,
    bytes_of,
    eventually,
    ledger,
    measured,
    on,
    queued,
    resume,
    suite,
)
from tests.tools import soak

pytestmark = pytest.mark.cpu

WITH_ALLREDUCE = (*FILES, "tests/test_collectives.py", "-k", "not drift and "
                  "(inventory or environment or peers or allreduce.cluster.errors)")  # fmt: skip
"""Criteria of a node, of the whole cluster, and one that a part of the nodes can answer."""

FIELDS = {
    "id", "criterion", "subject", "outcome", "value", "unit", "limit", "ceiling", "margin", "worst",
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


def test_a_healthy_sandbox_is_a_demonstration(healthy: Finished) -> None:
    healthy.ended_as("DEMONSTRATION", 0)
    counts = healthy.verdict["counts"]
    assert counts["not_measured"] == counts["fail"] == counts["waived"] == 0
    assert counts["pass"] + counts["not_applicable"] == counts["planned"]
    assert healthy.verdict["scope"]["whole"] is True
    passed = {key[0] for key, outcome in healthy.outcomes.items() if outcome == "PASS"}
    criteria = loader.load(CHECKOUT / "thresholds.yaml").criteria
    areas = {key.partition(".")[0] for key, c in criteria.items() if c.tier == "standard"}
    assert areas >= {"hostcopy", "p2p", "crosscheck"}, "what needs real GPUs"
    assert {name.partition(".")[0] for name in passed} == areas - {"hostcopy", "p2p", "crosscheck"}


def test_the_second_healthy_run_accuses_nobody_either(healthy: Finished, tmp_path: Path) -> None:
    again = soak.once(tmp_path / "again")
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
        cwd=healthy.root, capture_output=True, text=True, timeout=60,
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
        "planned", "pass", "fail", "not_measured", "not_applicable", "waived",
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
            cwd=checkout, capture_output=True, text=True, timeout=120,
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
        cwd=checkout, env=env | on(shared_sandbox), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "IMPORTED" not in done.stdout + done.stderr


# --- from everywhere, in every way, by everybody


def test_it_runs_from_any_directory(
    shared_sandbox: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    done = suite(checkout, tmp_path / "run", str(checkout / "tests"), "-m", "multinode",
                 "-k", "environment and not drift",
                 cwd=Path("/"), env=on(shared_sandbox))  # fmt: skip
    done.ended_as("DEMONSTRATION", 0)
    assert len(done.rows) == 4


def test_four_workers_come_to_the_same_verdicts(
    shared_sandbox: Sandbox, checkout: Path, healthy: Finished, tmp_path: Path
) -> None:
    done = suite(checkout, tmp_path / "run", *SMALL, "-n", "4", env=on(shared_sandbox))
    done.ended_as("DEMONSTRATION", 0)
    assert done.outcomes == {k: healthy.outcomes[k] for k in done.outcomes}
    assert len(done.outcomes) == 15
    said = [
        (n["criterion"], n["subject"]) for n in ledger(done.directory) if n["event"] == "verdict"
    ]
    assert sorted(said) == sorted(done.rows)
    assert set(measured(done.directory).values()) == {1}


@pytest.mark.slow
def test_accounting_changes_no_verdict(
    machine: None, checkout: Path, healthy: Finished, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    done = suite(checkout, tmp_path / "run", *SMALL, "--cluster", "sandbox", "--sandbox-accounting")
    if done.status == 4 and not request.config.getoption("--require-sandbox"):
        pytest.skip(done.said.strip().splitlines()[-1])
    done.ended_as("DEMONSTRATION", 0)
    assert done.outcomes == {k: healthy.outcomes[k] for k in done.outcomes}
    assert read_json(done.directory.run_json)["sandbox"]["accounting"] is True


def test_an_ordinary_user_runs_it_on_a_sandbox_of_root(sandbox: Sandbox, checkout: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="acceptance-user-"))
    folder.chmod(0o1777)
    command = as_nobody(sandbox, (checkout, Path(sys.prefix), Path(sys.base_prefix)))
    env = {**on(sandbox), "HOME": "/tmp", "USER": "nobody", "LOGNAME": "nobody"}
    try:
        done = suite(checkout, folder / "run", *SMALL, env=env, before=command)
        done.ended_as("DEMONSTRATION", 0)
        owners = {path.stat().st_uid for path in [done.root, *done.root.rglob("*")]}
        assert owners == {NOBODY}
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True, timeout=30)


NOBODY = 65534


def as_nobody(sandbox: Sandbox, needed: tuple[Path, ...]) -> list[str]:
    """The start of a command line that an ordinary user runs, here and on the nodes.

    Where the interpreter lies in somebody's closed home, that home is covered by an open, empty
    one in which only the interpreter shows: in mount namespaces, the host keeps its own.
    """
    closed: dict[Path, list[Path]] = {}
    for path in {p.resolve() for p in needed}:
        shut = [p for p in (path, *path.parents) if not p.stat().st_mode & 0o001]
        if shut:
            closed.setdefault(shut[-1], []).append(path)
    lines = ["set -e"]
    for home, paths in closed.items():
        for k, path in enumerate(paths):
            aside = f"/tmp/.aside-{sandbox.id}-{k}"
            lines += [f"mkdir -p {aside}", f"mount --bind {path} {aside}"]
        lines.append(f"mount -t tmpfs -o mode=755 open {home}")
        for k, path in enumerate(paths):
            lines += [f"mkdir -p {path}", f"mount --move /tmp/.aside-{sandbox.id}-{k} {path}",
                      f"rmdir /tmp/.aside-{sandbox.id}-{k}"]  # fmt: skip
    opened = "\n".join(lines)
    drop = f'exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups -- "$@"'
    before = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        f"{opened}\n{drop}",
        "sh",
    ]
    if closed:
        for node in sandbox.nodes:
            subprocess.run(
                sandbox.inside(node, "sh", "-c", opened),
                check=True,
                timeout=30,
                env=sandbox.environ,
            )
    tried = subprocess.run(
        [*before, sys.executable, "-c", "import pytest, submitit"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if tried.returncode:
        said = (tried.stderr.strip().splitlines() or ["no message"])[-1]
        pytest.skip(f"an ordinary user cannot run {sys.executable} here: {said}")
    return before


# --- inside an allocation; options that Slurm does not know


@pytest.fixture(scope="module")
def three_nodes(machine: None) -> Iterator[Sandbox]:
    with Sandbox.up(nodes=3, gpus=2) as up:
        yield up


@pytest.fixture(scope="module")
def two_ordered(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    """A contract that orders the first two nodes."""
    text = (checkout / "thresholds.yaml").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("contract") / "thresholds.yaml"
    ordered = "cluster: {nodes: 2, gpus_per_node: 2, gpu_model: cpu}"
    path.write_text(text.replace("\ncluster: {}\n", f"\n{ordered}\n"), encoding="utf-8")
    return path


def salloc(node: str) -> list[str]:
    return ["salloc", "--quiet", "--exclusive", "--mem=0", "-N1", f"--nodelist={node}"]


def test_an_allocation_of_other_nodes_is_no_obstacle(
    three_nodes: Sandbox, two_ordered: Path, checkout: Path, tmp_path: Path
) -> None:
    done = suite(checkout, tmp_path / "run", *NODES_ONLY, f"--thresholds={two_ordered}",
                 env=on(three_nodes), before=salloc("worker2"))  # fmt: skip
    done.ended_as("DEMONSTRATION", 0)


def test_an_allocation_of_the_nodes_themselves_is_refused_in_one_line(
    three_nodes: Sandbox, two_ordered: Path, checkout: Path, tmp_path: Path
) -> None:
    done = suite(checkout, tmp_path / "run", *NODES_ONLY, f"--thresholds={two_ordered}",
                 env=on(three_nodes), before=salloc("worker1"))  # fmt: skip
    refused(done, r"ERROR: this shell is inside Slurm job \d+, which holds worker1: .*")
    eventually(lambda: not queued(three_nodes), "empty queue")


def test_an_unknown_partition_is_refused_in_one_line(
    shared_sandbox: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    done = suite(checkout, tmp_path / "run", *NODES_ONLY, "--partition=nowhere",
                 env=on(shared_sandbox))  # fmt: skip
    refused(done, r"ERROR: --partition nowhere: Slurm has .*")
    assert queued(shared_sandbox) == {}


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_a_file_that_cannot_be_collected_submits_nothing(
    workers: tuple[str, ...], shared_sandbox: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    """What it would have judged is not known, so a verdict over the rest would be too good."""
    broken = tmp_path / "test_broken.py"
    broken.write_text("import no_such_module\n")
    done = suite(checkout, tmp_path / "run", *SMALL, str(broken), *workers, env=on(shared_sandbox))
    assert done.status == 2, done.said
    assert "no_such_module" in done.said
    assert not done.root.exists()
    assert queued(shared_sandbox) == {}


def refused(done: Finished, line: str) -> None:
    """One clean line, exit 4, nothing left behind."""
    assert done.status == 4, done.said
    said = [text for text in done.said.splitlines() if text.startswith("ERROR")]
    assert len(said) == 1, done.said
    assert re.fullmatch(line, said[0]), said[0]
    assert "Traceback" not in done.said
    assert not done.root.exists()


# --- nodes that are lost


def expect_lost(done: Finished, node: str) -> None:
    """All that concerns the node says why it was not measured; all else passed."""
    done.ended_as("INCOMPLETE", 2)
    other = "worker0" if node == "worker1" else "worker1"
    for key, row in done.rows.items():
        if key[1] == node and row["outcome"] != "NOT_APPLICABLE":
            assert row["outcome"] == "NOT_MEASURED", row
            assert node in row["reason"], row
            assert row["next_step"], row
        elif key[1] == other and key[0] != "connectivity.peers":
            assert row["outcome"] in ("PASS", "NOT_APPLICABLE"), row
    assert done.outcomes["inventory.nodes", "cluster"] == "PASS"
    assert done.rows["connectivity.peers", other]["outcome"] == "NOT_MEASURED"
    assert "passes on 1 of 2 nodes" in done.rows["connectivity.peers", other]["reason"]
    assert (done.root / "bad-nodes.txt").read_text().split()[-1] == node


def expect_mended(checkout: Path, lost: Finished, sandbox: Sandbox, node: str, *more: str) -> None:
    """--resume measures what is missing, that alone, and ends as a healthy run."""
    before = bytes_of(lost.directory.records.glob("*.json"))
    stood = {key: row for key, row in lost.rows.items() if row["outcome"] == "PASS"}
    done = resume(checkout, lost.root, *more, env=on(sandbox))
    done.ended_as("DEMONSTRATION", 0)
    after = bytes_of(done.directory.records.glob("*.json"))
    assert {name: after[name] for name in before} == before
    for key, row in stood.items():
        assert done.rows[key]["value"] == row["value"]
    submitted = [p.name for p in done.directory.jobs.iterdir() if p.is_dir()]
    other = "worker0" if node == "worker1" else "worker1"
    assert not [name for name in submitted if name.startswith(f"node-{other}.")]
    assert queued(sandbox) == {}


def test_a_node_that_is_dead_before_the_run(
    sandbox: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    sandbox.kill_node("worker1")
    done = suite(checkout, tmp_path / "run", *SMALL, env=on(sandbox))
    expect_lost(done, "worker1")
    sandbox.revive("worker1")
    expect_mended(checkout, done, sandbox, "worker1", *SMALL)


def test_a_node_that_dies_in_its_own_job(
    sandbox: Sandbox, waiting: Waiting, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with Suite(waiting.checkout, run, *waiting.selection, env=on(sandbox)) as at_work:
        at_work.until(
            lambda: len(at_work.lines("node-*", event="started", workload="environment")) == 4,
            "environment on every rank",
        )
        sandbox.kill_node("worker1")
        waiting.let_go()
        done = at_work.wait()
    done.ended_as("INCOMPLETE", 2)
    lost = done.not_measured()
    assert set(lost) == {(f"environment.{m}", "worker1") for m in ("versions", "run_directory")}
    assert all("worker1" in reason for reason in lost.values())
    # What it had delivered before it died stands.
    assert done.outcomes["inventory.gpus", "worker1"] == "PASS"
    sandbox.revive("worker1")
    expect_mended(waiting.checkout, done, sandbox, "worker1", *waiting.selection)


@pytest.mark.slow
def test_a_node_that_dies_in_the_job_of_all_nodes(
    sandbox: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    with Suite(checkout, tmp_path / "run", *WITH_ALLREDUCE, env=on(sandbox)) as at_work:
        at_work.until(
            lambda: len(at_work.lines("cluster", event="started", workload="allreduce")) == 4,
            "allreduce on every rank",
        )
        sandbox.kill_node("worker1")
        done = at_work.wait()
    done.ended_as("INCOMPLETE", 2)
    assert [key for key, o in done.outcomes.items() if o == "NOT_MEASURED"] == [
        ("allreduce.cluster.errors", "cluster")
    ]
    reason = done.rows["allreduce.cluster.errors", "cluster"]["reason"]
    assert "passes on 1 of 2 nodes; without worker1" in reason
    sandbox.revive("worker1")
    expect_mended(checkout, done, sandbox, "worker1", *WITH_ALLREDUCE)


def test_a_node_that_is_drained(sandbox: Sandbox, checkout: Path, tmp_path: Path) -> None:
    sandbox.drain("worker1")
    done = suite(checkout, tmp_path / "run", *SMALL, env=on(sandbox))
    expect_lost(done, "worker1")
    assert "DRAIN" in done.rows["inventory.gpus", "worker1"]["reason"].upper()
    sandbox.drain("worker1", resume=True)
    sandbox.wait_idle(["worker1"], timeout_s=60)
    expect_mended(checkout, done, sandbox, "worker1", *SMALL)


@pytest.mark.slow
def test_a_node_that_is_cut_off(sandbox: Sandbox, checkout: Path, tmp_path: Path) -> None:
    sandbox.cut_link("worker1")
    done = suite(checkout, tmp_path / "run", *SMALL, env=on(sandbox))
    expect_lost(done, "worker1")
    sandbox.cut_link("worker1", restore=True)
    sandbox.wait_idle(["worker1"], timeout_s=60)
    expect_mended(checkout, done, sandbox, "worker1", *SMALL)
