"""What a challenge costs: verifying a node of eight GPUs, and answering on a GPU.

python -m tests.tools.bench_challenge               verify at full size, both verifiers
python -m tests.tools.bench_challenge --n 4096      the same, smaller
python -m tests.tools.bench_challenge --gpu --out FILE    hashing and the whole answer on a GPU

At full size nobody's memory holds the states. Synthetic ones stand for them: each drawn unit begins
with random rows and is computed honestly, and where the tree has no opened leaf, it has noise. To
both verifiers this is an honest response.
"""

# Length: the customer's side and the supplier's, with one challenge and one way to time both

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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
    challenge_of,
    commitment_fields,
    drawn_units,
    opening_fields,
)
from fixtures.challenge.tree import leaf_hash, node_hash
from reports import second_verifier
from reports.evidence import challenge as first_verifier
from reports.evidence.challenge import Weights, philox, rows_of

Array = NDArray[Any]
Place = tuple[int, int, int]
GPU = "cuda"
LEAVE_S = 200
"""After so long the whole answer is not made a second time."""


def made_challenge(parameters: Parameters) -> tuple[Challenge, bytes]:
    """Return a challenge, and the bytes of its message."""
    content = json.dumps(challenge_fields(parameters, secrets.token_bytes(32))).encode()
    return challenge_of(content), content


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
    def report(name: str, verify: Callable[[], object]) -> None:
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
        report(
            "first verifier",
            lambda: first_verifier.refusal_of(challenge, commitment, opening, response),
        )
    with mock.patch.object(second_verifier, "_units", return_value=units):
        report(
            "second verifier", lambda: second_verifier.why_not(content, committed, opened, response)
        )


# --- on a GPU


class Measured:
    """What was measured so far: printed, and written at once, so that a limit of time costs the
    rest alone."""

    def __init__(self, out: Path | None) -> None:
        self._out, self._found, self._start = out, {}, time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def add(self, **found: Any) -> None:
        self._found |= found | {"seconds_so_far": round(self.seconds, 1)}
        print("\n".join(f"{name}: {value}" for name, value in found.items()), flush=True)
        if self._out is not None:
            self._out.write_text(json.dumps(self._found, indent=1) + "\n")


def on_gpu(parameters: Parameters, out: Path | None) -> None:
    """Measure hashing and the whole answer on this host's GPU, in less than five minutes."""
    import torch

    found = Measured(out)
    found.add(torch=torch.__version__, device=torch.cuda.get_device_name())
    one = replace(parameters, ranks=1, openings=8)

    def whole(cache: str) -> None:
        # In a process of its own, which has compiled nothing yet.
        if found.seconds < LEAVE_S:
            took = apart(whole_on_gpu, one, cache == "no")
            found.add(**{f"whole_answer_with_{cache}_cache": took})

    with tempfile.TemporaryDirectory() as folder:
        for name, work in (
            ("hash", lambda: hash_on_gpu(parameters, found)),
            ("chain", lambda: chain_on_gpu(parameters, found)),
            ("whole", lambda: whole("no")), ("again", lambda: whole("a")),
            ("together", lambda: together_on_gpu(found)),
        ):  # fmt: skip
            if name == "whole":
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            if isinstance(error := outcome(work), Exception):
                found.add(**{f"{name}_failed": repr(error)[-2000:]})  # what comes after is measured
            torch.cuda.empty_cache()


def apart(work: Callable[..., None], *arguments: Any, processes: int = 1) -> Any:
    """Return what the first of some new processes leaves of this work."""
    from torch import multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (Path(folder), *arguments), processes)
        return json.loads((Path(folder) / "found.json").read_text())


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds of some work on the GPU."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def hash_on_gpu(parameters: Parameters, found: Measured) -> None:
    """Hash as many states as an answer has, eager and compiled, and compare with hashlib."""
    import torch
    from torch._dynamo.utils import counters

    from fixtures.challenge import answer, sha256

    device = torch.device(GPU, 0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        compiled: list[Any] = []
        took = timed(lambda: compiled.append(outcome(lambda: sha256.compiling(device).result())))
    found.add(compile_s=round(took, 2), compiled=str(compiled[0])[:300])
    rounds = compiled[0] if callable(compiled[0]) else None
    for n in (32, 64, 1024, parameters.n):
        rows = torch.randint(-128, 128, (33, n), dtype=torch.int8)
        expected = sha256.sha256_rows(1, rows)
        for name, given in (("eager", None), ("compiled", rounds)):
            equal = torch.equal(sha256.on_device(1, rows.cuda(), given).cpu(), expected)
            found.add(**{f"hash_{name}_n{n}": "equals hashlib" if equal else "DIFFERS"})
    states = torch.empty(parameters.states, parameters.n, parameters.n, dtype=torch.int8,
                         device=device).random_(-128, 128)  # fmt: skip
    rows = states.view(-1, parameters.n)
    for name, given in (("compiled", rounds), ("eager", None)):
        if name == "compiled" and rounds is None:
            continue
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        took = timed(lambda given=given: sha256.on_device(0, rows, given))
        extra = torch.cuda.max_memory_allocated() - held
        found.add(**{
            f"hash_{name}_ms_per_state": round(1e3 * took / parameters.states, 2),
            f"hash_{name}_s": round(took, 2), f"hash_{name}_temporaries_gb": round(extra / 1e9, 2),
        })  # fmt: skip
    found.add(trees_s=round(timed(lambda: answer.trees(states)), 2))
    found.add(graphs_compiled=counters["stats"]["unique_graphs"])  # one, and none later


def outcome(work: Callable[[], Any]) -> Any:
    """Return what some work gives, or its error."""
    try:
        return work()
    except Exception as error:
        return error.with_traceback(None)  # whose frames hold the states


def chain_on_gpu(parameters: Parameters, found: Measured) -> None:
    """Time a step with one kept state, and the product alone."""
    from fixtures.challenge import chain as chains

    challenge, _ = made_challenge(replace(parameters, segments=2, ranks=1))
    one = chains.Chain(challenge.parameters, challenge.nonce, 0, device=GPU)
    beside = chains.Beside([one])
    chains.advance(one, 0, 0, beside)
    took = timed(lambda: chains.advance(one, 0, 1, beside))
    rate = 2 * parameters.n**3 * parameters.steps / took / 1e12
    product = timed(lambda: [chains.product(one.memory[0], one.weights) for _ in range(10)])
    found.add(step_ms=round(1e3 * took / parameters.steps, 2), tops=round(rate),
              product_ms=round(100 * product, 2))  # fmt: skip


def together_on_gpu(found: Measured) -> None:
    """Answer by processes of a chain each, and compare the roots with that of one on a CPU.

    Two on one GPU, by gloo; where there are more GPUs, one on each, by NCCL.
    """
    import torch

    for backend, size in (("gloo", 2), ("nccl", torch.cuda.device_count())):
        if size < 2:
            continue
        small = Parameters(
            n=1024, steps=3, segments=8, reads=4, ranks=size, openings=8, deadline_s=60
        )
        challenge, _ = made_challenge(small)
        expected = one_answer(challenge, range(size), "cpu")
        took = apart(one_of_many, challenge, backend, size, processes=size)
        same = took.pop("sha256") == expected.pop("sha256")
        found.add(**{f"{size}_processes_by_{backend}": took | {
            "root_and_response": "equal a CPU's" if same else "DIFFER"}})  # fmt: skip


def one_answer(challenge: Challenge, ranks: Sequence[int], device: Any, group: Any = None) -> Any:
    """Return the digest of root and response of an answer, and its seconds by part."""
    from fixtures.challenge.answer import Answer

    start = time.perf_counter()
    answer = Answer(challenge, tuple(ranks), devices=[device], group=group)
    root = answer.compute().root
    took = time.perf_counter() - start
    rows = b"".join(answer.response(Opening(challenge.digest, root, bytes(32))))
    parts = {name: round(seconds, 2) for name, seconds in answer.seconds.items()}
    return {"sha256": hashlib.sha256(root + rows).hexdigest(), "seconds": round(took, 2), **parts}


def one_of_many(k: int, folder: Path, challenge: Challenge, backend: str, size: int) -> None:
    """Answer as one of some processes."""
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = torch.device(GPU, k if backend == "nccl" else 0)
    torch.cuda.set_device(device)
    dist.init_process_group(
        backend, store=dist.FileStore(str(folder / "store"), size), rank=k, world_size=size
    )
    found = one_answer(challenge, range(size), device, dist.group.WORLD)
    dist.destroy_process_group()
    if k == 0:
        (folder / "found.json").write_text(json.dumps(found))


def whole_on_gpu(_: int, folder: Path, parameters: Parameters, verify: bool) -> None:
    """Answer and open a challenge of full size on one GPU."""
    import torch

    from fixtures.challenge.answer import Answer

    torch.zeros(1, device=GPU)
    challenge, _content = made_challenge(parameters)
    start = time.perf_counter()
    answer = Answer(challenge, (0,), devices=[torch.device(GPU, 0)])
    torch.cuda.synchronize()
    begun = time.perf_counter() - start
    commitment = answer.compute()
    found = {"seconds": round(time.perf_counter() - start, 2), "weights": round(begun, 2)}
    found |= {name: round(seconds, 2) for name, seconds in answer.seconds.items()}
    opening = Opening(challenge.digest, commitment.root, secrets.token_bytes(32))
    response: list[bytes] = []
    found["response"] = round(timed(lambda: response.extend(answer.response(opening))), 2)
    found["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
    (folder / "found.json").write_text(json.dumps(found))
    if verify:
        why = first_verifier.refusal_of(challenge, commitment, opening, b"".join(response))
        found["first_verifier"] = why.why if why else "nothing false"
        (folder / "found.json").write_text(json.dumps(found))


def main() -> int:
    """Run what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=FULL.n)
    parser.add_argument("--segments", type=int, default=FULL.segments)
    parser.add_argument("--openings", type=int, default=FULL.openings)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--out", type=Path, metavar="FILE", help="with --gpu: figures, as JSON")
    options = parser.parse_args()
    parameters = replace(
        FULL, n=options.n, segments=options.segments, openings=options.openings
    )  # fmt: skip
    if options.gpu:
        on_gpu(parameters, options.out)
    else:
        verify_full(parameters)
    return 0


if __name__ == "__main__":
    sys.exit(main())
