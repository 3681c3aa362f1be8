"""Copies between the host and a GPU: what is counted, compared and judged."""

from __future__ import annotations

import contextlib
import statistics
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.thresholds import site_facts
from fixtures.verdict.model import Outcome
from fixtures.workloads.devices import numa
from fixtures.workloads.memory import hostcopy
from tests.selftests import support
from tests.selftests.rank_job import TORCH, Job
from tests.selftests.workloads.memory import records_of_memory
from tests.selftests.workloads.memory.records_of_memory import (
    LIMITS,
    host,
    judged,
    node,
)

pytestmark = pytest.mark.cpu
batches = partial(records_of_memory.batches, overlap=0.9)


def test_host_copies_are_measured_in_turn_and_at_once(tmp_path):
    job = Job(tmp_path, per_node=2)
    job.add("hostcopy", ["h2d", "d2h", "h2d_all", "d2h_all", "errors"])
    assert job.run(warm=TORCH) == [0, 0], job.output()
    record = job.record("hostcopy")
    for way in ("h2d", "d2h"):
        alone = [(m.started, m.ended[-1]) for _, m in record.points(way, {})]
        (_, end), (begin, _) = sorted(alone)
        assert end <= begin, "nobody else copies meanwhile"
        best = max(statistics.median(m.samples) for _, m in record.points(way, {}))
        for _, m in record.points(f"{way}_all", {}):
            assert m.conditions["alone_gbps"] == pytest.approx(best, rel=1e-3)
            assert 0 < m.checks["overlap"] <= 1
    assert [m.value for _, m in record.points("errors", {})] == [0, 0]
    known = {m.checks.get("pages_elsewhere") for r in record.ranks for m in r.measurements[:-1]}
    assert known == {0.0 if len(numa.nodes()) == 1 else None}


@pytest.mark.parametrize(
    ("key", "gbps", "more", "outcome", "reason"),
    [
        ("h2d", 55.4, {}, Outcome.PASS, ""),
        ("h2d", 49, {}, Outcome.FAIL, ""),
        ("h2d", 110, {}, Outcome.NOT_MEASURED, "above the physical ceiling of 63"),
        ("h2d", 55, {"pages_elsewhere": 0.2}, Outcome.NOT_MEASURED, "pages_elsewhere is 0.2"),
        ("h2d", 55, {"pages_elsewhere": None}, Outcome.NOT_MEASURED, "was not recorded"),
        ("h2d_all", 37, {}, Outcome.PASS, ""),
        ("h2d_all", 24, {}, Outcome.FAIL, ""),
        ("h2d_all", 57, {}, Outcome.NOT_MEASURED, "above the physical ceiling of 55.5"),
        ("h2d_all", 37, {"alone": None}, Outcome.NOT_MEASURED, "no ceiling without alone_gbps"),
        ("h2d_all", 37, {"overlap": None}, Outcome.NOT_MEASURED, "overlap was not recorded"),
    ],
)
def test_host_copies_are_judged(key, gbps, more, outcome, reason):
    found = [host(key, gbps, **more) for _ in range(2)]
    verdict = judged(f"hostcopy.{key}", node("hostcopy", *found))
    assert (verdict.outcome, reason in verdict.reason) == (outcome, True), verdict.line


def test_a_link_that_came_up_short_is_too_slow_and_not_measured_wrongly():
    found = [host("h2d", 55.4), host("h2d", 27.7)]
    verdict = judged("hostcopy.h2d", node("hostcopy", *found))
    assert (verdict.outcome, verdict.worst["gpu"]) == (Outcome.FAIL, 1)


def test_virtual_nodes_of_one_host_cannot_copy_alone():
    people = support.population(2, 2, "H200 SXM")
    for way in ("h2d", "d2h_all"):
        reason = support.item(f"hostcopy.{way}", LIMITS, people, "worker0").not_applicable
        assert reason == site_facts.FACTS["own_host"].otherwise
    assert support.item("p2p.write", LIMITS, people, "worker0").not_applicable is None


# --- how it is measured


class FakeBuffers:
    """Buffers without memory, of which copies to the host leave two elements wrong."""

    def __init__(self, ranks: Any, size: int, node: int | None) -> None:
        self.size, self.node, self.pages_elsewhere = size, node, 0.0
        self.link = {"pcie_gen": 5}
        self.facts: dict[str, Any] = {"numa": {}}

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def launch(self, direction: str) -> Any:
        return direction

    def count_wrong(self, direction: str) -> int:
        return 2 if direction == "d2h" else 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    asked: list[Any] = []
    monkeypatch.setattr(hostcopy, "Buffers", FakeBuffers)
    monkeypatch.setattr(hostcopy.numa, "node_of", lambda pci: asked.append(pci))
    monkeypatch.setattr(hostcopy.numa, "bound_to", lambda node: contextlib.nullcontext([]))
    monkeypatch.setattr(
        hostcopy.repeat_rounds, "measure_batches",
        lambda ranks, name, **how: asked.append(name) or [batches(1.0), batches(2.0)],
    )  # fmt: skip
    monkeypatch.setattr(hostcopy, "measure_at_once", lambda *given: batches(4.0))

    def start(metrics: list[str], *, pci: Any = "0000:0a", **how: Any) -> Any:
        asked.clear()
        ranks: Any = SimpleNamespace(
            on_gpu=how.pop("on_gpu", False), ranks_per_node=2, gather_node=lambda x: [x, 1.5],
            device_facts=lambda: {"pci": pci},
        )  # fmt: skip
        result = hostcopy.run(ranks, metrics, **how)
        return {m.metric: m for m in result.measurements}, result.facts, list(asked)

    return start


def test_each_direction_is_measured_where_it_is_asked_for(started):
    found, _, asked = started(["h2d", "h2d_all"], size=10**9)
    assert (list(found), asked) == (["h2d", "h2d_all"], ["0000:0a", "h2d"])
    assert (found["h2d"].samples, found["h2d"].rounds) == ([1.0] * 4, [[0.5] * 4])
    assert found["h2d"].conditions == {"pcie_gen": 5}
    assert "overlap" not in found["h2d"].checks, "it was alone"
    assert found["h2d_all"].samples == [0.25] * 4
    assert found["h2d_all"].conditions == {"pcie_gen": 5, "alone_gbps": 1.5}
    assert found["h2d_all"].checks["overlap"] == 0.9
    assert found["h2d"].checks["pages_elsewhere"] == 0.0
    found, _, asked = started(["errors"])
    assert (list(found), asked[1:]) == (["errors"], ["h2d", "d2h"])
    assert (found["errors"].value, found["errors"].notes) == (2, ["2 wrong after d2h"])
    assert list(started(["d2h"])[0]) == ["d2h"]
    assert started(["d2h"], pci=None)[2][0] == ""


def test_sizes_and_batches_fit_the_time_for_all(started):
    for on_gpu, how, size in (
        (True, {}, 512 * 2**20), (False, {}, 8 * 2**20), (True, {"size": 4}, 4),
    ):  # fmt: skip
        _, facts, _ = started(["h2d"], on_gpu=on_gpu, **how)
        assert facts["size"] == size
        # 2.5 s for two GPUs, two directions and 20 batches.
        assert facts["batch_s"] == pytest.approx(2.5 / 80)


def test_pages_that_nobody_knows_are_not_checked():
    buffers: Any = FakeBuffers(None, 10**9, None)
    buffers.pages_elsewhere = None
    found = hostcopy._measurement(buffers, "h2d", [batches(1.0)], 3)
    assert "pages_elsewhere" not in found.checks
    assert found.checks["wrong"] == 3.0


@pytest.mark.parametrize(("on_gpu", "warm_s"), [(True, 0.6), (False, 0.05)])
def test_each_gpu_has_its_turn_and_the_others_wait(on_gpu, warm_s, monkeypatch):
    log: list[Any] = []
    monkeypatch.setattr(
        hostcopy.timing, "warm", lambda ranks, launch, seconds: log.append(seconds) or 0.001
    )

    def alone(ranks: Any, launch: Any, **how: Any) -> str:
        log.append((how["minimum"], how["batch_s"]))
        return "batches"

    monkeypatch.setattr(hostcopy.timing, "measure_alone", alone)
    ranks: Any = SimpleNamespace(
        on_gpu=on_gpu, ranks_per_node=3, local_rank=1, barrier=lambda: log.append("meet")
    )
    buffers: Any = FakeBuffers(ranks, 4, None)
    assert hostcopy.measure_alone_in_turn(ranks, buffers, "h2d", 0.03) == "batches"
    assert log == ["meet", "meet", warm_s, (20, 0.03), "meet", "meet"]


def test_all_copy_at_once_over_40_batches_of_the_slowest(monkeypatch):
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        hostcopy.timing, "warm", lambda ranks, launch, s: asked.update(warm=s) or 0.001
    )
    monkeypatch.setattr(
        hostcopy.timing, "measure_together", lambda ranks, launch, **how: asked.update(how) or "b"
    )
    ranks: Any = SimpleNamespace(barrier=lambda: None, gather_node=lambda own: [own, 0.004])
    assert hostcopy.measure_at_once(ranks, FakeBuffers(ranks, 4, None), "h2d", 0.01) == "b"  # type: ignore[arg-type]
    assert (asked["warm"], asked["estimate"], asked["minimum"]) == (0.2, 0.004, 20)
    assert asked["batch_s"] == pytest.approx(0.012)
    assert asked["window_s"] == pytest.approx(40 * 0.012)


@pytest.mark.parametrize(("pages", "told"), [({0: 1}, {"0": 1}), (None, {})])
def test_both_ends_of_a_copy_are_compared(pages, told, monkeypatch):
    monkeypatch.setattr(hostcopy.numa, "pages_by_node", lambda address, size: pages)
    ranks: Any = SimpleNamespace(device=torch.device("cpu"), rank=0)
    with hostcopy.Buffers(ranks, 4096, None) as buffers:
        assert buffers.facts["numa"]["pages"] == told
        assert buffers.link == {}
        for direction in ("h2d", "d2h"):
            copy = buffers.launch(direction)
            assert buffers.count_wrong(direction) > 1000, "nothing was copied yet"
            copy()
            assert buffers.count_wrong(direction) == 0
        buffers.host[5] += 1
        assert buffers.count_wrong("d2h") == 1
        buffers.launch("h2d")()
        buffers.arrived[7] += 1
        assert buffers.count_wrong("h2d") == 1
