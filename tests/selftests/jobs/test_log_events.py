"""The log of a job: who says what of which node, and which line is the cause among others."""

from __future__ import annotations

import random

import pytest

from fixtures.jobs import log_events
from fixtures.jobs.diagnosis import diagnose
from fixtures.jobs.log_events import LogPart, Speaker
from fixtures.records.absence import JobKind

pytestmark = pytest.mark.cpu

NODES = tuple(f"gpu{k:02}" for k in range(1, 7))


@pytest.mark.parametrize(
    ("line", "speaker", "node", "text"),
    [
        ("slurmstepd-gpu02: error: no room", Speaker.SLURMD, "gpu02", "no room"),
        ("slurmstepd: error: no room", Speaker.SLURMD, None, "no room"),
        ("srun: error: gpu02: tasks 2-3: Killed", Speaker.SRUN, "gpu02", "Killed"),
        ("srun: error: Node failure on gpu02", Speaker.SRUN, "gpu02", "Node failure on gpu02"),
        ("srun: error: timeout on host gpu02, gone", Speaker.SRUN, "gpu02",
         "timeout on host gpu02, gone"),
        ("srun: error: io error on node 1", Speaker.SRUN, "gpu02", "io error on node 1"),
        ("gpu02:77:78 [3] NCCL WARN no port", Speaker.NCCL, "gpu02", "no port"),
        ("[2026-11-27 01:02:03] gpu02:77:78 [3] init.cc:9 NCCL WARN no port", Speaker.NCCL, "gpu02",
         "no port"),
        ("libfabric:77:1700000000::efa:cq:1 gone", Speaker.LIBFABRIC, None, "efa:cq:1 gone"),
        ("/var/spool/slurm_script: line 3: module: not found", Speaker.SHELL, None,
         "line 3: module: not found"),
        ("3: ValueError: no", Speaker.PROGRAM, None, "ValueError: no"),
        ("[rank3]: ValueError: no", Speaker.PROGRAM, None, "ValueError: no"),
        # A name of another cluster.
        ("slurmstepd-other9: error: no room", Speaker.SLURMD, None, "no room"),
    ],
)  # fmt: skip
def test_a_line_has_its_speaker_node_and_words(line, speaker, node, text):
    (event,) = log_events.read([LogPart(line)], NODES)
    assert (event.speaker, event.node, event.text) == (speaker, node, text)


def test_a_line_has_the_ranks_that_it_is_about():
    lines = ["3: x: y", "[rank4]: x: y", "srun: error: gpu02: tasks 2-3,5: Killed"]
    found = log_events.read([LogPart("\n".join(lines)), LogPart("x: y", 7)], NODES)
    assert [sorted(event.ranks) for event in found] == [[3], [4], [2, 3, 5], [7]]


HARMLESS = (
    "submitit INFO (2026-11-22 06:18:03,250) - Job completed successfully",
    "ERROR: ld.so: object '/opt/x.so' from LD_PRELOAD cannot be preloaded (cannot open shared "
    "object file): ignored.",
    "srun: job 42 queued and waiting for resources",
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    "gpu01:77:78 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0",
    "Traceback (most recent call last):",
    '  File "x.py", line 3, in f',
    "frame #0: <unknown function> + 0x94ac3 (0x7f0000000000 in /lib/libc.so.6)",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "slurmstepd-gpu03: error: error unlocking cgroup '/sys/fs/cgroup/x': No such file",
)


WARNINGS = (
    "UserWarning: no space left on device",
    "[W1127 01:02:03.123 socket.cpp:697] [c10d] The IPv6 network addresses cannot be retrieved",
    "slurmstepd-gpu03: pyxis: starting container ...",
    "slurmstepd-gpu03: TaskProlog: set TMPDIR",
    "[prolog] uncorrectable ECC errors: 0 - OK",
    "nvidia-fabricmanager: active",
    "NVLS multicast supported: yes",
    "max locked memory unlimited",
    "nfs: RPC: xid 0x12345678 retransmitted",
)
"""Lines that name what fails elsewhere, and say that nothing does here."""


def test_harmless_lines_are_no_events():
    assert log_events.read([LogPart("\n".join(HARMLESS))], NODES) == []


CAUSES = (
    ("slurmstepd-{n}: error: pyxis: [ERROR] /etc/enroot/hooks.d/98-nvidia.sh: no such device",
     JobKind.CONTAINER),
    ("slurmstepd-{n}: error: TaskProlog failed: /opt/prolog is not there", JobKind.PROLOG),
    ("slurmstepd-{n}: error: Detected 1 oom_kill event in StepId=42.0", JobKind.HOST_OUT_OF_MEMORY),
    ("srun: error: Node failure on {n}", JobKind.NODE_LOST),
    ("srun: error: Task launch for StepId=42.0 failed on node {n}: Invalid job credential",
     JobKind.CREDENTIAL),
    ("srun: error: {n}: task {k}: Segmentation fault (core dumped)", JobKind.RANK_DIED),
    ("[rank{k}]: RuntimeError: CUDA error: an illegal memory access was encountered",
     JobKind.GPU_ERROR),
    ("slurmstepd-{n}: error: mkdir /tmp/slurm: No space left on device", JobKind.NODE_STORAGE),
    ("{n}:77:78 [0] NCCL WARN Cuda failure 'uncorrectable ECC error encountered'",
     JobKind.GPU_ERROR),
    ("{n}:77:78 [0] NCCL WARN NET/IB : mlx5_3:1 async fatal event on QP: local catastrophic error",
     JobKind.FABRIC),
)  # fmt: skip
CONSEQUENCES = (
    "srun: error: {n}: task {k}: Terminated",
    "srun: error: {n}: task {k}: Killed",
    "srun: error: {n}: task {k}: Exited with exit code 1",
    "srun: error: {n}: task {k}: Exited with exit code 143",
    "slurmstepd-{n}: error: *** STEP 42.0 ON {n} CANCELLED AT 2026-11-27T01:02:03 ***",
    "srun: launch/slurm: _step_signal: Terminating StepId=42.0",
    "[rank{k}]: torch.distributed.DistBackendError: ncclRemoteError: remote process exited",
    "[rank{k}]: RuntimeError: Connection reset by peer",
    "{n}:77:78 [0] NCCL WARN socketProgress: Connection closed by remote peer gpu01",
    "srun: error: First task exited 60s ago",
)


@pytest.mark.parametrize(("cause", "kind"), CAUSES, ids=range(len(CAUSES)))
def test_the_cause_is_found_among_consequences_and_harmless_lines_in_any_order(cause, kind):
    """Of what srun says of killed tasks the first counts, so these stand behind a death."""
    draw = random.Random(cause)
    for _ in range(100):
        k = draw.randrange(len(NODES))
        line = cause.format(n=NODES[k], k=k)
        others = [j for j in range(len(NODES)) if j != k]
        drawn = [
            draw.choice(CONSEQUENCES).format(n=NODES[j], k=j)
            for j in draw.sample(others, draw.randint(0, len(others)))
        ]
        log = [line, *drawn, *draw.sample(HARMLESS + WARNINGS, draw.randint(0, 5))]
        draw.shuffle(log)
        wrote = [
            {"event": "started", "rank": j, "node": n, "workload": "allreduce", "time": 1.0}
            for j, n in enumerate(NODES)
        ]
        failure = diagnose(
            draw.choice((wrote, [])), state="FAILED", log_tail="\n".join(log), job="42",
            world_size=len(NODES), nodes=NODES,
        )  # fmt: skip
        assert (failure.kind, failure.node) == (kind, NODES[k]), "\n".join(log)
        assert failure.shown.split(": ")[-1] in line, "\n".join(log)
        assert failure.shown in failure.reason


@pytest.mark.parametrize("prefix", ["\x1b[31m", "2026-11-27T01:02:03.123 ", "[01:02:03] ", "  3: "])
def test_what_stands_before_a_line_does_not_hide_who_speaks(prefix):
    (event,) = log_events.read([LogPart(f"{prefix}slurmstepd-gpu02: error: no room")], NODES)
    assert (event.speaker, event.node, event.text) == (Speaker.SLURMD, "gpu02", "no room")


@pytest.mark.parametrize(
    ("said", "nodes"),
    [("gpu02.hpc.example", ("gpu02",)), ("gpu[02-03]", ("gpu02", "gpu03")), ("other1", ())],
)
def test_a_node_has_one_name_however_it_is_said(said, nodes):
    (event,) = log_events.read([LogPart(f"srun: error: Node failure on {said}")], NODES)
    assert event.nodes == nodes


def test_several_nodes_that_slurm_names_are_all_lost():
    failure = diagnose(
        [], state="NODE_FAIL", log_tail="srun: error: Node failure on gpu[02-03]", job="42",
        world_size=6, nodes=NODES,
    )  # fmt: skip
    assert (failure.kind, failure.node) == (JobKind.NODE_LOST, None)
    assert failure.accused == ("gpu02", "gpu03")


def test_the_node_that_tells_of_a_lost_one_is_alive():
    said = (
        "slurmstepd-gpu01: error: *** STEP 42.0 ON gpu01 CANCELLED AT 2026-11-27T01:02:03 DUE TO "
        "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
    )
    failure = diagnose([], state="NODE_FAIL", log_tail=said, job="4", world_size=6, nodes=NODES)
    assert (failure.kind, failure.node) == (JobKind.NODE_LOST, None)


@pytest.mark.parametrize("text", ["fork", "unpack ", "error: container ", "worker_thread_pool_"])
def test_a_line_of_any_length_is_read_in_no_time(text):
    """A pattern that looks back from everywhere took a minute for 4 kB: this ends a hang."""
    long = "slurmstepd-gpu02: error: " + text * 4000
    failure = diagnose([], state="FAILED", log_tail=long, job="4", world_size=6, nodes=NODES)
    assert len(failure.reason) < 2000


@pytest.mark.parametrize(
    "line",
    [{"rank": None}, {"rank": 0, "time": None},
     {"rank": 0, "kind": "hung", "flight": {"begun": None}},
     {"rank": 0, "kind": "peer_lost", "node": None}],
)  # fmt: skip
def test_a_torn_or_foreign_line_of_a_rank_ends_nothing(line):
    error = {"event": "error", "workload": "gemm", "node": "gpu01", "kind": "raised", "error": "x"}
    failure = diagnose([{**error, **line}], state="FAILED", job="4", world_size=6, nodes=NODES)
    assert failure.kind in JobKind
