"""A metric of which a rank reports neither value nor reason is refused where it is written."""

from __future__ import annotations

import json

import pytest

from fixtures.records.absence import Kind
from fixtures.records.model import Result
from fixtures.workloads.runtime.rank_main import absences
from fixtures.workloads.runtime.spec import describe, module_of
from tests.selftests import support
from tests.selftests.support import absent, value

pytestmark = pytest.mark.cpu

INVENTORY = describe(module_of("inventory"))


def kinds(result: Result, *metrics: str, leads: bool = True) -> dict[str, Kind]:
    return {a.metric: a.kind for a in absences(result, metrics, INVENTORY, leads=leads)}


def test_what_is_neither_measured_nor_absent_is_an_error_of_the_suite():
    gap = absent(Kind.FAULT, "gpu_memory")
    result = Result(measurements=[value("gpus", "GPUs", 8)], absent=[gap])
    assert kinds(result, "gpus", "gpu_memory") == {"gpu_memory": Kind.FAULT}
    assert kinds(result, "gpus", "gpu_memory", "nics") == {
        "gpu_memory": Kind.FAULT, "nics": Kind.SILENT,
    }  # fmt: skip
    assert kinds(Result(), "gpus") == {"gpus": Kind.SILENT}, "the first rank owes all of it"


def test_another_rank_owes_what_it_reports_alike():
    assert kinds(Result(), "gpus", leads=False) == {}, "it reports nothing of this workload"
    model = Result(measurements=[value("gpu_model", "model", "H200")])
    assert kinds(model, "gpus", "nics", "gpu_model", leads=False) == {}
    assert kinds(model, "gpu_model", "gpu_memory", leads=False) == {"gpu_memory": Kind.SILENT}


def test_no_rank_of_a_recorded_run_would_have_been_refused_for_what_others_report():
    """The metrics that only the first rank reports are declared, by what was recorded."""
    wrong = set()
    for path in sorted(support.DATA.glob("*/records/*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["workload"] in ("slurm", "filesystem"):  # of the login side; as the site allows
            continue
        try:
            of_node = describe(module_of(record["workload"])).of_node
        except (ImportError, AttributeError, TypeError):
            continue
        seen: dict[str, list[set[str]]] = {"leads": [], "others": []}
        for rank in record["ranks"]:
            place = "leads" if rank["local_rank"] == 0 else "others"
            seen[place].append({m["metric"] for m in rank["measurements"]})
        reporting = [metrics for metrics in seen["others"] if metrics]
        led = set().union(*seen["leads"])
        wrong |= {
            (record["workload"], metric)
            for metrics in reporting
            for metric in led - metrics - set(of_node)
        }
    assert wrong == set()
