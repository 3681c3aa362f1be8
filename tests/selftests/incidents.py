"""Incidents of 2026 on other people's clusters, each with the drill that shows what the suite says.

The thread is where somebody described it. What is planted in a record of a GPU node is as large as
it was there, where the thread says how large; else a fault or a test stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fixtures.records.model import Measurement, RankResult, Record
from fixtures.run.judge_item import judge_item
from fixtures.verdict.model import Verdict
from tests.selftests import planted

GPUS4 = "h200-1x4"
"""A recorded run of four H200."""


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A figure of a recorded run made as bad as it was; without a run, one of a made-up record."""

    key: str
    run: str = ""
    value: float | str | None = None
    factor: float = 1.0
    """Of each sample, where there is no `value`."""
    gpus: tuple[int, ...] = (2,)
    """The ranks whose figure it is."""
    outcome: str = "FAIL"
    says: str
    """What the row must say."""

    def __str__(self) -> str:
        return f"`{self.key}` in a record"


@dataclass(frozen=True)
class Put:
    """A fault of tests/selftests/faults_*.py, or one below a training."""

    key: str
    name: str
    says: str

    def __str__(self) -> str:
        return f"`{self.key}`: {self.name}"


@dataclass(frozen=True)
class SelfTest:
    """A test of the suite's own: file and name."""

    file: str
    name: str
    says: str

    def __str__(self) -> str:
        return f"`{self.file}`: `{self.name}`"


@dataclass(frozen=True)
class Incident:
    threads: tuple[str, ...]
    """repository#number, or an ADR of it."""
    what: str
    drill: Plant | Put | SelfTest


def judged(plant: Plant) -> tuple[Verdict, Verdict]:
    """Return the verdict on the record as it was, and on the one with the figure in it."""
    if not plant.run:
        found = planted.plant(plant.key)
        return replace(found.verdict, outcome=found.healthy), found.verdict
    run = planted._run(plant.run)
    assert run is not None
    limits, people, items, evidence = run
    item = items[plant.key][0]
    record = evidence.get(item.workload, item.placement)
    assert isinstance(record, Record), record
    bad = replace(record, ranks=[*_spoiled(plant, record, limits.criteria[plant.key].metric)])
    healthy, verdict = (
        judge_item(item, r, thresholds=limits, population=people) for r in (record, bad)
    )
    return healthy, verdict


def _spoiled(plant: Plant, record: Record, metric: str) -> Iterator[RankResult]:
    def spoil(m: Measurement) -> Measurement:
        if m.metric != metric:
            return m
        if plant.value is not None:
            return replace(m, value=plant.value)
        rounds = [[x * plant.factor for x in samples] for samples in m.rounds]
        return replace(m, samples=[x * plant.factor for x in m.samples], rounds=rounds)

    for rank in record.ranks:
        spoiled = [spoil(m) for m in rank.measurements]
        yield replace(rank, measurements=spoiled) if rank.local_rank in plant.gpus else rank


ALL4 = (0, 1, 2, 3)
INCIDENTS = (
    Incident(
        ("NVIDIA/DCGM#313", "NVIDIA/NVSentinel#1748"),
        "a GB200 with 17,700 corrected ECC errors per second under load is called healthy",
        Put("health.ecc_rate", "storm of corrected errors", "a rate under load is red by GPU"),
    ),
    Incident(
        ("NVIDIA/NVSentinel#1585",),
        "a GPU was replaced, and the state of the old one stayed",
        SelfTest("run/test_devices_of_record.py",
                 "test_a_replaced_gpu_voids_its_records_and_no_others",
                 "device replaced: only its rows are measured again"),
    ),
    Incident(
        ("NVIDIA/NVSentinel#1427", "NVIDIA/NVSentinel#695"),
        "it is not known what a repair invalidates before a node returns to service",
        SelfTest("whole_runs/test_lost_nodes.py",
                 "test_a_gpu_that_was_swapped_is_measured_again_and_nothing_else",
                 "--resume takes the inventory again and measures what rested on the old GPU"),
    ),
    Incident(
        ("NVIDIA/aicr#640",),
        "NVLS was missing, and its test was skipped in silence",
        Plant(key="allreduce.node.nvls", says="not on, limit = on"),
    ),
    Incident(
        ("NVIDIA/aicr#2568",),
        "that multicast is available was taken for NVLS in use",
        SelfTest("verdict/test_ordered.py",
                 "test_a_switch_without_multicast_does_not_lower_its_own_limit",
                 "the limit stays that of NVLS, and the row of NVLS is red"),
    ),
    Incident(
        ("NVIDIA/aicr#2689",),
        "3 instead of 489 GB/s: NCCL fell back to sockets, and the job succeeded",
        Plant(key="allreduce.cluster.transport", says="not NET/IB, limit = NET/IB"),
    ),
    Incident(
        ("SemiAnalysisAI/InferenceX#2979",),
        "one node took a slower transport than the others",
        SelfTest("workloads/nccl/test_nccl_log.py",
                 "test_the_node_that_fell_back_to_a_slower_network_is_named",
                 "the node is named with its transport"),
    ),
    Incident(
        ("NVIDIA/ai-cloud-validation#645",),
        "a validation of zero nodes passed",
        SelfTest("plan/test_items.py",
                 "test_a_population_without_nodes_is_refused",
                 "the population has no nodes: nothing to accept"),
    ),
    Incident(
        ("NVIDIA/ai-cloud-validation#652", "ROCm/rocm-systems#11468"),
        "checks that could not run passed, at 21 places",
        SelfTest("conclusion/test_run_verdict.py",
                 "test_a_run_that_measured_nothing_is_incomplete",
                 "NOT_MEASURED, and the run is INCOMPLETE"),
    ),
    Incident(
        ("NVIDIA/cluster-readiness-engine#57",),
        "nodes that were not tested vanished from the list of those that passed",
        SelfTest("whole_runs/test_lost_nodes.py",
                 "test_a_node_that_is_drained",
                 "it stays in the population; what concerns it is NOT_MEASURED"),
    ),
    Incident(
        ("NVIDIA/cluster-readiness-engine#77", "NVIDIA/cluster-readiness-engine#84"),
        "fewer nodes than were ordered were certified",
        SelfTest("cluster/test_population.py",
                 "test_a_replay_of_fewer_nodes_than_ordered_is_not_accepted",
                 "PARTIAL or INCOMPLETE, never ACCEPTED"),
    ),
    Incident(
        ("NVIDIA/cluster-readiness-engine#82",),
        "a node that was a GPU short hung the whole run",
        Put("scheduler.gres", "GRES smaller than ordered", "the node is named before any job"),
    ),
    Incident(
        ("NVIDIA/aicr#1858", "NVIDIA/aicr#1867"),
        "a collective hung, and no node was named",
        Put("failures.hang.named.collective", "a second rank hangs", "kind, node and rank"),
    ),
    Incident(
        ("NVIDIA/cluster-readiness-engine ADR-091",),
        "the mean of a node passes where seven GPUs are healthy and the eighth is clocked down",
        Plant(key="gemm.bf16", run=GPUS4, factor=0.9, says="node0 gpu2 gemm.bf16"),
    ),
    Incident(
        ("NVIDIA/aicr#2784",),
        "a gate of 450 GB/s where healthy nodes have 770",
        Plant(key="allreduce.node.8GiB", run=GPUS4, factor=450 / 770, gpus=ALL4,
              says="limit >= 347"),
    ),
    Incident(
        ("NVIDIA/NVSentinel#837",),
        "100 GB/s as the limit of every platform",
        Plant(key="allreduce.node.8GiB", run=GPUS4, factor=110 / 364, gpus=ALL4,
              says="limit >= 347"),
    ),
    Incident(
        ("NVIDIA/nccl#2001",),
        "a few elements of a collective are wrong now and then",
        SelfTest("workloads/nccl/test_checked_calls.py",
                 "test_an_all_reduce_that_is_wrong_now_and_then_is_found",
                 "299 calls are checked; the row says what they find"),
    ),
    Incident(
        ("NVIDIA/nccl-tests#172",),
        "an error in one call of many is not seen by the check at the end",
        Plant(key="allreduce.node.errors", run=GPUS4, value=1, says="1 element, limit <= 0"),
    ),
    Incident(
        ("ROCm/aorta#205", "ROCm/aorta#210"),
        "a GPU computes something else once in a while",
        Plant(key="gemm.identical", run=GPUS4, value=1, says="node0 gpu2 gemm.identical: 1"),
    ),
    Incident(
        ("pytorch/torchtitan#4324", "pytorch/torchtitan#4334"),
        "a corruption in a training is found by replaying its steps only",
        Put("training_ddp.replicas", "one_bit_flips", "replicas differ, by rank"),
    ),
    Incident(
        ("NVIDIA/DCGM#284",),
        "the memory test could not take its memory, and passed",
        SelfTest("workloads/memory/test_memory_whole.py",
                 "test_what_is_not_proven_to_be_valid_is_not_measured",
                 "the share that was covered is a condition of the row"),
    ),
    Incident(
        ("NVIDIA/DCGM#272", "NVIDIA/DCGM#247"),
        "a diagnostic hung, or left its load in the next test",
        SelfTest("jobs/test_job_queue_failures.py",
                 "test_a_rank_that_falls_silent_has_hung_and_the_rest_is_measured",
                 "a deadline per workload; the rest is measured"),
    ),
    Incident(
        ("NVIDIA/DCGM#254",),
        "memory of an earlier test was still taken",
        Plant(key="health.leaked_memory", run=GPUS4, value=4096, says="node0 gpu2"),
    ),
    Incident(
        ("NVIDIA/NVSentinel#1471",),
        "IMEX was down, and hardware was accused",
        Plant(key="nvlink.imex", says="not ready, limit = ready"),
    ),
    Incident(
        ("awslabs/awsome-distributed-ai#1089",),
        "a container could not be pulled, and the fabric was suspected",
        SelfTest("jobs/test_diagnosis_first_contact.py",
                 "test_what_the_site_does_not_allow_or_provide_blames_no_node",
                 "kind container; no node is blamed"),
    ),
    Incident(
        ("NVIDIA/srt-slurm#429",),
        "a run of 0 tokens was a success",
        Plant(key="training_single.tokens", run=GPUS4, factor=0.0, gpus=ALL4,
              outcome="NOT_MEASURED", says="a sample is not positive"),
    ),
    Incident(
        ("rwth-i6/sisyphus#281",),
        "sbatch timed out, and the job was submitted twice",
        SelfTest("jobs/test_job_queue.py",
                 "test_a_job_that_was_taken_though_sbatch_failed_is_not_submitted_twice",
                 "it is looked up by its name"),
    ),
    Incident(
        ("facebookincubator/submitit#1660",),
        "a job id was used again, and an old result was taken",
        SelfTest("jobs/test_job_queue_failures.py",
                 "test_lines_of_another_run_are_nobody_s",
                 "every line has the run's nonce"),
    ),
    Incident(
        ("facebookresearch/gcm#143", "scitix/sichek#125"),
        "a bad optic shows in bit errors long before the link goes down",
        Put("infiniband.symbol_error", "bad cable", "node and port"),
    ),
    Incident(
        ("mlcommons/storage#782",),
        "a storage test measured a cache",
        Put("filesystem.coherence", "stale view", "a node that answers from its cache is named"),
    ),
)  # fmt: skip
