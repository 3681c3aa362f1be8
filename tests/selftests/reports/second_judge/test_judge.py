"""The second judge: it shares no code with the first, and both say the same of every run."""

from __future__ import annotations

import itertools
import json
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fixtures import entry, hardware
from fixtures.paths import CHECKOUT
from fixtures.thresholds import loader
from fixtures.thresholds.criteria import TIERS
from fixtures.thresholds.kinds import OVER, SPANS, STATISTICS
from fixtures.thresholds.site_facts import FACTS, INSTALLED
from fixtures.verdict import claims
from reports.evidence import rejudge
from reports.second_judge import physics, plan
from tests.selftests import derive_runs, golden, support
from tests.selftests.mutations import CHANGES, Mutated, Target, known_in_part

pytestmark = pytest.mark.cpu

MOST_UNCOVERED = 0.1
"""Share of the rows of a run that the second judge may leave out."""
LONGEST = 400
"""Lines of the judge: somebody must be able to read all of it."""
OF_WORKLOADS = ("across", "small", "pairs", "uses_nics", "judges_devices")
MUTATED = ("h200-1x4", "h200-2x2", "h200-2x2-scaling", "sandbox-2x2-cpu")


@pytest.mark.parametrize(("run", "variant"), golden.CASES)
def test_both_judges_agree_on_every_recorded_run(run, variant, tmp_path):
    derive_runs.derive(support.DATA / run, tmp_path / "source", variant)
    support.judged(tmp_path / "source", tmp_path / "run")
    compared = rejudge.compare(tmp_path / "run", support.limits_of(tmp_path / "run"))
    assert compared.wrong == []
    assert compared.rows > 0
    assert len(compared.uncovered) <= MOST_UNCOVERED * compared.rows


# --- mutations


def _measured(change):
    """Change one measurement; False where there is nothing of the kind in it."""

    def apply(ranks, target: Target) -> bool:
        return change(ranks[target.rank]["measurements"][target.measurement])

    return apply


def _scale(factor: float):
    def change(m) -> bool:
        if m.get("samples"):
            m["samples"] = [factor * x for x in m["samples"]]
            m["rounds"] = [[factor * x for x in samples] for samples in m.get("rounds", ())]
            return True
        if isinstance(m.get("value"), bool) or not isinstance(m.get("value"), (int, float)):
            return False
        m["value"] *= factor
        return True

    return change


def _slow_now_and_then(m) -> bool:
    m["samples"] = [x / 3 if k % 7 == 0 else x for k, x in enumerate(m.get("samples", ()))]
    return bool(m["samples"])


def _half_in_another_round(m) -> bool:
    if m.get("samples"):
        m["rounds"] = [[x / 2 for x in m["samples"]], list(m["samples"])]
    return bool(m.get("samples"))


def _no_check(m) -> bool:
    return m.pop("checks", {}) != {}


def _other_checks(m) -> bool:
    m["checks"] = {name: 3 * value + 1 for name, value in m.get("checks", {}).items()}
    return m["checks"] != {}


def _no_switches(m) -> bool:
    m["conditions"] = {**m.get("conditions", {}), "nvls": False}
    return True


def _twice(ranks, target: Target) -> bool:
    ranks[target.rank]["measurements"].append(
        ranks[target.rank]["measurements"][target.measurement]
    )
    return True


def _of_another_day(ranks, target: Target) -> bool:
    ranks[target.rank]["start"] -= 200_000
    return True


def _of_another_rank(ranks, target: Target) -> bool:
    ranks[target.rank]["rank"] = ranks[(target.rank + 1) % len(ranks)]["rank"]
    return len(ranks) > 1


def _rank_lost(ranks, target: Target) -> bool:
    del ranks[target.rank]
    return True


def _large_and_in_part(ranks, target: Target) -> bool:
    return CHANGES["x1000"](ranks, target) and known_in_part(ranks, target)


CHANGED = {
    **CHANGES,
    **{f"x{factor:g}": _measured(_scale(factor)) for factor in (0.9, 0.97, 1.01, 1.05, 2)},
    "slow now and then": _measured(_slow_now_and_then),
    "half in another round": _measured(_half_in_another_round),
    "no check": _measured(_no_check),
    "other checks": _measured(_other_checks),
    "no switches": _measured(_no_switches),
    "twice": _twice,
    "of another day": _of_another_day,
    "of another rank": _of_another_rank,
    "rank lost": _rank_lost,
    "large, in part": _large_and_in_part,
}


TOO_SHORT = "too little time for them"


@pytest.fixture(scope="module")
def mutated(tmp_path_factory):
    @cache
    def load(run: str):
        first = Mutated(support.DATA / run, tmp_path_factory.mktemp(run) / "run")
        second = rejudge.judges_of(first.run.directory.root, first.run.thresholds)
        return first, second, tuple(first.targets())

    return load


@pytest.mark.parametrize("drawn", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_both_judges_agree_on_a_changed_record(drawn, mutated):
    outcomes = set()

    @settings(
        max_examples=drawn, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def check(data):
        first, second, targets = mutated(data.draw(st.sampled_from(MUTATED)))
        target = data.draw(st.sampled_from(targets))
        kind = data.draw(st.sampled_from(sorted(CHANGED)))
        workload, _, place = target.record.removesuffix(".json").partition("@")
        items = first.run.scope if workload == "inventory" else first.items[target.record]
        if not first.apply(target, CHANGED[kind]):
            return
        try:
            second.forget(workload, place)
            found = first.judge(items)
            # The second judge does not know the sources of claims, nor how long a sample takes at
            # the least: such rows are not covered.
            said = {
                key: v.outcome.value
                for key, v in found.items()
                if not claims.is_of_a_claim(v.to_json()) and TOO_SHORT not in v.reason
            }
            assert {key: second.outcome(key)[0] for key in said} == said
            outcomes.update(said.values())
        finally:
            first.restore()
            second.forget(workload, place)

    check()
    assert {"PASS", "FAIL", "NOT_MEASURED"} <= outcomes


# --- waivers


def test_a_waived_failure_is_waived_by_both(tmp_path):
    limits = tmp_path / "limits.yaml"
    limits.write_text(
        f"base: {support.SHIPPED}\n"
        "criteria:\n  gemm.bf16:\n    limits:\n"
        "      - {model: H200 SXM, loose: a test, fail_below: 1060, source: a test}\n"
        "waivers:\n"
        "  - {criterion: gemm.bf16, node: node0, owner: a person, reason: a test, "
        'expires: "2027-06-30"}\n'
    )
    support.judged(support.DATA / "h200-1x4", tmp_path / "run", limits)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    compared = rejudge.compare(tmp_path / "run", loader.load_with_contract(limits, run["contract"]))
    rows = json.loads((tmp_path / "run" / "verdict.json").read_text())["criteria"]
    (row,) = [r for r in rows if (r["criterion"], r["subject"]) == ("gemm.bf16", "node0")]
    assert row["outcome"] == "WAIVED"
    assert compared.wrong == []


# --- independence, and what it has to know


def test_the_judge_imports_nothing_of_the_suite_and_can_be_read():
    folder = CHECKOUT / "reports" / "second_judge"
    for path in folder.glob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        imported = [line for line in lines if line.startswith(("import ", "from "))]
        own = [line for line in imported if line.startswith("from reports.second_judge")]
        assert not [x for x in imported if "fixtures" in x or ("reports" in x and x not in own)]
        assert len(lines) <= LONGEST, path


def test_its_data_sheets_are_those_of_the_suite():
    for model, gpu in hardware.GPUS.items():
        capability, nvlink, pcie, hbm, memory = physics.TABLES["gpus"][model][:5]
        assert (capability, nvlink, pcie, hbm, memory) == (
            gpu.compute_capability, gpu.nvlink_gbps, gpu.pcie_gen, gpu.hbm_gbps, gpu.memory_gib,
        )  # fmt: skip
    assert set(physics.TABLES["gpus"]) == {*hardware.GPUS, hardware.CPU}
    for name in hardware._PRODUCTS:
        assert physics.model_of(f"NVIDIA {name}") == hardware.model_of(name)
    assert physics.NAMES == hardware._BY_SPELLING
    for name, model in (*hardware._BY_CLOUD.items(), *((m.lower(), m) for m in hardware.MODELS)):
        assert hardware.model_of_order(name) == physics.model_of(name, physics.ORDERED) == model
    for name in ("nvidia-h100-80gb", "p5.48xlarge", "H20-96", "H200-", "NVIDIA A100-SXM-64GB"):
        assert physics.model_of(name) == name


def test_it_knows_every_rule_that_definitions_use_today():
    thresholds = loader.load(support.SHIPPED)
    known = physics.TABLES["known"]
    assert (set(SPANS), set(STATISTICS), set(OVER), set(TIERS)) == tuple(
        set(known[name]) for name in ("per", "statistic", "over", "tier")
    )
    assert set(plan.FACTS) == set(FACTS)
    assert {c.ceiling for c in thresholds.criteria.values() if isinstance(c.ceiling, str)} <= set(
        physics.KINDS
    )
    assert set(physics.TABLES["packages"]) == set(INSTALLED)


def test_it_knows_where_each_workload_runs():
    tables = physics.TABLES
    for name in {c.workload for c in loader.load(support.SHIPPED).criteria.values()} - {"slurm"}:
        workload = entry.known(name)
        assert workload is not None
        small = workload.small
        assert {
            "across": workload.across, "small": small is not None,
            "pairs": small is not None and small.pair, "uses_nics": workload.uses_nics,
            "judges_devices": workload.judges_devices,
        } == {k: name in tables[k] for k in OF_WORKLOADS}  # fmt: skip


@pytest.mark.parametrize("kind", physics.KINDS)
def test_both_compute_the_same_bounds(kind):
    for model, nodes, ring, nvls in itertools.product(
        physics.TABLES["gpus"], (1, 2, 16), (False, True), (None, False, True)
    ):
        gpu = hardware.GPUS.get(model)
        facts = {
            "model": model, "metric": "bf16_best", "gpus": 8 * nodes, "domains": nodes,
            "gpus_per_domain": 8, "gpus_per_node": 8, "nics_per_node": 4, "nic_gbps": 400.0,
            "compute_capability": gpu.compute_capability if gpu else 9.0, "sm_count": 132,
            "max_sm_clock_mhz": 1980, "memory_clock_mhz": 2619, "memory_bus_bits": 5120,
            "pcie_gen": 5, "pcie_width": 16, "cpu_cores": 2, "cpu_max_ghz": 3.0,
            "alone_gbps": 50.0, "flops_per_token": 4.8e10,
            "nvls": nvls, **({"algorithm": "ring"} if ring else {}),
        }  # fmt: skip
        try:
            expected = hardware.ceiling(kind, facts)
        except hardware.MissingFact:
            with pytest.raises(physics.Cannot):
                physics.ceiling(kind, facts)
        else:
            assert physics.ceiling(kind, facts) == pytest.approx(expected, rel=1e-12), facts
