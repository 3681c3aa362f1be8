"""The second judge's order: read from the file of limits itself, and held against run.json."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.cluster.population import contract_json
from fixtures.thresholds.contract import Contract
from reports.second_judge.order import in_file, settle, tidy

pytestmark = pytest.mark.cpu

ORDER: dict[str, Any] = {
    "nodes": 2, "gpus_per_node": 8, "gpu_model": "H200 SXM", "nics_per_node": 4, "nic_gbps": 400,
}  # fmt: skip
READ = Path.read_text


def people(**more: Any) -> tuple[dict[str, Any], Any]:
    """run.json of a run as ordered, and its population as Records has it."""
    said = {
        "origin": "cluster", "nodes": ["a", "b"], "gpus_per_node": 8, "gpu_model": "H200 SXM",
        "nics_per_node": 4, "nic_gbps": 400, "nic_fabric": "InfiniBand", "nvls": True,
        "ordered": True, "shared_directory": False, "shared_tb": 0, "rail_optimized": False,
        "bindable": True, "memory_control": True, "emulated": False, "light": False, **more,
    }  # fmt: skip
    p = SimpleNamespace(**said, virtual=said["origin"] == "sandbox", on_cpu=False)
    contract = contract_json(Contract.model_validate(ORDER))
    return {"origin": said["origin"], "contract": contract, "population": said}, p


def test_the_order_is_that_of_the_file_or_of_the_nearest_base_that_has_one(tmp_path):
    base, middle, top = (tmp_path / f"{name}.yaml" for name in ("base", "middle", "top"))
    base.write_text("cluster: {nodes: 2, nic_gbps: 4e2, gpu_model: NVIDIA H200}\n")
    middle.write_text("base: base.yaml\n")
    top.write_text("base: middle.yaml\n")
    expected = {"nodes": 2, "nic_gbps": 400.0, "gpu_model": "H200 SXM", "nic_fabric": "InfiniBand"}
    assert [in_file(p, READ) for p in (base, middle, top)] == [expected] * 3
    middle.write_text("base: base.yaml\ncluster: {}\n")
    assert in_file(top, READ) == {}, "an empty one is one"


def test_an_order_has_one_form_whoever_wrote_it():
    written = {"nics": "mlx5_[0,3-4]", "scratch": {"path": "/s", "size_gb": None}, "driver": None}
    assert tidy(written) == {
        "nics": ["mlx5_0", "mlx5_3", "mlx5_4"], "nics_per_node": 3, "scratch": {"path": "/s"},
    }  # fmt: skip
    assert tidy({"nics": "mlx5_bond_*"})["nics"] == ["mlx5_bond_*"]
    for given in (
        ORDER, {**ORDER, "nics": ["mlx5_0", "mlx5_1"], "nics_per_node": 2},
        *({**ORDER, "gpu_model": name} for name in ("p5.48xlarge", "nvidia_h100_80gb_hbm3")),
    ):  # fmt: skip
        assert tidy(given) == tidy(contract_json(Contract.model_validate(given)))


def test_a_run_as_ordered_differs_in_nothing():
    run, p = people()
    assert settle(run, tidy(ORDER), p) == []
    assert settle(run, {}, p) == [], "no file has an order: that of run.json is all there is"
    assert (p.nvls, p.capability) == (True, 9.0)


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({"nics_per_node": 0}, "nics_per_node"),
        ({"gpus_per_node": 1}, "gpus_per_node"),
        ({"emulated": True}, "emulated"),
        ({"ordered": False}, "ordered"),
        ({"nvls": False}, "nvls"),
        ({"rail_optimized": True}, "rail_optimized"),
        ({"bindable": False}, "bindable"),
        ({"memory_control": False}, "memory_control"),
    ],
)
def test_what_run_json_says_of_its_nodes_is_held_against_the_order(said, names):
    run, p = people(**said)
    assert [line.split()[1] for line in settle(run, tidy(ORDER), p)] == [names]
    expected = people()[1]
    assert {k: getattr(p, k) for k in said} == {k: getattr(expected, k) for k in said}


@pytest.mark.parametrize("field", ["nics_per_node", "firmware", "gpus_per_node", "driver"])
def test_an_order_of_less_than_the_file_is_another(field):
    run, p = people()
    file = tidy({**ORDER, "firmware": {"nic": "1"}, "driver": "570"})
    run["contract"] = {**file, field: None}
    (line,) = settle(run, file, p)
    assert line == f"run.json states another order than the limits: {field}"
    assert p.nics_per_node == 4
    run["contract"] = None
    assert settle(run, file, p)


def test_virtual_nodes_and_runs_by_hand_have_no_order_of_a_file():
    run, p = people(origin="sandbox", bindable=False)
    assert settle(run, tidy({**ORDER, "nodes": 5}), p) == []
    assert p.bindable is False
    run, p = people(origin="by-hand", ordered=False)
    assert settle(run, tidy(ORDER), p) == []
    run, p = people()
    assert settle({**run, "origin": "sandbox"}, tidy(ORDER), p) == [
        "origin: sandbox, of its nodes cluster"
    ]
