"""What goes wrong with a GPU while the node works is red by name, whatever the driver."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pynvml
import pytest

from fixtures.records.absence import Kind
from fixtures.verdict.causes import Cause
from fixtures.verdict.model import Outcome, Verdict
from fixtures.workloads.devices import known
from fixtures.workloads.devices.known import Findings, Known, Missing
from fixtures.workloads.health import under_load
from fixtures.workloads.telemetry import gpu_samples
from tests.selftests import emulated_gpus
from tests.selftests.emulated_ranks import UUIDS

pytestmark = pytest.mark.cpu

RELEASES = (
    "535.183.06",
    "550.127.05",
    "570.172.08",
    "575.57.08",
    "580.65.06",
    "580.82.07",
    "615.71",
)


def uuid_of(verdict: Verdict) -> str:
    assert verdict.worst is not None
    return str(verdict.worst["uuid"])


TIMED = {"health.answer_time", "health.answer_time_load", "health.answer_late"}
"""How fast the emulated driver answers: on a machine with other work, that work."""


def red(found: dict[str, Verdict], *, timed: bool = False) -> dict[str, Verdict]:
    """The rows that failed; `timed`: those of TIMED too, where a fault makes answers late."""
    rows = found.keys() if timed else found.keys() - TIMED
    return {key: found[key] for key in rows if found[key].outcome is Outcome.FAIL}


@pytest.mark.parametrize("driver", RELEASES)
def test_healthy_gpus_are_green_on_every_release_or_say_what_it_lacks(
    library: Path, tmp_path: Path, driver: str
) -> None:
    found = emulated_gpus.verdicts(emulated_gpus.measured(library, tmp_path, driver=driver))
    assert not red(found)
    silent = {k: v.reason for k, v in found.items() if v.outcome is Outcome.NOT_MEASURED}
    if driver < "570":
        # The one value that has no other source.
        assert silent.pop("health.recovery_action").endswith("those from 570 on do")
    assert silent == {}
    counted = driver >= "580.82" or driver == "575.57.08" or driver == "580.65.06"
    for key in ("health.thermal", "health.power_brake"):
        assert any("not from counters" in note for note in found[key].notes) is not counted


@pytest.mark.waits("the emulated driver answers late, which is what is judged")
@pytest.mark.parametrize(
    ("lines", "criteria", "says"),
    [
        (["1.ecc.volatile.corrected=0@17700", "1.ecc.volatile.corrected.2=0@17700"],
         {"health.ecc_rate", "health.ecc_siblings"}, "dram_volatile"),
        (["1.ecc.volatile.corrected.7=0@20"], {"health.ecc_sram_rate"}, "sram_volatile"),
        (["1.ecc.aggregate.uncorrected=1"], {"health.ecc_new"}, "ecc_aggregate"),
        (["1.ecc.volatile.uncorrected=1"], {"health.ecc_new"}, "ecc_volatile"),
        (["1.delay=50"], {"health.answer_time_load", "health.answer_late"}, ""),
        (["1.remap.uncorrected=1", "1.remap.pending=1"], {"health.remap_new"}, "a reset is due"),
        (["1.remap.corrected=1"], {"health.remap_new"}, "1 row remapped"),
        (["1.pcie.replays=0@40"], {"health.pcie_replays", "health.pcie_siblings"}, "pcie_replays"),
        (["1.link.errors.0=1"], {"nvlink.errors"}, "replays"),
        (["1.clock.reasons=64"], set(), ""),
        (["1.temperature=70"], {"health.thermal_siblings"}, "the other GPUs of the node 45 C"),
        (["1.temperature=86"], {"health.thermal_headroom", "health.thermal_siblings"}, "86 C"),
    ],
    ids=["ecc storm", "sram storm", "uncorrectable", "uncorrectable, volatile", "late answers",
         "remap", "remap of corrected", "pcie replays", "nvlink", "reasons where it counts", "warm",
         "hot"],
)  # fmt: skip
def test_what_breaks_while_the_node_works_is_red_by_gpu(
    library: Path, tmp_path: Path, lines: list[str], criteria: set[str], says: str
) -> None:
    verdicts = emulated_gpus.verdicts(emulated_gpus.measured(library, tmp_path, lines))
    found = red(verdicts, timed=bool(criteria & TIMED))
    assert found.keys() == criteria
    assert {uuid_of(v) for v in found.values()} <= {UUIDS[1]}
    notes = [note for v in found.values() for note in v.notes]
    assert not says or any(says in note and UUIDS[1] in note for note in notes)


@pytest.mark.parametrize("driver", ["535.183.06", "570.172.08"])
@pytest.mark.parametrize(
    ("bit", "criterion"), [(0x20, "thermal"), (0x40, "thermal"), (0x80, "power_brake")]
)
def test_a_driver_without_counters_is_judged_by_the_state_of_its_clocks(
    library: Path, tmp_path: Path, driver: str, bit: int, criterion: str
) -> None:
    records = emulated_gpus.measured(library, tmp_path, [f"1.clock.reasons={bit}"], driver=driver)
    found = red(emulated_gpus.verdicts(records))
    assert found.keys() == {f"health.{criterion}"}
    assert uuid_of(found[f"health.{criterion}"]) == UUIDS[1]
    clocks = records["under_load"].ranks[1].facts["clocks"]
    assert clocks["before"] == []
    assert len(clocks["during"]) == len(clocks["after"]) == 1


def test_a_driver_that_shows_neither_is_not_measured_and_says_so(
    library: Path, tmp_path: Path
) -> None:
    silent = [f"1.fail.nvmlDeviceGetCurrentClocks{name}Reasons=3" for name in ("Event", "Throttle")]
    records = emulated_gpus.measured(library, tmp_path, driver="550.127.05", before=silent)
    verdict = emulated_gpus.verdicts(records)["health.thermal"]
    assert verdict.outcome is Outcome.NOT_MEASURED
    assert "driver 550.127 does not have this, those from 575 on do" in verdict.reason
    assert "nor does it show the state of the clocks" in verdict.reason


def test_a_constant_that_stands_where_a_counter_is_expected_is_not_read(
    library: Path, tmp_path: Path
) -> None:
    """580.65 answers 269 to 271 with a setting, whose difference is 0 on a GPU that is hot."""
    lines = ["1.field.270=0@500000000"]
    records = emulated_gpus.measured(library, tmp_path, lines, driver="580.65.06")
    assert red(emulated_gpus.verdicts(records)).keys() == {"health.thermal"}


def test_totals_from_before_the_run_are_no_rate(library: Path, tmp_path: Path) -> None:
    before = ["1.ecc.volatile.corrected.2=1000000", "1.pcie.replays=100000", "1.remap.corrected=4"]
    found = emulated_gpus.verdicts(emulated_gpus.measured(library, tmp_path, before=before))
    assert not red(found)
    keys = ("ecc_rate", "ecc_siblings", "pcie_replays", "pcie_siblings", "remap_new")
    assert [found[f"health.{key}"].value for key in keys] == [0, 0, 0, 0, 0]


COUNTED_DRAM = ["1.ecc.volatile.corrected=20000", "1.ecc.aggregate.corrected=20000"]


@pytest.mark.parametrize(
    ("before", "breaks", "criterion", "says"),
    [
        (["1.pcie.replays=100000"], ["1.pcie.replays=3"], "health.pcie_replays", "was reset"),
        (["1.ecc.volatile.corrected.2=1000000"], ["1.ecc.volatile.corrected.2=0@17700"],
         "health.ecc_rate", "was reset"),
        (["1.remap.corrected=4"], ["1.remap.corrected=1"], "health.remap_new", "was reset"),
        (["1.link.errors.0=10"], ["1.link.errors.0=0"], "nvlink.errors", "was reset"),
        (["1.ecc.aggregate.uncorrected=2"], ["1.ecc.aggregate.uncorrected=1"], "health.ecc_new",
         "was reset"),
        (COUNTED_DRAM, ["1.fail.nvmlDeviceGetMemoryErrorCounter=3"], "health.ecc_rate",
         "counted DRAM before and all memory after"),
    ],
    ids=["replays", "volatile corrected", "remapped rows", "nvlink", "uncorrected", "source"],
)  # fmt: skip
def test_a_counter_that_is_reset_or_changes_its_source_is_not_measured(
    library: Path, tmp_path: Path, before: list[str], breaks: list[str], criterion: str, says: str
) -> None:
    found = emulated_gpus.verdicts(
        emulated_gpus.measured(library, tmp_path, breaks, before=before)
    )  # fmt: skip
    assert not red(found)
    assert found[criterion].outcome is Outcome.NOT_MEASURED
    assert says in found[criterion].reason


@pytest.mark.parametrize(
    ("before", "breaks", "criterion"),
    [
        (["1.link.errors.0=10"], ["1.link.errors.0=0", "1.link.errors.1=10"], "nvlink.errors"),
        (["1.remap.corrected=4"], ["1.remap.corrected=0", "1.remap.uncorrected=1"],
         "health.remap_new"),
        (["1.ecc.aggregate.uncorrected=9"],
         ["1.ecc.aggregate.uncorrected=0", "1.ecc.volatile.uncorrected=1"], "health.ecc_new"),
    ],
    ids=["nvlink", "rows", "uncorrected"],
)  # fmt: skip
def test_a_reset_of_one_counter_does_not_hide_the_rise_of_another(
    library: Path, tmp_path: Path, before: list[str], breaks: list[str], criterion: str
) -> None:
    found = red(
        emulated_gpus.verdicts(emulated_gpus.measured(library, tmp_path, breaks, before=before))
    )
    assert found.keys() == {criterion}
    assert any("at least: the counter was reset" in note for note in found[criterion].notes)


def test_the_least_that_can_be_true_passes_no_limit_however_loose(
    library: Path, tmp_path: Path
) -> None:
    """Errors were seen, and a counter was reset: a site that allows more may have had more."""
    records = emulated_gpus.measured(
        library, tmp_path, ["1.link.errors.0=0", "1.link.errors.1=10"],
        before=["1.link.errors.0=10"],
    )  # fmt: skip
    shipped = emulated_gpus.verdicts(records)["nvlink.errors"]
    assert shipped.outcome is Outcome.FAIL
    least = int(str(shipped.value))
    for allowed, outcome in ((least - 1, Outcome.FAIL), (2 * least, Outcome.NOT_MEASURED)):
        own = {"nvlink.errors": {"fail_above": allowed, "source": "the site"}}
        verdict = emulated_gpus.verdicts(records, own)["nvlink.errors"]
        assert verdict.outcome is outcome
    assert f"{UUIDS[1]}: at least {least} errors" in verdict.reason
    assert "the counter was reset" in verdict.reason


def test_a_gpu_is_not_held_against_the_least_of_another(library: Path, tmp_path: Path) -> None:
    """What the other GPU really had is not known: the distance to it would be too large."""
    records = emulated_gpus.measured(
        library, tmp_path,
        ["0.ecc.volatile.corrected.2=0", "0.ecc.aggregate.corrected.2=400",
         "1.ecc.volatile.corrected.2=900", "1.ecc.aggregate.corrected.2=900"],
        before=["0.ecc.volatile.corrected.2=5"],
    )  # fmt: skip
    found = emulated_gpus.verdicts(records)
    assert found["health.ecc_rate"].outcome is Outcome.FAIL
    assert found["health.ecc_siblings"].outcome is Outcome.NOT_MEASURED


NODE_SIDE = {
    "ECC": ("MemoryErrorCounter", "TotalEccErrors", "EccMode"),
    "rows": ("RemappedRows", "RowRemapperHistogram"),
    "PCIe": ("CurrPcieLinkGeneration", "GpuMaxPcieLinkGeneration", "CurrPcieLinkWidth",
             "PcieReplayCounter"),
    "fields": ("FieldValues", "CurrentClocksEventReasons", "CurrentClocksThrottleReasons"),
    "NVLink": ("NvLinkState", "NvLinkErrorCounter", "P2PStatus", "GpuFabricInfo", "GpuFabricInfoV"),
    "link states": ("NvLinkState",),
    "temperature": ("Temperature", "MarginTemperature"),
    "power": ("PowerUsage", "EnforcedPowerLimit"),
    "memory": ("MemoryInfo", "MemoryInfo_v2"),
    "the questions": ("Temperature", "PowerUsage", "MemoryInfo", "MemoryInfo_v2"),
    "processes": ("ComputeRunningProcesses_v3", "GraphicsRunningProcesses_v3"),
}  # fmt: skip
QUESTIONED = {name.removeprefix("nvmlDeviceGet") for name in gpu_samples.QUESTIONS}
REFUSALS = {"InvalidArgument": 2, "NotSupported": 3, "NoPermission": 4, "FunctionNotFound": 13}


@pytest.mark.parametrize(
    ("what", "answer"),
    [
        pytest.param(what, answer, marks=() if (k + j) % 4 == 0 else pytest.mark.slow)
        for k, what in enumerate(NODE_SIDE)
        for j, answer in enumerate(REFUSALS)
        if answer != "InvalidArgument" or not QUESTIONED & {*NODE_SIDE[what]}
    ],
)
def test_what_a_driver_refuses_for_every_gpu_accuses_no_node(
    library: Path, tmp_path: Path, what: str, answer: str
) -> None:
    """Neither by a FAIL nor as the cause of a row that could not be measured."""
    lines = [f"{k}.fail.nvmlDeviceGet{call}={REFUSALS[answer]}"
             for call in NODE_SIDE[what] for k in range(2)]  # fmt: skip
    found = emulated_gpus.verdicts(emulated_gpus.measured(library, tmp_path, before=lines))
    assert not red(found)
    missing = {key: v for key, v in found.items() if v.outcome is Outcome.NOT_MEASURED}
    assert {v.cause for v in missing.values()} <= {Cause.DRIVER}
    assert not any(v.cause_nodes for v in missing.values())
    assert missing or what in ("power", "memory")  # one question of three, and no row of their own


def test_a_gpu_that_the_driver_no_longer_knows_is_red_by_name(
    library: Path, tmp_path: Path
) -> None:
    """InvalidArgument does not answer a question of `answers`, whenever it begins."""
    lines = [f"1.fail.{name}=2" for name in gpu_samples.QUESTIONS]
    verdicts = emulated_gpus.verdicts(emulated_gpus.measured(library, tmp_path, lines))
    assert uuid_of(red(verdicts, timed=True)["health.answer_late"]) == UUIDS[1]
    (tmp_path / "before").mkdir()
    records = emulated_gpus.measured(library, tmp_path / "before", before=lines)
    verdict = red(emulated_gpus.verdicts(records))["health.answers"]
    assert verdict.reason or verdict.value == "InvalidArgument"


def test_what_one_gpu_lost_is_of_the_node_whatever_the_driver_does_not_offer(
    library: Path, tmp_path: Path
) -> None:
    lines = ["0.fail.nvmlDeviceGetPcieReplayCounter=3", "1.fail.nvmlDeviceGetPcieReplayCounter=999"]
    found = emulated_gpus.verdicts(emulated_gpus.measured(library, tmp_path, before=lines))
    verdict = found["health.pcie_replays"]
    assert (verdict.outcome, verdict.cause) == (Outcome.NOT_MEASURED, Cause.NODE)
    assert "Unknown" in verdict.reason


def test_errors_of_nvml_are_of_the_node_unless_they_say_nothing_of_the_gpu() -> None:
    names = {name.removeprefix("NVML_ERROR_"): value for name, value in vars(pynvml).items()
             if name.startswith("NVML_ERROR_")}  # fmt: skip
    missing = {known.of_error(pynvml.NVMLError(value)) for value in names.values()}
    assert {gap.why for gap in missing if not gap.of_node} == known.NOT_OFFERED | known.NOT_THERE
    assert {"GpuIsLost", "ResetRequired", "Unknown", "Timeout", "CorruptedInforom"} <= {
        gap.why for gap in missing if gap.of_node
    }


def test_a_call_that_nvidia_ml_py_lacks_is_no_fault_of_the_node() -> None:
    with pytest.raises(AttributeError) as too_old:
        pynvml.nvmlDeviceGetSomethingNew  # noqa: B018
    assert known.of_error(too_old.value) == Missing(
        "this nvidia-ml-py has no nvmlDeviceGetSomethingNew", Kind.NOT_OFFERED
    )
    with pytest.raises(AttributeError) as mistake:
        None.value  # type: ignore[attr-defined]  # noqa: B018
    assert known.of_error(mistake.value).of_node


@pytest.mark.parametrize("answer", [15, 999], ids=["lost", "unknown"])
@pytest.mark.parametrize(
    ("xid", "outcome"),
    [(79, Outcome.FAIL), (43, Outcome.NOT_MEASURED), (0, Outcome.NOT_MEASURED)],
    ids=["of the GPU", "of a program", "none"],
)
def test_events_that_were_read_count_although_the_next_wait_fails(
    library: Path, tmp_path: Path, answer: int, xid: int, outcome: Outcome
) -> None:
    breaks = [f"1.xid={xid}", f"1.fail.nvmlEventSetWait_v2={answer}"]
    found = emulated_gpus.verdicts(emulated_gpus.measured(library, tmp_path, breaks))
    assert found["health.xid"].outcome is outcome
    if outcome is Outcome.FAIL:
        assert uuid_of(found["health.xid"]) == UUIDS[1]
        assert any("Xid 79" in note for note in found["health.xid"].notes)


@pytest.mark.parametrize(
    ("lines", "outcome", "says"),
    [
        (["1.fabric.health=4"], Outcome.NOT_MEASURED, "health summary 4"),
        (["1.fabric.mask=3"], Outcome.NOT_MEASURED, "health mask 0x3 (degraded bandwidth)"),
        (["1.fabric.mask=1"], Outcome.FAIL, "degraded bandwidth"),
        (["1.fabric.mask=170"], Outcome.PASS, "ready"),
    ],
    ids=["unknown summary", "unknown mask", "mask of a healthy summary", "healthy"],
)
def test_what_the_fabric_says_of_its_health_is_all_read(
    library: Path, tmp_path: Path, lines: list[str], outcome: Outcome, says: str
) -> None:
    records = emulated_gpus.measured(library, tmp_path, before=lines, driver="580.159.04")
    verdict = emulated_gpus.verdicts(records)["nvlink.fabric"]
    assert verdict.outcome is outcome
    assert says in f"{verdict.reason} {verdict.value}"


def test_siblings_name_the_gpu_that_has_no_value(library: Path, tmp_path: Path) -> None:
    found = emulated_gpus.verdicts(emulated_gpus.measured(library, tmp_path, ["1.lost=1"]))
    for key in ("health.ecc_siblings", "health.pcie_siblings", "health.thermal_siblings"):
        assert found[key].outcome is Outcome.NOT_MEASURED
        assert UUIDS[1] in found[key].reason
        assert found[key].reason.endswith("GpuIsLost")


@pytest.mark.parametrize(
    ("node_rates", "above"),
    [([0, 0, 0, 9], 9), ([9, 9, 9, 9], 0), ([20, 21, 22, 25], 4), (["why", "", "", 9], None),
     ([3, 0, 0, "GPU-3 why"], None), ([5, 7, "GPU-2 why", 1], None),
     ([5, 7, "GPU-2 why", 30], 23), ([0, "GPU-1 why", "GPU-2 why", 400], None)],
)  # fmt: skip
def test_a_gpu_is_held_against_the_median_of_the_others(
    node_rates: list[float | str], above: float | None
) -> None:
    unknown = {text: Known(0, gap=Missing(text)) for text in node_rates if isinstance(text, str)}
    everyone = [
        {"thermal_siblings": asdict(Known(40)), "ecc_siblings": asdict(Known(0)),
         "pcie_siblings": asdict(unknown[r] if isinstance(r, str) else Known(r))}
        for r in node_rates
    ]  # fmt: skip
    found = Findings("GPU-3", under_load.WORKLOAD.metrics)
    under_load._add_siblings(found, everyone, 3)
    measured = found.measurements.get("pcie_siblings")
    assert (None if measured is None else measured.value) == above
    # Where another's figure is not known the distance is a lower bound at most.
    assert ("pcie_siblings" in found.missing) is bool(unknown)
    assert found.measurements["thermal_siblings"].value == 0
    assert not found.measurements["ecc_siblings"].notes
