"""`python -m reports predict RUN --preset 8b`: tokens/s and goodput, computed (login side).

The rates are those that RUN measured; the model is throughput.py. Every line says whether
it is measured [M], computed [C] of what was measured, or given on the command line [G].
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fixtures import hardware
from fixtures.errors import UnknownGpu
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.shapes import PRESETS, Shape
from fixtures.wording import counted
from reports.evidence.run_files import CommandError, read_run, read_verdict
from reports.exports import goodput, throughput
from reports.exports.tables import records_of
from reports.exports.throughput import Prediction, Rates, Training

DDP_BUCKET_BYTES = 1 << 30
GOODPUT_OPTIONS = ("mtbf_node_days", "checkpoint_s", "detect_s", "restart_s")


def add_to(commands: Any) -> None:
    """Add the subcommand."""
    add = commands.add_parser(
        "predict", help="predicted tokens/s and goodput, from the figures of RUN"
    ).add_argument
    add("run", type=Path, metavar="RUN", help="a run directory")
    add("--preset", required=True, choices=tuple(PRESETS), help="shape of the model")
    add("--nodes", type=int, default=1, metavar="N", help="nodes of the training (default: 1)")
    add("--gpus", type=int, metavar="G", help="GPUs per node (default: as measured)")
    add("--strategy", choices=throughput.STRATEGIES, help="default: fsdp; single on one GPU")
    add("--batch", type=int, default=2, metavar="B", help="sequences per GPU and pass (default: 2)")
    add("--sequence", type=int, metavar="S", help="tokens per sequence (default: the preset's)")
    add("--passes", type=int, default=1, metavar="P", help="passes per step (default: 1)")
    add(
        "--mtbf-node-days",
        type=float,
        metavar="D",
        help="default: the MTBF that the burn-in of RUN proves",
    )
    add(
        "--checkpoint-s",
        type=float,
        metavar="S",
        help="seconds that a checkpoint stops the training",
    )
    add("--detect-s", type=float, metavar="S", help="from a failure to the end of the job")
    add("--restart-s", type=float, metavar="S", help="from the end of the job to its first step")


def show(source: Path, options: argparse.Namespace) -> int:
    """Print the prediction; 2 where it is outside the range that was checked."""
    directory = RunDirectory(source)
    run = read_run(source)
    gpus = options.gpus or int(run["population"]["gpus_per_node"])
    total = options.nodes * gpus
    shape = PRESETS[options.preset]
    training = Training(
        shape=shape, strategy=options.strategy or ("fsdp" if total > 1 else "single"),
        gpus=total, batch=options.batch, sequence=options.sequence or shape.sequence,
        passes=options.passes,
    )  # fmt: skip
    rates, notes = rates_of(directory, training, nodes=options.nodes)
    try:
        prediction = throughput.predict(training, rates)
    except ValueError as error:
        raise CommandError(f"{source}: {error}") from None
    for line in lines(training, rates, prediction, notes):
        print(line)
    for line in goodput_lines(source, options, total_rate=prediction.tokens_per_s * total):
        print(line)
    return 2 if prediction.refusal else 0


def lines(
    training: Training, rates: Rates, prediction: Prediction, notes: list[str]
) -> Iterator[str]:
    """Yield the prediction as a person reads it."""
    yield (f"[M] products {rates.tflops:.0f} TFLOPS (+-{100 * rates.tflops_spread:.1f} % between "
           f"GPUs), memory {rates.memory_gb_s:.0f} GB/s")  # fmt: skip
    if rates.bus_gb_s:
        shown = ", ".join(f"{name} {rate:.0f} GB/s" for name, rate in rates.bus_gb_s.items())
        yield f"[M] bus bandwidth: {shown}"
    yield from notes
    total = sum(prediction.seconds.values())
    parts = ", ".join(f"{n} {1000 * s:.0f} ms" for n, s in prediction.seconds.items() if s)
    yield f"[C] a step takes {1000 * total:.0f} ms: {parts}"
    made_of = ", ".join(f"{name} {100 * x:.1f} %" for name, x in prediction.shares.items())
    yield f"[C] half width {100 * prediction.half_width:.1f} %, of {made_of}"
    low, high = (training.gpus * x for x in (prediction.low, prediction.high))
    yield (f"[C] {training.strategy} on {counted(training.gpus, 'GPU')}: {low:.0f} to {high:.0f} "
           f"tokens/s, {prediction.low:.0f} to {prediction.high:.0f} per GPU")  # fmt: skip
    if prediction.refusal:
        yield f"outside the range that the model was checked for: {prediction.refusal}"


# --- what was measured


def rates_of(
    directory: RunDirectory, training: Training, *, nodes: int = 1
) -> tuple[Rates, list[str]]:
    """Return the rates that a run measured for a training, and notes on what is extrapolated.

    Where GPUs work together the slowest counts. Raises CommandError where products or memory were
    not measured.
    """
    of_workload: dict[str, list[Record]] = {}
    for record in records_of(directory):
        of_workload.setdefault(record.workload, []).append(record)
    products = of_workload.get("gemm", [])
    gemm = [x for record in products for x in _medians(record, "bf16")]
    model = next((name for record in products if (name := _model(record))), "")
    memory = [x for record in of_workload.get("memory", []) for x in _medians(record, "triad")]
    if not gemm or not memory:
        what = "products (gemm.bf16)" if not gemm else "memory bandwidth (memory.triad)"
        raise CommandError(f"{directory.root}: {what} not measured: no prediction is possible")
    slowest = min if training.gpus > 1 else statistics.median
    bus, notes = {}, []
    if training.gpus > 1 and training.strategy != "single":
        for name, size in _messages(training).items():
            found = [r for r in of_workload.get(name, []) if (len(r.nodes) > 1) == (nodes > 1)]
            rates = [x for r in found for x in _bus(r, size)]
            if rates:
                bus[name] = min(rates)
                measured = max(len({rank.node for rank in r.ranks}) for r in found)
                if measured != nodes:
                    notes.append(
                        f"[C] {name} over {counted(nodes, 'node')}: extrapolated, measured over "
                        f"{measured}"
                    )
    middle = statistics.median(gemm)
    return Rates(
        tflops=slowest(gemm), tflops_spread=(max(gemm) - min(gemm)) / 2 / middle,
        memory_gb_s=slowest(memory), bus_gb_s=bus, gpu_model=model,
    ), notes  # fmt: skip


def _messages(training: Training) -> dict[str, int]:
    """Return the size in bytes of each collective of a step, as nccl-tests count it."""
    shape: Shape = training.shape
    if training.strategy == "ddp":
        return {"allreduce": min(DDP_BUCKET_BYTES, 4 * shape.parameters)}
    return {"allgather": 2 * shape.block_parameters, "reducescatter": 4 * shape.block_parameters}


def _medians(record: Record, metric: str) -> list[float]:
    """Return each rank's median of a metric without a sweep."""
    return [
        statistics.median(m.samples)
        for rank in record.ranks
        for m in rank.measurements
        if m.metric == metric and m.samples and not m.at
    ]


def _bus(record: Record, size: int) -> list[float]:
    """Return each rank's median bus bandwidth, at the largest measured size up to `size`."""
    sizes = {int(m.at["size"]) for r in record.ranks for m in r.measurements
             if m.metric == "busbw" and m.samples and "size" in m.at}  # fmt: skip
    if not sizes:
        return []
    chosen = max((s for s in sizes if s <= size), default=min(sizes))
    return [
        statistics.median(m.samples)
        for rank in record.ranks
        for m in rank.measurements
        if m.metric == "busbw" and m.samples and m.at.get("size") == chosen
    ]


def _model(record: Record) -> str:
    for rank in record.ranks:
        try:
            return hardware.model_of(str(rank.device.get("name")))
        except UnknownGpu:
            return str(rank.device.get("name"))
    return ""


# --- goodput


def goodput_lines(source: Path, options: argparse.Namespace, *, total_rate: float) -> Iterator[str]:
    """Yield the expected goodput, or what is missing for it."""
    days, tag = options.mtbf_node_days, "[G]"
    if days is None and RunDirectory(source).verdict.exists():
        proved = (read_verdict(source).get("basis") or {}).get("mtbf") or {}
        days, tag = proved.get("bound_days"), "[M]"
    missing = [name for name in GOODPUT_OPTIONS[1:] if getattr(options, name) is None]
    if not days:
        missing.insert(0, GOODPUT_OPTIONS[0])
    if missing:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        yield f"no goodput: neither measured nor given: {names}"
        return
    mtbf_s = days * goodput.DAY_S / options.nodes
    interval = goodput.best_interval_s(mtbf_s=mtbf_s, checkpoint_s=options.checkpoint_s)
    share = goodput.goodput(
        mtbf_s=mtbf_s, interval_s=interval, checkpoint_s=options.checkpoint_s,
        detect_s=options.detect_s, restart_s=options.restart_s,
    )  # fmt: skip
    yield f"{tag} MTBF of a node {days:.3g} days: of the job {mtbf_s / 3600:.3g} hours"
    yield (f"[C] goodput {100 * share:.1f} % with a checkpoint every {interval / 60:.1f} min: "
           f"{share * total_rate:.0f} tokens/s kept")  # fmt: skip
