"""Memory and copies: what is counted, what is compared, and who is named when it is not right."""

# Length: memory, host copies and GPU links are tested with the same builders of records.

from __future__ import annotations

import importlib.util
import itertools
import mmap
import os
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.records.model import Measurement, Record
from fixtures.run.judge_item import judge_item
from fixtures.thresholds import facts, loader
from fixtures.verdict.model import Outcome, Verdict
from fixtures.verdict.outliers import of_fleet, sibling_values
from fixtures.workloads.devices import numa
from fixtures.workloads.memory import memory, p2p
from fixtures.workloads.runtime.identity import Identity
from fixtures.workloads.runtime.ranks import Ranks
from fixtures.workloads.timing.timing import Batches
from reports.tables import nvbandwidth_tables
from tests.selftests import support
from tests.selftests.rank_job import TORCH, Job

pytestmark = pytest.mark.cpu

LIMITS = loader.load(support.SHIPPED)
GIB = support.GIB
H200_MEMORY = {"memory_clock_mhz": 3201, "memory_bus_bits": 6016}


def judged(key: str, found: Record, *, model: str = "H200 SXM") -> Verdict:
    """The verdict on a record of worker0 by the shipped limits, as a run of one node gives it."""
    people = support.population(1, len(found.ranks), model)
    item = support.item(key, LIMITS, people, "worker0")
    values = sibling_values(LIMITS.criteria[key], found, ["worker0"], "worker0")
    siblings = of_fleet(LIMITS.criteria[key], values, LIMITS)
    return judge_item(item, found, thresholds=LIMITS, population=people, siblings=siblings)


def node(workload: str, *measured: list[Measurement], **device: Any) -> Record:
    """A record of H200s in worker0: what each of them measured."""
    ranks = [
        support.rank(k, "worker0", *found, gpus=len(measured), **device)
        for k, found in enumerate(measured)
    ]
    return support.record(*ranks, workload=workload)


def rate(metric: str, gbps: float, **more: Any) -> Measurement:
    """A valid measurement at a steady rate, unless told otherwise."""
    checks = {
        "overlap": 0.99, "batches": 20.0, "wall_over_events": 1.0, "wrong": 0.0,
        "array_over_cache": 270.0, "pages_elsewhere": 0.0,
    }  # fmt: skip
    checks |= more.pop("checks", {})
    checks = {name: number for name, number in checks.items() if number is not None}
    return Measurement(metric=metric, unit="GB/s", samples=[gbps] * 20, checks=checks, **more)


def lone(tmp_path: Path) -> Ranks:
    """A rank on the CPU that has nobody to meet."""
    spec = {"nodes": ["worker0"], "ranks_per_node": 1, "directory": str(tmp_path), "device": "cpu"}
    return Ranks(spec, Identity(rank=0, local_rank=0, world_size=1, node="worker0"))


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


def batches(seconds: float) -> Batches:
    return Batches(
        seconds=[seconds] * 20, started=0.0, ended=[], launches=10, wall_over_marks=1.0, inside=20
    )


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


HEAD = """\
from fixtures.workloads.{area} import {name} as workload
WORKLOAD = workload.WORKLOAD
def run(ranks, metrics, **params):
    if ranks.rank == 1:
        plant()
    return workload.run(ranks, metrics, **params)
"""
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


def job_with(
    tmp_path: Path, name: str, plant: str, metrics: list[str], ranks: int, **params: Any
) -> Record:
    job = Job(tmp_path, per_node=ranks)
    (tmp_path / "planted.py").write_text(HEAD.format(area="memory", name=name) + plant)
    job.add("planted", metrics, **params)
    assert job.run(warm=TORCH) == [0] * ranks, job.output()
    return job.record("planted")


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
        for _ in range(20):
            honest(self)
    workload.Arrays.fill = fill
"""


def test_a_slow_device_among_four_is_named(tmp_path):
    # Small arrays: a batch of the slow one stays short beside the window, however busy the host.
    found = job_with(tmp_path, "memory", SLOW, ["fill"], 4, size=4 * memory.MIB)
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


# --- copies to and from the host


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


def host(metric: str, gbps: float, alone: float | None = 55.5, **checks: Any) -> list[Measurement]:
    conditions = {"pcie_gen": 5, "pcie_width": 16, "alone_gbps": alone}
    known = {name: fact for name, fact in conditions.items() if fact}
    return [rate(metric, gbps, conditions=known, checks=checks)]


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
        assert reason == facts.FACTS["own_host"].otherwise
    assert support.item("p2p.write", LIMITS, people, "worker0").not_applicable is None


# --- between GPUs


@given(st.integers(0, 17))
def test_every_two_gpus_meet_once_and_nobody_is_in_two_pairs_at_once(gpus):
    rounds = p2p.round_robin(gpus)
    for pairs in rounds:
        met = [gpu for pair in pairs for gpu in pair]
        assert len(met) == len(set(met))
    every = sorted(pair for pairs in rounds for pair in pairs)
    assert every == list(itertools.combinations(range(gpus), 2))
    assert len(rounds) <= max(1, gpus)


CORRUPT_TOGETHER = """
def plant():
    honest = workload.Link._copy
    calls = []
    def _copy(self):
        honest(self)
        calls.append(1)
        if len(calls) == 40:
            self.there[12345] ^= 1 << 7
            self.back.copy_(self.there)
            self.wrong += (self.back != self.source).sum()
    workload.Link._copy = _copy
"""


def test_copies_of_all_pairs_at_once_name_the_gpu_of_a_wrong_one(tmp_path):
    found = job_with(tmp_path, "p2p_together", CORRUPT_TOGETHER, ["errors"], 3)
    verdict = judged("p2p.errors_together", found)
    assert (verdict.outcome, verdict.value, verdict.worst["gpu"]) == (Outcome.FAIL, 1, 1)
    assert any(note.startswith("1 wrong between gpu1 and gpu") for note in verdict.notes)
    assert [r.measurements[0].value for r in found.ranks] == [0, 1, 0]


def test_healthy_copies_of_all_pairs_at_once_pass_with_what_they_find(tmp_path):
    job = Job(tmp_path, per_node=3)
    job.add("p2p_together", ["errors"])
    assert job.run(warm=TORCH) == [0] * 3, job.output()
    found = job.record("p2p_together")
    assert judged("p2p.errors_together", found).outcome is Outcome.PASS
    (note,) = found.ranks[0].measurements[0].notes
    assert note == "compared 90 copies there and back over 2 links (95 %: 3.3 % of the copies)"


DEAD_LINK = """
def plant():
    def _copy(self):
        self.wrong += (self.back != self.source).sum()
    workload.Link._copy = _copy
"""


def test_a_copy_that_does_nothing_is_wrong_everywhere(tmp_path):
    found = job_with(tmp_path, "p2p_together", DEAD_LINK, ["errors"], 2, size=4096)
    assert judged("p2p.errors_together", found).worst["gpu"] == 1
    assert found.ranks[1].measurements[0].value >= 90 * 1023


def test_three_ranks_measure_every_link_in_both_directions(tmp_path):
    job = Job(tmp_path, per_node=3)
    job.add("p2p", ["write", "both", "errors"], size=1 << 20)
    assert job.run(warm=TORCH) == [0] * 3, job.output()
    record = job.record("p2p")
    wanted = sorted(itertools.permutations(range(3), 2))
    for metric, arrow in (("write", "->"), ("both", "<->")):
        points = record.points(metric, {})
        assert sorted((r.local_rank, m.at["to"]) for r, m in points) == wanted
        for rank, m in points:
            assert m.at["part"] == f"gpu{rank.local_rank}{arrow}gpu{m.at['to']}"
            assert min(m.samples) > 0
            assert m.checks["wrong"] == 0
    assert [m.value for _, m in record.points("errors", {})] == [0] * 3
    table = nvbandwidth_tables(record)
    assert len(table.splitlines()) == 2 * 5 + 1


def matrix(
    gpus: int = 4, slow: Mapping[tuple[int, int], float] = {}, metric: str = "write", **more: Any
) -> list[list[Measurement]]:
    """What each of the GPUs measured towards each other one; 395 GB/s unless `slow` says else."""
    return [
        [
            rate(metric, slow.get((a, b), 395.0), at={"to": b, "part": f"gpu{a}->gpu{b}"}, **more)
            for b in range(gpus)
            if a != b
        ]
        for a in range(gpus)
    ]


def test_a_healthy_matrix_passes_and_shows_its_slowest_link():
    verdict = judged("p2p.write", node("p2p", *matrix(slow={(2, 1): 394.0})))
    assert (verdict.outcome, verdict.value, verdict.ceiling) == (Outcome.PASS, 394.0, 450)
    assert verdict.worst["part"] == "gpu2->gpu1"
    assert verdict.devices == {"planned": 4, "measured": 4}


def test_a_slow_link_is_named_with_both_of_its_ends():
    verdict = judged("p2p.write", node("p2p", *matrix(slow={(0, 3): 200.0})))
    assert (verdict.outcome, verdict.worst["part"]) == (Outcome.FAIL, "gpu0->gpu3")
    assert verdict.line.startswith("worker0 gpu0->gpu3 p2p.write: 200 GB/s, limit >= 380")
    assert "only the link between gpu0 and gpu3 is slow" in verdict.next_step


def test_the_gpu_that_all_slow_links_have_in_common_is_named():
    slow = {(a, b): 190.0 + a for a in range(4) for b in range(4) if 2 in (a, b) and a != b}
    verdict = judged("p2p.write", node("p2p", *matrix(slow=slow)))
    assert verdict.outcome is Outcome.FAIL
    assert "gpu2 (GPU-worker0-2) is part of all 6 slow links" in verdict.next_step


def test_slow_links_without_a_gpu_in_common_are_said_to_be_so():
    verdict = judged("p2p.write", node("p2p", *matrix(slow={(0, 1): 100.0, (2, 3): 110.0})))
    assert "no GPU is part of all 2 slow links" in verdict.next_step


def test_a_link_below_its_siblings_is_an_outlier_with_its_name():
    verdict = judged("p2p.write", node("p2p", *matrix(slow={(3, 1): 382.0})))
    assert (verdict.outcome, verdict.worst["part"]) == (Outcome.FAIL, "gpu3->gpu1")
    assert verdict.reason.startswith("outlier: ")


def test_a_link_that_is_missing_or_doubled_is_not_measured():
    lacking = matrix()
    del lacking[1][2]
    verdict = judged("p2p.write", node("p2p", *lacking))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "measured on 11 of 12 links; not from gpu1 to gpu3 of worker0"
    lacking[1].append(lacking[1][0])
    assert "not from gpu1 to gpu3" in judged("p2p.write", node("p2p", *lacking)).reason
    doubled = matrix()
    doubled[1].append(doubled[1][0])
    verdict = judged("p2p.write", node("p2p", *doubled))
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert verdict.reason == "the record holds 13 measurements of 12 links"


def test_both_ways_have_twice_the_ceiling():
    fast = dict.fromkeys(itertools.permutations(range(4), 2), 783.7)
    record = node("p2p", *matrix(slow=fast, metric="both"))
    verdict = judged("p2p.both", record)
    assert (verdict.outcome, verdict.ceiling) == (Outcome.PASS, 900)
    as_one_way = node("p2p", *matrix(slow=fast))
    assert "above the physical ceiling" in judged("p2p.write", as_one_way).reason


# --- tables


def test_tables_have_the_form_of_nvbandwidth():
    assert nvbandwidth_tables(node("p2p", *matrix(2, {(1, 0): 394.123}))).splitlines() == [
        "worker0: memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
        "           0         1",
        " 0       N/A    395.00",
        " 1    394.12       N/A",
    ]
    found = node("hostcopy", host("h2d", 55.43), host("h2d", 55.06))
    assert nvbandwidth_tables(found).splitlines() == [
        "worker0: memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
        "           0         1",
        " 0     55.43     55.06",
    ]
    assert nvbandwidth_tables(support.node_record(650, 655)) == ""
