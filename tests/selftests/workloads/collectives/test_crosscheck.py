"""Our all-reduce beside that of nccl-tests: its command, its output, and the difference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.collectives import crosscheck

pytestmark = pytest.mark.cpu

MIB = 1 << 20
PRINTED = """\
# size count type redop root time algbw busbw #wrong time algbw busbw #wrong
     1048576  262144 float sum -1  10.0 100.0 150.0 0  20.0 50.0 75.0 0
     4194304 1048576 float sum -1  40.0 100.0 160.0 0  50.0 80.0 120.0 0
     4194304 too few cells
 Avg bus bandwidth : 1 2 3 4 5 6 7 8 9 10 11 12 13
"""


def test_rows_are_read_in_and_out_of_place():
    assert crosscheck.parse_rows(PRINTED, in_place=True) == [
        (MIB, 20.0, 75.0), (4 * MIB, 50.0, 120.0),
    ]  # fmt: skip
    assert crosscheck.parse_rows(PRINTED, in_place=False)[0] == (MIB, 10.0, 150.0)


def test_the_command_has_the_sizes_as_steps():
    for sizes, begin, end, step in (
        ([MIB], MIB, MIB, 2), ([MIB, 4 * MIB], MIB, 4 * MIB, 4), ([MIB, MIB], MIB, MIB, 2),
    ):  # fmt: skip
        assert crosscheck.command_line(8, sizes)[:9] == [
            "all_reduce_perf", "-g", "8", "-b", str(begin), "-e", str(end), "-f", str(step),
        ]  # fmt: skip


def test_the_binary_runs_without_the_variables_of_this_job(monkeypatch: pytest.MonkeyPatch):
    seen: list[dict[str, str]] = []
    status = 0

    def run(command: list[str], *, env: dict[str, str], timeout: float, **_: Any) -> Any:
        assert timeout == 90
        seen.append(env)
        return SimpleNamespace(returncode=status, stdout="rows", stderr="no GPU")

    monkeypatch.setattr(crosscheck.subprocess, "run", run)
    monkeypatch.setattr(crosscheck.shutil, "which", lambda name: f"/bin/{name}")
    for name in ("SLURM_PROCID", "NCCL_DEBUG", "NCCL_ALGO"):
        monkeypatch.setenv(name, "1")
    assert crosscheck.run_binary(["all_reduce_perf"]) == "rows"
    assert "NCCL_ALGO" in seen[0]
    assert not {"SLURM_PROCID", "NCCL_DEBUG"} & seen[0].keys()
    status = 2
    with pytest.raises(RuntimeError, match="exit 2: no GPU"):
        crosscheck.run_binary(["all_reduce_perf"])
    monkeypatch.setattr(crosscheck.shutil, "which", lambda _: None)
    with pytest.raises(RuntimeError, match="not on this node's"):
        crosscheck.run_binary(["all_reduce_perf"])


def test_the_difference_is_that_of_the_bus_bandwidths(monkeypatch: pytest.MonkeyPatch):
    class Buffers:
        """Every size takes 10 ms."""

        def __init__(self, *given: Any) -> None:
            made.append(given[-1])

        def measure_size(self, size: int, comm: None) -> Any:
            return SimpleNamespace(batches=SimpleNamespace(median=0.01))

        def close(self) -> None: ...

    made: list[int] = []
    printed = PRINTED
    commands: list[list[str]] = []

    def binary(command: list[str]) -> str:
        commands.append(command)
        return printed

    monkeypatch.setattr(crosscheck.operation_buffers, "OperationBuffers", Buffers)
    monkeypatch.setattr(crosscheck, "run_binary", binary)
    monkeypatch.setattr(crosscheck.collective_sweep, "all_ranks", lambda _: SimpleNamespace(size=2))
    ranks: Any = SimpleNamespace(
        leads_node=True, rank=0, gather_node=lambda item: [item, 1], barrier=lambda: None,
        agree=lambda item, choose: choose([item, 3 * item]),
    )  # fmt: skip
    found = crosscheck.run(ranks, ["difference"], sizes=[MIB, 4 * MIB])
    # 1 MiB in 20 ms, the mean of both ranks, at a factor of 2 (n - 1) / n = 1.
    assert found.facts["ours"][MIB] == pytest.approx(MIB / 0.02 / 1e9)
    assert [(m.value, m.at["size"]) for m in found.measurements] == [
        (round(100 - 100 * MIB / 0.02 / 1e9 / 75, 3), MIB),
        (round(100 - 400 * MIB / 0.02 / 1e9 / 120, 3), 4 * MIB),
    ]  # fmt: skip
    assert made == [4 * MIB]
    assert commands[0][2] == "2"
    with pytest.raises(RuntimeError, match=r"printed no row for \[8388608\]"):
        crosscheck.run(ranks, ["difference"], sizes=[8 * MIB])
    printed = PRINTED.replace("     1048576 ", f" {256 * MIB} ").replace(
        "     4194304 1", f" {1 << 30} 1"
    )
    assert [m.at["size"] for m in crosscheck.run(ranks, ["difference"]).measurements] == [
        256 * MIB, 1 << 30,
    ]  # fmt: skip
    ranks.leads_node = False
    other = crosscheck.run(ranks, ["difference"], sizes=[8 * MIB])
    assert (other.measurements, set(other.facts)) == ([], {"command", "ours", "theirs"})
