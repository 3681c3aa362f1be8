"""--calibrate: limits from a fleet, by arithmetic and through the real tests and loader."""

# Length: most of its tests use the recorded fleet that is built in this file.

from __future__ import annotations

import json
import random
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fixtures.calibration import fleet, observed_contract, proposal
from fixtures.calibration.proposal import propose
from fixtures.cluster import population
from fixtures.cluster.population import Population, from_host
from fixtures.errors import ConfigError, UnknownGpu
from fixtures.plan.items import planned_list
from fixtures.records.files import read_json
from fixtures.records.run_directory import new_nonce
from fixtures.run.evidence import Evidence
from fixtures.slurm.hostlist import expand_hostlist, hostlist
from fixtures.thresholds import loader
from fixtures.workloads.inventory import environment
from reports import __main__ as reports
from tests.selftests import sandboxes, support
from tests.selftests.support import DATA, SHIPPED

pytestmark = pytest.mark.cpu

SOURCE = DATA / "h200-2x2"
RECORDED = read_json(SOURCE / "run.json")
NODES = ("gpu01", "gpu02", "gpu03", "gpu04")
CRITERIA = ("gemm.bf16", "allreduce.node.1GiB", "allreduce.node.latency")
"""A rate a device, a rate of all ranks at a point of a sweep, and a time."""


# --- names of nodes


names = st.builds(
    lambda stem, width, numbers: [f"{stem}{n:0{width}d}" for n in numbers],
    st.sampled_from(["gpu", "a1-b", "node", "x", "rack2n"]),
    st.integers(1, 4),
    st.lists(st.integers(0, 300), min_size=1, max_size=12, unique=True),
)


@given(names)
def test_a_hostlist_is_read_back(nodes):
    assert sorted(expand_hostlist(hostlist(nodes))) == sorted(nodes)


def test_a_hostlist_is_short():
    assert hostlist(["gpu01", "gpu02", "gpu03", "gpu07", "login"]) == "gpu[01-03,07],login"


# --- runs of a fleet


@dataclass
class Runs:
    """Runs of four nodes of two GPUs each, made of the recorded ones of an H200 node."""

    folder: Path
    product: str = "NVIDIA H200"
    contract: dict[str, Any] | None = None
    commit: str = "c0ffee"
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    quality: dict[str, float] = field(default_factory=dict)
    speed: float = 1.0
    """Of the products of all devices, beside what was recorded."""

    def add(self, **more: Any) -> Path:
        """One more run, each device a little better or worse than its siblings."""
        root = self.folder / f"run{len(list(self.folder.glob('*')))}"
        nonce = new_nonce()
        people = Population(
            origin="cluster", nodes=NODES, gpus_per_node=2, ordered=self.contract is not None,
            gpu_model=self.contract["gpu_model"] if self.contract else None,
        )  # fmt: skip
        items = planned_list(loader.load(SHIPPED), people)
        run = {
            "schema": 2, "id": root.name, "nonce": nonce, "created": RECORDED["created"],
            "population": people.to_json(), "contract": self.contract, "commit": self.commit,
            "ended": RECORDED["ended"], "tier": "standard",
            "scope": [list(i.key) for i in items if i.criterion in CRITERIA],
        }  # fmt: skip
        support.run_directory(root, **run | more)
        for node in NODES:
            for workload in ("gemm", "allreduce", "inventory", "environment"):
                self._record(root, workload, node, nonce)
        return root

    def _record(self, root: Path, workload: str, node: str, nonce: str) -> None:
        text = (SOURCE / "records" / f"{workload}@worker0.json").read_text(encoding="utf-8")
        data = json.loads(text.replace("worker0", node).replace("NVIDIA H200", self.product))
        data["nonce"], data["run_id"] = nonce, root.name
        noise = 1 + self.dice.gauss(0, 0.002)
        for rank in data["ranks"]:
            uuid = rank["device"]["uuid"] = f"GPU-{node}-{rank['rank']}"
            rank["device"]["serial"] = f"165{NODES.index(node)}{rank['rank']}"
            own = self.quality.setdefault(uuid, 1 + self.dice.gauss(0, 0.005))
            # All ranks of a collective take the same time.
            factor = noise * (self.speed * own if workload == "gemm" else 1 + (own - 1) / 10)
            for m in rank["measurements"]:
                m["samples"] = [sample * factor for sample in m.get("samples", [])]
        (root / "records" / f"{workload}@{node}.json").write_text(json.dumps(data))


def order(model: str = "H200 SXM") -> dict[str, Any]:
    return {"nodes": 4, "gpus_per_node": 2, "gpu_model": model}


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    folder = tmp_path / "runs"
    folder.mkdir()
    return Runs(folder, contract=order())


def data_of(text: str) -> dict[str, Any]:
    """proposal.yaml as data, its text under "text"."""
    return {"criteria": {}, **yaml.safe_load(text), "text": text}


def proposed(source: Path) -> dict[str, Any]:
    """What --calibrate proposes after a run, from it and those beside it."""
    now = fleet.CalibrationRun.of(source)
    runs = fleet.fleet_of(now, source.parent)
    order = observed_contract.observe(now.population, Evidence(now.directory, now.nonce))
    made = propose(runs, loader.load(SHIPPED), order)
    return data_of(proposal.text(made))


def pasted(text: str) -> str:
    """thresholds.yaml with a proposal's rows under `limits:` of their keys, as a person would."""
    shipped = SHIPPED.read_text(encoding="utf-8")
    body = text.partition("\ncriteria:\n")[2].partition("\n# No limit")[0]
    for block in re.split(r"\n(?=  \S)", body):
        key, _, rows = block.strip("\n").partition("\n    limits:\n")
        head, sep, rest = shipped.partition(f"\n{key}\n")
        assert sep, key
        above, sep, below = rest.partition("    limits:\n")
        shipped = f"{head}\n{key}\n{above}{sep}{rows}\n{below}"
    if "\ncluster:\n" in text:
        seen = text.partition("\ncluster:\n")[2].partition("\n\n")[0]
        shipped = shipped.replace("\ncluster: {}\n", f"\ncluster:\n{seen}\n")
    return shipped


def outcomes(verdict: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(r["criterion"], r["subject"]): r["outcome"] for r in verdict["criteria"]}


def slower(root: Path, node: str, gpu: int, factor: float) -> None:
    """Make one GPU compute slower than it did."""
    with support.edited(root / "records" / f"gemm@{node}.json") as data:
        for m in data["ranks"][gpu]["measurements"]:
            m["samples"] = [sample * factor for sample in m["samples"]]


def test_pasted_rows_pass_the_runs_that_they_come_from_and_fail_a_slower_device(runs, tmp_path):
    made = [runs.add() for _ in range(3)]
    found = proposed(made[0])
    assert found["proposal"]["runs"] == 3
    assert found["proposal"]["devices"] == 8
    rows = found["criteria"]
    assert {"gemm.bf16", "allreduce.node", "allreduce.node.latency"} <= set(rows)
    for row in rows["gemm.bf16"]["limits"]:
        assert 0.93 * row["expect"] < row["fail_below"] < row["expect"]
        assert "calibrated on this fleet, 8 devices in 3 runs" in row["source"]
    latency = rows["allreduce.node.latency"]["limits"][0]
    assert latency["expect"] < latency["fail_above"] < 1.1 * latency["expect"]

    limits = tmp_path / "limits.yaml"
    limits.write_text(pasted(found["text"]))
    wanted = {loader.load(limits).criteria[key].key for key in CRITERIA}
    for k, run in enumerate(made):
        _, verdict = support.judged(run, tmp_path / f"again{k}", limits)
        judged = outcomes(verdict)
        assert {key for key, _ in judged} == wanted
        assert set(judged.values()) == {"PASS"}, verdict["criteria"]
        bf16 = next(r for r in verdict["criteria"] if r["criterion"] == "gemm.bf16")
        assert f">= {rows['gemm.bf16']['limits'][0]['fail_below']}" in bf16["limit"]

    slower(made[2], "gpu03", 1, 0.92)
    status, verdict = support.judged(made[2], tmp_path / "slow", limits)
    assert status == 1
    red = [r for r in verdict["criteria"] if r["outcome"] == "FAIL"]
    assert [(r["criterion"], r["subject"]) for r in red] == [("gemm.bf16", "gpu03")]
    assert red[0]["worst"]["uuid"] == "GPU-gpu03-1"
    assert red[0]["margin"] < 0


def test_a_run_is_judged_by_the_limits_of_before(runs, tmp_path):
    """A device that the proposal would fail passes what holds today, with and without it."""
    made = [runs.add() for _ in range(3)]
    slower(made[0], "gpu02", 0, 0.95)
    _, plain = support.judged(made[0], tmp_path / "plain")
    _, verdict = support.replay(made[0], tmp_path / "made", "--calibrate")
    found = data_of((tmp_path / "made" / "proposal.yaml").read_text(encoding="utf-8"))
    assert outcomes(verdict) == outcomes(plain)
    assert [r["limit"] for r in verdict["criteria"]] == [r["limit"] for r in plain["criteria"]]
    assert "outside of it: gpu02 gpu0" in found["text"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"commit": "deadbeef"}, "another commit"),
        ({"contract": order("H100 SXM")}, "another order"),
        ({"ended": ""}, "it has not ended"),
        ({"schema": 3}, "not a run.json of schema 2"),
        ({"schema": 1}, "the last that does is suite version 0.2.0 of commit 0ba87eb"),
    ],
)
def test_runs_of_another_fleet_do_not_count(runs, tmp_path, change, why):
    made = runs.add()
    runs.add()
    runs.add(**change)
    found = proposed(made)
    assert found["proposal"] == {"limits": 0, "runs": 2, "devices": 8}
    assert "No limits yet: 2 of 3 runs, 8 of 8 devices" in found["text"]
    assert re.search(f"# Not used: run2: .*{why}", found["text"])
    assert found["criteria"] == {}


def test_a_run_counts_once_however_often_it_is_there(runs, tmp_path):
    made = runs.add()
    runs.add()
    support.judged(made, runs.folder / "replay")
    assert proposed(made)["proposal"]["runs"] == 2


def test_what_judge_would_not_take_gives_no_limit(runs, tmp_path):
    made = [runs.add() for _ in range(3)]
    for node in NODES:
        with support.edited(made[1] / "records" / f"gemm@{node}.json") as data:
            for rank in data["ranks"]:
                for m in rank["measurements"]:
                    m["checks"]["overlap"] = 0.5
    found = proposed(made[0])
    assert not [key for key in found["criteria"] if key.startswith("gemm")]
    assert "allreduce.node" in found["criteria"]
    assert "gemm.bf16 (H200 SXM, 2): 3 of 3 runs, 0 of 8 devices" in found["text"]


# --- in place of published figures


@pytest.fixture
def published(tmp_path: Path) -> Runs:
    """Runs of a model of which the limits are published figures; its speed is that of H200."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return Runs(folder, contract=order("H800 SXM"), product="NVIDIA H800")


def replaced(made: list[Path], file: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """What `reports calibrate --replace` ends with and says."""
    status = reports.main(["calibrate", *map(str, made), "--replace", str(file)])
    out, err = capsys.readouterr()
    return status, out + err


def test_a_first_healthy_fleet_replaces_published_limits_by_its_own(published, tmp_path, capsys):
    """Of another speed than expected, within the margin."""
    published.speed = 0.96
    made = [published.add() for _ in range(3)]
    file = tmp_path / "site" / "own.yaml"
    file.parent.mkdir()
    status, said = replaced(made, file, capsys)
    assert status == 0, said
    line = next(x for x in said.splitlines() if x.startswith("  gemm.bf16: "))
    assert re.search(r"published in gemm-bf16: expect 66\d.*, limit 59\d.*; own 6\d\d", line)
    assert "Run run1 ended without a verdict: its values are of a fleet that was not" in said
    limits, shipped = loader.load(file), loader.load(SHIPPED)
    facts = {"model": "H800 SXM", "gpus": 2, "power_limit": "default", "dtype": "bf16"}
    own, figure = (each.criteria["gemm.bf16"].limit_for(facts) for each in (limits, shipped))
    assert (figure.published, own.published) == ("gemm-bf16", None)
    assert own.fail_below.number > 600
    assert "calibrated on this fleet" in own.source
    at_4 = {**facts, "size": 2**32, "gpus": 8}
    assert limits.criteria["broadcast.node.4GiB"].limit_for(at_4).published, "kept beside it"
    _, verdict = support.judged(made[0], tmp_path / "again", file)
    row = next(r for r in verdict["criteria"] if r["criterion"] == "gemm.bf16")
    assert row["outcome"] == "PASS"
    assert "published" not in row["limit"]


@pytest.mark.parametrize(
    ("speed", "why"), [(0.84, "slower than the published limit"), (1.2, "faster than the figure")]
)
def test_a_fleet_that_contradicts_a_published_figure_replaces_nothing(
    published, tmp_path, capsys, speed, why
):
    published.speed = speed
    made = [published.add() for _ in range(3)]
    status, said = replaced(made, tmp_path / "own.yaml", capsys)
    assert status == 1
    assert re.search(rf"REFUSED gemm\.bf16: published .*: this fleet is {why}", said)
    row = (
        loader.load(tmp_path / "own.yaml")
        .criteria["gemm.bf16"]
        .limit_for({"model": "H800 SXM", "power_limit": "default", "gpus": 2})
    )
    assert row.published == "gemm-bf16", "it stays"


def test_what_has_no_published_limit_is_not_replaced(runs, tmp_path, capsys):
    made = [runs.add() for _ in range(3)]
    assert reports.main(["calibrate", *map(str, made), "--replace", str(tmp_path / "x")]) == 4
    assert "no limit of these runs is a published figure" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_what_nobody_ordered_is_proposed_as_it_was_seen(runs, tmp_path):
    runs.contract = None
    made = [runs.add() for _ in range(3)]
    found = proposed(made[0])
    assert found["cluster"] == {
        "nodes": "gpu[01-04]", "gpus_per_node": 2, "gpu_model": "H200 SXM",
        "driver": "580.159.04", "cuda": "13.0",
    }  # fmt: skip
    assert found["proposal"]["limits"] > 5
    limits = tmp_path / "limits.yaml"
    limits.write_text(pasted(found["text"]))
    contract = loader.load(limits).cluster
    assert contract is not None
    assert contract.node_names == list(NODES)


def test_a_gpu_counts_once_however_much_is_measured_on_it():
    """Each of four GPUs copies to three others: these are not twelve devices."""
    found = proposed(support.DATA / "h200-1x4")
    assert found["proposal"]["devices"] == 4
    assert "No limits yet: 1 of 3 runs, 4 of 8 devices" in found["text"]


def test_one_run_is_enough_for_the_contract(runs, tmp_path):
    runs.contract = None
    found = proposed(runs.add())
    assert found["cluster"]["gpu_model"] == "H200 SXM"
    assert found["proposal"]["limits"] == 0


SHEET = {
    "bf16": "989.5", "fp8": "1979", "tf32": "494.7", "fp32": "67", "hbm_gbps": "4800",
    "nvlink_gbps": "450", "pcie_gen": "5",
}  # fmt: skip


def test_a_new_gpu_gets_all_that_it_needs(runs, tmp_path):
    """What the error about an unknown GPU promises, done as a person would do it."""
    runs.contract, runs.product = None, "NVIDIA H300"
    made = [runs.add() for _ in range(3)]
    status, verdict = support.judged(made[0], tmp_path / "unknown")
    assert status == 2
    assert set(outcomes(verdict).values()) == {"NOT_MEASURED"}
    assert "--calibrate" in verdict["criteria"][0]["reason"]
    found = proposed(made[0])
    assert found["cluster"]["gpu_model"] == "H300"
    assert found["proposal"]["limits"] > 5

    checkout = tmp_path / "checkout"
    checkout.mkdir()
    sandboxes.copy_checkout(checkout)
    comments = " ".join(x.lstrip("# ") for x in found["text"].splitlines() if x.startswith("#"))
    match = re.search(r"GPUS: (.*?\)) _PRODUCTS: (.*?\"H300\": \"H300\")", comments)
    assert match, comments
    entry = re.sub(r"(\w+)=\?", lambda m: f"{m[1]}={SHEET[m[1]]}", match[1])
    hardware = checkout / "fixtures" / "hardware.py"
    text = hardware.read_text(encoding="utf-8")
    for table, line in (("GPUS", entry), ("_PRODUCTS", match[2])):
        text, found_at = re.subn(
            rf"^{table}(?:: dict\[.*\])? = {{$", rf"\g<0>\n    {line},", text, flags=re.M
        )
        assert found_at == 1, table
    hardware.write_text(text, encoding="utf-8")
    (checkout / "thresholds.yaml").write_text(pasted(found["text"]))
    done = support.run_pytest(
        "--cluster=replay", f"--from={made[0]}", f"--run-dir={tmp_path / 'again'}", "-q",
        checkout=checkout,
    )  # fmt: skip
    assert (tmp_path / "again" / "verdict.json").exists(), done.stdout + done.stderr
    verdict = read_json(tmp_path / "again" / "verdict.json")
    assert set(outcomes(verdict).values()) == {"PASS"}, done.stdout
    # The whole plan of an ordered cluster of them can be made.
    with support.edited(made[0] / "run.json") as data:
        data["contract"] = {**order("H300"), "nodes": "gpu[01-04]"}
        data["population"] |= {"gpu_model": "H300", "ordered": True}
    done = support.run_pytest(
        "--cluster=replay", f"--from={made[0]}", "--collect-only", "-q", checkout=checkout
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_proposal_cannot_be_given_as_limits(runs, tmp_path):
    made = [runs.add() for _ in range(3)]
    (tmp_path / "proposal.yaml").write_text(proposed(made[0])["text"])
    with pytest.raises(ConfigError, match="unknown key 'proposal'"):
        loader.load(tmp_path / "proposal.yaml")


# --- the commands


def test_reports_calibrate_takes_the_runs_that_it_is_given(runs, tmp_path, capsys):
    made = [runs.add() for _ in range(3)]
    runs.add(commit="deadbeef")
    out = tmp_path / "proposal.yaml"
    assert reports.main(["calibrate", *map(str, made), "--out", str(out)]) == 0
    assert yaml.safe_load(out.read_text())["proposal"]["runs"] == 3
    said = capsys.readouterr().out
    assert str(out) in said
    assert re.search(r"\d+ limits from 3 runs of 8 devices", said)
    assert reports.main(["calibrate", str(made[0]), "--out", str(out)]) == 2
    assert "No limits yet: 1 of 3 runs, 8 of 8 devices" in capsys.readouterr().out
    assert reports.main(["calibrate", str(tmp_path), "--out", str(out)]) == 4
    assert "not a run directory" in capsys.readouterr().err


def test_without_a_file_to_write_the_proposal_is_printed_and_nothing_is_written(
    runs, tmp_path, capsys, monkeypatch
):
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    assert reports.main(["calibrate", str(runs.add())]) == 2
    assert yaml.safe_load(capsys.readouterr().out)["proposal"]["runs"] == 1
    assert list(here.iterdir()) == []


def test_the_terminal_says_what_is_missing(runs, tmp_path):
    run = support.run_pytest(
        "--cluster=replay", f"--from={runs.add()}", f"--run-dir={tmp_path / 'made'}", "--calibrate"
    )
    assert f"proposal {tmp_path / 'made' / 'proposal.yaml'}" in run.stdout
    assert "no limits yet: 1 of 3 runs, 8 of 8 devices" in run.stdout


def test_a_host_with_a_new_gpu_is_measured_only_for_calibration(monkeypatch):
    monkeypatch.setattr(population, "host_gpus", lambda: ["NVIDIA H300"] * 8)
    with pytest.raises(UnknownGpu, match="--calibrate"):
        from_host(None)
    people = from_host(None, new_model=True)
    assert (people.gpu_model, people.gpus_per_node, people.device) == (None, 8, "cuda")
    monkeypatch.setattr(population, "host_gpus", lambda: ["NVIDIA H300", "NVIDIA H301"])
    with pytest.raises(UnknownGpu, match="mixes"):
        from_host(None, new_model=True)


def test_a_node_says_how_fast_its_nics_are(tmp_path):
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (port / "link_layer").write_text("InfiniBand\n")
    assert environment._nics(tmp_path) == [
        {"name": "mlx5_0", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
    ]


def test_medians_of_the_made_up_fleet_differ(runs):
    """The fleet of these tests is one: devices differ, and runs."""
    first, second = runs.add(), runs.add()
    medians = [
        statistics.median(m["samples"])
        for root in (first, second)
        for node in NODES
        for rank in read_json(root / "records" / f"gemm@{node}.json")["ranks"]
        for m in rank["measurements"]
        if m["metric"] == "bf16"
    ]
    assert len(set(medians)) == 16
