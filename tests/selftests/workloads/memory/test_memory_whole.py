"""`memory.whole`: which wrong words are found, how they are told, and what is not a measurement."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.plan.items import planned_list
from fixtures.records.model import Measurement, Record, Result
from fixtures.run.judge_item import judge_item
from fixtures.thresholds import loader
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads.memory import memory_whole
from fixtures.workloads.memory.memory import MIB
from fixtures.workloads.memory.memory_whole import Coverage, mix, unmix
from fixtures.workloads.memory.wrong_words import LOCATED, WrongWords
from tests.selftests import support
from tests.selftests.rank_job import TORCH, Job, rank_of

pytestmark = pytest.mark.cpu

LIMITS = loader.load(support.SHIPPED)
RANGE = 4 * MIB
"""Bytes that are covered here: four chunks."""
CHUNK = MIB
Disturb = Callable[[Coverage, int], object]
"""What disturbs the memory."""


@pytest.fixture(scope="module")
def coverage() -> Coverage:
    return Coverage(rank_of("/none"), RANGE)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_whole, "CPU_RANGE", RANGE)


def flip(coverage: Coverage, offset: int, bit: int) -> int:
    """Flip a bit of the word at a byte offset; return what it was."""
    word = coverage.word(offset)
    was = int(word.item()) >> bit & 1
    word ^= memory_whole.signed(1 << bit)
    return was


def found_in(coverage: Coverage, number: int, disturb: Disturb) -> WrongWords:
    """What one pass finds."""
    found = WrongWords()
    coverage.write(number)
    disturb(coverage, number)
    coverage.compare(number, found)
    return found


def measured(result: Result) -> tuple[Measurement, list[dict[str, Any]]]:
    (measurement,) = result.measurements
    return measurement, result.facts["wrong"]


# --- what is written


@given(st.integers(0, 2**64 - 1))
def test_a_mix_belongs_to_one_number(number):
    assert unmix(mix(number)) == number
    assert 0 <= mix(number) < 2**64


@given(place=st.integers(0, RANGE // 8 - 1), number=st.integers(0, 11))
def test_every_word_depends_on_its_address_and_on_the_pass(coverage, place, number):
    offset = place * 8
    coverage.write(number)
    here = int(coverage.word(offset).item()) & memory_whole.MASK
    assert here == coverage.written(offset, number)
    others = [coverage.written(offset ^ 1 << line, number) for line in range(3, 22)]
    assert here not in others
    passes = [coverage.written(offset, n) for n in range(12)]
    # A pass in the other order has the words of the one in the first.
    assert len(set(passes)) == 6
    assert passes[number ^ 1] == here ^ memory_whole.MASK


def test_passes_go_up_and_down_with_every_pattern_and_its_complement(coverage):
    def everywhere(coverage, number):
        for chunk in range(4):
            flip(coverage, chunk * CHUNK, 0)

    orders = [
        [word.chunk for word in found_in(coverage, number, everywhere).located]
        for number in range(memory_whole.PASSES)
    ]
    up, down = [0, 1, 2, 3], [3, 2, 1, 0]
    assert orders == [up, up, down, down] * 2


# --- what is wrong with it


@given(
    place=st.integers(0, RANGE // 8 - 1), bit=st.integers(0, 63), number=st.integers(0, 15),
)  # fmt: skip
def test_a_flipped_bit_is_found_with_address_bit_and_direction(coverage, place, bit, number):
    before = []
    found = found_in(coverage, number, lambda c, _: before.append(flip(c, place * 8, bit)))
    (word,) = found.located
    assert (found.count, word.offset, word.chunk) == (1, place * 8, place * 8 // CHUNK)
    assert word.flips == [(bit, before[0])]
    assert word.wrote ^ word.read == 1 << bit
    assert word.text == (
        f"byte {place * 8:#x} (chunk {word.chunk}, pass {number + 1}): "
        f"bit {bit} from {before[0]} to {1 - before[0]}"
    )
    assert found_in(coverage, number + 1, lambda *_: None) == WrongWords(), "it flipped once"


PLACES = st.tuples(st.integers(0, RANGE // 8 - 1), st.integers(0, 63))


@given(st.sets(PLACES, min_size=2, max_size=2))
def test_two_flips_are_both_found(coverage, flips):
    found = found_in(coverage, 0, lambda c, _: [flip(c, p * 8, bit) for p, bit in flips])
    assert {(w.offset // 8, bit) for w in found.located for bit, _ in w.flips} == flips
    assert found.count == len(found.located) == len({place for place, _ in flips})


def test_a_stuck_bit_is_named_with_the_one_direction_that_it_has(small):
    def stuck(coverage, number):
        word = coverage.word(0x212340)
        word &= ~(1 << 17)

    measurement, wrong = measured(memory_whole.run(rank_of("/none"), ["errors"], disturb=stuck))
    assert measurement.value == 4, "the bit is 1 in half of the passes"
    assert {(w["byte"], w["chunk"], w["differ"], w["what"]) for w in wrong} == {
        (0x212340, 2, f"{1 << 17:016x}", "bit 17 from 1 to 0")
    }
    summary, *places = measurement.notes
    assert summary == (
        "gpu0: 4 wrong words; of the first 4, at 1 addresses: bit 17 from 1 to 0 in 4"
    )
    assert len(places) == 4
    assert places[0].startswith("gpu0: byte 0x212340 (chunk 2, pass ")


def test_a_stuck_line_is_counted_in_full_and_located_in_part(small):
    def stuck(coverage, number):
        for chunk in coverage.chunks:
            chunk |= 1 << 5

    result = memory_whole.run(rank_of("/none"), ["errors"], disturb=stuck)
    measurement, wrong = measured(result)
    words = memory_whole.PASSES * RANGE // 8
    assert measurement.value == words // 2, "each bit is 0 once in a pattern and its complement"
    assert {w["what"] for w in wrong} == {"bit 5 from 0 to 1"}
    assert len(wrong) == LOCATED
    assert "of the first 16, at 16 addresses: bit 5 from 0 to 1 in 16" in measurement.notes[0]
    assert len(measurement.notes) == 1 + LOCATED
    assert len(json.dumps(result.facts)) < 5000
    assert len(json.dumps(measurement.to_json())) < 2500


@pytest.mark.parametrize("line", [3, 12, 19, 20, 21])
def test_a_write_that_lands_at_two_addresses_is_found_by_its_word(coverage, line):
    """An address line that has no effect on writes: what is at A is at A + 2^line too."""

    def alias(coverage, number):
        step = (1 << line) // 8
        for tensor in coverage.tensors:
            pairs = tensor.view(-1, 2, step)
            pairs[:, 1] = pairs[:, 0]

    found = found_in(coverage, 0, alias)
    assert found.count == RANGE // 8 // 2
    first = found.located[0]
    assert first.offset == 1 << line
    assert first.what == "holds the word of byte 0x0"
    assert "holds a word of another address or pass in 16" in found.summary


def test_a_write_that_did_not_happen_is_told_from_a_flip(coverage):
    coverage.write(0)
    old = coverage.chunks[1][:10].clone()
    found = found_in(coverage, 1, lambda c, _: c.chunks[1][:10].copy_(old))
    assert found.count == 10
    assert {word.what for word in found.located} == {"holds the word of the pass before"}


def test_what_was_read_wrong_only_once_is_told(coverage, monkeypatch):
    import torch

    honest = torch.bitwise_xor

    def wrong_once(a, b, *, out):
        honest(a, b, out=out)
        if a is coverage.chunks[3]:
            out[7] ^= 1 << 40
        return out

    monkeypatch.setattr(torch, "bitwise_xor", wrong_once)
    (word,) = found_in(coverage, 0, lambda *_: None).located
    assert (word.offset, [bit for bit, _ in word.flips]) == (3 * CHUNK + 56, [40])
    assert word.text.endswith(", right when read again")


# --- how much of it


def test_what_is_too_little_is_not_measured(small):
    for size, covered in ((None, 1.0), (RANGE // 2, 0.5), (RANGE - 1, 0.75), (CHUNK - 1, 0.0)):
        measurement, _ = measured(memory_whole.run(rank_of("/none"), ["errors"], size=size))
        assert measurement.checks["covered"] == covered
        assert (measurement.value, measurement.checks["passes"]) == (0, 8.0)
        verdict = judged("memory.whole", node([measurement]))
        assert verdict.outcome is (Outcome.PASS if size is None else Outcome.NOT_MEASURED)
        assert size is None or "gpu0: covered is" in verdict.reason


# --- judged


def node(*measurements: list[Measurement], workload: str = "memory_whole") -> Record:
    ranks = [
        support.rank(k, "worker0", *found, gpus=len(measurements))
        for k, found in enumerate(measurements)
    ]
    return support.record(*ranks, workload=workload)


def judged(key: str, found: Record, *, model: str = "H200 SXM") -> Verdict:
    people = support.population(1, len(found.ranks), model)
    items = planned_list(LIMITS, people, tier="burnin")
    item = next(i for i in items if i.key == (key, "worker0"))
    return judge_item(item, found, thresholds=LIMITS, population=people)


def words(count: int, **checks: float | None) -> list[Measurement]:
    """What a GPU measured on all of its memory, unless told otherwise."""
    good = {"covered": 0.994, "of_total": 0.99, "passes": 800.0, "seconds": 180.0}
    known = {name: number for name, number in {**good, **checks}.items() if number is not None}
    return [Measurement(metric="errors", unit="words", value=count, checks=known)]


ROWS = [("memory.whole", "memory_whole"), ("burnin.memory_whole", "burnin_memory")]


@pytest.mark.parametrize(("key", "workload"), ROWS)
@pytest.mark.parametrize(
    "checks",
    [
        {}, {"covered": 0.94}, {"covered": None}, {"of_total": 0.6}, {"of_total": None},
        {"passes": 7.0}, {"passes": None},
    ],
)  # fmt: skip
def test_what_is_not_proven_to_be_valid_is_not_measured(key, workload, checks):
    verdict = judged(key, node(words(0), words(0, **checks), workload=workload))
    if not checks:
        assert verdict.outcome is Outcome.PASS
    else:
        assert verdict.outcome is Outcome.NOT_MEASURED
        assert f"gpu1: {next(iter(checks))}" in verdict.reason


@pytest.mark.parametrize("checks", [{"passes": 99.0}, {"seconds": 100.0}, {"seconds": None}])
def test_a_burnin_of_memory_lasts_minutes(checks):
    verdict = judged("burnin.memory_whole", node(words(0, **checks), workload="burnin_memory"))
    assert verdict.outcome is Outcome.NOT_MEASURED


@pytest.mark.parametrize(("key", "workload"), ROWS)
def test_one_wrong_word_is_red_and_a_silent_gpu_is_not_passed_over(key, workload):
    verdict = judged(key, node(words(0), words(1), words(0), workload=workload))
    assert (verdict.outcome, verdict.worst["gpu"]) == (Outcome.FAIL, 1)
    silent = judged(key, node(words(0), [], workload=workload))
    assert silent.outcome is Outcome.NOT_MEASURED


# --- on ranks


def test_healthy_ranks_cover_their_memory(tmp_path):
    job = Job(tmp_path, per_node=2)
    job.add("memory_whole", ["errors"])
    assert job.run(warm=TORCH) == [0, 0], job.output()
    found = job.record("memory_whole")
    verdict = judged("memory.whole", found, model="cpu")
    assert (verdict.outcome, verdict.value) == (Outcome.PASS, 0), verdict.line
    assert {rank.facts["covered_bytes"] for rank in found.ranks} == {64 * MIB}


PLANTED = """\
from fixtures.workloads.memory import burnin_memory, memory_whole

WORKLOAD = burnin_memory.WORKLOAD
memory_whole.CPU_RANGE = 4 << 20
honest = memory_whole.run

def disturb(coverage, number):
    if number == 13:
        word = coverage.word(0x345678)
        word ^= 1 << 21

def run(ranks, metrics, **params):
    if ranks.rank == 1:
        memory_whole.run = lambda *a, **k: honest(*a, disturb=disturb, **k)
    return burnin_memory.run(ranks, metrics, **params)
"""


def test_a_flip_in_a_burnin_names_the_gpu(tmp_path):
    job = Job(tmp_path, per_node=2)
    (tmp_path / "planted.py").write_text(PLANTED)
    job.add("planted", ["errors"], seconds=1.2)
    assert job.run(warm=TORCH) == [0, 0], job.output()
    found = job.record("planted")
    passes = [m.checks["passes"] for _, m in found.points("errors", {})]
    assert passes[0] == passes[1], "they wait for each other in every pass"
    assert passes[0] % 8 == 0
    assert passes[0] > 8
    verdict = judged("burnin.memory_whole", found, model="cpu")
    assert (verdict.outcome, verdict.value, verdict.worst["gpu"]) == (Outcome.FAIL, 1, 1)
    assert len(verdict.notes) == 2
    assert verdict.notes[1].startswith("gpu1: byte 0x345678 (chunk 3, pass 14): bit 21 from ")
