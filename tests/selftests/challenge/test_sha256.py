"""SHA-256 of many rows at once, as hashlib has it."""

from __future__ import annotations

import random

import pytest
import torch

from fixtures.challenge import sha256

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]


def rows_of(count: int, n: int) -> torch.Tensor:
    return torch.randint(-128, 128, (count, n), dtype=torch.int8)


@pytest.mark.parametrize("n", [4, *range(40, 68, 4), *range(108, 132, 4), 1024])
def test_torch_gives_the_digests_of_hashlib_at_each_padding(n):
    for count, prefix in ((1, 0), (random.randint(2, 40), 1)):
        rows = rows_of(count, n)
        assert torch.equal(sha256.on_device(prefix, rows), sha256.sha256_rows(prefix, rows))


@pytest.mark.parametrize("extreme", [-128, -1, 0, 127])
def test_words_of_one_bit_are_not_lost(extreme):
    rows = torch.full((3, 64), extreme, dtype=torch.int8)
    assert torch.equal(sha256.on_device(1, rows), sha256.sha256_rows(1, rows))


def test_rows_are_taken_in_parts_of_which_the_last_is_filled_up(monkeypatch):
    monkeypatch.setattr(sha256, "COMPILED_ROWS", 7)
    sizes = set()

    def rounds(state, scheduled, constants):
        sizes.update({len(word) for word in (*state, *scheduled)})
        return sha256.sixteen_rounds(state, scheduled, constants)

    rows = rows_of(18, 64)
    expected = sha256.sha256_rows(0, rows)
    assert torch.equal(sha256.on_device(0, rows, rounds), expected)
    assert sizes == {7}
    monkeypatch.setattr(sha256, "EAGER_ROWS", 5)
    assert torch.equal(sha256.on_device(0, rows), expected)


def test_a_slice_of_states_is_hashed_where_it_lies():
    states = rows_of(6 * 32, 32).view(6, 32, 32)
    part = states[2:5].view(-1, 32)
    assert torch.equal(sha256.on_device(0, part), sha256.sha256_rows(0, part))


@pytest.mark.parametrize("way", ["does not compile", "is not right"])
def test_without_a_compiler_that_works_it_is_done_without(way, monkeypatch):
    def compiled(rounds, **_):
        if way == "does not compile":
            raise RuntimeError("no triton")
        return lambda *words: rounds(words[0], words[1], [k + 1 for k in words[2]])

    monkeypatch.setattr(sha256, "COMPILED_ROWS", 3)
    monkeypatch.setattr(torch, "compile", compiled)
    sha256.compiling.cache_clear()
    assert sha256.rounds_of(torch.device("cpu")) is None
    sha256.compiling.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda rounds, **_: rounds)
    assert sha256.rounds_of(torch.device("cpu")) is sha256.sixteen_rounds
    sha256.compiling.cache_clear()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the compiler, about itself
def test_the_compiled_rounds_are_those_of_torch(monkeypatch):
    monkeypatch.setattr(sha256, "COMPILED_ROWS", 64)
    monkeypatch.setattr(sha256, "WAIT_S", 600)
    sha256.compiling.cache_clear()
    rounds = sha256.rounds_of(torch.device("cpu"))
    assert rounds is not None
    rows = rows_of(100, 256)
    assert torch.equal(sha256.on_device(0, rows, rounds), sha256.sha256_rows(0, rows))
    sha256.compiling.cache_clear()
