"""The chain of a challenge: generator, product, step."""

from __future__ import annotations

import pytest

from fixtures.challenge.messages import Parameters
from tests.selftests.challenged import SMALL

torch = pytest.importorskip("torch")
chain = pytest.importorskip("fixtures.challenge.chain")

pytestmark = pytest.mark.cpu

NONCE = bytes(range(32))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0, "6627e8d5e169c58dbc57ac4c9b00dbd8"),
        (2**32 - 1, "408f276d41c83b0ea20bc7c66d5451fd"),
    ],
)
def test_the_generator_is_the_published_one(word, expected):
    words = chain.philox((word, word), [torch.tensor([word])] * 4).view(torch.int32)
    assert "".join(f"{int(found) & 0xFFFFFFFF:08x}" for found in words.flatten()) == expected


def test_the_product_is_exact_at_the_ends_of_int8():
    rows = torch.full((2, 64), -128, dtype=torch.int8)
    rows[1] = 127
    found = chain.product(rows, rows)
    assert found.tolist() == [[64 * 128 * 128, -64 * 128 * 127], [-64 * 128 * 127, 64 * 127 * 127]]


def test_a_step_is_that_of_the_page_computed_by_hand():
    one = chain.Chain(SMALL, NONCE, 2)
    one.memory[1] = torch.randint(-128, 128, (32, 32), dtype=torch.int8)
    t, row = SMALL.steps, 5  # the first step of segment 1, with two kept states
    index = torch.tensor([row])
    mixed, places, wanted = one.drawn(one.memory[1][index], t, index)
    z = one.memory[1][row].clone()
    key = chain.key_of(b"step", NONCE)
    z[:16] ^= chain.philox(key, [torch.tensor([c]) for c in (row, t, 2, 0)])[0]
    assert mixed[0].tolist() == z.tolist()
    words = [int.from_bytes(bytes(v & 255 for v in z[k : k + 4].tolist()), "little")
             for k in (0, 4, 8)]  # fmt: skip
    assert places[0].tolist() == [w * 64 // 2**32 for w in words[:2]]
    assert wanted.tolist() == [words[2] * 32 // 2**32]
    for place in places[0].tolist():
        z ^= one.memory[place // 32][place % 32]
    sums = [sum(a * b for a, b in zip(z.tolist(), weights, strict=True))
            for weights in one.weights.tolist()]  # fmt: skip
    expected = [((s >> SMALL.shift) + 128) % 256 - 128 for s in sums]
    assert one.step(mixed, places, None)[0].tolist() == expected


def test_states_stay_spread_over_all_of_int8():
    parameters = Parameters(
        n=256, steps=4, segments=2, reads=4, ranks=1, openings=1, deadline_s=1
    )  # fmt: skip
    one = chain.Chain(parameters, NONCE, 0)
    for segment in range(2):
        chain.advance(one, 0, segment, chain.Beside([one]))
    for state in one.memory:
        assert state.double().std().item() == pytest.approx(73.9, abs=1.0)
    # Rows that were made equal differ after the next step in nearly every byte.
    one.memory[1] = one.memory[1][:1].clone()
    chain.advance(one, 0, 1, chain.Beside([one]))
    assert (one.memory[2][0] != one.memory[2][1]).double().mean() > 0.98


def test_a_row_is_exchanged_with_each_other_rank():
    index = torch.arange(32)
    for ranks in (2, 3, 16):
        for position in range(ranks):
            peers = set(chain.peers_of(position, index, ranks).tolist())
            assert peers == set(range(ranks)) - {position}
    chains = [chain.Chain(SMALL, NONCE, rank) for rank in range(3)]
    wanted = torch.arange(32).flip(0)
    found = chain.Beside(chains).rows(1, 0, index, wanted)
    for row in range(32):
        peer = int(chain.peers_of(1, index, 3)[row])
        assert torch.equal(found[row], chains[peer].memory[0][31 - row])
