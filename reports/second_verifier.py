"""The second verifier of a challenge, written from docs/challenge.md alone.

It imports nothing of the suite: it gets the bytes of the four messages, and says yes or why not.
It takes a unit after the other, sums in float64, and asks no other module for anything.
"""

from __future__ import annotations

import json
import struct
from hashlib import sha256
from typing import Any

import numpy

BLOCK = 512
"""Columns of the weights that are floats at a time."""
HEX_DIGITS = set("0123456789abcdef")
LIMITS = {
    "n": (32, 32768), "steps": (1, 64), "segments": (1, 4096), "reads": (1, 15),
    "ranks": (1, 4096), "openings": (1, 4096), "deadline_s": (1, 86400),
}  # fmt: skip


class No(Exception):
    """The messages prove nothing; the text says why."""


def why_not(challenge: bytes, commitment: bytes, opening: bytes, response: bytes) -> str | None:
    """Return why the messages prove nothing, or None if the draw finds nothing false."""
    try:
        _check(challenge, commitment, opening, response)
    except No as reason:
        return str(reason)
    return None


def _message(content: bytes, kind: str, names: set[str]) -> dict[str, Any]:
    if len(content) > 65536:
        raise No(f"{kind} is too long")
    try:
        data = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise No(f"{kind} is not JSON") from error
    if not isinstance(data, dict) or set(data) != names | {"schema", "kind"}:
        raise No(f"{kind} has other fields")
    if data["schema"] is True or data["schema"] != 1 or data["kind"] != kind:
        raise No(f"{kind} is of another kind")
    return data


def _integer(value: Any, least: int, most: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or value > most:
        raise No(f"{name} is out of its range")
    return value


def _digest(value: Any, name: str) -> bytes:
    if not isinstance(value, str) or len(value) != 64 or not HEX_DIGITS.issuperset(value):
        raise No(f"{name} is not a digest")
    return bytes.fromhex(value)


class _Numbers:
    """The generator for a nonce."""

    def __init__(self, nonce: bytes) -> None:
        self._nonce = nonce

    def __call__(self, label: str, c0: Any, c1: Any, c2: int) -> Any:
        """Return bytes of all c0 for each c1: one row for each c1."""
        key = list(struct.unpack("<2I", sha256(label.encode() + self._nonce).digest()[:8]))
        first, second = numpy.meshgrid(
            numpy.atleast_1d(c0).astype("u8"), numpy.atleast_1d(c1).astype("u8")
        )
        word = [first, second, numpy.full_like(first, c2), numpy.zeros_like(first)]
        low, half = numpy.uint64(2**32 - 1), numpy.uint64(32)
        for turn in range(10):
            if turn:
                key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
            left = word[0] * numpy.uint64(0xD2511F53)
            right = word[2] * numpy.uint64(0xCD9E8D57)
            word = [
                (right >> half) ^ word[1] ^ numpy.uint64(key[0]), right & low,
                (left >> half) ^ word[3] ^ numpy.uint64(key[1]), left & low,
            ]  # fmt: skip
        out = numpy.empty((*first.shape, 4), dtype="<u4")
        for k in range(4):
            out[..., k] = word[k]
        return out.view("i1").reshape(first.shape[0], -1)


def _levels(count: int) -> int:
    """Return how often a number has to be halved, rounded up, until one is left."""
    found = 0
    while 2**found < count:
        found += 1
    return found


def _check(challenge: bytes, commitment: bytes, opening: bytes, response: bytes) -> None:
    asked = _message(challenge, "challenge", {"nonce", *LIMITS})
    size = {name: _integer(asked[name], *LIMITS[name], name) for name in LIMITS}
    n, k, segments, reads = size["n"], size["steps"], size["segments"], size["reads"]
    if bin(n).count("1") != 1 or 4 * (reads + 1) > n:
        raise No("n or reads cannot be")
    numbers = _Numbers(_digest(asked["nonce"], "nonce"))
    name = sha256(challenge).hexdigest()

    committed = _message(commitment, "commitment", {"challenge", "ranks", "root"})
    drawn = _message(opening, "opening", {"challenge", "root", "nonce"})
    if committed["challenge"] != name or drawn["challenge"] != name:
        raise No("a message is for another challenge")
    root = _digest(committed["root"], "root")
    if _digest(drawn["root"], "root") != root:
        raise No("the opening is for another commitment")
    second = _digest(drawn["nonce"], "nonce of the opening")
    ranks = committed["ranks"]
    if not isinstance(ranks, list) or not ranks:
        raise No("no ranks")
    for rank in ranks:
        _integer(rank, 0, size["ranks"] - 1, "rank")
    if ranks != sorted(set(ranks)):
        raise No("ranks do not ascend")

    heights = (_levels(n), _levels(segments + 1), _levels(len(ranks)))
    length = n + 32 * sum(heights)
    leaves = 2 + k * reads + (1 if len(ranks) > 1 else 0)
    if len(response) != size["openings"] * leaves * length:
        raise No("the response has another size")

    def opened(number: int, rank: int, state: int, row: int) -> Any:
        """Return the row that a leaf holds, if it is the row of this place."""
        start = number * length
        node = sha256(b"\0" + response[start : start + n]).digest()
        at, end = start + n, start + length
        bits = [row >> b & 1 for b in range(heights[0])]
        bits += [state >> b & 1 for b in range(heights[1])]
        bits += [rank >> b & 1 for b in range(heights[2])]
        for is_right in bits:
            beside = response[at : at + 32]
            node = sha256(b"\1" + (beside + node if is_right else node + beside)).digest()
            at += 32
        if node != root or at != end:
            raise No("a row is not in the tree")
        found = numpy.frombuffer(response, dtype="i1", count=n, offset=start)
        if (
            state == 0
            and (found != numbers("state", numpy.arange(n // 16), row, ranks[rank])).any()
        ):
            raise No("a first row is not the nonce's")
        return found

    # First what each unit is, then all products of a step: a step makes the weights once.
    drawn_units = _units(second + root, size["openings"], len(ranks), segments, n)
    units = [(number * leaves, *unit) for number, unit in enumerate(drawn_units)]
    state = numpy.stack([opened(at, rank, segment, row) for at, rank, segment, row in units])
    used = 1
    shift = 1 + (n.bit_length() - 1) // 2
    for step in range(k):
        taken = 0
        for j, (at, rank, segment, row) in enumerate(units):
            x = state[j].copy()
            x[:16] ^= numbers("step", row, segment * k + step, ranks[rank])[0]
            words = struct.unpack(f"<{reads + 1}I", x[: 4 * (reads + 1)].tobytes())
            places = [(rank, *divmod(w * (segment + 1) * n // 2**32, n)) for w in words[:reads]]
            if step == 0 and len(ranks) > 1:
                other = (rank + 1 + row % (len(ranks) - 1)) % len(ranks)
                places.append((other, segment, words[reads] * n // 2**32))
            for d, place in enumerate(places):
                x ^= opened(at + used + d, *place)
            state[j], taken = x, len(places)
        used += taken
        state = _times_weights(state, numbers, n, shift)
    for j, (at, rank, segment, row) in enumerate(units):
        if (state[j] != opened(at + used, rank, segment + 1, row)).any():
            raise No("a unit's steps lead to another row")


def _units(
    seed: bytes, openings: int, ranks: int, segments: int, n: int
) -> list[tuple[int, int, int]]:
    """Return the units that are drawn: position of the rank, segment, row."""
    found = []
    for number in range(openings):
        digest = sha256(b"open" + seed + struct.pack("<Q", number)).digest()
        rest, row = divmod(int.from_bytes(digest[:16], "little") % (ranks * segments * n), n)
        found.append((*divmod(rest, segments), row))
    return found


def _times_weights(state: Any, numbers: _Numbers, n: int, shift: int) -> Any:
    """Return the rows after a product: sums are below 2**53, so float64 has them exactly."""
    out = numpy.empty_like(state)
    wide = state.astype("f8")
    for start in range(0, n, BLOCK):
        rows = numpy.arange(start, min(start + BLOCK, n))
        weights = numbers("weights", numpy.arange(n // 16), rows, 0).astype("f8")
        sums = (wide @ weights.T).astype("i8")
        out[:, start : start + BLOCK] = (sums >> shift & 255).astype("u1").view("i1")
    return out
