"""The collectives on CPU ranks: each is timed, counted and checked as nccl-tests does."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.wording import counted
from fixtures.workloads.collectives import crosscheck
from fixtures.workloads.collectives.collective_sweep import Sweep
from fixtures.workloads.nccl import nccl_log
from fixtures.workloads.nccl.collective_ops import EXACT, OPERATIONS, PATTERN, largest_pattern
from tests.selftests.rank_job import TORCH, Job

pytestmark = pytest.mark.cpu

WORKLOADS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
}

CORRUPT = '''
"""One operation with one wrong element on one rank, as a faulty link or device would leave it."""
from dataclasses import replace
from fixtures.workloads.nccl import collective_ops
from fixtures.workloads.runtime.spec import module_of, program_of

healthy = program_of(module_of("{module}"))
WORKLOAD = healthy.WORKLOAD
honest = collective_ops.OPERATIONS["{operation}"]

def broken(peers, target, source):
    honest.call(peers, target, source)
    if peers.rank == 1:
        target[target.numel() // 2] += 1

def run(ranks, metrics, **sweep):
    collective_ops.OPERATIONS["{operation}"] = replace(honest, call=broken)
    try:
        return healthy.run(ranks, metrics, **sweep)
    finally:
        collective_ops.OPERATIONS["{operation}"] = honest
'''


def test_allreduce_on_two_ranks_is_a_valid_measurement(tmp_path: Path) -> None:
    job = Job(tmp_path, per_node=2)
    job.add("allreduce", ["busbw", "latency", "errors"], max_size=4 << 20)
    assert job.run(warm=TORCH) == [0, 0], job.output()
    record = job.record("allreduce")
    for (_, busbw), (_, latency) in zip(
        record.points("busbw", {"size": 1 << 20}),
        record.points("latency", {"size": 1 << 20}),
        strict=True,
    ):
        # n = 2: the bus bandwidth is the algorithm bandwidth.
        expected = [(1 << 20) / (us * 1e-6) / 1e9 for us in latency.samples]
        assert busbw.samples == pytest.approx(expected, rel=1e-4)
        assert len(busbw.samples) >= 3
        assert busbw.conditions["domains"] == 1
        assert busbw.conditions["gpus_per_domain"] == 2
    assert [m.value for _, m in record.points("errors", {})] == [0, 0]
    sizes = [8 << k for k in range(20)]
    table = record.ranks[0].facts["table"]
    assert [line["size"] for line in table] == sizes
    assert all(line["launch_us"] > 0 for line in table)
    measured = {m.at["size"] for _, m in record.points("latency", {})}
    assert measured == {size for size in sizes if size <= 1 << 20}
    assert {m.at["size"] for _, m in record.points("busbw", {})} == {1 << 20, 2 << 20, 4 << 20}


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """All operations, one after another, in one job of three ranks."""
    job = Job(tmp_path_factory.mktemp("three"), per_node=3)
    for name in WORKLOADS:
        job.add(name, ["busbw", "latency", "errors"], min_size=4096, max_size=4 << 20, step=32)
    assert job.run(warm=TORCH) == [0, 0, 0], job.output()
    return job


@pytest.fixture(scope="module")
def one_wrong_element(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The same on two ranks, each operation with a wrong element on rank 1."""
    folder = tmp_path_factory.mktemp("corrupt")
    job = Job(folder, per_node=2)
    for name, operation in WORKLOADS.items():
        text = CORRUPT.format(module=name, operation=operation)
        (folder / f"corrupt_{name}.py").write_text(text)
        job.add(f"corrupt_{name}", ["errors"], min_size=1 << 20, max_size=2 << 20, step=2)
    assert job.run(warm=TORCH) == [0, 0], job.output()
    return job


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The same on a single rank."""
    job = Job(tmp_path_factory.mktemp("one"))
    for name in WORKLOADS:
        job.add(name, ["busbw", "latency", "errors"], min_size=1 << 20, max_size=2 << 20, step=2)
    assert job.run(warm=TORCH) == [0], job.output()
    return job


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_operation_gives_the_exact_result_on_three_ranks(name: str, three_ranks: Job) -> None:
    record = three_ranks.record(name)
    errors = [m for _, m in record.points("errors", {})]
    assert [m.value for m in errors] == [0] * 3
    assert all(m.notes == errors[0].notes for m in errors)
    assert errors[0].notes[0].startswith("checked ")
    # How many more than one depends on the speed of the host.
    assert all(line["checked"] >= 1 for line in record.ranks[0].facts["table"])
    op = OPERATIONS[WORKLOADS[name]]
    for line in record.ranks[2].facts["table"]:
        # A size that three ranks cannot share is rounded down, as nccl-tests does.
        assert line["count"] % (3 if op.split else 1) == 0
        assert line["busbw"] == pytest.approx(line["algbw"] * op.factor(3), rel=1e-3)
    assert len(record.points("busbw", {"size": 4 << 20})) == 3
    assert [m.at["size"] for m in record.ranks[0].measurements if m.metric == "latency"] == [
        4096, 131072,
    ]  # fmt: skip


@pytest.mark.parametrize("name", WORKLOADS)
def test_one_wrong_element_is_counted_on_the_rank_that_has_it(
    name: str, one_wrong_element: Job
) -> None:
    (_, zero), (_, one) = one_wrong_element.record(f"corrupt_{name}").points("errors", {})
    tables = one_wrong_element.record(f"corrupt_{name}").ranks[1].facts["table"]
    assert zero.value == 0
    assert one.value == sum(line["wrong"] for line in tables)
    for note, line in zip(one.notes[:2], tables, strict=True):
        calls = line["checked"]
        assert calls >= 1
        assert note.startswith(
            f"{line['wrong']} wrong at {line['size']} bytes: in {calls} of {counted(calls, 'call')}"
        )


@pytest.mark.parametrize("name", WORKLOADS)
def test_one_rank_has_no_bus_bandwidth(name: str, one_rank: Job) -> None:
    record = one_rank.record(name)
    assert record.points("busbw", {}) == []
    assert [m.at["size"] for _, m in record.points("latency", {})] == [1 << 20]
    assert [m.value for _, m in record.points("errors", {})] == [0]


def test_a_rail_is_the_ranks_of_one_index_over_all_nodes(tmp_path: Path) -> None:
    job = Job(tmp_path, nodes=["worker0", "worker1"], per_node=2)
    job.add("rails", ["busbw", "errors"])
    assert job.run(slurm=True, warm=TORCH) == [0] * 4, job.output()
    record = job.record("rails")
    assert [rank.facts["ranks"] for rank in record.ranks] == [2] * 4
    for _, m in record.points("busbw", {"size": 16 << 20}):
        assert m.conditions["domains"] == 2
        assert m.conditions["gpus_per_domain"] == 1
    assert len(record.points("busbw", {"size": 16 << 20})) == 4
    assert [m.value for _, m in record.points("errors", {})] == [0] * 4


def test_a_forced_ring_leaves_no_trace_in_what_comes_after(tmp_path: Path) -> None:
    job = Job(tmp_path, per_node=2)
    job.add("allreduce_ring", ["busbw", "errors"])
    job.add("broadcast", ["errors"], max_size=4096)
    assert job.run(warm=TORCH) == [0, 0], job.output()
    assert len(job.record("allreduce_ring").points("busbw", {"size": 16 << 20})) == 2
    assert job.record("allreduce_ring").ranks[0].facts["forced_algorithm"] == "Ring"
    assert job.record("broadcast").ranks[0].facts["forced_algorithm"] == ""


@pytest.mark.parametrize(
    ("operation", "n", "factor"),
    [
        ("all_reduce", 8, 1.75), ("all_gather", 8, 0.875), ("reduce_scatter", 4, 0.75),
        ("all_to_all", 2, 0.5), ("broadcast", 8, 1), ("send_recv", 2, 1), ("send_recv", 1, 0),
    ],
)  # fmt: skip
def test_bus_bandwidth_factors_are_those_of_nccl_tests(
    operation: str, n: int, factor: float
) -> None:
    assert OPERATIONS[operation].factor(n) == factor


@pytest.mark.parametrize(
    "operation",
    ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"],
)
def test_the_right_result_follows_from_what_is_put_in(operation: str) -> None:
    """addend() and expected() are written down apart: here one is computed from the other."""
    op, n = OPERATIONS[operation], 5
    for r in range(n):
        for j in range(n if op.split else 1):
            times, added = op.expected(r, j, n)
            found = {
                "all_reduce": (n, sum(op.addend(s, 0, n) for s in range(n))),
                "all_gather": (1, op.addend(j, j, n)),
                "reduce_scatter": (n, sum(op.addend(s, r, n) for s in range(n))),
                "all_to_all": (1, op.addend(j, r, n)),
                "broadcast": (1, op.addend(0, 0, n)),
                "send_recv": (1, op.addend((r - 1) % n, 0, n)),
            }[operation]
            assert (times, added) == found


def test_sizes_are_powers_of_two_from_8_bytes_to_8_gib() -> None:
    sizes = Sweep(largest=8 << 30).sizes()
    assert (sizes[0], sizes[-1], len(sizes)) == (8, 8 << 30, 31)


LOG = """
w0:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
w0:1:2 [0] NCCL INFO Using network IB
w0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
w0:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
w0:1:2 [0] NCCL INFO Channel 01/0 : 1[1] -> 2[0] [send] via NET/IB/1{gdr}
w0:1:2 [0] NCCL INFO 24 coll channels, 0 collnet channels, 16 nvls channels, 32 p2p channels
"""


@pytest.mark.parametrize(("gdr", "all_of_them"), [("/GDRDMA", True), ("", False)])
def test_nccl_log_tells_transports_nics_and_gpudirect(
    gdr: str, all_of_them: bool, tmp_path: Path
) -> None:
    (tmp_path / "nccl-rank0.0.log").write_text(LOG.format(gdr=gdr))
    found = nccl_log.read_nccl_log([tmp_path / "nccl-rank0.0.log", tmp_path / "absent.log"])
    assert found == {
        "transports": {"NET/IB": 2, "P2P/CUMEM": 1}, "network": "IB", "coll_channels": 24,
        "collnet_channels": 0, "nvls_channels": 16, "nics": [0, 1], "gdr": all_of_them,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("transport", "family"),
    [
        ("P2P/CUMEM", "P2P"), ("P2P/IPC", "P2P"), ("SHM/direct", "SHM"), ("NET/IB", "NET/IB"),
        ("NET/Socket", "NET/Socket"), ("NET/AWS", "NET/OFI"),
    ],
)  # fmt: skip
def test_transports_have_families(transport: str, family: str) -> None:
    assert nccl_log.transport_family(transport) == family
    assert family in nccl_log.TRANSPORTS


PRINTED = """
# nThread 1 nGpus 4 minBytes 268435456 maxBytes 1073741824 step: 4(factor) warmup iters: 5 iters: 20
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time
   268435456      67108864     float     sum      -1  1182.83  226.94  340.42       0  1185.11  226.51  339.76       0
  1073741824     268435456     float     sum      -1  4560.02  235.47  353.20       0  4526.91  237.19  355.79       0
# Out of bounds values : 0 OK
"""  # noqa: E501


def test_the_rows_of_nccl_tests_are_read_by_column() -> None:
    assert crosscheck.parse_rows(PRINTED, in_place=True) == [
        (256 << 20, 1185.11, 339.76), (1 << 30, 4526.91, 355.79),
    ]  # fmt: skip
    assert crosscheck.parse_rows(PRINTED, in_place=False)[1] == (1 << 30, 4560.02, 353.20)
    command = crosscheck.command_line(4, [256 << 20, 1 << 30])
    assert " ".join(command[1:7]) == "-g 4 -b 268435456 -e 1073741824"


def _stand_in(tmp_path: Path, text: str, status: int = 0) -> None:
    path = tmp_path / "bin" / crosscheck.BINARY
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\ncat <<END\n{text}\nEND\nexit {status}\n")
    path.chmod(0o755)


def test_crosscheck_reports_how_far_both_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = "1048576 262144 float sum -1 1 1 1 0 1 1 {rate} 0"
    _stand_in(tmp_path, row.format(rate=1000))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    job = Job(tmp_path, per_node=2)
    job.add("crosscheck", ["difference"], sizes=[1 << 20])
    assert job.run(warm=TORCH) == [0, 0], job.output()
    record = job.record("crosscheck")
    ((rank, m),) = record.points("difference", {})
    ours = rank.facts["ours"]["1048576"]
    assert m.value == pytest.approx(100 * (1 - ours / 1000), abs=0.01)
    assert "all_reduce_perf 1000" in m.notes[0]


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [("nothing", 0, "printed no row"), ("", 3, "exit 3")],
)
def test_crosscheck_without_a_figure_is_an_error(
    text: str, status: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stand_in(tmp_path, text, status)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    job = Job(tmp_path)
    job.add("crosscheck", ["difference"], sizes=[1 << 20])
    assert job.run() != [0]
    assert reason in job.error()["error"]


@pytest.mark.parametrize("ranks", [2, 3, 512, 3180, 5308, 8192, 16_384, 65_536])
@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter"])
def test_the_sum_of_any_number_of_ranks_is_exact_in_float32(operation: str, ranks: int) -> None:
    """Summed one after another in float32, as NCCL's ring does; 5,308 ranks were not before."""
    numpy = pytest.importorskip("numpy")
    op = OPERATIONS[operation]
    values = numpy.arange(PATTERN) % largest_pattern(ranks)
    for share in (0, 1, ranks - 1):
        total = numpy.zeros(PATTERN, dtype=numpy.float32)
        for rank in range(ranks):
            total += (values + op.addend(rank, share, ranks)).astype(numpy.float32)
        factor, offset = op.expected(share, share, ranks)
        expected = values.astype(numpy.int64) * factor + offset
        assert (total.astype(numpy.int64) == expected).all()
        assert expected.max() <= EXACT


def test_every_rank_adds_another_number_as_long_as_the_sum_is_exact() -> None:
    for ranks in (2, 512, 3180):
        put = {OPERATIONS["all_reduce"].addend(rank, 0, ranks) for rank in range(ranks)}
        assert len(put) == ranks
