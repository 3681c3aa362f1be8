"""What a challenge costs: verifying a node of eight GPUs, and the rate of the chain on a GPU.

python -m tests.tools.bench_challenge               verify at full size, both verifiers
python -m tests.tools.bench_challenge --n 4096      the same, smaller
python -m tests.tools.bench_challenge --gpu         rate of the chain on this host's GPU

At full size nobody's memory holds the states. Synthetic ones stand for them: each drawn unit begins
with random rows and is computed honestly, and where the tree has no opened leaf, it has noise. To
both verifiers this is an honest response.
"""

from __future__ import annotations

import argparse
import json
import resource
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from fixtures.challenge.messages import (
    FULL,
    Challenge,
    Commitment,
    Opening,
    Parameters,
    challenge_fields,
    commitment_fields,
    drawn_units,
    opening_fields,
    read_challenge,
)
from fixtures.challenge.tree import leaf_hash, node_hash
from reports import second_verifier
from reports.evidence import challenge as first_verifier
from reports.evidence.challenge import Weights, philox, rows_of

Array = NDArray[Any]
Place = tuple[int, int, int]


def made_challenge(parameters: Parameters) -> tuple[Challenge, bytes]:
    """Return a challenge, and the bytes of its message."""
    content = json.dumps(challenge_fields(parameters, secrets.token_bytes(32))).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "challenge.json"
        path.write_bytes(content)
        return read_challenge(path), content


class Synthetic:
    """An answer of which only the drawn units exist.

    The root follows from the leaves, and the draw from the root; here the draw comes first.
    """

    def __init__(self, challenge: Challenge) -> None:
        self.challenge, p = challenge, challenge.parameters
        self.ranks = tuple(range(p.ranks))
        self.rows: dict[Place, Array] = {}
        rng = np.random.default_rng()
        self._random = lambda: rng.integers(-128, 128, p.n, dtype=np.int8)
        self._height = p.depth(p.ranks)
        self._nodes: dict[tuple[int, int], bytes] = {}

    def row(self, place: Place) -> Array:
        """Return what a place holds: the generator's first state, or noise."""
        if place not in self.rows:
            position, state, row = place
            made = self._random()
            if state == 0:
                nonce = self.challenge.nonce
                made = rows_of(b"state", nonce, np.array([row]), len(made), position)[0]
            self.rows[place] = made
        return self.rows[place]

    def compute(self, units: list[Place]) -> list[list[Place]]:
        """Compute the units, and return the leaves that open each."""
        p, ranks = self.challenge.parameters, len(self.ranks)
        weights = Weights(p, self.challenge.nonce)
        leaves = [[unit] for unit in units]
        x = np.stack([self.row(unit) for unit in units])
        for k in range(p.steps):
            for j, (position, segment, row) in enumerate(units):
                counter = (row, segment * p.steps + k, position, 0)
                x[j, :16] ^= philox(b"step", self.challenge.nonce, counter)
                words = x[j, : 4 * (p.reads + 1)].copy().view("<u4").tolist()
                drawn = [w * (segment + 1) * p.n >> 32 for w in words[: p.reads]]
                places = [(position, *divmod(v, p.n)) for v in drawn]
                if k == 0 and ranks > 1:
                    peer = (position + 1 + row % (ranks - 1)) % ranks
                    places.append((peer, segment, words[p.reads] * p.n >> 32))
                for place in places:
                    x[j] ^= self.row(place)
                leaves[j] += places
            x = (weights.product(x) >> p.shift).astype(np.int8)
        for j, (position, segment, row) in enumerate(units):
            last = (position, segment + 1, row)
            leaves[j].append(last)
            self.rows[last] = x[j]
        return leaves

    def grow(self) -> bytes:
        """Make the tree above all rows there are, and return its root."""
        level = {self._index(place): leaf_hash(row.tobytes()) for place, row in self.rows.items()}
        for height in range(self._height):
            self._nodes |= {(height, index): node for index, node in level.items()}
            above = {}
            for index in {index >> 1 for index in level}:
                pair = [
                    self._nodes.setdefault((height, child), secrets.token_bytes(32))
                    for child in (2 * index, 2 * index + 1)
                ]
                above[index] = node_hash(*pair)
            level = above
        return level[0]

    def _index(self, place: Place) -> int:
        p, (position, state, row) = self.challenge.parameters, place
        return row + p.n * (state + position * (1 << (p.states - 1).bit_length()))

    def opened(self, place: Place) -> bytes:
        """Return a leaf with its path."""
        index = self._index(place)
        path = [self._nodes[height, (index >> height) ^ 1] for height in range(self._height)]
        return self.rows[place].tobytes() + b"".join(path)


def verify_full(parameters: Parameters) -> None:
    """Print what both verifiers cost on a synthetic answer."""
    challenge, content = made_challenge(parameters)
    answer = Synthetic(challenge)
    drawn = Opening(challenge.digest, secrets.token_bytes(32), secrets.token_bytes(32))
    units = drawn_units(parameters, drawn, parameters.ranks)
    start = time.perf_counter()
    leaves = answer.compute(units)
    root = answer.grow()
    response = b"".join(answer.opened(place) for unit in leaves for place in unit)
    print(f"synthetic answer made in {time.perf_counter() - start:.1f} s")
    print(f"response: {len(response):,} bytes, {parameters.leaves(parameters.ranks)} leaves a unit")
    commitment = Commitment(challenge.digest, answer.ranks, root)
    opening = replace(drawn, root=root)

    # The root came after the draw, so each verifier is given the units that were drawn.
    def timed(name: str, verify: Callable[[], object]) -> None:
        start = time.perf_counter()
        cpu = time.process_time()
        found = verify()
        print(
            f"{name}: {found or 'nothing false'}, {time.perf_counter() - start:.1f} s, "
            f"{time.process_time() - cpu:.1f} s of CPU, peak so far "
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
        )

    answer.rows.clear()
    committed = json.dumps(commitment_fields(commitment)).encode()
    opened = json.dumps(opening_fields(opening)).encode()
    with mock.patch.object(first_verifier, "drawn_units", return_value=units):
        timed(
            "first verifier",
            lambda: first_verifier.refusal_of(challenge, commitment, opening, response),
        )
    with mock.patch.object(second_verifier, "_units", return_value=units):
        timed(
            "second verifier", lambda: second_verifier.why_not(content, committed, opened, response)
        )


def rate_on_gpu(parameters: Parameters) -> None:
    """Print the rate of the chain, and whether its digests are those of the CPU."""
    import torch

    from fixtures.challenge import chain as chains
    from fixtures.challenge.answer import Answer, row_hashes

    small = Parameters(
        n=1024, steps=3, segments=2, reads=4, ranks=2, openings=4, deadline_s=60
    )  # fmt: skip
    challenge, _ = made_challenge(small)
    roots = [Answer(challenge, (0, 1), devices=[d]).compute().root for d in ("cpu", "cuda")]
    print(f"n={small.n}: root on GPU {'equals' if roots[0] == roots[1] else 'DIFFERS FROM'} CPU's")
    challenge, _ = made_challenge(parameters)
    start = time.perf_counter()
    chain = chains.Chain(parameters, challenge.nonce, 0, device="cuda")
    torch.cuda.synchronize()
    print(f"weights and first state: {time.perf_counter() - start:.2f} s")
    for segment in range(parameters.segments):
        start = time.perf_counter()
        chains.advance([chain], 0, segment)
        torch.cuda.synchronize()
        took = time.perf_counter() - start
        if segment in (0, 1, 2, parameters.segments - 1):
            rate = 2 * parameters.n**3 * parameters.steps / took / 1e12
            print(
                f"segment {segment}: {took * 1e3 / parameters.steps:.2f} ms per step, "
                f"{rate:.0f} TOPS"
            )
    x = chain.memory[0]
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        chains.product(x, chain.weights)
    torch.cuda.synchronize()
    print(f"product alone: {(time.perf_counter() - start) * 100:.2f} ms")
    start = time.perf_counter()
    row_hashes(x)
    print(f"tree of a state on one core: {time.perf_counter() - start:.2f} s")
    del chain, x
    torch.cuda.empty_cache()
    challenge, content = made_challenge(replace(parameters, ranks=1))
    start = time.perf_counter()
    answer = Answer(challenge, (0,), devices=["cuda"])
    commitment = answer.compute()
    print(f"whole answer of one GPU: {time.perf_counter() - start:.1f} s")
    opening = Opening(challenge.digest, commitment.root, secrets.token_bytes(32))
    start = time.perf_counter()
    response = b"".join(answer.response(opening))
    print(f"response: {len(response):,} bytes, {time.perf_counter() - start:.1f} s")
    found = first_verifier.refusal_of(challenge, commitment, opening, response)
    print(f"first verifier: {found or 'nothing false'}")
    committed = json.dumps(commitment_fields(commitment)).encode()
    opened = json.dumps(opening_fields(opening)).encode()
    found_too = second_verifier.why_not(content, committed, opened, response)
    print(f"second verifier: {found_too or 'nothing false'}")


def main() -> int:
    """Run what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=FULL.n)
    parser.add_argument("--segments", type=int, default=FULL.segments)
    parser.add_argument("--openings", type=int, default=FULL.openings)
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    parameters = replace(
        FULL, n=options.n, segments=options.segments, openings=options.openings
    )  # fmt: skip
    (rate_on_gpu if options.gpu else verify_full)(parameters)
    return 0


if __name__ == "__main__":
    sys.exit(main())
