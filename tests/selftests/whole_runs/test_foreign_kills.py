"""Whatever is killed, and when: the next command leaves no job of the run before it in the queue.

The jobs run in a hidden partition, where a filter of the site put them under another name.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fixtures.records.run_directory import RunDirectory
from tests.selftests.sandboxes import NODES_ONLY, Suite, eventually, refuse, waiting_in
from tests.tools import foreign_config as config
from tests.tools.foreign_config import GPU_NODES, OPTIONS, Variant
from tests.tools.foreign_site import ForeignSite

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

SEED = 30
POINTS = 10
HIDDEN = Variant(
    partitions=config.gpu_partition("", config.partition("hid", "Hidden=YES")), lua=config.ROUTES
)
RANKS = 4


def run_on(site: ForeignSite, checkout: Path, name: str) -> Suite:
    run = site.user_home / "runs" / name
    suite = Suite(
        checkout, run, *NODES_ONLY, "--thresholds=site.yaml", *OPTIONS, cwd=Path("/"),
        before=site.pytest(checkout), env=site.env,
    )  # fmt: skip
    suite.directory = RunDirectory(site.seen(run))
    return suite


def reached(site: ForeignSite, suite: Suite, point: int) -> Callable[[], bool]:
    """Return whether a run has come so far: its directory, then jobs, then ranks."""
    if point == 0:
        return suite.directory.run_json.exists
    if point <= len(GPU_NODES):
        return lambda: len(site.queued()) >= point
    ranks = point - len(GPU_NODES)
    return lambda: len(suite.lines("node-*", event="started", workload="environment")) >= ranks


def kill(site: ForeignSite, suite: Suite, what: str) -> None:
    """Kill pytest, the controller, or both; a suite that outlives its controller is interrupted."""
    if what in ("controller", "both"):
        site.stop_controller(signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(suite.process.pid).children():
            process.send_signal(signal.SIGINT if what == "controller" else signal.SIGKILL)
    if what in ("controller", "both"):
        site.start_controller()


def drained(site: ForeignSite) -> list[str]:
    """Return the nodes that Slurm drained, and let it use them again.

    A slurmctld that was killed before it saved its jobs gives their numbers again, and a node that
    still has such a job is drained.
    """
    lines = [line.split(None, 1) for line in site.root("sinfo", "-aNho", "%N %E").splitlines()]
    names = sorted({name for name, reason in lines if "Duplicate jobid" in reason})
    if names:
        site.root("scontrol", "update", f"NodeName={','.join(names)}", "State=RESUME")
        eventually(lambda: {*site.node_states().values()} == {"idle"}, "idle nodes")
    return names


def test_the_next_command_leaves_no_job_of_a_run_that_was_killed(
    request: pytest.FixtureRequest,
) -> None:
    refuse(request, ForeignSite.refusal())
    chance = random.Random(SEED)
    with ForeignSite(HIDDEN) as site:
        waiting = waiting_in(site.user_home, "environment")
        site.install(waiting.checkout)
        next_checkout = site.install()
        for k in range(POINTS):
            what = ("suite", "controller", "both")[k % 3]
            point = chance.randrange(len(GPU_NODES) + RANKS + 1)
            with run_on(site, waiting.checkout, f"killed{k}") as suite:
                suite.until(reached(site, suite, point), f"point {point}")
                kill(site, suite, what)
                suite.process.wait(120)
            with run_on(site, next_checkout, f"next{k}") as suite:
                done = suite.wait(200)
            assert "may still run" not in done.said
            assert site.left() == {}, f"{what} at point {point}"
            of_slurm = drained(site)
            print(f"{what} at point {point}: exit {done.status}, drained by Slurm: {of_slurm}")
            assert done.status == (2 if of_slurm else 0), f"{what} at point {point}: {done.said}"
