"""`--srun-args=--container-image=...`: a run whose ranks are in an image, on a real Slurm.

pyxis is stood in for (tests/selftests/containers.py): Slurm's own slurmstepd loads a plug-in that
starts the image on each node, enters it for each task, and fails in pyxis' words.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox
from tests.selftests.containers import (
    BROKEN_HOOK,
    ContainerSite,
    containers,
    cover,
    shipped_options,
)
from tests.selftests.sandboxes import (
    CHECKOUT,
    NODES_ONLY,
    SMALL,
    Finished,
    copy_checkout,
    on,
    queued,
    refuse,
    resume,
    suite,
)

pytestmark = pytest.mark.cpu

WITHOUT = {
    "scheduler.placement", "scheduler.memory_limit", "isolation.let_in", "isolation.own_gpu",
}  # fmt: skip
"""Criteria that start steps from inside a job: an image has no srun, so they want a run without."""
PYTHON = "/app/.venv/bin/python"
SCHEDULER = ("-m", "multinode", "-k", "scheduler or isolation or environment")


@pytest.fixture
def pyxis(
    machine: None, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Sandbox, ContainerSite]]:
    """A sandbox whose Slurm has pyxis, and the site's files."""
    refuse(request, None if shutil.which("gcc") else "gcc is not here, which builds the plug-in")
    with containers(tmp_path / "site") as site:
        yield site


def run_in_image(
    pyxis: tuple[Sandbox, ContainerSite], tmp_path: Path, *selection: str, mounted: bool = True,
    image: Path | None = None,
) -> Finished:  # fmt: skip
    """Run the suite by the command of deploy/README.md, in a checkout that is mounted."""
    sandbox, site = pyxis
    checkout = copy_checkout(tmp_path / "suite")
    given = shipped_options((CHECKOUT / "deploy" / "README.md").read_text(encoding="utf-8"))
    names = {"IMAGE": str(image or site.image), "$PWD": str(checkout)}
    options = [o.replace("IMAGE", names["IMAGE"]).replace("$PWD", names["$PWD"]) for o in given]
    if not mounted:
        options = [o for o in options if "--container-mounts" not in o]
    return suite(checkout, checkout / "reports/runs/run", *selection, *options, env=on(sandbox))


@pytest.mark.slow
def test_a_run_in_an_image_ends_as_one_without(pyxis, tmp_path):
    done = run_in_image(pyxis, tmp_path, *SMALL)
    done.ended_as("DEMONSTRATION", 0)
    assert done.not_measured() == {}
    assert queued(pyxis[0]) == {}
    assert not Path(PYTHON).exists(), "only the image has the interpreter"


def expect_container(done: Finished, node: str, says: str) -> None:
    """The one node is named with the cause, and the other one has passed."""
    done.ended_as("INCOMPLETE", 2)
    other = "worker0" if node == "worker1" else "worker1"
    reasons = done.not_measured()
    assert reasons["environment.versions", node].startswith("container: job "), reasons
    assert says in reasons["environment.versions", node]
    assert f"{other} ran its job without this" in reasons["environment.versions", node]
    assert done.outcomes["environment.versions", other] == "PASS"
    assert (done.root / "bad-nodes.txt").read_text().split() == [node]
    row = done.rows["environment.versions", node]
    assert "--container-image" in row["next_step"]


def test_an_image_that_is_not_on_one_node_names_that_node(pyxis, tmp_path):
    sandbox, site = pyxis
    cover(sandbox, "worker1", site.image.parent, None)
    done = run_in_image(pyxis, tmp_path, *NODES_ONLY)
    expect_container(done, "worker1", f"No such file or directory: {site.image}")


@pytest.mark.slow
def test_a_hook_that_fails_on_one_node_names_that_node(pyxis, tmp_path):
    sandbox, site = pyxis
    cover(sandbox, "worker0", site.hook, BROKEN_HOOK)
    done = run_in_image(pyxis, tmp_path, *NODES_ONLY)
    expect_container(done, "worker0", "nvidia-container-cli: initialization error: driver error")


@pytest.mark.slow
def test_a_hook_that_fails_everywhere_is_no_node_s_fault(pyxis, tmp_path):
    pyxis[1].hook.write_text(BROKEN_HOOK)
    done = run_in_image(pyxis, tmp_path, *NODES_ONLY)
    done.ended_as("INCOMPLETE", 2)
    reasons = done.not_measured()
    for node in ("worker0", "worker1"):
        assert reasons["environment.versions", node].startswith("container: ")
        assert "alike on 2 of 2 nodes" in reasons["environment.versions", node]
    assert (done.root / "bad-nodes.txt").read_text() == ""


@pytest.mark.slow
@pytest.mark.waits("ranks that wait for their job's file do so until the deadline of a start")
def test_a_run_directory_that_is_not_mounted_is_said_and_blames_nobody(pyxis, tmp_path):
    done = run_in_image(pyxis, tmp_path, *NODES_ONLY, mounted=False)
    done.ended_as("INCOMPLETE", 2)
    reasons = done.not_measured()
    for node in ("worker0", "worker1"):
        assert reasons["environment.versions", node].startswith("not visible on the nodes: ")
        assert "--container-mounts=" in reasons["environment.versions", node]
    assert (done.root / "bad-nodes.txt").read_text() == ""


@pytest.mark.slow
def test_a_container_without_shared_memory_names_its_node_and_the_folder(pyxis, tmp_path):
    sandbox, site = pyxis
    cover(sandbox, "worker1", site.table, site.without("/dev/shm"))
    done = run_in_image(pyxis, tmp_path, "tests/test_tenant.py", "-k", "shared_memory")
    done.ended_as("INCOMPLETE", 2)
    ((key, reason),) = done.not_measured().items()
    assert key == ("tenant.shared_memory", "worker1")
    assert "No such file or directory: '/dev/shm/" in reason
    assert done.outcomes["tenant.shared_memory", "worker0"] == "RECORDED"
    assert (done.root / "bad-nodes.txt").read_text() == ""


def expect_all_but_steps(done: Finished) -> None:
    """Nobody is accused, and what is not measured are the criteria of steps, with their reason."""
    assert done.verdict["counts"]["fail"] == 0, done.said
    assert (done.root / "bad-nodes.txt").read_text() == ""
    reasons = done.not_measured()
    assert {criterion for criterion, _ in reasons} == WITHOUT, reasons
    assert all("in an image there is none" in reason for reason in reasons.values()), reasons


@pytest.mark.slow
def test_what_an_image_cannot_measure_is_measured_by_going_on_without_it(pyxis, tmp_path):
    done = run_in_image(pyxis, tmp_path, *SCHEDULER)
    expect_all_but_steps(done)
    rest = resume(tmp_path / "suite", done.root, *SCHEDULER, env=on(pyxis[0]))
    rest.ended_as("DEMONSTRATION", 0)
    assert rest.not_measured() == {}


@pytest.mark.slow
def test_the_whole_acceptance_in_an_image_accuses_nobody(pyxis, tmp_path):
    expect_all_but_steps(run_in_image(pyxis, tmp_path, "-m", "multinode"))


@pytest.fixture
def shipped_image(machine: None) -> Iterator[Path]:
    """The root of what `make test-image-here` leaves (IMAGE says another name), mounted before the
    nodes have mounts of their own."""
    name = os.environ.get("IMAGE") or "gpu-cluster-acceptance"
    if shutil.which("buildah") is None or buildah("images", name).returncode:
        pytest.skip(f"no image {name} here: `make test-image-here` makes it")
    container = buildah("from", name).stdout.strip()
    try:
        yield Path(buildah("mount", container).stdout.strip())
    finally:
        buildah("rm", container)


def buildah(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["buildah", *argv], capture_output=True, text=True)


@pytest.mark.slow
def test_the_shipped_image_is_entered_and_measured_in(shipped_image, pyxis, tmp_path):
    chosen = "environment or inventory or allreduce or training or scheduler or isolation"
    expect_all_but_steps(
        run_in_image(pyxis, tmp_path, "-m", "multinode", "-k", chosen, image=shipped_image)
    )
