"""An honest run in odd circumstances ends as the table says, and is accused of nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from reports.evidence.run_files import CommandError
from reports.handover.join_units import refuse_shared_hardware
from tests.selftests import odd_runs, support
from tests.selftests.odd_runs import CLOCK, REPEAT, REPLACED, SLOWER

pytestmark = pytest.mark.cpu

IN_TEST, IN_SOAK = 40, 500
SAYS = {
    CLOCK: re.compile(r"clock|before the run was started|no (usable )?inventory"),
    REPLACED: re.compile(r"replaced"),
    REPEAT: re.compile(r"passed \d of 3 times in a row since attempt 1 failed"),
    SLOWER: re.compile(r""),
}
ACCUSES = re.compile(r"forge|tamper|fake|manipulat|falsif|was changed|equal to the last bit", re.I)


def wrong(seed: int, folder: Path) -> str:
    """Return how the run of a seed ends otherwise than its table says, "" where it does not."""
    what = odd_runs.circumstances(seed)
    cluster = odd_runs.write(what, folder / "run", seed)
    _, verdict = support.judged(folder / "run", folder / "judged", folder / "run.yaml")
    expected = odd_runs.ends(what, cluster.nodes, cluster.pairs)
    red = {
        (row["criterion"], row["subject"]): row
        for row in verdict["criteria"]
        if row["outcome"] in ("FAIL", "NOT_MEASURED")
    }
    said = f"{what}: {verdict['verdict']} {verdict['reasons']}"
    if verdict["verdict"] != expected.verdict or red.keys() != expected.red.keys():
        return f"{said}: {sorted(red)}, expected {expected}"
    for key, row in red.items():
        if not SAYS[expected.red[key]].search(row["reason"]):
            return f"{said}: {key} says {row['reason']!r}, expected {expected.red[key]}"
    bad = (folder / "judged" / "bad-nodes.txt").read_text().split()
    if verdict["verdict"] != "REJECTED" and sorted(bad) != list(expected.wrong_clocks):
        return f"{said}: bad nodes {bad}, expected {expected.wrong_clocks}"
    if accused := ACCUSES.search(json.dumps(verdict)):
        return f"{said}: is accused: {accused[0]}"
    return ""


def failures(seeds: range, folder: Path) -> list[str]:
    found = []
    for seed in seeds:
        (folder / str(seed)).mkdir()
        if text := wrong(seed, folder / str(seed)):
            found.append(f"seed {seed}: {text}")
    return found


def test_an_honest_run_ends_as_its_circumstances_say(tmp_path):
    assert failures(range(IN_TEST), tmp_path) == []


@pytest.mark.parametrize("seed", range(4))
def test_units_are_joined_by_hardware_and_not_by_name(tmp_path, seed):
    what = odd_runs.Circumstances(nodes=2 + seed % 2)
    other, renamed = (replace(what, names=name) for name in odd_runs.NAMES[1:3])
    odd_runs.write(what, tmp_path / "one", seed)
    odd_runs.write(other, tmp_path / "other", seed + 1000)
    odd_runs.write(renamed, tmp_path / "renamed", seed)
    refuse_shared_hardware([tmp_path / "one", tmp_path / "other"])
    with pytest.raises(CommandError) as refused:
        refuse_shared_hardware([tmp_path / "other", tmp_path / "one", tmp_path / "renamed"])
    assert "gpu-001" in str(refused.value)
    assert "rack7" not in str(refused.value)
    assert "dgx1.site.example" in str(refused.value)
    assert not ACCUSES.search(str(refused.value))


@pytest.mark.slow
def test_many_honest_runs_end_as_their_circumstances_say(tmp_path):
    assert failures(range(IN_TEST, IN_SOAK), tmp_path) == []
