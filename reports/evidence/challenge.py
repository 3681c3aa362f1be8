"""The first verifier of a challenge: each opened unit is computed again, in exact arithmetic.

All units go through a step together, so that a step reads the weights once. What is checked, and
why a row is enough, is in docs/challenge.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixtures.challenge.messages import Challenge, Commitment, Opening, Parameters, drawn_units
from fixtures.challenge.tree import leaf_hash, root_of

Array = NDArray[Any]
EXACT = 1024
"""Products of int8 that float32 sums without rounding: 1024 x 128 x 128 = 2**24."""
COLUMNS = 1024
"""Of the weights, as floats at a time."""
MASK = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True)
class Refusal:
    """Why an answer proves nothing: the first false unit."""

    why: str


def philox(label: bytes, nonce: bytes, counter: tuple[Any, Any, Any, Any]) -> Array:
    """Return Philox4x32-10 of broadcast counters, 16 bytes each (int8)."""
    digest = hashlib.sha256(label + nonce).digest()
    k0, k1 = (int.from_bytes(digest[a : a + 4], "little") for a in (0, 4))
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, dtype=np.uint64) for c in counter))
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), p1 & MASK,
            (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p0 & MASK,
        )  # fmt: skip
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3), axis=-1).astype("<u4").view(np.int8)


def rows_of(label: bytes, nonce: bytes, rows: Array, n: int, rank: Any = 0) -> Array:
    """Return rows of n bytes of the generator."""
    ranks = np.broadcast_to(np.asarray(rank), rows.shape)[:, None]
    made = philox(label, nonce, (np.arange(n // 16)[None, :], rows[:, None], ranks, 0))
    return made.reshape(len(rows), n)


class Weights:
    """The second operand of every product, kept as int8."""

    def __init__(self, parameters: Parameters, nonce: bytes) -> None:
        self._n = n = parameters.n
        self._transposed = np.empty((n, n), dtype=np.int8)
        for start in range(0, n, COLUMNS):
            rows = np.arange(start, min(n, start + COLUMNS))
            self._transposed[start : start + COLUMNS] = rows_of(b"weights", nonce, rows, n)

    def product(self, rows: Array) -> Array:
        """Return rows times the weights, exact in int32."""
        found = np.zeros((len(rows), self._n), dtype=np.int32)
        floats = rows.astype(np.float32)
        for start in range(0, self._n, COLUMNS):
            columns = slice(start, start + COLUMNS)
            block = self._transposed[columns].astype(np.float32)
            for k in range(0, self._n, EXACT):
                part = floats[:, k : k + EXACT] @ block[:, k : k + EXACT].T
                found[:, columns] += part.astype(np.int32)
        return found


class _Response:
    """The leaves of all units, by their number in the unit."""

    def __init__(
        self, content: bytes, p: Parameters, root: bytes, challenge: Challenge,
        ranks: tuple[int, ...],
    ) -> None:  # fmt: skip
        self._p, self._root, self._ranks, self._nonce = p, root, ranks, challenge.nonce
        depth = p.depth(len(ranks))
        shape = (p.openings, p.leaves(len(ranks)), p.n + 32 * depth)
        self._content = np.frombuffer(content, dtype=np.int8).reshape(shape)

    def rows(self, number: int, positions: Array, states: Array, rows: Array) -> Array | Refusal:
        """Return a leaf of each unit, which has to be the row of this place."""
        p = self._p
        found: Array = self._content[:, number, : p.n]
        for unit, place in enumerate(zip(positions, states, rows, strict=True)):
            raw = self._content[unit, number].tobytes()
            position, state, row = map(int, place)
            path = [raw[a : a + 32] for a in range(p.n, len(raw), 32)]
            index = row + p.n * (state + position * (1 << (p.states - 1).bit_length()))
            if root_of(leaf_hash(raw[: p.n]), index, path) != self._root:
                return Refusal(f"unit {unit}: a row is not the one that was committed to")
        if len(first := np.flatnonzero(states == 0)):
            ranks = np.asarray(self._ranks)[positions[first]]
            made = rows_of(b"state", self._nonce, rows[first], p.n, ranks)
            if not np.array_equal(found[first], made):
                return Refusal("a row of a first state is not that of the nonce")
        return found


def refusal_of(
    challenge: Challenge, commitment: Commitment, opening: Opening, content: bytes
) -> Refusal | None:
    """Return why an answer proves nothing; None for one whose units are all as computed."""
    p, ranks = challenge.parameters, len(commitment.ranks)
    if opening.root != commitment.root:
        return Refusal("the opening is of another commitment")
    if len(content) != p.response_bytes(ranks):
        return Refusal(
            f"the response has {len(content):,} bytes, expected {p.response_bytes(ranks):,}"
        )
    response = _Response(content, p, commitment.root, challenge, commitment.ranks)
    return next(_refusals(challenge, commitment, opening, response), None)


def _refusals(
    challenge: Challenge, commitment: Commitment, opening: Opening, response: _Response
) -> Iterator[Refusal]:
    p, ranks = challenge.parameters, len(commitment.ranks)
    units = np.asarray(drawn_units(p, opening, ranks), dtype=np.int64)
    position, segment, row = units.T
    labels = np.asarray(commitment.ranks)[position]
    leaf = 0

    def taken(positions: Array, states: Array, rows: Array) -> Array | Refusal:
        nonlocal leaf
        leaf += 1
        return response.rows(leaf - 1, positions, states, rows)

    x = taken(position, segment, row)
    if isinstance(x, Refusal):
        yield x
        return
    weights = Weights(p, challenge.nonce)
    for k in range(p.steps):
        z = x.copy()
        z[:, :16] ^= philox(b"step", challenge.nonce, (row, segment * p.steps + k, labels, 0))
        words = z[:, : 4 * (p.reads + 1)].copy().view("<u4").astype(np.int64)
        mixed = z
        for d in range(p.reads):
            place = words[:, d] * ((segment + 1) * p.n) >> 32
            read = taken(position, place // p.n, place % p.n)
            if isinstance(read, Refusal):
                yield read
                return
            mixed = mixed ^ read
        if k == 0 and ranks > 1:
            peer = (position + 1 + row % (ranks - 1)) % ranks
            read = taken(peer, segment, words[:, p.reads] * p.n >> 32)
            if isinstance(read, Refusal):
                yield read
                return
            mixed = mixed ^ read
        x = (weights.product(mixed) >> p.shift).astype(np.int8)
    last = taken(position, segment + 1, row)
    if isinstance(last, Refusal):
        yield last
        return
    different = np.flatnonzero((last != x).any(axis=1))
    if len(different):
        yield Refusal(f"unit {different[0]}: its steps give another row than the one committed to")
