"""What the tests of whole runs share: a sandbox, a checkout that stands still, pytest beside us."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import psutil
import pytest

from fixtures.entry import module_of
from fixtures.records.files import read_json, read_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox
from tests.tools import checkout_files

T = TypeVar("T")

CHECKOUT = Path(__file__).resolve().parents[2]
SHIPPED = ("fixtures", "reports", "tests", "training", "conftest.py", "pyproject.toml",
           "thresholds.yaml")  # fmt: skip
"""What a checkout needs to run; nothing of git, so that a commit made meanwhile changes nothing."""

RUN_TIMEOUT_S = 900
FILES = ("tests/test_inventory.py", "tests/test_scheduler.py")
SMALL = (*FILES, "-k", "(inventory or environment or peers) and not drift")
"""A plan without torch, of a few seconds: a job per node, then one over all of them."""
NODES_ONLY = (*FILES, "-k", "environment and not drift")
"""The smallest plan that has a job on every node."""


def refuse(request: pytest.FixtureRequest, refusal: str | None) -> None:
    """Skip with the reason where there can be no sandbox; fail where there must be one."""
    if refusal is None:
        return
    if request.config.getoption("--require-sandbox", default=False):
        pytest.fail(f"--require-sandbox: {refusal}")
    pytest.skip(refusal)


# --- pytest fixtures


@pytest.fixture(scope="session")
def machine(request: pytest.FixtureRequest) -> None:
    """A host that can run a sandbox; without one the test is skipped, or fails if it must run."""
    refuse(request, Sandbox.refusal())


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The checkout as it stood when the tests began, where every user may read it."""
    root = Path(tempfile.mkdtemp(prefix="acceptance-checkout-"))
    root.chmod(0o755)
    copy_checkout(root)
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def sandbox(machine: None) -> Iterator[Sandbox]:
    """Two virtual nodes of two stand-ins for GPUs, for this test alone."""
    with Sandbox.up(nodes=2, gpus=2) as up:
        yield up


@pytest.fixture(scope="module")
def shared_sandbox(machine: None) -> Iterator[Sandbox]:
    """The same for all tests of a module that break nothing in it."""
    with Sandbox.up(nodes=2, gpus=2) as up:
        yield up


@pytest.fixture(scope="session")
def healthy(machine: None, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The whole acceptance of a healthy 2 x 2 sandbox, measured once for all tests."""
    run = tmp_path_factory.mktemp("healthy") / "run"
    return suite(checkout, run, "-m", "multinode", "--cluster", "sandbox", "--sandbox-nodes", "2",
                 "--sandbox-gpus", "2")  # fmt: skip


def copy_checkout(into: Path, *, selftests: bool = True) -> Path:
    """Copy what a checkout needs to run: what git tracks, and nothing that changes meanwhile."""
    for name in checkout_files.names(*SHIPPED):
        if selftests or not name.startswith("tests/selftests/"):
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, target)
    return into


WAIT = """

import pathlib, time
_run = run

def run(ranks, metrics, **more):
    if WORKLOAD.needs_torch:
        ranks.device, ranks.barrier()
    door = pathlib.Path({go!r})
    door.with_name(f"here-{{ranks.node}}-{{ranks.rank}}").touch()
    while not door.exists():
        time.sleep(0.05)
    return _run(ranks, metrics, **more)
"""


@dataclass(frozen=True)
class Waiting:
    """A checkout in which a workload waits on every rank until it is let go."""

    checkout: Path
    door: Path

    def here(self) -> int:
        """How many ranks stand at the door; who needs torch has it, and has met the others."""
        return len(list(self.door.parent.glob("here-*")))

    def let_go(self) -> None:
        self.door.touch()

    @property
    def selection(self) -> tuple[str, ...]:
        """Two workloads in one job per node; the second one, `environment`, waits."""
        return ("tests/test_inventory.py", "-k", "(inventory.gpus or environment) and not drift")


@pytest.fixture
def waiting(tmp_path: Path) -> Waiting:
    """For what must be done while jobs run: no workload has to be fast or slow enough for it."""
    return waiting_in(tmp_path, "environment")


def waiting_in(tmp_path: Path, workload: str) -> Waiting:
    """A copy of the checkout in which `workload` waits."""
    root = tmp_path / "waiting-checkout"
    root.mkdir()
    copy_checkout(root)
    found = Waiting(root, tmp_path / "go")
    source = root / (module_of(workload).replace(".", "/") + ".py")
    with source.open("a", encoding="utf-8") as file:
        file.write(WAIT.format(go=str(found.door)))
    return found


def rank_states(sandbox: Sandbox, node: str, rank: int) -> set[str]:
    """The states of a rank's processes, as psutil names them: "stopped" where they stand still."""
    states = set()
    for process in sandbox.processes(node, rank=rank):
        with contextlib.suppress(psutil.NoSuchProcess):
            states.add(psutil.Process(process.pid).status())
    return states


# --- the suite in a process of its own


@dataclass(frozen=True)
class Finished:
    """A run of the suite that has ended."""

    status: int
    said: str
    directory: RunDirectory

    @property
    def root(self) -> Path:
        return self.directory.root

    @property
    def verdict(self) -> dict[str, Any]:
        """verdict.json."""
        assert self.directory.verdict.exists(), self.said
        data: dict[str, Any] = read_json(self.directory.verdict)
        return data

    @property
    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        """verdict.json's criteria by (criterion, subject)."""
        return {(row["criterion"], row["subject"]): row for row in self.verdict["criteria"]}

    @property
    def outcomes(self) -> dict[tuple[str, str], str]:
        return {key: row["outcome"] for key, row in self.rows.items()}

    def not_measured(self) -> dict[tuple[str, str], str]:
        """Why what was not measured was not."""
        return {k: r["reason"] for k, r in self.rows.items() if r["outcome"] == "NOT_MEASURED"}

    def ended_as(self, verdict: str, status: int) -> None:
        """Assert the last word and the exit status."""
        assert (self.verdict["verdict"], self.status) == (verdict, status), self.said
        assert self.verdict["exit_status"] == status


class Suite:
    """pytest at work on a run; left behind by nobody."""

    def __init__(
        self,
        checkout: Path,
        run: Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        before: Sequence[str] = (),
        new: bool = True,
    ) -> None:
        self.directory = RunDirectory(run)
        self._log = Path(tempfile.mkstemp(prefix="suite-", suffix=".txt")[1])
        outer = ("PYTEST_", "SLURM_", "SBATCH_", "COV_")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(outer)}
        # pytest removes old folders of its own at the end: not those of the outer session, which
        # may hold gigabytes.
        run.parent.mkdir(parents=True, exist_ok=True)
        clean["PYTEST_DEBUG_TEMPROOT"] = str(run.parent)
        where = [f"--run-dir={run}"] if new else []
        command = [*before, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                   *where, *arguments]  # fmt: skip
        with self._log.open("wb") as log:
            # A session of its own: a signal to it is a signal to pytest, not to us.
            self.process = subprocess.Popen(
                command, cwd=cwd or checkout, env=clean | dict(env or {}), stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=heed_interrupts,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send a signal as it comes: a terminal's to all that was started from it, others to one.

        Slurm's commands, workers of `-n` and ranks of this host hear a Ctrl-C as pytest does.
        """
        if number in (signal.SIGINT, signal.SIGHUP):
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def wait(self, timeout_s: float = RUN_TIMEOUT_S) -> Finished:
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # pytest's faulthandler says where it stands
            self.process.wait(10)
            raise AssertionError(f"{timeout_s:g} s and no end:\n{self.said}") from None
        return Finished(status, self.said, self.directory)

    def until(self, condition: Callable[[], T], what: str, *, timeout_s: float = 180) -> T:
        """Wait for a condition while pytest works; its value."""
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            if self.process.poll() is not None and not (found := condition()):
                raise AssertionError(f"the suite ended before {what}:\n{self.said}")
            if found:
                break
            if time.monotonic() > deadline:
                raise AssertionError(f"{timeout_s:g} s and no {what}:\n{self.said}")
            time.sleep(0.01)
        return found

    def lines(self, job: str = "*", **fields: Any) -> list[dict[str, Any]]:
        """What the ranks of a job have written so far, where these fields have these values."""
        files = sorted(self.directory.jobs.glob(f"{job}/rank*.jsonl"))
        found = [line for file in files for line in read_lines(file)]
        return [n for n in found if all(n.get(k) == v for k, v in fields.items())]

    def __enter__(self) -> Suite:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self._log.unlink(missing_ok=True)


def heed_interrupts() -> None:
    """In a child: nohup and background jobs of a shell hand down that signals are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def suite(checkout: Path, run: Path, *arguments: str, **how: Any) -> Finished:
    """Run the suite to its end."""
    with Suite(checkout, run, *arguments, **how) as at_work:
        return at_work.wait()


def resume(checkout: Path, run: Path, *arguments: str, **how: Any) -> Finished:
    """Go on with a run."""
    return suite(checkout, run, f"--resume={run}", *arguments, new=False, **how)


# --- looking at what is there


def on(sandbox: Sandbox) -> dict[str, str]:
    """The environment in which `--cluster auto` finds this sandbox."""
    return {**sandbox.env, "PATH": sandbox.environ["PATH"]}


def queued(sandbox: Sandbox) -> dict[str, str]:
    """Living jobs of everybody: id -> name."""
    command = ["squeue", "--noheader", "-o", "%A %j"]
    done = subprocess.run(
        command, env=sandbox.environ, capture_output=True, text=True, timeout=30, check=True
    )
    return dict(line.split(None, 1) for line in done.stdout.splitlines())


def submit(sandbox: Sandbox, name: str, *options: str, seconds: int = 300) -> str:
    """A job of somebody else; its id."""
    command = ["sbatch", "--parsable", f"--job-name={name}", "--output=/dev/null", *options,
               f"--wrap=sleep {seconds}"]  # fmt: skip
    done = subprocess.run(
        command, env=sandbox.environ, capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout.strip()


def eventually(condition: Callable[[], T], what: str, *, timeout_s: float = 30) -> T:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{timeout_s:g} s and no {what}"
        time.sleep(0.05)
    return found


def bytes_of(paths: Iterable[Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(paths)}


def ledger(run: RunDirectory) -> list[dict[str, Any]]:
    return list(read_lines(run.ledger))


def measured(run: RunDirectory) -> dict[tuple[str, str, int, int], int]:
    """(workload, placement, attempt, rank) -> result lines that ranks wrote of it."""
    found: dict[tuple[str, str, int, int], int] = {}
    for file in run.jobs.glob("*/rank*.jsonl"):
        for line in read_lines(file):
            if line.get("event") == "result":
                key = (line["workload"], line["placement"], line["attempt"], line["rank"])
                found[key] = found.get(key, 0) + 1
    return found


def complete_sets(run: RunDirectory) -> dict[tuple[str, str], int]:
    """(workload, placement) -> in how many jobs all ranks wrote a result of it."""
    found: dict[tuple[str, str], int] = {}
    for folder in run.jobs.iterdir():
        ranks: dict[tuple[str, str], set[int]] = {}
        size = 0
        for file in folder.glob("rank*.jsonl"):
            for line in read_lines(file):
                size = line["world_size"]
                if line.get("event") == "result":
                    key = (line["workload"], line["placement"])
                    ranks.setdefault(key, set()).add(line["rank"])
        for key, there in ranks.items():
            found[key] = found.get(key, 0) + (len(there) == size)
    return found
