"""Sites where a whole node cannot be asked for as at most: every row of a node and of the cluster
is judged there as it is at the usual foreign site, for an ordinary user."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.selftests.sandboxes import Finished, refuse, suite
from tests.tools.foreign_config import OPTIONS, UID, Variant
from tests.tools.foreign_quirks import QUIRKS
from tests.tools.foreign_site import ForeignSite

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

SITES = (
    "no GPUs in Gres", "MaxMemPerNode with EnforcePartLimits", "MaxMemPerCPU", "MaxCPUsPerNode",
    "submit filter refuses --mem", "whole nodes by select-linear",
)  # fmt: skip
VARIANTS = {quirk.id: quirk.variant for quirk in QUIRKS if quirk.name in SITES}


def accepted_on(variant: Variant) -> Finished:
    """Run every row on a site, and hold what must be so on each; the files are gone with it."""
    with ForeignSite(variant) as site:
        checkout = site.install()
        done = suite(
            checkout, site.user_home / "runs" / "run", "-m", "multinode", *OPTIONS,
            "--thresholds=site.yaml", env=site.env, cwd=Path("/"), before=site.pytest(checkout),
        )  # fmt: skip
        done.ended_as("DEMONSTRATION", 0)
        assert done.not_measured() == {}, done.said
        assert (done.root / "bad-nodes.txt").read_text() == ""
        assert {path.stat().st_uid for path in [done.root, *done.root.rglob("*")]} == {UID}
        assert site.left() == {}
        subjects = Counter(subject for _, subject in done.rows)
        print(f"judged: {dict(subjects)}, {dict(Counter(done.outcomes.values()))}")
    return done


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_row_is_judged_where_nodes_are_asked_for_otherwise(
    variant: Variant, request: pytest.FixtureRequest
) -> None:
    refuse(request, ForeignSite.refusal())
    accepted_on(variant)
