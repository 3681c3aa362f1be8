"""A failure belongs to its device: what is done to another one takes nothing of it back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.model import Measurement, RankResult, Record, Void
from fixtures.run.device_failures import failure_of_unchanged
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict
from tests.selftests import support
from tests.selftests.run.attempts_story import Story
from tests.selftests.support import node_record, rank, record, save

pytestmark = pytest.mark.cpu

A, B, NEW = "GPU-worker0-0", "GPU-worker0-1", "GPU-new"
PASS, FAIL, NOT_MEASURED = Outcome.PASS, Outcome.FAIL, Outcome.NOT_MEASURED


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """Both GPUs were found, then measured: the second one fails."""
    made = Story(tmp_path)
    made.inventory(1, A, B, at=50.0, vbios="1")
    made.measured(1, 650, 500, vbios="1")
    return made


def of(story: Story, attempt: int, *uuids: str, **device: Any) -> Verdict:
    """A pass of these GPUs."""
    made = story.measured(attempt, ledger=False, **device)
    for r, uuid in zip(made.ranks, uuids, strict=True):
        r.device["uuid"] = uuid
    save(made, story.run.directory)
    return story.judged()


def test_the_gpu_that_failed_was_replaced_and_the_new_one_passes_at_once(story):
    story.inventory(2, A, NEW, at=150.0, vbios="1")
    assert story.judged().outcome is NOT_MEASURED
    assert of(story, 2, A, NEW).outcome is PASS


def test_another_gpu_was_replaced_and_the_failure_stands(story):
    story.inventory(2, NEW, B, at=150.0, vbios="1")
    found = story.judged()
    assert (found.outcome, found.cause) == (NOT_MEASURED, Cause.REPLACED)
    found = of(story, 2, NEW, B)
    assert (found.outcome, found.cause) == (NOT_MEASURED, Cause.REPETITION)
    assert of(story, 3, NEW, B).outcome is NOT_MEASURED
    assert of(story, 4, NEW, B).outcome is PASS


def test_another_gpu_has_other_firmware_and_the_failure_stands(story):
    def updated(slot: int) -> Verdict:
        """What is said after new firmware for the GPU in this slot."""
        attempt = 2 + slot
        story.inventory(attempt, A, B, at=150.0 + slot, vbios="1")
        with support.edited(story.run.directory.record("inventory", "worker0", attempt)) as data:
            data["ranks"][slot]["device"]["vbios"] = "2"
        made = story.measured(2, ledger=False, vbios="1")
        made.ranks[slot].device["vbios"] = "2"
        save(made, story.run.directory)
        return story.judged()

    assert updated(0).cause == Cause.REPETITION
    assert updated(1).outcome is PASS  # it was the one that failed


def test_a_gpu_was_moved_and_the_failure_of_another_stands(story):
    story.inventory(2, A, B, at=150.0, vbios="1")
    with support.edited(story.run.directory.record("inventory", "worker0", 2)) as data:
        data["ranks"][0]["device"]["pci"] = "elsewhere"
    made = story.measured(2, ledger=False)
    made.ranks[0].device["pci"] = "elsewhere"
    save(made, story.run.directory)
    assert story.judged().cause == Cause.REPETITION


def test_a_gpu_that_is_replaced_twice_is_named_as_that_and_no_more(story):
    story.inventory(2, A, NEW, at=150.0, vbios="1")
    made = story.measured(2, 650, 500, ledger=False)
    made.ranks[1].device["uuid"] = NEW
    save(made, story.run.directory)
    assert story.judged().outcome is FAIL
    story.inventory(3, A, "GPU-third", at=250.0, vbios="1")
    found = story.judged()
    assert (found.outcome, found.cause) == (NOT_MEASURED, Cause.REPLACED)
    assert of(story, 3, A, "GPU-third").outcome is PASS


def test_both_failed_and_one_was_replaced(story):
    story.measured(1, 400, 500, vbios="1")
    story.inventory(2, NEW, B, at=150.0, vbios="1")
    assert of(story, 2, NEW, B).cause == Cause.REPETITION
    story.inventory(3, NEW, "GPU-other", at=250.0, vbios="1")
    assert of(story, 3, NEW, "GPU-other").outcome is PASS


def test_a_failure_whose_record_is_lost_is_of_its_gpu(story):
    story.path(1).unlink()
    story.inventory(2, NEW, B, at=150.0, vbios="1")
    assert of(story, 2, NEW, B).cause == Cause.REPETITION


# --- of what is no GPU


def void_of(ranks: list[RankResult], *gone: str, workload: str) -> Record:
    made = record(*ranks, workload=workload)
    void = Void("replaced", Cause.REPLACED, gone=frozenset(gone), ranks=tuple(ranks))
    return made.without({"worker0": void})


def failed(
    tmp_path: Path, ranks: list[RankResult], *gone: str, workload: str = "host", **criterion: Any
) -> bool:
    """Whether a row of states fails by what is unchanged."""
    known = support.load(tmp_path)
    base = known.criteria["allreduce.errors"]
    changed = replace(base, per="node", workload=workload, metric="errors", **criterion)
    known.criteria["allreduce.errors"] = changed
    case = support.case(known, "allreduce.errors", void_of(ranks, *gone, workload=workload))
    return failure_of_unchanged(case, case.record or record(), known) is not None


def errors(found: int, **at: Any) -> Measurement:
    return replace(support.value("errors", "elements", found), at=at)


def test_what_failed_of_the_node_itself_is_not_taken_back_by_a_new_gpu(tmp_path):
    ranks = [rank(0, "worker0", errors(3)), rank(1, "worker0")]
    assert failed(tmp_path, ranks, A)
    assert not failed(tmp_path, [rank(0, "worker0", errors(0)), rank(1, "worker0")], A)
    assert not failed(tmp_path, ranks, A, workload="crosscheck")  # that is of all GPUs


def test_a_port_keeps_its_failure_where_another_was_replaced(tmp_path):
    ranks = [rank(0, "worker0", errors(0, part="ib0"), errors(3, part="ib1")), rank(1, "worker0")]
    assert failed(tmp_path, ranks, "ib0", over="nics")
    assert not failed(tmp_path, ranks, "ib1", over="nics")


def test_a_repair_that_names_no_device_is_of_the_whole_node(tmp_path):
    known = support.load(tmp_path)
    told = node_record(650, 500).without({"worker0": Void("cable", Cause.REPLACED)})
    case = support.case(known, "gemm.bf16", told)
    assert failure_of_unchanged(case, told, known) is None
    broken = node_record(650, 500).without({"worker0": Void("broken")})
    assert failure_of_unchanged(replace(case, record=broken), broken, known) is None


def test_where_every_gpu_was_replaced_nothing_is_left_that_failed(tmp_path):
    known = support.load(tmp_path)
    ranks = node_record(500, 500).ranks
    found = void_of(ranks, A, B, workload="gemm")
    case = support.case(known, "gemm.bf16", found)
    assert failure_of_unchanged(case, found, known) is None
    one = void_of(ranks, A, workload="gemm")
    assert failure_of_unchanged(replace(case, record=one), one, known) is not None
