"""Units of a cluster share no hardware, and their orders are held against all of them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports.evidence.run_files import CommandError
from reports.handover import join_units
from tests.selftests.support import edited
from tests.tools.fleet_run import Fleet

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("fleet") / "run"
    Fleet(root, 2, 2).write()
    for path in root.glob("records/*"):
        if not path.name.startswith("inventory@"):
            path.unlink()
    return root


def unit(fleet: Path, into: Path, number: int, *, hardware: int) -> Path:
    """A run of two nodes of its own name; `hardware`: whose it has."""
    shutil.copytree(fleet, into)
    for path in [into / "run.json", *sorted(into.glob("records/*"))]:
        text = path.read_text().replace("gpu000", f"u{number}n")
        text = re.sub(r"GPU-..", f"GPU-{hardware:02x}", text)
        data = json.loads(text)
        for rank in data.get("ranks", ()):
            node, slot = rank["node"][-1], rank["local_rank"]
            rank["device"]["serial"] = f"16{hardware}{node}{slot}"
            if slot == 0:
                rank["device"]["nics"] = {
                    "mlx5_0": f"946d:ae03:{hardware:04x}:{int(node):04x}",
                    "docker0": "02:42:ac:11:00:02", "lo": "00:00:00:00:00:00",
                    "eth0": f"94:6d:ae:{hardware:02x}:00:{int(node):02x}",
                }  # fmt: skip
        path.write_text(json.dumps(data))
        if "gpu000" in path.name:
            path.rename(path.with_name(path.name.replace("gpu000", f"u{number}n")))
    return into


@pytest.fixture
def pair(fleet, tmp_path) -> tuple[Path, Path]:
    return (
        unit(fleet, tmp_path / "a", 1, hardware=1),
        unit(fleet, tmp_path / "b", 2, hardware=2),
    )


def test_units_of_other_hardware_are_joined_whatever_software_has_named_alike(pair):
    join_units.refuse_shared_hardware(pair)


def change_rank(root: Path, change: Callable[[dict[str, Any]], None], rank: int = 0) -> None:
    with edited(sorted(root.glob("records/inventory@*"))[0]) as data:
        change(data["ranks"][rank]["device"])


def device(root: Path, node: int = 0, rank: int = 0) -> dict[str, Any]:
    path = sorted(root.glob("records/inventory@*"))[node]
    found: dict[str, Any] = json.loads(path.read_text())["ranks"][rank]["device"]
    return found


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("uuid", r"GPU GPU-01.* is in u1n2 of .*/a and in u2n1 of .*/b: units must not share"),
        ("serial", r"the board with serial number 1[0-9]* is in u1n2 of .*/a and in u2n1"),
        ("mlx5_0", r"(?i)the port of mlx5_0, 946d:ae03:0001:0002 is in u1n2 of"),
        ("eth0", r"(?i)the port of eth0, 94:6d:ae:01:00:02 is in u1n2 of"),
    ],
)
def test_the_same_hardware_under_another_name_is_in_one_unit_only(pair, what, match):
    first, second = pair
    its = device(first, node=1)

    def take(mine: dict[str, Any]) -> None:
        if what in mine:  # whoever writes it down in other letters
            mine[what] = f"{its[what][:4]}{its[what][4:].upper()}"
        else:
            mine["nics"][what] = its["nics"][what].upper()

    change_rank(second, take)
    with pytest.raises(CommandError, match=match):
        join_units.refuse_shared_hardware(pair)


@pytest.mark.parametrize(
    "serial", ["0", "000000000000", "N/A", "[N/A]", "n/a", "None", None, "", " ", "Unknown Error",
               "Not Specified", "[Not Supported]", "Default string"],
    ids=repr,
)  # fmt: skip
def test_what_stands_in_place_of_a_serial_is_nobodys(pair, serial):
    for root in pair:
        for rank in range(2):
            change_rank(root, lambda device: device.update(serial=serial), rank)
    join_units.refuse_shared_hardware(pair)


def test_a_whole_unit_under_other_names_is_refused(fleet, tmp_path):
    runs = [unit(fleet, tmp_path / f"{k}", k, hardware=1) for k in (1, 2)]
    with pytest.raises(CommandError, match="units must not share hardware"):
        join_units.refuse_shared_hardware(runs)


def test_virtual_nodes_have_no_hardware(fleet, tmp_path):
    runs = [unit(fleet, tmp_path / f"{k}", k, hardware=1) for k in (1, 2)]
    for run in runs:
        with edited(run / "run.json") as data:
            data["population"]["origin"] = "sandbox"
    join_units.refuse_shared_hardware(runs)


@pytest.mark.parametrize(
    ("identity", "is_one"),
    [("946d:ae03:0011:2233", True), ("94:6d:ae:11:22:33", True), ("02:42:ac:11:00:02", False),
     ("00:00:00:00:00:00", False), ("0000:0000:0000:0000", False), ("", False), ("x", False)],
)  # fmt: skip
def test_an_address_that_software_chose_is_nobodys(identity, is_one):
    assert join_units.is_of_hardware(identity) is is_one


@pytest.mark.parametrize(
    ("orders", "lines"),
    [
        (("u1n[1-2]", "u2n[1-2]"), ["every ordered node is in a unit"]),
        (("u1n[1-2]", "u2n[1-3]"), ["in no unit, though ordered: u2n3"]),
        (("u1n[1-4]", "u2n[1-3]"), ["in no unit, though ordered: u1n[3-4],u2n3"]),
        (("u1n[1-2],u2n[1-2]", "u2n[1-2]"), ["every ordered node is in a unit"]),
        ((2, 4), ["2 of 2 ordered nodes are in a unit, of 1 unit ordered by number",
                  "2 of 4 ordered nodes are in a unit, of 1 unit ordered by number"]),
        ((3, "u2n[1-3]"), ["2 of 3 ordered nodes are in a unit, of 1 unit ordered by number",
                           "in no unit, though ordered: u2n3"]),
        ((2, "u2n[1-2]"), ["2 of 2 ordered nodes are in a unit, of 1 unit ordered by number",
                           "every named ordered node is in a unit"]),
        ((4, 4), ["4 of 4 ordered nodes are in a unit"]),
        ((2, None), ["no contract: nothing says which nodes were ordered"]),
    ],
)  # fmt: skip
def test_units_with_other_orders_still_say_which_nodes_are_in_none(
    pair, orders, lines, monkeypatch
):
    monkeypatch.setattr(join_units, "read_verdict", lambda _: {"scope": {"nodes": ["a", "b"]}})
    for root, order in zip(pair, orders, strict=True):
        with edited(root / "run.json") as data:
            data["contract"]["nodes"] = order
    assert join_units.ordered(pair, ["u1n1", "u1n2", "u2n1", "u2n2"]) == lines
