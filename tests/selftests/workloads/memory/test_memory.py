"""Memory and copies: what is counted, what is compared, and who is named when it is not right."""

from __future__ import annotations

import importlib.util
import mmap
import os
import statistics
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.verdict.model import Outcome
from fixtures.workloads.devices import numa
from fixtures.workloads.memory import memory
from fixtures.workloads.timing.timing import Batches
from tests.selftests import support
from tests.selftests.workloads.memory import records_of_memory
from tests.selftests.workloads.memory.records_of_memory import (
    job_with,
    judged,
    lone,
    node,
    rate,
)

pytestmark = pytest.mark.cpu
batches = partial(records_of_memory.batches, count=20, launches=10, ended=[])

GIB = support.GIB
H200_MEMORY = {"memory_clock_mhz": 3201, "memory_bus_bits": 6016}


# --- memory


@pytest.mark.parametrize(
    ("memory_bytes", "cache_mib", "array"),
    [
        (150_754_820_096, 60, 16 * GIB),  # H200
        (192_265_846_784, 126, 16 * GIB),  # B200
        (85_000_000_000, 50, 8 * GIB),  # H100
        (42_400_000_000, 40, 4 * GIB),  # A100 40 GB
        (47_800_000_000, 96, 9600 * memory.MIB),  # L40S: a large cache for its memory
    ],
)
def test_arrays_are_as_large_as_memory_allows_and_the_cache_demands(memory_bytes, cache_mib, array):
    found = memory.array_bytes(memory_bytes, cache_mib * memory.MIB)
    assert found == array
    assert 3 * found < memory_bytes
    assert found >= 100 * cache_mib * memory.MIB


def test_bytes_are_counted_as_stream_does():
    size = 16 * GIB
    for name, times in {"copy": 2, "triad": 3, "read": 1, "fill": 1}.items():
        assert memory.rates(name, size, batches(0.01)) == [times * size / 0.01 / 1e9] * 20


def test_bytes_counted_twice_are_above_the_ceiling(tmp_path):
    """Planted in a copy of the workload; what is honest passes at the same speed."""
    text = Path(memory.__file__).read_text()
    assert text.count('"copy": 2') == 1
    path = tmp_path / "twice.py"
    path.write_text(text.replace('"copy": 2', '"copy": 4'))
    spec = importlib.util.spec_from_file_location("twice", path)
    twice = importlib.util.module_from_spec(spec)
    sys.modules["twice"] = twice
    try:
        spec.loader.exec_module(twice)
    finally:
        del sys.modules["twice"]
    outcomes = []
    for workload in (memory, twice):
        rates = workload.rates("copy", 16 * GIB, batches(2 * 16 * GIB / 4299e9))
        found = rate("copy", statistics.median(rates))
        verdict = judged("memory.copy", node("memory", [found], [found], **H200_MEMORY))
        outcomes.append((verdict.outcome, verdict.reason))
    assert outcomes[0] == (Outcome.PASS, "")
    assert outcomes[1][0] is Outcome.NOT_MEASURED
    assert "above the physical ceiling of 4814" in outcomes[1][1]


@pytest.mark.parametrize("name", memory.ARRAYS_MOVED)
def test_what_an_operation_leaves_is_compared_element_by_element(name, tmp_path):
    arrays = memory.Arrays(lone(tmp_path), 100_003)
    if name != "read":
        assert arrays.count_wrong(name) > 99_000, "nothing was done yet"
    arrays.launch(name)()
    assert arrays.count_wrong(name) == 0
    arrays.total += 1000
    arrays.a[[0, 70_000]] += 1e-3
    arrays.a[100_002] = float("nan")
    assert arrays.count_wrong(name) == (1 if name == "read" else 3)
    arrays.total *= float("nan")
    assert name != "read" or arrays.count_wrong(name) == 1


FLIP = {
    "memory": """
def plant():
    honest = workload.Arrays.copy
    def copy(self):
        honest(self)
        self.a[12345] += 1
    workload.Arrays.copy = copy
""",
    "hostcopy": """
def plant():
    honest = workload.Buffers.d2h
    def d2h(self):
        honest(self)
        self.host[12345] += 1
    workload.Buffers.d2h = d2h
""",
    "p2p": """
def plant():
    import torch
    honest = torch.Tensor.copy_
    def copy_(self, source, **more):
        honest(self, source, **more)
        self[12345] += 1
        return self
    torch.Tensor.copy_ = copy_
""",
}
"""One element that a copy of rank 1 leaves wrong, as a faulty memory or link would."""


FLIPPED = {"memory": "copy", "hostcopy": "d2h", "p2p": "write"}


@pytest.mark.parametrize("name", FLIP)
def test_a_wrong_element_is_red_and_names_the_gpu(name, tmp_path):
    found = job_with(tmp_path, name, FLIP[name], [FLIPPED[name], "errors"], 2)
    # Errors are judged alike on every model; the other rows of copies are for GPUs.
    verdict = judged(f"{name}.errors", found, model="cpu" if name == "memory" else "H200 SXM")
    assert (verdict.outcome, verdict.worst["gpu"]) == (Outcome.FAIL, 1)
    assert verdict.value >= 1
    assert any("wrong" in note for note in verdict.notes)
    wrong = {
        rank.rank: {m.checks["wrong"] for m in rank.measurements if m.samples}
        for rank in found.ranks
    }
    assert wrong[0] == {0.0}
    assert min(wrong[1]) >= 1
    if name == "memory":
        rates = judged("memory.copy", found, model="cpu")
        assert rates.outcome is Outcome.NOT_MEASURED, "a rate of wrong data is none"
        assert "gpu1: wrong is" in rates.reason


SLOW = """
def plant():
    honest = workload.Arrays.fill
    def fill(self):
        for _ in range(60):
            honest(self)
    workload.Arrays.fill = fill
"""


def test_a_slow_device_among_four_is_named(tmp_path):
    # Small arrays: a batch of the slow one stays short beside the window, however busy the host.
    found = job_with(tmp_path, "memory", SLOW, ["fill"], 4, size=memory.MIB)
    for rank in found.ranks:
        for m in rank.measurements:
            m.checks["overlap"] = 1.0  # how much it is on a busy host is not what is asked here
    verdict = judged("memory.fill", found, model="cpu")
    assert verdict.outcome is Outcome.FAIL, verdict.line
    assert (verdict.worst["node"], verdict.worst["gpu"]) == ("worker0", 1)


def test_five_per_cent_less_than_its_siblings_is_an_outlier_on_a_gpu():
    """Above its floor, and 4 % below the three others: 2 % is what healthy ones may differ by."""
    found = [[rate("copy", 4299 * share)] for share in (1, 1, 0.96, 1)]
    verdict = judged("memory.copy", node("memory", *found, **H200_MEMORY))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason.startswith("outlier: ")
    assert verdict.worst["gpu"] == 2


@pytest.mark.parametrize(
    "checks",
    [
        {"array_over_cache": 99.0}, {"array_over_cache": None}, {"overlap": 0.7},
        {"wall_over_events": 9.0}, {"batches": 19.0}, {"wrong": None},
    ],
)  # fmt: skip
def test_what_is_not_proven_to_be_valid_is_not_measured(checks):
    found = node("memory", [rate("read", 4383, checks=checks)], **H200_MEMORY)
    verdict = judged("memory.read", found)
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert next(iter(checks)) in verdict.reason


# --- how it is measured


class FakeArrays:
    """Arrays without memory, of which a copy leaves two elements wrong."""

    def __init__(self, ranks: Any, count: int) -> None:
        self.launched: list[str] = []
        FakeArrays.count = count  # type: ignore[attr-defined]

    def launch(self, name: str) -> Any:
        return name

    def count_wrong(self, name: str) -> int:
        return 2 if name == "copy" else 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the workload on nothing; returns the measurements by metric, facts and operations."""
    ran: list[str] = []

    def measure_batches(ranks: Any, name: str, **how: Any) -> list[Batches]:
        ran.append(name)
        return [batches(0.01), batches(0.02)]

    monkeypatch.setattr(memory, "Arrays", FakeArrays)
    monkeypatch.setattr(memory.repeat_rounds, "measure_batches", measure_batches)
    monkeypatch.setattr(memory, "cache_bytes", lambda ranks: 60 * memory.MIB)
    monkeypatch.setattr(memory, "_device_bytes", lambda ranks: 150_754_820_096)
    monkeypatch.setattr(memory, "release_memory", lambda ranks: None)

    def start(metrics: list[str], *, on_gpu: bool = False, **how: Any) -> Any:
        ran.clear()
        ranks: Any = SimpleNamespace(on_gpu=on_gpu)
        result = memory.run(ranks, metrics, **how)
        return {m.metric: m for m in result.measurements}, result.facts, list(ran)

    return start


def test_errors_are_counted_after_every_operation_and_rates_where_they_are_asked_for(started):
    found, _, ran = started(["copy", "fill"])
    assert (list(found), ran) == (["copy", "fill"], ["copy", "fill"])
    assert found["copy"].samples == pytest.approx([2 * 32 * memory.MIB / 0.01 / 1e9] * 20, rel=1e-3)
    assert len(found["copy"].rounds) == 1
    assert (found["copy"].checks["wrong"], found["fill"].checks["wrong"]) == (2.0, 0.0)
    assert found["fill"].checks["array_over_cache"] == pytest.approx(32 / 60)
    found, _, ran = started(["errors"])
    assert (list(found), ran) == (["errors"], list(memory.ARRAYS_MOVED))
    assert (found["errors"].value, found["errors"].notes) == (2, ["2 wrong after copy"])
    assert list(started(["read", "errors"])[0]) == ["read", "errors"]


def test_an_array_has_32_mib_on_a_cpu_and_16_gib_on_an_h200_unless_told_otherwise(started):
    for on_gpu, how, size in (
        (False, {}, 32 * memory.MIB), (True, {}, 16 * GIB), (False, {"size": 400}, 400),
    ):  # fmt: skip
        _, facts, _ = started(["copy"], on_gpu=on_gpu, **how)
        assert facts["array_bytes"] == size
        assert FakeArrays.count == size // 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("device", "estimate", "batch_s", "window_s", "minimum", "warm_s"),
    [
        ("cpu", 0.001, 0.03, 0.8, 5, 0.1), ("cpu", 0.2, 0.2, 1.6, 5, 0.1),
        ("cuda", 0.001, 0.05, 1.2, 20, 0.2), ("cuda", 0.02, 0.2, 4.8, 20, 0.2),
    ],
)  # fmt: skip
def test_a_batch_is_long_enough_and_a_window_has_enough_of_them(
    device, estimate, batch_s, window_s, minimum, warm_s, monkeypatch
):
    asked: dict[str, Any] = {}

    def together(ranks: Any, launch: Any, **how: Any) -> str:
        asked.update(how)
        return "batches"

    monkeypatch.setattr(
        memory.timing, "warm", lambda ranks, launch, s: asked.update(warm=s) or estimate
    )
    monkeypatch.setattr(memory.timing, "measure_together", together)
    ranks: Any = SimpleNamespace(device=SimpleNamespace(type=device), barrier=lambda: None)
    assert memory.measure(ranks, lambda: None) == "batches"
    assert (asked["batch_s"], asked["window_s"]) == pytest.approx((batch_s, window_s))
    assert (asked["minimum"], asked["warm"], asked["estimate"]) == (minimum, warm_s, estimate)


def test_a_sum_may_be_off_by_its_rounding_and_no_more(tmp_path):
    arrays = memory.Arrays(lone(tmp_path), 1_000_000)
    arrays.read()
    arrays.total += 0.5
    assert arrays.count_wrong("read") == 0
    arrays.total += 2
    assert arrays.count_wrong("read") == 1


def test_the_cache_is_that_of_the_device(monkeypatch):
    import torch

    properties = SimpleNamespace(L2_cache_size=60, total_memory=140)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    gpu: Any = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    cpu: Any = SimpleNamespace(device=SimpleNamespace(type="cpu"))
    assert (memory.cache_bytes(gpu), memory._device_bytes(gpu)) == (60, 140)
    for said, expected in ((7, 7), (-1, 0)):
        monkeypatch.setattr(memory.os, "sysconf", lambda name, said=said: said)
        assert memory.cache_bytes(cpu) == expected

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(memory.os, "sysconf", unknown)
    assert memory.cache_bytes(cpu) == 0
    memory.release_memory(cpu)
    assert emptied == []
    memory.release_memory(gpu)
    assert emptied == [1]


# --- NUMA


@pytest.mark.parametrize(
    ("pages", "wanted", "present", "share"),
    [
        ({0: 90, 1: 10}, 0, 2, 0.1),
        ({1: 100}, 0, 2, 1.0),
        ({0: 100}, 0, 2, 0.0),
        ({0: 50, -2: 50}, 0, 2, 0.5),  # never written
        (None, 0, 2, None),
        ({0: 100}, None, 2, None),
        (None, None, 0, None),
        (None, None, 1, 0.0),
    ],
)
def test_pages_count_as_elsewhere_unless_proven_to_be_near(pages, wanted, present, share):
    assert numa.share_elsewhere(pages, wanted, present) == (share and pytest.approx(share))


def test_memory_is_bound_where_it_is_touched_and_what_was_before_is_restored():
    here = numa.nodes()
    if not here:
        pytest.skip("this kernel has no NUMA nodes")
    before = os.sched_getaffinity(0), numa._policy()
    with numa.bound_to(here[0]) as refused, mmap.mmap(-1, 16 * mmap.PAGESIZE) as pages:
        if not refused:
            assert numa._policy() == (numa.MPOL_BIND, 1 << here[0])
        pages[: 8 * mmap.PAGESIZE] = b"x" * (8 * mmap.PAGESIZE)
        import torch

        address = torch.frombuffer(pages, dtype=torch.uint8).data_ptr()
        found = numa.pages_by_node(address, 16 * mmap.PAGESIZE)
    assert (os.sched_getaffinity(0), numa._policy()) == before
    if found is not None and not refused:
        assert found[here[0]] == 8, "only what was written lies anywhere"
        assert sum(found.values()) == 16


def test_a_node_that_is_not_there_is_refused_and_said(tmp_path):
    folder = tmp_path / "devices/system/node/node900"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text("9000-9003\n")
    with numa.bound_to(900, tmp_path) as refused:
        assert "no core of NUMA node 900" in refused[0]
        assert refused[1].startswith("set_mempolicy: ")
