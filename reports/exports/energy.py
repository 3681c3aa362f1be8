"""Cost of the trainings of a run: tokens, PFLOP and joules from sampled power (login side).

Power is that of the telemetry, five samples per second; the time is that of the timed steps, so
that neither compiling nor loading counts. A GPU without samples over all of that time has no
figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fixtures.records.files import read_lines
from fixtures.records.model import Measurement, RankResult
from fixtures.records.run_directory import RunDirectory
from reports.exports.goodput import joules
from reports.exports.tables import records_of

PFLOP = 1e15


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One GPU's training over its timed steps."""

    training: str
    """Workload and preset."""
    node: str
    gpu: int
    seconds: float
    tokens: float
    pflop: float
    """Of the model: 6 a parameter and token, attention causal; recomputation does not count."""
    joules: float | None
    """None where the power was not sampled."""

    @property
    def joules_per_pflop(self) -> float | None:
        return None if self.joules is None else self.joules / self.pflop

    @property
    def tokens_per_joule(self) -> float | None:
        return None if self.joules is None else self.tokens / self.joules


def costs(directory: RunDirectory) -> Iterator[Cost]:
    """Yield the cost of every timed training of a run, a GPU each."""
    power = _power(directory)
    for record in records_of(directory):
        if not record.workload.startswith("training_"):
            continue
        for rank in record.ranks:
            for m in rank.measurements:
                if m.metric == "tokens" and m.samples and m.ended and m.started:
                    yield _cost(record.workload, rank, m, power)


def _cost(
    workload: str, rank: RankResult, m: Measurement, power: dict[str, list[tuple[float, float]]]
) -> Cost:
    assert m.started is not None
    started, ended = float(m.started), float(m.ended[-1])
    times = [started, *m.ended]
    tokens = sum(
        rate * (after - before)
        for rate, before, after in zip(m.samples, times, times[1:], strict=False)
    )
    return Cost(
        training=f"{workload} {m.at.get('preset', '')}".rstrip(),
        node=rank.node,
        gpu=rank.local_rank,
        seconds=ended - started,
        tokens=tokens,
        pflop=tokens * float(m.conditions.get("flops_per_token", 0.0)) / PFLOP,
        joules=joules(power.get(str(rank.device.get("uuid")), []), started, ended),
    )


def _power(directory: RunDirectory) -> dict[str, list[tuple[float, float]]]:
    """Return the samples of each GPU: (epoch seconds, watts)."""
    found: dict[str, list[tuple[float, float]]] = {}
    for path in directory.telemetry_files():
        for uuid, sample in samples_of(path):
            found.setdefault(uuid, []).append(sample)
    return found


def samples_of(path: Path) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield (UUID, (epoch seconds, watts)) of a file of the telemetry."""
    for line in read_lines(path):
        gpus = line.get("gpus")
        for uuid, gpu in gpus.items() if isinstance(gpus, dict) else ():
            watts = gpu.get("power_w") if isinstance(gpu, dict) else None
            if isinstance(watts, (int, float)) and isinstance(line.get("t"), (int, float)):
                yield str(uuid), (float(line["t"]), float(watts))


def show(source: Path) -> int:
    """Print the table; 2 where the run has no timed training."""
    directory = RunDirectory(source)
    found = list(costs(directory))
    if not found:
        print(f"no timed training in {source}")
        return 2
    print(f"{'training':<28} {'node':<12} gpu {'s':>7} {'Mtokens':>9} {'PFLOP':>9} {'PFLOP-h':>9} "
          f"{'kJ':>9} {'J/PFLOP':>9} {'tokens/J':>9}")  # fmt: skip
    for c in found:
        energy = [None if c.joules is None else c.joules / 1e3, c.joules_per_pflop,
                  c.tokens_per_joule]  # fmt: skip
        cells = " ".join("        -" if x is None else f"{x:>9.4g}" for x in energy)
        print(f"{c.training:<28} {c.node:<12} {c.gpu:>3} {c.seconds:>7.1f} {c.tokens / 1e6:>9.3f} "
              f"{c.pflop:>9.0f} {c.pflop / 3600:>9.3f} {cells}")  # fmt: skip
    known = [x for c in found if (x := c.joules_per_pflop) is not None]
    if known:
        print(f"median {statistics.median(known):.0f} J/PFLOP, of {len(known)} of {len(found)}")
    return 0
