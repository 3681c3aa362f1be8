"""The workload of the shared directory without Slurm: its probe, whom it blames, what it leaves."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fixtures.cluster import shared_directory
from fixtures.records.model import Result
from fixtures.thresholds.contract import Contract
from fixtures.workloads.filesystem import filesystem, filesystem_checks, filesystem_child
from fixtures.workloads.filesystem.filesystem_checks import Faults
from fixtures.workloads.filesystem.filesystem_probe import Probe, ProbeError
from tests.selftests.threads import Meeting, as_ranks

pytestmark = pytest.mark.cpu

ALL = list(filesystem.WORKLOAD.metrics)


@dataclass
class Node:
    """As much of Ranks as the workload takes: the only rank of its node."""

    rank: int
    nodes: list[str]
    meeting: Meeting
    spec: dict[str, Any]
    ranks_per_node: int = 1
    demonstration: bool = True
    on_gpu: bool = False
    leads_node: bool = True

    @property
    def node(self) -> str:
        return self.nodes[self.rank]

    def gather(self, item: Any) -> list[Any]:
        return self.meeting.gather(self.rank, item)


def run(*directories: Path, login: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """The workload on as many nodes, each with what it sees as the shared directory."""
    nodes = [f"worker{k}" for k in range(len(directories))]
    meeting = Meeting(len(nodes))

    def one(rank: int) -> Result:
        order = {"path": str(directories[rank]), "login": login or {}}
        spec = {"run_id": "run", "job": "cluster", "nonce": "nonce", "shared_directory": order}
        return filesystem.run(Node(rank, nodes, meeting, spec), ALL)  # type: ignore[arg-type]

    return {
        node: {m.metric: m.value for m in result.measurements}
        for node, result in zip(nodes, as_ranks(len(nodes), one), strict=True)
    }


def folders(root: Path, *names: str) -> list[Path]:
    for name in set(names):
        (root / name).mkdir()
    return [root / name for name in names]


# --- the workload


def test_healthy_directory_is_measured_whole_and_left_empty(tmp_path: Path):
    found = run(tmp_path, tmp_path, tmp_path)
    for values in found.values():
        assert set(values) == set(ALL)
        assert (values["directory"], values["same"]) == ("usable", "same")
        assert [values[m] for m in ("coherence", "append", "flock", "writes")] == [0, 0, 0, 0]
    assert list(tmp_path.iterdir()) == []


def test_single_node_has_nobody_to_agree_with(tmp_path: Path):
    (values,) = run(tmp_path).values()
    alone = {"directory", "size", "free", "write.alone", "read.alone", "metadata", "stalls"}
    assert set(values) == alone


def test_majority_has_the_right_directory(tmp_path: Path):
    wrong, right, _ = folders(tmp_path, "wrong", "right", "right")
    found = run(wrong, right, right)
    assert found["worker0"]["same"].startswith("another directory: it shows no file of worker1")
    assert {"coherence", "write.alone", "size"}.isdisjoint(found["worker0"])
    assert found["worker2"]["same"] == "same"
    assert set(found["worker2"]) == set(ALL)
    assert list(wrong.iterdir()) == list(right.iterdir()) == []


def test_login_node_decides_between_two(tmp_path: Path):
    wrong, right = folders(tmp_path, "wrong", "right")
    login = filesystem_child.describe(str(right))
    found = run(wrong, right, login=login)
    assert found["worker0"]["same"].startswith("another directory")
    assert found["worker1"]["same"] == "same"
    # Alone, it has nobody to show anything to: nothing of that passes.
    assert "coherence" not in found["worker1"]


def test_node_without_the_directory_leaves_the_others_to_go_on(tmp_path: Path):
    (right,) = folders(tmp_path, "right")
    found = run(right, tmp_path / "missing", right)
    assert found["worker1"] == {"directory": "No such file or directory in stat()"}
    assert set(found["worker0"]) == set(ALL)


# --- the probe


@pytest.fixture
def probe():
    probe = Probe(hang_s=0.3, limit_s=20)
    yield probe
    probe.abandon()


def test_call_that_never_returns_is_named(probe: Probe, tmp_path: Path):
    # Opening a pipe that nobody reads blocks as a dead server does.
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ProbeError, match=r"^hung for 0.3 s in open\(\)$") as caught:
        probe.ask("put", path=str(tmp_path / "pipe"), text="")
    assert caught.value.kind == "hung"


def test_failed_call_is_named_and_the_probe_goes_on(probe: Probe, tmp_path: Path):
    with pytest.raises(ProbeError, match=r"^No such file or directory in unlink\(\)$") as caught:
        probe.ask("unlink", path=str(tmp_path / "missing"))
    assert caught.value.kind == "failed"
    assert probe.ask("see", wanted=[{"path": str(tmp_path / "x"), "gone": True}], timeout_s=0)


def test_broken_probe_is_no_verdict_on_the_directory(probe: Probe):
    with pytest.raises(ProbeError, match="TypeError") as caught:
        probe.ask("put", wrong=1)
    assert caught.value.kind == "lost"
    probe.abandon()
    with pytest.raises(ProbeError) as caught:
        probe.ask("remove", work="/nowhere")
    assert caught.value.kind == "lost"


def test_short_file_is_no_rate(tmp_path: Path):
    (tmp_path / "shard.0").write_bytes(b"x" * 1000)
    pace = {"streams": 1, "seconds": 0.1, "least": 1, "hold": False}
    with pytest.raises(OSError, match="1000 could be read"):
        filesystem_child.read_shards(str(tmp_path / "shard"), 1 << 20, 0, pace)


# --- whom it blames


@pytest.mark.parametrize(
    ("got", "odd", "blamed"),
    [
        ({"a": ["b"]}, [], {"b": 1}),
        # Each got what the other held: the one that is mounted unlike the login node.
        ({"a": ["b"], "b": ["a"]}, ["b"], {"b": 2}),
        ({"a": ["b"], "b": ["a"]}, [], {"a": 1, "b": 1}),
        ({"a": ["b"], "b": ["a"]}, ["a", "b"], {"a": 1, "b": 1}),
    ],
)
def test_lock_granted_twice_is_blamed_on(
    got: dict[str, list[str]], odd: list[str], blamed: dict[str, int]
):
    found = Faults.of(["a", "b"])
    filesystem_checks._blame_double_grants(got, odd, found)
    assert {n: count for n, count in found.counts.items() if count} == blamed


@pytest.mark.parametrize(
    ("missed", "blamed"),
    [
        ({"a": [], "b": ["a", "c"], "c": []}, {"b": 2}),  # it sees nobody: its view
        ({"a": ["b"], "b": [], "c": ["b"]}, {"b": 2}),  # nobody sees it: its writes
        ({"a": ["b"], "b": [], "c": []}, {"a": 1}),
    ],
)
def test_change_not_seen_is_blamed_on(missed: dict[str, list[str]], blamed: dict[str, int]):
    class Ring:
        def peers(self, node: str) -> list[str]:
            return [n for n in "abc" if n != node]

        observers = peers

    def view(node: str, peer: str) -> dict[str, Any]:
        return {"seconds": None if peer in missed[node] else 0.1, "found": "is not there"}

    ring = Ring()
    answers = {n: [view(n, p) for p in ring.peers(n)] for n in "abc"}
    found = Faults.of(["a", "b", "c"])
    filesystem_checks._blame_views(ring, "created", answers, found)  # type: ignore[arg-type]
    assert {n: count for n, count in found.counts.items() if count} == blamed


# --- the login side


def order(directory: Path | str) -> Contract:
    return Contract(nodes=2, gpus_per_node=1, gpu_model="cpu", shared_directory=str(directory))


def test_login_node_describes_the_ordered_directory(tmp_path: Path):
    found = shared_directory.describe_for_spec(order(tmp_path))
    assert found is not None
    assert found["path"] == str(tmp_path)
    assert found["login"]["inode"] == tmp_path.stat().st_ino


def test_login_node_without_the_directory_says_nothing(tmp_path: Path):
    assert shared_directory.describe_for_spec(None) is None
    found = shared_directory.describe_for_spec(order(tmp_path / "missing"))
    assert found == {"path": str(tmp_path / "missing"), "login": {}}
