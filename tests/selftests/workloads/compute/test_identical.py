"""Matrix products that must have identical bits, and the burn-in that repeats them.

A fault of the device is planted below the workload, in torch.mm.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.sandbox import Sandbox
from fixtures.verdict.model import Outcome
from fixtures.workloads.compute import identical
from tests.selftests.gemm_judging import verdict_on
from tests.selftests.rank_job import TORCH, Job
from tests.selftests.sandboxes import copy_checkout, on, suite

pytestmark = pytest.mark.cpu


# --- identical products

SUMS = [7] * 20


@pytest.mark.parametrize(
    ("mine", "others", "wrong", "said"),
    [
        (SUMS, [SUMS] * 3, 0, ""),
        (SUMS, [], 0, ""),
        ([7] * 19 + [8], [], 1, "1 of 20 results differ: the same work gave another result"),
        ([8] + [7] * 19, [], 1, "1 of 20"),  # the first is not taken for right
        ([8] * 20, [SUMS] * 3, 20, "20 of 20 results differ: 3 of 4 like devices agree"),
        (SUMS, [[8] * 20, SUMS, SUMS], 0, ""),
        ([7] * 12 + [8] * 8, [SUMS], 8, "8 of 20 results differ: 2 of 2 like devices agree"),
        (SUMS, [[8] * 20], 20, "no majority: 2 results on 2 like devices"),
        (SUMS, [[8] * 20, [9] * 20], 20, "no majority: 3 results on 3 like devices"),
    ],
)
def test_the_minority_counts_its_wrong_products(mine, others, wrong, said):
    votes = [identical.Results(checksums=sums).vote for sums in (mine, *others)]
    count, notes = identical.compare(mine, votes)
    assert count == wrong
    assert bool(notes) == bool(said)
    assert all(note.startswith(said) for note in notes)


@settings(deadline=None, max_examples=60)
@given(edge=st.sampled_from([4, 8, 32]), data=st.data())
def test_any_single_bit_changes_the_checksum(edge, data):
    import torch

    matrix = torch.randn(edge, edge, generator=torch.Generator().manual_seed(1)).bfloat16()
    before = identical.checksum(matrix)
    place = data.draw(st.integers(0, edge * edge - 1))
    bit = data.draw(st.integers(0, 15))
    raw = matrix.view(torch.int16).view(-1)
    mask = (1 << bit) - (1 << 16 if bit == 15 else 0)  # as int16 has it
    raw[place] ^= mask
    assert identical.checksum(matrix) != before
    raw[place] ^= mask
    assert identical.checksum(matrix) == before


def test_two_numbers_that_change_places_change_the_checksum():
    import torch

    matrix = torch.arange(64, dtype=torch.float32).reshape(8, 8).bfloat16()
    # Whole words: four bf16 each.
    swapped = matrix.reshape(16, 4)[[1, 0, *range(2, 16)]].reshape(8, 8)
    assert identical.checksum(swapped) != identical.checksum(matrix)


BIT_FLIP = '''
"""One bit of one product in twenty is wrong on one rank: below the workload, in torch.mm."""
import torch
from fixtures.workloads.compute import identical, burnin
WORKLOAD = identical.WORKLOAD

def flip(rank, at, dtype):
    honest, done = torch.mm, []

    def mm(a, b, *, out):
        honest(a, b, out=out)
        if out.dtype is dtype:
            done.append(1)
        if out.dtype is dtype and len(done) in at:
            out.view(torch.int16)[3, 5] ^= 1
        return out

    torch.mm = mm

def run(ranks, metrics, *, rank=1, at=(7,), workload="identical", dtype="bfloat16", **params):
    if ranks.rank == rank:
        flip(rank, at, getattr(torch, dtype))
    return {"identical": identical, "burnin": burnin}[workload].run(ranks, metrics, **params)
'''


def test_healthy_ranks_get_identical_products(tmp_path: Path) -> None:
    job = Job(tmp_path, per_node=2)
    job.add("identical", ["products"])
    assert job.run(warm=TORCH) == [0, 0], job.output()
    record = job.record("identical")
    assert [rank.facts["like_devices"] for rank in record.ranks] == [2, 2]
    first, second = (rank.facts["kernels"] for rank in record.ranks)
    assert first == second
    assert all(len(kernel["checksums"]) == 1 for kernel in first.values())
    assert set(first) == {
        "bf16 256 x 256 x 256", "fp32 256 x 256 x 256", "attention", "training of 8 steps",
    }  # fmt: skip
    (note,) = record.ranks[0].measurements[0].notes
    assert note.startswith(
        "compared 20 of bf16 256 x 256 x 256, fp32 256 x 256 x 256, attention (95 %"
    )
    assert verdict_on("gemm.identical", record).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("ranks", "at", "value", "worst"),
    [(2, [7], 1, 1), (2, [1], 1, 1), (3, list(range(1, 21)), 20, 1), (1, [20], 1, 0)],
    ids=["one of two", "the first product", "always, of three", "alone"],
)
def test_a_bit_flip_names_the_device(
    tmp_path: Path, ranks: int, at: list[int], value: int, worst: int
) -> None:
    job = Job(tmp_path, per_node=ranks)
    (tmp_path / "flipped.py").write_text(BIT_FLIP, encoding="utf-8")
    job.add("flipped", ["products"], at=at, rank=worst)
    assert job.run(warm=TORCH) == [0] * ranks, job.output()
    verdict = verdict_on("gemm.identical", job.record("flipped"))
    assert (verdict.outcome, verdict.value) == (Outcome.FAIL, value)
    assert (verdict.worst["node"], verdict.worst["gpu"]) == ("worker0", worst)
    assert f"worker0-cpu{worst}" in verdict.next_step


def test_a_bit_flip_in_another_dtype_names_the_device_and_the_kernel(tmp_path: Path) -> None:
    job = Job(tmp_path, per_node=2)
    (tmp_path / "flipped.py").write_text(BIT_FLIP, encoding="utf-8")
    job.add("flipped", ["products"], at=[15], dtype="float32")
    assert job.run(warm=TORCH) == [0, 0], job.output()
    verdict = verdict_on("gemm.identical", job.record("flipped"))
    assert (verdict.outcome, verdict.value, verdict.worst["gpu"]) == (Outcome.FAIL, 1, 1)
    assert verdict.notes[1].startswith("fp32 256 x 256 x 256: 1 of 20 results differ")


FLIPPED_GRADIENT = '''
"""One bit of one gradient of one step is wrong on one rank, in one replay of the training."""
import torch
from fixtures.workloads.compute import identical
from fixtures.workloads.compute import repeatable_kernels
WORKLOAD = identical.WORKLOAD

def run(ranks, metrics, *, replay, step):
    if ranks.rank == 1:
        honest, replays = repeatable_kernels.adam, [0]

        def broken(weights, gradients, moments, number):
            replays[0] += number == 1
            if (replays[0], number) == (replay, step):
                gradients[2].view(torch.int32)[3, 5] ^= 1 << 20
            honest(weights, gradients, moments, number)

        repeatable_kernels.adam = broken
    return identical.run(ranks, metrics)
'''


@pytest.mark.parametrize(("replay", "step"), [(1, 1), (2, 5), (3, 8)])
def test_a_flipped_bit_of_a_gradient_names_the_device(
    tmp_path: Path, replay: int, step: int
) -> None:
    job = Job(tmp_path, per_node=2)
    (tmp_path / "flipped_gradient.py").write_text(FLIPPED_GRADIENT, encoding="utf-8")
    job.add("flipped_gradient", ["products"], replay=replay, step=step)
    assert job.run(warm=TORCH) == [0, 0], job.output()
    verdict = verdict_on("gemm.identical", job.record("flipped_gradient"))
    assert (verdict.outcome, verdict.value, verdict.worst["gpu"]) == (Outcome.FAIL, 1, 1)
    assert verdict.notes[1].startswith("training of 8 steps: 1 of 3 results differ")


WRONG_VALUE = '''
"""Every product of every device is wrong alike: no bits differ, the value does."""
import torch
from fixtures.workloads.compute import identical
WORKLOAD = identical.WORKLOAD

def run(ranks, metrics):
    honest = torch.mm

    def mm(a, b, *, out):
        honest(a, b, out=out)
        out[:, -1] *= 1.5
        return out

    torch.mm = mm
    return identical.run(ranks, metrics)
'''


def test_a_value_that_is_wrong_on_all_devices_alike_is_red(tmp_path: Path) -> None:
    job = Job(tmp_path)
    (tmp_path / "wrong_value.py").write_text(WRONG_VALUE, encoding="utf-8")
    job.add("wrong_value", ["products"])
    assert job.run(warm=TORCH) == [0], job.output()
    verdict = verdict_on("gemm.identical", job.record("wrong_value"))
    assert verdict.outcome is Outcome.FAIL
    assert "against float64, at most 0.005" in verdict.notes[0]


def test_two_that_disagree_both_count_and_say_that_nobody_knows(tmp_path: Path) -> None:
    job = Job(tmp_path, per_node=2)
    (tmp_path / "flipped.py").write_text(BIT_FLIP, encoding="utf-8")
    job.add("flipped", ["products"], at=list(range(1, 21)))
    assert job.run(warm=TORCH) == [0, 0], job.output()
    record = job.record("flipped")
    assert [m.value for _, m in record.points("products", {})] == [20, 20]
    verdict = verdict_on("gemm.identical", record)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.notes[0] == "bf16 256 x 256 x 256: no majority: 2 results on 2 like devices"


def test_a_bit_flip_on_one_of_two_nodes_is_red_in_the_cluster_and_names_its_device(
    tmp_path: Path,
) -> None:
    nodes = "worker0", "worker1"
    job = Job(tmp_path, nodes=[*nodes])
    (tmp_path / "flipped.py").write_text(BIT_FLIP, encoding="utf-8")
    job.add("flipped", ["products"])
    assert job.run(slurm=True, warm=TORCH) == [0, 0], job.output()
    verdict = verdict_on("gemm.identical.cluster", job.record("flipped"), nodes=nodes)
    assert (verdict.outcome, verdict.value) == (Outcome.FAIL, 1)
    assert (verdict.worst["node"], verdict.worst["gpu"]) == ("worker1", 0)


PLANTED = """

_honest_run = run

def run(ranks, metrics, **more):
    import torch
    honest, done = torch.mm, []

    def mm(a, b, *, out):
        honest(a, b, out=out)
        done.append(1)
        if ranks.node == "worker1" and ranks.local_rank == 1 and len(done) == 7:
            out.view(torch.int16)[3, 5] ^= 1
        return out

    torch.mm = mm
    try:
        return _honest_run(ranks, metrics, **more)
    finally:
        torch.mm = honest
"""


@pytest.mark.slow
def test_a_bit_flip_in_one_product_is_red_on_its_node_and_in_the_cluster(
    shared_sandbox: Sandbox, tmp_path: Path
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    copy_checkout(checkout)
    module = checkout / "fixtures" / "workloads" / "compute" / "identical.py"
    with module.open("a", encoding="utf-8") as file:
        file.write(PLANTED)
    done = suite(checkout, tmp_path / "run", "tests/test_compute.py", "-k", "identical",
                 env=on(shared_sandbox))  # fmt: skip
    done.ended_as("REJECTED", 1)
    assert done.outcomes == {
        ("gemm.identical", "worker0"): "PASS", ("gemm.identical", "worker1"): "FAIL",
        ("gemm.identical.cluster", "cluster"): "FAIL",
    }  # fmt: skip
    for key in (("gemm.identical", "worker1"), ("gemm.identical.cluster", "cluster")):
        row = done.rows[key]
        assert row["value"] == 1
        assert (row["worst"]["node"], row["worst"]["gpu"]) == ("worker1", 1)
    assert (done.root / "bad-nodes.txt").read_text() == "worker1\n"


# --- the burn-in


def test_a_bit_flip_in_a_burnin_names_the_device(tmp_path: Path) -> None:
    job = Job(tmp_path, per_node=2)
    (tmp_path / "flipped.py").write_text(BIT_FLIP, encoding="utf-8")
    # The first product is what the later ones are compared with.
    job.add("flipped", ["products"], workload="burnin", at=[1], seconds=1.0)
    assert job.run(warm=TORCH) == [0, 0], job.output()
    verdict = verdict_on("burnin.products", job.record("flipped"))
    assert (verdict.outcome, verdict.worst["gpu"]) == (Outcome.FAIL, 1)
