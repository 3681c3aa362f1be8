"""Builders that the self-tests share: limits, populations, records, rank lines, pytest itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fixtures.backends import choose as backends
from fixtures.cluster.population import Population
from fixtures.plan.items import Item, planned_list
from fixtures.records.absence import Absence, Kind
from fixtures.records.files import append_line, write_json
from fixtures.records.model import SCHEMA, Measurement, RankResult, Record, Result, record_name
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from fixtures.run.batch_judging import BatchJudge, judge_many
from fixtures.run.options import RunOptions
from fixtures.run.run import Run
from fixtures.statistics.fleet_slots import Like
from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds
from fixtures.verdict.model import Case
from reports.exports import export
from tests.selftests import fork_server, small_thresholds

CHECKOUT = Path(__file__).resolve().parents[2]
SHIPPED = CHECKOUT / "thresholds.yaml"
DATA = Path(__file__).parent / "data"
NONCE = "0123456789abcdef0123456789abcdef"
RUN_ID = "20261120-120000-0000"
GIB = 2**30

H200 = {
    "name": "NVIDIA H200",
    "model": "NVIDIA H200",
    "pci": "00000000:0a:00.0",
    "compute_capability": 9.0,
    "sm_count": 132,
    "max_sm_clock_mhz": 1980,
}
"""What a rank on an H200 says of its device; its bf16 ceiling is 1070 TFLOPS."""

LIMITS = """\
schema: 1
cluster: {nodes: 2, gpus_per_node: 2, gpu_model: H200 SXM}
criteria:
  gemm.bf16:
    title: Fast
    per: node
    unit: TFLOPS
    gate: true
    ceiling: gemm
    loose: a small test
    valid: {overlap: [0.8, null]}
    spread: gemm
    limits:
      - {model: H200 SXM, expect: 660, fail_below: 605, source: measured}
      - {model: B200, calibrate: true}
      - {model: L40S, recorded: nobody has published a figure}
  gemm.spread:
    title: Alike
    per: node
    unit: "%"
    measure: gemm.bf16
    loose: a small test
    statistic: spread
    limits:
      - {expect: 5, fail_above: 10, source: published}
  allreduce.pair:
    title: Two nodes are fast
    per: pair
    unit: GB/s
    measure: allreduce.busbw
    loose: a small test
    at: {size: 1GiB}
    over: ranks
    limits:
      - {expect: 100, fail_below: 80, source: measured}
  allreduce.nvls:
    title: A node is fast
    per: node
    unit: GB/s
    measure: allreduce.busbw
    at: {size: 1GiB}
    limits:
      - {when: {nvls: true}, expect: 100, fail_below: 80, source: measured}
      - {when: {nvls: false}, expect: 50, fail_below: 40, source: measured}
  allreduce.latency:
    title: Quick
    per: node
    unit: us
    ceiling: latency
    loose: a small test
    limits:
      - {model: H200 SXM, expect: 42, fail_above: 84, source: measured}
      - {model: B200, calibrate: true}
  allreduce.errors:
    title: Right
    per: node
    unit: elements
    statistic: value
    limits:
      - {fail_above: 0, source: exact}
  inventory.gpus:
    title: All there
    per: node
    unit: GPUs
    statistic: value
    limits:
      - {equals: cluster.gpus_per_node, source: the order}
  inventory.gpu_model:
    title: The right ones
    per: node
    unit: model
    statistic: value
    limits:
      - {equals: cluster.gpu_model, source: the order}
waivers:
  - {criterion: gemm.bf16, node: waived, owner: A. Name, reason: RMA 4711, expires: "2026-12-31"}
spread:
  gemm: {delta: 0.08, device_sigma: 0.018, run_sigma: 0.003, source: measured}
"""
"""A small contract that needs every rule of the judge."""


def load(folder: Path, text: str = LIMITS) -> Thresholds:
    """Limits through the real reader of thresholds.yaml."""
    return small_thresholds.load(folder, text)


def limits_of(root: Path) -> Thresholds:
    """The shipped limits, with the order of a run."""
    run = json.loads((root / "run.json").read_text(encoding="utf-8"))
    return loader.load_with_contract(SHIPPED, run["contract"])


def population(nodes: int = 2, gpus: int = 2, model: str = "cpu") -> Population:
    """The nodes of a sandbox: worker0, worker1, ..."""
    return Population(
        origin="sandbox", nodes=tuple(f"worker{k}" for k in range(nodes)), gpus_per_node=gpus,
        gpu_model=model, ordered=True,
    )  # fmt: skip


# --- records


def bf16(
    samples: Iterable[float] = (650.0,) * 5,
    *,
    checks: Mapping[str, float] | None = None,
    unit: str = "TFLOPS",
    rounds: Iterable[float] = (),
) -> Measurement:
    """A bf16 measurement, healthy unless told otherwise; `rounds`: steady rates of further ones."""
    return Measurement(
        metric="bf16", unit=unit, samples=list(samples), rounds=[[rate] * 5 for rate in rounds],
        checks={"overlap": 0.95} if checks is None else dict(checks), started=100.0,
    )  # fmt: skip


def busbw(*samples: float, size: int = GIB, **conditions: Any) -> Measurement:
    return Measurement(
        metric="busbw", unit="GB/s", samples=list(samples), at={"size": size},
        conditions=conditions, started=100.0,
    )  # fmt: skip


def latency(*samples: float) -> Measurement:
    return Measurement(metric="latency", unit="us", samples=list(samples))


def value(metric: str, unit: str, found: Any) -> Measurement:
    return Measurement(metric=metric, unit=unit, value=found, started=100.0)


def absent(kind: Kind, metric: str, why: str = "why", **at: Any) -> Absence:
    """What a rank lacks."""
    return Absence(metric=metric, kind=kind, why=why, at=at)


def whys(found: Result | RankResult, kind: Kind) -> dict[str, str]:
    """Metric, with the values of its point -> why it is absent, of one kind."""
    return {" ".join([a.metric, *map(str, a.at.values())]): a.why
            for a in found.absent if a.kind is kind}  # fmt: skip


def rank(
    k: int, node: str, *found: Measurement | Absence, gpus: int = 2, **device: Any
) -> RankResult:
    """What rank k on `node` measured on its H200, and what it lacks."""
    return RankResult(
        rank=k, local_rank=k % gpus, node=node,
        device={"index": k % gpus, "uuid": f"GPU-{node}-{k % gpus}", **H200,
                "pci": f"00000000:{10 + k % gpus:02x}:00.0", **device},
        start=100.0, end=110.0, **vars(Result.of(found)),
    )  # fmt: skip


def later(r: RankResult, seconds: float) -> RankResult:
    """The same at another time, all of its samples with it."""
    found = [
        replace(m, started=None if m.started is None else m.started + seconds,
                ended=[end + seconds for end in m.ended])
        for m in r.measurements
    ]  # fmt: skip
    return replace(r, start=r.start + seconds, end=r.end + seconds, measurements=found)


def record(
    *ranks: RankResult,
    workload: str = "gemm",
    placement: str = "worker0",
    nodes: Sequence[str] | None = None,
    nonce: str = NONCE,
    attempt: int = 1,
) -> Record:
    """A complete record of these ranks; attempts follow each other."""
    ranks = tuple(later(r, 20.0 * (attempt - 1)) for r in ranks)
    return Record(
        run_id=RUN_ID, nonce=nonce, workload=workload, placement=placement,
        attempt=attempt, nodes=list(nodes or dict.fromkeys(r.node for r in ranks)),
        world_size=len(ranks), job={"name": f"node-{placement}", "id": "42"}, ranks=list(ranks),
        provenance={"python": "3.11.7"},
    )  # fmt: skip


def node_record(*rates: float, node: str = "worker0", **more: Any) -> Record:
    """A gemm record of one node whose GPUs each ran at a steady rate."""
    ranks = [rank(k, node, bf16([rate] * 5), gpus=len(rates)) for k, rate in enumerate(rates)]
    return record(*ranks, placement=node, **more)


def case(
    limits: Thresholds,
    key: str,
    found: Record | None = None,
    *,
    nodes: tuple[str, ...] = ("worker0",),
    gpus: int = 2,
    **more: Any,
) -> Case:
    """What is judged: a criterion on nodes of `gpus` H200 each."""
    criterion = limits.criteria[key]
    facts = {
        "model": "H200 SXM", "nodes": len(nodes), "gpus": gpus * len(nodes), "gpus_per_node": gpus,
        "domains": len(nodes), "dtype": criterion.metric, **more.pop("facts", {}),
    }  # fmt: skip
    facts = {name: fact for name, fact in facts.items() if fact is not None}
    per_device = criterion.statistic != "value"
    siblings = more.pop("siblings", ())
    more["siblings"] = siblings if isinstance(siblings, Like) else Like(tuple(siblings))
    return Case(
        criterion=criterion, subject="--".join(nodes), nodes=nodes,
        record_nodes=more.pop("record_nodes", nodes),
        devices=len(nodes) * (gpus if per_device else 1), facts=facts, record=found, **more,
    )  # fmt: skip


# --- what ranks write


def line(event: str, k: int, *, workload: str = "gemm", node: str = "worker0", **more: Any) -> Any:
    """One line of a rank's file."""
    return {
        "schema": SCHEMA, "nonce": NONCE, "event": event, "workload": workload,
        "placement": node, "attempt": 1, "rank": k, "local_rank": k, "world_size": 2,
        "node": node, "time": 100.0 + k, **more,
    }  # fmt: skip


def result_line(k: int, *measurements: Measurement, **more: Any) -> Any:
    return line(
        "result", k, start=100.0, end=110.0, facts={}, device={"index": k, **H200},
        measurements=[m.to_json() for m in measurements], provenance={}, **more,
    )  # fmt: skip


def run_directory(root: Path, **run: Any) -> RunDirectory:
    """A run in which nothing was measured; `run`: what its run.json says."""
    made = RunDirectory(root)
    made.records.mkdir(parents=True)
    made.jobs.mkdir()
    if run:
        write_json(made.run_json, run)
    return made


def save(found: Record, directory: RunDirectory, *, name: str | None = None) -> Path:
    path = directory.records / (name or record_name(found.workload, found.placement, found.attempt))
    write_json(path, found.to_json(), indent=None)
    return path


@contextmanager
def edited(path: Path) -> Iterator[Any]:
    """The content of a JSON file, to be changed in place, as whoever has the run can."""
    data = json.loads(path.read_text(encoding="utf-8"))
    yield data
    path.write_text(json.dumps(data), encoding="utf-8")


def change(path: Path, /, **fields: Any) -> None:
    """Let a JSON file say something else in these fields."""
    with edited(path) as data:
        data.update(fields)


def say(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append lines to a rank's file, as a rank does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for one in lines:
        append_line(path, one)


def item(key: str, limits: Thresholds, people: Population, subject: str) -> Item:
    """The planned item of a criterion on a subject."""
    items = planned_list(limits, people)
    return next(i for i in items if i.key == (key, subject))


# --- pytest in a process of its own


OWN = fork_server.Server(CHECKOUT)
_ANY = fork_server.Server()
"""Not one module of a checkout is loaded there."""


def run_pytest(
    *arguments: str | Path,
    checkout: Path = CHECKOUT,
    timeout_s: float = 900,
    process: bool = False,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """The acceptance tests, as a user starts them; nothing of the outer session reaches them.

    In a fork of a warmed process, which saves what the imports take; `process`: in one that is
    really started.
    """
    outer = ("PYTEST_", "SLURM_", "SBATCH_", "COV_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(outer)} | environment
    given = ["-p", "no:cacheprovider", "--ignore=tests/selftests", *map(str, arguments)]
    if not process and not any(name.startswith(fork_server.OWN_START) for name in environment):
        server = OWN if checkout == CHECKOUT else _ANY
        return server.run(given, checkout, env, timeout_s)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *given], cwd=checkout, env=env, capture_output=True,
        text=True, timeout=timeout_s,
    )  # fmt: skip


Replayed = tuple[int, dict[str, Any]]
"""Exit status, and verdict.json with all rows."""


def opened(options: RunOptions) -> tuple[backends.Backend, Run]:
    """What pytest does in this process before the first job or judgement: the run is made."""
    backend = backends.choose(options)
    run = backend.open_run()
    run.select(item.key for item in run.items if run.admits(item))
    backend.prepare(run)
    run.open(command=["opened"])
    return backend, run


def judged(source: Path, into: Path, thresholds: Path = SHIPPED) -> Replayed:
    """Judge a recorded run in this process, by all that pytest would: it is ten times as fast.

    test_golden.py holds that it comes to what the acceptance tests come to.
    """
    options = RunOptions(cluster="replay", from_run=source, run_dir=into, thresholds=thresholds)
    backend, run = opened(options)
    backend.start(run)
    judge = BatchJudge(run.evidence().for_batch(), run.thresholds, run.population)
    run.batch.add(judge_many(judge, run.items, [item.key for item in run.scope]))
    run.record_verdicts(*(run.batch.verdicts[item.key] for item in run.scope))
    last = run.finish()
    export.write_results(run.directory)
    return last.exit_status, read_verdict(run.directory)


def replay(source: Path, into: Path, *more: str | Path) -> Replayed:
    """Judge a recorded run with the real acceptance tests, in a process of their own."""
    run = run_pytest("--cluster", "replay", f"--from={source}", f"--run-dir={into}", "-q", *more)
    verdict = into / "verdict.json"
    assert verdict.exists(), run.stdout + run.stderr
    return run.returncode, read_verdict(RunDirectory(into))
