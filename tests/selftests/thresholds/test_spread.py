"""Spreads in thresholds.yaml are those of recorded healthy devices: what lasts, and noise.

tests/selftests/data/spread/h200.json has the median of each device or node in eight runs of H200,
by the commit of this repository that holds the records. Three sets of four GPUs ran twice: what
differs between the two runs of one device is noise, the rest lasts.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import combinations
from typing import Any

import pytest

from fixtures.records.model import Record
from fixtures.thresholds import loader
from fixtures.thresholds.spread import Spread
from fixtures.verdict.samples import points_of
from tests.selftests import planted, small_thresholds
from tests.selftests.support import DATA, SHIPPED

pytestmark = pytest.mark.cpu

IN_TREE = ("h200-1x4", "h200-2x2")
"""Runs whose records are in this checkout."""
MODEL = "H200 SXM"
CLASSES = ("collective", "gemm", "gemm_per_clock", "hbm", "hostcopy", "hostcopy_all", "p2p")
MOST, LEAST = 1.25, 0.2
"""Recorded over stated: a stated spread that is far too large would hide defects."""
ROUNDED = 0.05
"""What `recorded` may differ by from the recordings: it has two digits."""

limits = cache(lambda: loader.load(SHIPPED))


@cache
def recordings() -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = json.loads((DATA / "spread" / "h200.json").read_text())
    return found


def of_class(name: str) -> Iterator[Mapping[str, Any]]:
    return (r for r in recordings() if limits().criteria[r["criterion"]].spread == name)


def relative(values: Mapping[str, float]) -> dict[str, float]:
    """Return how far each value is from their mean, as a share of it."""
    mean = statistics.fmean(values.values())
    return {who: value / mean - 1 for who, value in values.items()}


def pooled(differences: Iterable[Iterable[float]]) -> float | None:
    """Return the standard deviation of groups, of each of which the mean took one degree."""
    squares, degrees = 0.0, 0
    for group in differences:
        values = list(group)
        squares += sum(v * v for v in values)
        degrees += len(values) - 1
    return math.sqrt(squares / degrees) if degrees else None


def total(name: str) -> float:
    found = pooled(relative(r["values"]).values() for r in of_class(name))
    assert found is not None
    return found


def between_runs(name: str) -> float | None:
    """Return the noise of one run: that of the difference of two over the root of two."""
    pairs = [
        (relative(a["values"]), relative(b["values"]))
        for a, b in combinations(of_class(name), 2)
        if a["criterion"] == b["criterion"]
        and a["values"].keys() == b["values"].keys()
        and limits().criteria[a["criterion"]].over != "ranks"  # nodes: other GPUs, same name
    ]
    return pooled([(x[who] - y[who]) / math.sqrt(2) for who in x] for x, y in pairs)


def test_every_class_that_was_recorded_is_held():
    assert {limits().criteria[r["criterion"]].spread for r in recordings()} == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_a_stated_spread_is_that_of_the_recordings(name: str):
    stated = limits().spread[name].for_model(MODEL)
    assert stated.recorded is not None
    assert stated.recorded.total == pytest.approx(total(name), rel=ROUNDED)
    together = math.hypot(stated.device_sigma, stated.run_sigma)
    assert LEAST * together <= total(name) <= MOST * together
    noise = between_runs(name)
    if noise is None:
        assert stated.recorded.run is None
    else:
        assert stated.recorded.run == pytest.approx(noise, rel=ROUNDED)
        assert LEAST * stated.run_sigma <= noise <= MOST * stated.run_sigma
    assert together < stated.delta, "what is normal is not a defect"


@pytest.mark.parametrize("name", CLASSES)
def test_what_lasts_of_every_recorded_device_is_within_delta(name: str):
    """Of a device with several runs their mean; of one with one run, what the run says."""
    stated = limits().spread[name].for_model(MODEL)
    lasting: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for r in of_class(name):
        median = statistics.median(r["values"].values())
        of_nodes = limits().criteria[r["criterion"]].over == "ranks"
        for who, value in r["values"].items():
            device = f"{who} of {r['commit']}" if of_nodes else who
            lasting[r["criterion"], device].append(value / median - 1)
    assert min(map(statistics.fmean, lasting.values())) > -stated.delta


def test_the_recordings_are_those_of_the_records_in_this_checkout():
    held = 0
    for name in IN_TREE:
        run = planted._run(name)
        assert run is not None, name
        shipped, _, items, evidence = run
        for recording in recordings():
            criterion = shipped.criteria[recording["criterion"]]
            if (recording["run"], recording["commit"]) != (name, "d3243fb"):
                continue
            if criterion.over == "links":
                continue
            values: defaultdict[str, list[float]] = defaultdict(list)
            for item in items[criterion.key]:
                found = evidence.get(item.workload, item.placement)
                assert isinstance(found, Record)
                for rank, m in points_of(criterion, found, item.nodes, item.subject):
                    who = rank.node if criterion.over == "ranks" else rank.device["uuid"][4:12]
                    values[who].append(statistics.median(m.samples))
            medians = {who: statistics.median(v) for who, v in values.items()}
            assert medians == pytest.approx(recording["values"], abs=1e-4), criterion.key
            held += 1
    assert held > 20


def test_spread_has_figures_of_its_own_for_a_model(tmp_path):
    small = small_thresholds.load(tmp_path)
    assert small.spread["gemm"].for_model("H200 SXM").delta == 0.08
    assert small.spread["gemm"].for_model("cpu").delta == 0.67
    assert small.spread["gemm"].for_model("cpu").run_sigma == 0.003


def test_a_delta_that_hides_every_fault_needs_a_reason():
    fine = {"device_sigma": 0.01, "run_sigma": 0.01, "source": "x"}
    for given, refused in (
        ({"delta": 0.25}, False),
        ({"delta": 0.26}, True),
        ({"delta": 0.26, "loose": "a small test"}, False),
        ({"delta": 0.1, "models": {"L40S": {"delta": 0.26}}}, True),
        ({"delta": 0.1, "models": {"L40S": {"delta": 0.26, "source": "x"}}}, False),
        ({"delta": 0.1, "models": {"L40S": {"run_sigma": 0.02}}}, False),
    ):
        if refused:
            with pytest.raises(ValueError, match=r"toothless: delta 0\.26 is over 0\.25"):
                Spread.model_validate(fine | given)
        else:
            found = Spread.model_validate(fine | given)
            assert found.for_model("H200 SXM").delta == given["delta"]
    own = Spread.model_validate(fine | {"delta": 0.1, "models": {"L40S": {"run_sigma": 0.02}}})
    assert own.for_model("L40S").run_sigma == 0.02
    assert own.for_model("L40S").delta == 0.1
