"""A real Slurm that is set up as sites do and the sandbox does not: each quirk by itself."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.sandbox import Sandbox
from tests.selftests.sandboxes import NODES_ONLY, on, queued, refuse, resume, suite
from tests.tools.foreign_config import OPTIONS, UID
from tests.tools.foreign_site import ForeignSite, open_lines

pytestmark = pytest.mark.cpu


@pytest.fixture
def site(machine: None, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox.up(nodes=2, gpus=2, site=request.param) as up:
        yield up


@pytest.mark.slow
@pytest.mark.parametrize(
    "site", [{"nodes": "CoreSpecCount=1"}], indirect=True, ids=["CoreSpecCount"]
)
def test_cores_that_slurm_keeps_are_not_asked_for(
    site: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    done = suite(checkout, tmp_path / "run", *NODES_ONLY, env=on(site))
    done.ended_as("DEMONSTRATION", 0)
    assert queued(site) == {}


NO_DEFAULT = (
    "PartitionName=batch Nodes=worker0 State=UP MaxTime=INFINITE\n"
    "PartitionName=gpu Nodes=ALL State=UP MaxTime=INFINITE"
)


@pytest.mark.slow
@pytest.mark.parametrize("site", [{"partitions": NO_DEFAULT}], indirect=True, ids=["no default"])
def test_no_partition_is_guessed_and_the_one_that_is_given_is_taken(
    site: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    refused = suite(checkout, tmp_path / "refused", *NODES_ONLY, env=on(site))
    assert refused.status == 4
    assert "no default partition: give --partition (there are batch, gpu)" in refused.said
    assert not (tmp_path / "refused").exists()
    done = suite(checkout, tmp_path / "run", *NODES_ONLY, "--partition=gpu", env=on(site))
    done.ended_as("DEMONSTRATION", 0)
    assert queued(site) == {}


SHORT = "PartitionName=main Default=YES Nodes=ALL State=UP MaxTime=1"


@pytest.mark.parametrize("site", [{"partitions": SHORT}], indirect=True, ids=["MaxTime"])
def test_what_the_partition_never_allows_ends_at_once_and_blames_no_node(
    site: Sandbox, checkout: Path, tmp_path: Path
) -> None:
    done = suite(checkout, tmp_path / "run", *NODES_ONLY, env=on(site))
    done.ended_as("INCOMPLETE", 2)
    # Which of the two Slurm gives as its reason depends on its version.
    assert re.search(r"refused by Slurm: job \d+ will not start: Partition(TimeLimit|Config)",
                     done.said)  # fmt: skip
    assert (done.root / "bad-nodes.txt").read_text() == ""
    assert queued(site) == {}
    # The remedy that the row names.
    mended = resume(checkout, done.root, "--time-limit=1", env=on(site))
    mended.ended_as("DEMONSTRATION", 0)


def test_a_slow_prolog_is_given_the_time_that_slurm_gives_it(
    machine: None, checkout: Path, tmp_path: Path
) -> None:
    prolog = tmp_path / "prolog.sh"
    prolog.write_text("#!/bin/sh\nsleep 5\n")
    prolog.chmod(prolog.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    tmp_path.chmod(0o755)
    with Sandbox.up(nodes=2, gpus=2, site={"slurm": f"Prolog={prolog}"}) as site:
        done = suite(checkout, tmp_path / "run", *NODES_ONLY, env=on(site))
        done.ended_as("DEMONSTRATION", 0)
        assert queued(site) == {}


# --- a site of which nothing is the sandbox's, and its ordinary user (tests/tools/foreign_site.py)


def test_an_ordinary_user_has_every_row_judged_on_a_site_unlike_ours(
    request: pytest.FixtureRequest,
) -> None:
    refuse(request, ForeignSite.refusal())
    with ForeignSite() as site:
        checkout = site.install()
        done = suite(
            checkout, site.user_home / "runs" / "run", "-m", "multinode", *OPTIONS,
            "--thresholds=site.yaml",
            "-k", "environment or scheduler or filesystem or isolation",
            env=site.env, cwd=Path("/"), before=site.pytest(checkout),
        )  # fmt: skip
        assert done.not_measured() == {}, done.said
        done.ended_as("DEMONSTRATION", 0)
        areas = {key[0].partition(".")[0] for key, o in done.outcomes.items() if o == "PASS"}
        assert areas >= {"environment", "scheduler", "filesystem", "isolation"}
        assert (done.root / "bad-nodes.txt").read_text() == ""
        assert {path.stat().st_uid for path in [done.root, *done.root.rglob("*")]} == {UID}
        assert site.left() == {}
        home, host = site.home, Path("/etc/passwd").read_text()
    assert not home.exists()
    assert "alice" not in host


def test_only_what_lies_in_a_closed_home_is_shown_besides_it(tmp_path: Path) -> None:
    shut, inner = tmp_path / "home", tmp_path / "home" / "python" / "lib"
    inner.mkdir(parents=True)
    for path in (tmp_path, *tmp_path.parents):
        if not path.stat().st_mode & 0o001:
            shut = path
    shut.chmod(shut.stat().st_mode & ~0o001)
    lines = open_lines([inner.parent, inner, Path("/usr")])
    assert f"mount -t tmpfs -o mode=755 open {shut}" in lines
    assert f"mount --bind {inner.parent} private/open0" in lines
    assert sum("--move" in line for line in lines) == 1
