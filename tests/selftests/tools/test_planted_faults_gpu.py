"""The tool that plants faults on GPUs: it fails where one is missed, or its cause is not named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.verdict.model import Outcome, Verdict
from tests.tools import planted_faults_gpu
from tests.tools.planted_faults_gpu import FAULTS, Fault, found_of

pytestmark = pytest.mark.cpu

GPUS = 4


def row(key: str, outcome: str, gpu: int | None = None, reason: str = "") -> dict[str, Any]:
    verdict = Verdict(criterion=key, title=key, subject="n0", outcome=Outcome(outcome), unit="GB/s",
        limit=">= 2", devices={}, value=1.0, reason=reason, cause="measurement",
        worst=None if gpu is None else {"node": "n0", "gpu": gpu},
    )  # fmt: skip
    return verdict.to_json()


def as_it_must_be(fault: Fault, **other: Any) -> list[dict[str, Any]]:
    """The rows of a run in which a fault was found and named, or is `other` in one respect."""
    keys = [wanted.split(" or ")[-1] for wanted in fault.red]
    gpu = None if fault.gpu is None else fault.gpu % GPUS
    return [
        row(
            key.strip("()"),
            **{
                "outcome": "NOT_MEASURED" if key.startswith("(") else "FAIL",
                "gpu": gpu, "reason": f"seen: {fault.words[0]}", **other,
            },
        )
        for key in keys
    ]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_that_is_red_by_its_cause_is_named(fault: Fault) -> None:
    assert found_of(fault, as_it_must_be(fault), GPUS).ok


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_that_passes_is_missed(fault: Fault) -> None:
    found = found_of(fault, as_it_must_be(fault, outcome="PASS"), GPUS)
    assert not found.ok
    assert len(found.missed) == len(fault.red)
    assert "is PASS, expected" in found.missed[0]
    assert found_of(fault, [], GPUS).missed, "nor does a run without the row hold it"


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if f.gpu is not None], ids=lambda fault: fault.name
)
def test_a_fault_of_another_gpu_is_missed(fault: Fault) -> None:
    assert not found_of(fault, as_it_must_be(fault, gpu=1), GPUS).ok


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if f.words[0] not in f.red], ids=lambda fault: fault.name
)
def test_a_red_row_that_does_not_say_why_is_not_named(fault: Fault) -> None:
    found = found_of(fault, as_it_must_be(fault, reason="slow"), GPUS)
    assert (found.missed, found.named, found.ok) == ([], False, False)


def test_the_first_red_line_counts_and_rows_left_out_do_not() -> None:
    (fault,) = (f for f in FAULTS if f.name == "TF32 forced")
    left_out = [row(f"gemm.{k}", "NOT_MEASURED", reason="the record holds no bf16") for k in "ab"]
    assert found_of(fault, [*left_out, *as_it_must_be(fault)], GPUS).ok
    first = row("gemm.spread", "FAIL", reason="slow")
    assert not found_of(fault, [first, *as_it_must_be(fault)], GPUS).ok


def test_the_tool_measures_each_fault_and_fails_where_one_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: dict[Path, Fault] = {}
    monkeypatch.setattr(planted_faults_gpu, "gpus_here", lambda: GPUS)
    monkeypatch.setattr(
        planted_faults_gpu, "measure", lambda fault, gpus, out: measured.setdefault(out, fault)
    )
    wrong: dict[str, str] = {}
    monkeypatch.setattr(
        planted_faults_gpu, "replay",
        lambda run: {"criteria": as_it_must_be(measured[run], **wrong)},
    )  # fmt: skip
    options = ["--json", str(tmp_path / "found.json")]
    assert planted_faults_gpu.main(options) == 0
    assert len(measured) == len(FAULTS) == 9
    assert "named: 9 of 9" in capsys.readouterr().out
    wrong["outcome"] = "PASS"
    assert planted_faults_gpu.main([*options, "--only", "LL", "busy"]) == 1
    assert "named: 0 of 2" in capsys.readouterr().out


def test_without_two_gpus_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert planted_faults_gpu.main([]) == 2
    assert "fewer than two NVIDIA GPUs" in capsys.readouterr().err
