"""From every directory, with -n, as an ordinary user, inside an allocation, and refused options."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.records.files import read_json
from fixtures.sandbox import Sandbox
from fixtures.sandbox.config import OPEN_PARTITION
from tests.selftests.sandboxes import (
    NODES_ONLY,
    SMALL,
    Finished,
    eventually,
    ledger,
    measured,
    on,
    queued,
    suite,
)

pytestmark = pytest.mark.cpu


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


@pytest.mark.slow
def test_an_ordinary_user_runs_it_on_a_sandbox_that_is_open(machine: None, checkout: Path) -> None:
    with Sandbox.up(nodes=2, gpus=2, site={"partitions": OPEN_PARTITION}) as sandbox:
        an_ordinary_user_runs_it(sandbox, checkout)


def an_ordinary_user_runs_it(sandbox: Sandbox, checkout: Path) -> None:
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
        capture_output=True, text=True, timeout=900,
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
    broken = checkout / "tests" / "test_broken.py"
    broken.write_text("import no_such_module\n")
    try:
        done = suite(checkout, tmp_path / "run", *SMALL, str(broken), *workers,
                     env=on(shared_sandbox))  # fmt: skip
    finally:
        broken.unlink()
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
