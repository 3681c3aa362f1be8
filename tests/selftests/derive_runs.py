"""Recorded runs for the self-tests: made small and neutral, and varied by one change each.

    python -m tests.selftests.derive_runs record RUN data/NAME    what is committed of a run
    python -m tests.selftests.derive_runs derive data/NAME OUT    every variant, as OUT/VARIANT

A variant says what the replay must show: the verdict, and every row that is not as in the source.
"""

# Length: every variant of the recorded runs, a few lines each, and the table that names them.

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = tuple[str, str]
"""(criterion, subject)"""


@dataclass(frozen=True)
class Expected:
    """What a replay of a variant must show."""

    verdict: str
    exit_status: int
    outcome: str = ""
    """Of every row that differs from the source."""
    reason: str = ""
    """What each of their reasons contains."""
    rows: frozenset[Row] = frozenset()
    """The rows that differ; where empty, all that were judged from `records`."""
    records: frozenset[str] = frozenset()
    device: tuple[str, int] | None = None
    """Node and GPU that the failure is pinned to."""


DEMONSTRATION = Expected("DEMONSTRATION", 0)


@dataclass
class Recorded:
    """The records of a run directory, to be changed in place."""

    root: Path
    run: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.run = json.loads((self.root / "run.json").read_text(encoding="utf-8"))

    @property
    def nodes(self) -> list[str]:
        nodes: list[str] = self.run["population"]["nodes"]
        return nodes

    def path(self, name: str) -> Path:
        return self.root / "records" / name

    def read(self, name: str) -> Any:
        return json.loads(self.path(name).read_text(encoding="utf-8"))

    def write(self, name: str, data: Any) -> None:
        self.path(name).write_text(json.dumps(data), encoding="utf-8")

    def slowest(self, metric: str) -> tuple[str, int]:
        """The record and rank of the device that was slowest at a GEMM dtype."""
        rates = {
            (f"gemm@{node}.json", rank["rank"]): statistics.median(m["samples"])
            for node in self.nodes
            for rank in self.read(f"gemm@{node}.json")["ranks"]
            for m in rank["measurements"]
            if m["metric"] == metric
        }
        return min(rates, key=lambda key: rates[key])

    def scale(self, metric: str, factor: float) -> tuple[str, int]:
        """Multiply the rate of the slowest device; returns its node and GPU."""
        name, k = self.slowest(metric)
        data = self.read(name)
        rank = data["ranks"][k]
        for m in rank["measurements"]:
            if m["metric"] == metric:
                _scale(m, factor)
        self.write(name, data)
        return rank["node"], rank["device"]["index"]


# --- the variants: each changes one thing


def unchanged(run: Recorded) -> Expected:
    return DEMONSTRATION


def slow_gpu(run: Recorded) -> Expected:
    """One GPU ten times slower at fp32: its node fails this row, and only this."""
    device = run.scale("fp32", 0.1)
    return Expected("REJECTED", 1, "FAIL", "", frozenset({("gemm.fp32", device[0])}), device=device)


def slow_gpu_spread(run: Recorded) -> Expected:
    """The same at bf16, where the node's spread is judged as well."""
    device = run.scale("bf16", 0.1)
    rows = frozenset({("gemm.bf16", device[0]), ("gemm.spread", device[0])})
    return Expected("REJECTED", 1, "FAIL", "", rows, device=device)


def slow_workload(run: Recorded) -> Expected:
    """All GPUs fifty times slower at fp32: nobody is an outlier, the floor is what is red."""
    _slow(run, [f"gemm@{node}.json" for node in run.nodes], "fp32")
    rows = frozenset(("gemm.fp32", node) for node in run.nodes)
    return Expected("REJECTED", 1, "FAIL", "", rows)


def slow_network(run: Recorded) -> Expected:
    """The all-reduce over all nodes fifty times slower."""
    _slow(run, ["allreduce@all.json"], "busbw")
    rows = {("allreduce.cluster.256MiB", "cluster")}
    if len(run.nodes) == 2:
        rows.add(("allreduce.pair.256MiB", "--".join(run.nodes)))
    return Expected("REJECTED", 1, "FAIL", "", frozenset(rows))


OTHERS = ("allgather", "reducescatter", "alltoall", "broadcast", "sendrecv", "allreduce_ring")


def slow_collectives(run: Recorded) -> Expected:
    """All other collectives fifty times slower, in the nodes, over all of them, along the rails."""
    rows: set[Row] = set()
    for name in OTHERS:
        _slow(run, [f"{name}@{where}.json" for where in (*run.nodes, "all")], "busbw")
        rows |= {(f"{name}.node.16MiB", node) for node in run.nodes}
        rows.add((f"{name}.cluster.16MiB", "cluster"))
    _slow(run, ["rails@all.json"], "busbw")
    gpus = run.run["population"]["gpus_per_node"]
    rows |= {("rails.sendrecv.16MiB", f"rail{k}") for k in range(gpus)}
    return Expected("REJECTED", 1, "FAIL", "", frozenset(rows))


def slow_memory(run: Recorded) -> Expected:
    """All four kinds of access to memory fifty times slower."""
    kinds = ("copy", "triad", "read", "fill")
    for kind in kinds:
        _slow(run, [f"memory@{node}.json" for node in run.nodes], kind)
    rows = frozenset((f"memory.{kind}", node) for kind in kinds for node in run.nodes)
    return Expected("REJECTED", 1, "FAIL", "", rows)


def slow_training(run: Recorded) -> Expected:
    """All training fifty times slower, on every node and over all of them."""
    rows: set[Row] = set()
    for name in ("training_single", "training_ddp", "training_fsdp"):
        _slow(run, [f"{name}@{node}.json" for node in run.nodes], "tokens")
        rows |= {(f"{name}.tokens", node) for node in run.nodes}
    for name in ("training_ddp", "training_fsdp"):
        _slow(run, [f"{name}@all.json"], "tokens")
        rows.add((f"{name}.cluster.tokens", "cluster"))
    return Expected("REJECTED", 1, "FAIL", "", frozenset(rows))


def other_losses(run: Recorded) -> Expected:
    """Training lost its way by one per cent, on one node and between the nodes."""
    node = run.nodes[-1]
    for name in (
        f"training_single@{node}.json",
        "training_ddp@all.json",
        "training_resume@all.json",
    ):
        data = run.read(name)
        for rank in data["ranks"]:
            for m in rank["measurements"]:
                if m["metric"] in ("curve", "resume"):
                    m["value"] = 1.0
        run.write(name, data)
    rows = {("training_single.curve", node), ("training_ddp.cluster.curve", "cluster"),
            ("training_resume.resume", "cluster")}  # fmt: skip
    return Expected("REJECTED", 1, "FAIL", "", frozenset(rows))


def corrupted_element(run: Recorded) -> Expected:
    """One rank of one all-gather found one wrong element."""
    node = run.nodes[-1]
    name = f"allgather@{node}.json"
    data = run.read(name)
    rank = data["ranks"][-1]
    for m in rank["measurements"]:
        if m["metric"] == "errors":
            m["value"], m["notes"] = 1, ["1 wrong at 4096 bytes"]
    run.write(name, data)
    rows = frozenset({("allgather.node.errors", node)})
    return Expected("REJECTED", 1, "FAIL", "", rows, device=(rank["node"], rank["device"]["index"]))


def through_host_memory(run: Recorded) -> Expected:
    """NCCL went through the host's memory, as it does with NCCL_P2P_DISABLE=1."""
    for node in run.nodes:
        data = run.read(f"allreduce@{node}.json")
        for rank in data["ranks"]:
            for m in rank["measurements"]:
                if m["metric"] == "transport":
                    m["value"] = "SHM"
        run.write(f"allreduce@{node}.json", data)
    rows = frozenset(("allreduce.node.transport", node) for node in run.nodes)
    return Expected("REJECTED", 1, "FAIL", "", rows)


def low_clock_work(run: Recorded) -> Expected:
    """One GPU does 6 % less in a clock cycle: what a neighbour process takes."""
    device = run.scale("bf16_per_ghz", 0.94)
    rows = frozenset({("gemm.bf16_per_ghz", device[0])})
    return Expected("REJECTED", 1, "FAIL", "", rows, device=device)


def _slow(run: Recorded, names: list[str], metric: str, factor: float = 1 / 50) -> None:
    for name in names:
        data = run.read(name)
        for rank in data["ranks"]:
            for m in rank["measurements"]:
                if m["metric"] == metric:
                    _scale(m, factor)
        run.write(name, data)


def _scale(measurement: Any, factor: float) -> None:
    """All of its rounds; a recording may be older than there are any."""
    measurement["samples"] = [s * factor for s in measurement["samples"]]
    rounds = measurement.get("rounds", [])
    measurement["rounds"] = [[s * factor for s in samples] for samples in rounds]


def above_ceiling(run: Recorded) -> Expected:
    """One GPU a million times faster than itself."""
    device = run.scale("fp32", 1e6)
    return Expected(
        "INCOMPLETE", 2, "NOT_MEASURED", f"{device[0]} gpu{device[1]}: measurement error",
        frozenset({("gemm.fp32", device[0])}),
    )  # fmt: skip


def missing_node(run: Recorded) -> Expected:
    """The last node was never there: no records of it, and the others measured without it."""
    lost = run.nodes[-1]
    touched = set()
    lines = []
    for path in sorted((run.root / "records").glob("*.json")):
        data = run.read(path.name)
        if data["placement"] == "login" or lost not in data["nodes"]:
            continue
        touched.add(path.name)
        rest = [r for r in data["ranks"] if r["node"] != lost]
        if rest and data["placement"] == "all":
            for k, rank in enumerate(rest):
                rank["rank"] = k
            others = [n for n in data["nodes"] if n != lost]
            data |= {"ranks": rest, "world_size": len(rest), "nodes": others}
            run.write(path.name, data)
            continue
        path.unlink()
        line = {
            "schema": 1, "nonce": run.run["nonce"], "workload": data["workload"],
            "placement": data["placement"], "attempt": 1, "kind": "never started",
            "reason": f"{lost} is down", "next_step": "power it on", "job": None, "node": lost,
            "rank": None, "time": data["ranks"][0]["end"],
        }  # fmt: skip
        lines.append(line)
    (run.root / "jobs").mkdir(exist_ok=True)
    with (run.root / "jobs" / "missing.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return Expected("INCOMPLETE", 2, "NOT_MEASURED", lost, records=frozenset(touched))


def _one_record(run: Recorded) -> str:
    return f"gemm@{run.nodes[0]}.json"


def other_nonce(run: Recorded) -> Expected:
    name = _one_record(run)
    run.write(name, run.read(name) | {"nonce": "f" * 32})
    return _unusable(name, "is of another run")


def unknown_schema(run: Recorded) -> Expected:
    name = _one_record(run)
    run.write(name, run.read(name) | {"schema": 3})
    return _unusable(name, "schema 3, expected 1 or 2")


def nan_text(run: Recorded) -> Expected:
    """One sample of one rank reads NaN."""
    name = _one_record(run)
    data = run.read(name)
    data["ranks"][-1]["measurements"][0]["samples"][0] = float("nan")
    run.write(name, data)
    return _unusable(name, "nan is not finite")


def truncated(run: Recorded) -> Expected:
    name = _one_record(run)
    raw = run.path(name).read_bytes()
    run.path(name).write_bytes(raw[: len(raw) // 2])
    return _unusable(name, "is not JSON")


def lost_record(run: Recorded) -> Expected:
    """The file is gone, and nobody says why."""
    name = _one_record(run)
    run.path(name).unlink()
    return _unusable(name, "not run")


def lost_rank(run: Recorded) -> Expected:
    """The record is of one rank fewer than were started, and consistent in itself."""
    name = _one_record(run)
    data = run.read(name)
    planned = len(data["ranks"])
    del data["ranks"][-1]
    run.write(name, data | {"world_size": planned - 1})
    return _unusable(name, f"{planned - 1} of {planned} ranks")


def _unusable(name: str, reason: str) -> Expected:
    return Expected("INCOMPLETE", 2, "NOT_MEASURED", reason, records=frozenset({name}))


VARIANTS: dict[str, Callable[[Recorded], Expected]] = {
    change.__name__.replace("_", "-"): change
    for change in (
        unchanged, slow_gpu, slow_gpu_spread, slow_workload, slow_network, slow_collectives,
        slow_memory, slow_training, other_losses, corrupted_element, through_host_memory,
        low_clock_work, above_ceiling, missing_node, other_nonce, unknown_schema, nan_text,
        truncated, lost_record, lost_rank,
    )
}  # fmt: skip


def derive(source: Path, into: Path, variant: str) -> Expected:
    """Copy a recorded run and make the one change; says what the replay must show."""
    shutil.copytree(source, into)
    return VARIANTS[variant](Recorded(into))


# --- for a run that trained on GPUs


def lost_together(run: Recorded) -> None:
    """GPUs that kept 98.3 % of the slowest one's rate in DDP keep 91.9, as with too small steps."""
    _slow(run, [f"training_ddp@{node}.json" for node in run.nodes], "efficiency_slowest", 0.935)


# --- what is committed of a run


def record(source: Path, into: Path) -> None:
    """Copy what a replay needs; host, user and absolute paths become neutral ones."""
    files = [source / "run.json", *sorted((source / "records").glob("*.json"))]
    missing = source / "jobs" / "missing.jsonl"
    files += [missing] if missing.exists() else []
    run = json.loads((source / "run.json").read_text(encoding="utf-8"))
    spec = json.loads(next((source / "jobs").glob("*/spec.json")).read_text(encoding="utf-8"))
    host = run["owner"]["host"]
    # A run of one host has it for its only node; its records are named after it.
    shown_host = "node0" if host in run["population"]["nodes"] else "login"
    neutral = {
        spec["run_directory"]: "/runs/recorded",
        # A path that was given as it is seen from there has no folder to hide.
        str(Path(run["thresholds"]["path"]).absolute().parent): "/checkout",
        '"/tmp/': '"/local/',
        f'"{host}"': f'"{shown_host}"',
        f'-{host}"': f'-{shown_host}"',
        f"-{host}/": f"-{shown_host}/",
    }
    for path in files:
        text = path.read_text(encoding="utf-8")
        for own, shown in neutral.items():
            text = text.replace(own, shown)
        if path.name == "run.json":
            text = _neutral_run(text)
        elif path.parent.name == "records":
            text = json.dumps(_without_blanks(json.loads(text)), separators=(",", ":"))
        name = path.name.replace(f"@{host}.", f"@{shown_host}.")
        target = into / path.relative_to(source).with_name(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _without_blanks(record: Any) -> Any:
    """A record whose measurements leave out what is empty, as nodes write them."""
    for rank in record["ranks"]:
        rank["measurements"] = [
            {k: v for k, v in m.items() if v is not None and v != [] and v != {}}
            for m in rank["measurements"]
        ]
    return record


def _neutral_run(text: str) -> str:
    run = json.loads(text)
    run["owner"] = {**run["owner"], "pid": 1, "start": None}
    run["commands"] = [
        "pytest " + re.sub(r"(^|[ =])/(?:[^/ ]+/)+", r"\1", command.partition(" ")[2])
        for command in run["commands"]
    ]
    run["thresholds"]["path"] = "thresholds.yaml"
    run["options"] = []
    return json.dumps(run, indent=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.selftests.derive_runs")
    parser.add_argument("verb", choices=("record", "derive"))
    parser.add_argument("source", type=Path)
    parser.add_argument("into", type=Path)
    options = parser.parse_args()
    if options.verb == "record":
        record(options.source, options.into)
        return
    for name in VARIANTS:
        expected = derive(options.source, options.into / name, name)
        print(f"{name:16} {expected.verdict} (exit {expected.exit_status})")


if __name__ == "__main__":
    main()
