"""Sites where a whole node cannot be asked for as at most: every row of a node and of the cluster
is judged there, for an ordinary user."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.selftests.sandboxes import Finished, refuse, suite
from tests.tools.foreign_config import GPU_NODES, OPTIONS, UID
from tests.tools.foreign_quirks import QUIRKS
from tests.tools.foreign_site import ForeignSite

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

SITES = (
    "no GPUs in Gres, and whole nodes", "MaxMemPerNode with EnforcePartLimits", "MaxMemPerCPU",
    "MaxCPUsPerNode", "submit filter refuses --mem", "whole nodes by select-linear",
)  # fmt: skip
SHARED = "no GPUs in Gres"
"""Two jobs on a node have the same GPUs."""
VARIANTS = {quirk.name: quirk.variant for quirk in QUIRKS}


def judged_on(name: str, verdict: str, status: int) -> Finished:
    """Run every row on a site, and hold what must be so on each; the files are gone with it."""
    with ForeignSite(VARIANTS[name]) as site:
        checkout = site.install()
        done = suite(
            checkout, site.user_home / "runs" / "run", "-m", "multinode", *OPTIONS,
            "--thresholds=site.yaml", env=site.env, cwd=Path("/"), before=site.pytest(checkout),
        )  # fmt: skip
        done.ended_as(verdict, status)
        assert done.not_measured() == {}, done.said
        assert {path.stat().st_uid for path in [done.root, *done.root.rglob("*")]} == {UID}
        assert site.left() == {}
        judged = Counter(key[1] for key, o in done.outcomes.items() if o != "NOT_APPLICABLE")
        assert min(judged[node] for node in GPU_NODES) > 80, judged
        assert judged["cluster"] > 40, judged
        if status == 0:
            assert (done.root / "bad-nodes.txt").read_text() == ""
    return done


@pytest.mark.parametrize("name", SITES)
def test_every_row_is_judged_where_nodes_are_asked_for_otherwise(
    name: str, request: pytest.FixtureRequest
) -> None:
    refuse(request, ForeignSite.refusal())
    judged_on(name, "DEMONSTRATION", 0)


def test_gpus_that_slurm_does_not_count_and_jobs_share_fail_and_no_other_row(
    request: pytest.FixtureRequest,
) -> None:
    refuse(request, ForeignSite.refusal())
    done = judged_on(SHARED, "REJECTED", 1)
    assert {key[0] for key, outcome in done.outcomes.items() if outcome == "FAIL"} == {
        "scheduler.gres", "isolation.own_gpu", "isolation.shared", "isolation.count",
        "isolation.visible",
    }  # fmt: skip
