"""NCCL's log in the forms of all plug-ins, and what all ranks' logs mean together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures import hardware
from fixtures.thresholds.contract import Contract
from fixtures.workloads.collectives import collective_sweep
from fixtures.workloads.nccl import collective_ops, nccl_log

pytestmark = pytest.mark.cpu

SEND = "w0:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via "


@pytest.mark.parametrize(
    ("via", "family", "nics", "gdr"),
    [
        ("NET/IB/3/GDRDMA", "NET/IB", [3], True),
        ("NET/IBext_v8/0/GDRDMA", "NET/IB", [0], True),
        ("NET/IBext_v10/1(8)/GDRDMA(PCI)", "NET/IB", [1], True),
        ("NET/gIB/2/GDRDMA", "NET/IB", [2], True),
        ("NET/AWS Libfabric/5/GDRDMA", "NET/OFI", [5], True),
        ("NET/Libfabric/5/GDRDMA", "NET/OFI", [5], True),
        ("NET/OFI/5", "NET/OFI", [5], False),
        ("NET/FasTrak/1", "NET/FasTrak", [1], False),
        ("NET/Socket/0", "NET/Socket", [0], False),
        ("NET/new_plug-in/7/GDRDMA", "NET/new_plug-in", [7], True),
        ("COLLNET/SHARP/0/GDRDMA", "NET/IB", [0], True),
        ("COLLNET/SHARP/3", "NET/IB", [3], False),
        ("COLLNET/SHARP", "NET/IB", None, None),
        ("NET/bare", "NET/bare", None, None),
        ("P2P/MNNVL", "MNNVL", None, None),
        ("P2P/CUMEM/read", "P2P", None, None),
    ],
)
def test_every_form_of_a_channel_is_understood_or_reported_as_it_is(
    via: str, family: str, nics: list[int] | None, gdr: bool | None, tmp_path: Path
) -> None:
    log = tmp_path / "nccl-rank0.0.log"
    log.write_text(f"{SEND}P2P/IPC\n{SEND}{via}\n")
    found = nccl_log.read_nccl_log([log])
    families = {nccl_log.transport_family(name) for name in found["transports"]}
    assert nccl_log.slowest(families) == family
    assert (found.get("nics"), found.get("gdr")) == (nics, gdr)


def test_reduction_in_the_switches_is_the_ordered_network_and_a_fact(tmp_path: Path) -> None:
    log = tmp_path / "nccl-rank0.0.log"
    log.write_text(f"{SEND}NET/IB/0/GDRDMA\n{SEND}P2P/CUMEM\n{SEND}COLLNET/SHARP/1/GDRDMA\n")
    found = nccl_log.read_nccl_log([log])
    assert (found["collnet"], found["nics"], found["gdr"]) == (True, [0, 1], True)
    assert nccl_log.slowest({nccl_log.transport_family(n) for n in found["transports"]}) == "NET/IB"
    log.write_text(f"{SEND}NET/Socket/0\n{SEND}COLLNET/SHARP/1/GDRDMA\n")
    families = {nccl_log.transport_family(n) for n in nccl_log.read_nccl_log([log])["transports"]}
    assert nccl_log.slowest(families) == "NET/Socket", "a fall-back is not hidden"


def test_unknown_network_is_never_hidden_by_a_known_one() -> None:
    assert nccl_log.slowest({"P2P", "NET/IB", "NET/x"}) == "NET/x"
    assert nccl_log.slowest({"NET/Socket", "NET/x"}) == "NET/Socket"
    assert nccl_log.slowest(set()) is None


def test_order_names_the_transport() -> None:
    given: dict[str, Any] = {"nodes": 2, "gpus_per_node": 8, "gpu_model": "H100 SXM"}
    assert Contract(**given).transport == "NET/IB"
    assert Contract(**given, nccl_transport="NET/FasTrak").transport == "NET/FasTrak"


def conditions(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    log: str,
    others: list[Any],
    conf: str = "",
    rank: int = 0,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a rank on node `a` finds, with the links of the other ranks."""
    (tmp_path / f"nccl-rank{rank}.0.log").write_text(log)
    (tmp_path / "nccl.conf").write_text(conf)
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    gathered: list[Any] = []

    def gather(item: Any) -> list[Any]:
        gathered.append(item)
        return [item, *others] if len(gathered) == 1 else [item] * (1 + len(others))

    ranks: Any = SimpleNamespace(
        device_facts=lambda: {"compute_capability": 9.0}, folder=tmp_path, rank=rank, node="a",
        on_gpu=True, gather=gather, spec={},
    )  # fmt: skip
    return nccl_log.conditions(ranks, tuple(range(1 + len(others))))


def test_node_that_uses_half_of_its_nics_is_told_from_the_union(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "".join(f"{SEND}NET/IB/{k}/GDRDMA\n" for k in range(4))
    others = [[["NET/IB"], list(range(8)), True, "b"]]
    found, facts = conditions(monkeypatch, tmp_path, log=own, others=others)
    assert facts["nccl"]["nics"] == [0, 1, 2, 3]
    used = {node: found["nics"] for node, found in facts["nccl"]["by_node"].items()}
    assert used == {"a": [0, 1, 2, 3], "b": list(range(8))}
    assert found["transport"] == "NET/IB"


@pytest.mark.parametrize(
    ("via", "other", "measured"),
    [
        ("NET/IB/0", "NET/Socket", "NET/IB"),
        ("NET/Socket/0", "NET/IB", "NET/Socket"),
        ("P2P/CUMEM", "NET/IB", "NET/IB"),
        ("P2P/MNNVL", "P2P/MNNVL", "MNNVL"),
        ("P2P/CUMEM", "SHM/direct", "SHM"),
    ],
)
def test_the_node_that_fell_back_to_a_slower_network_is_named(
    via: str, other: str, measured: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [[[other], None, None, "b"]]
    found, facts = conditions(monkeypatch, tmp_path, log=f"{SEND}{via}\n", others=others)
    families = {nccl_log.transport_family(via.removesuffix("/0")), nccl_log.transport_family(other)}
    assert found["transport"] == nccl_log.slowest(families), "limits go by the slowest of all"
    (row,) = collective_sweep._state_measurements(
        collective_ops.OPERATIONS["all_reduce"], [], ["transport"], found, facts["nccl"]
    )
    assert row.value == measured


@pytest.mark.parametrize(
    ("via", "own", "others_gdr"), [("GDRDMA", True, False), ("", False, True)],
    ids=["another node has none", "only this node has none"],
)  # fmt: skip
def test_a_node_without_gpudirect_is_told_from_those_that_have_it(
    via: str, own: bool, others_gdr: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = f"{SEND}NET/IB/0/{via}\n".replace("/0/\n", "/0\n")
    others = [[["NET/IB"], [0], others_gdr, "b"]]
    _, facts = conditions(monkeypatch, tmp_path, log=log, others=others, rank=1)
    assert facts["nccl"]["gdr"] is own
    assert "by_node" not in facts["nccl"], "only the first rank has the list of all nodes"


def test_nccl_s_way_is_a_fact_of_every_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels, SHARP and NVLS too: a node with fewer of them than the others can be seen."""
    channels = "24 coll channels, 0 collnet channels, 16 nvls channels, 32 p2p channels\n"
    others = [
        [["P2P/CUMEM"], None, None, "a", 24, 0, 16],
        [["NET/IB"], [0, 1], True, "b", 24, 0, 16],
        [["NET/Socket"], [2], False, "b", 12, 0, 0],
    ]
    log = f"{SEND}NET/IB/3/GDRDMA\n{channels}"
    _, facts = conditions(monkeypatch, tmp_path, log=log, others=others)
    counts = {"coll_channels": 24, "collnet_channels": 0, "nvls_channels": 16}
    assert facts["nccl"]["by_node"] == {
        "a": {"transport": "NET/IB", "nics": [3], "gdr": True, **counts},
        "b": {
            "transport": "NET/Socket", "nics": [0, 1, 2], "gdr": False, "coll_channels": 12,
            "collnet_channels": 0, "nvls_channels": 0,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("conf", "collnet", "sharp"),
    [
        ("", 0, False), ("", 24, False), ("NCCL_COLLNET_ENABLE=0", 24, False),
        ("NCCL_COLLNET_ENABLE=1", 24, True), ("NCCL_COLLNET_ENABLE=1", 0, False),
    ],
)  # fmt: skip
def test_sharp_is_what_nccl_found_wherever_it_was_switched_on(
    conf: str, collnet: int, sharp: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_COLLNET_ENABLE", raising=False)
    line = f"24 coll channels, {collnet} collnet channels, 16 nvls channels, 32 p2p channels\n"
    found, _ = conditions(monkeypatch, tmp_path, log=line, others=[], conf=conf)
    assert found["sharp"] is sharp


def test_nvls_switched_off_in_a_file_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = conditions(monkeypatch, tmp_path, log="", others=[], conf="NCCL_NVLS_ENABLE=0\n")
    assert found["nvls"] is False


def test_order_of_more_nics_than_any_node_has_does_not_raise_the_ceiling() -> None:
    facts: dict[str, Any] = {
        "gpus": 16, "gpus_per_node": 8, "domains": 2, "gpus_per_domain": 8, "nic_gbps": 400,
        "nvls": False, "sharp": False,
    }  # fmt: skip

    def ceiling(**more: int) -> float | None:
        return hardware._collective("all_reduce", "H100 SXM", {**facts, **more})

    right = ceiling(nics_per_node=8)
    assert ceiling(nics_per_node=12, nics_found=8) == right
    assert ceiling(nics_per_node=8, nics_found=12) == right
    assert ceiling(nics_per_node=4) != right


@pytest.mark.parametrize(
    ("via", "nics", "transport"),
    [("P2P/MNNVL", [], "MNNVL"), ("NET/bare", None, "NET/bare")],
    ids=["a rack's NVLink", "a network whose NICs are not known"],
)
def test_no_nic_is_used_only_where_every_channel_is_known_to_use_none(
    via: str, nics: list[int] | None, transport: str, tmp_path: Path, monkeypatch: Any
) -> None:
    others = [[[via], None, None, "b"]]
    found, facts = conditions(monkeypatch, tmp_path, log=f"{SEND}{via}\n", others=others)
    assert found["transport"] == transport
    assert facts["nccl"].get("nics") == nics
    gdr, used = (
        next((m.value for m in measured_from(facts["nccl"], metric)), None)
        for metric in ("gdr", "nics")
    )
    assert (gdr, used) == (("no NIC is used", 0) if nics == [] else (None, None))


def measured_from(log: dict[str, Any], metric: str) -> list[Any]:
    op = collective_ops.OPERATIONS["all_reduce"]
    return collective_sweep._state_measurements(op, [], [metric], {}, log)


def test_nccl_log_gives_transport_and_nvls(tmp_path: Path) -> None:
    log = tmp_path / "nccl-rank0.log"
    log.write_text(
        "h:1:1 [0] NCCL INFO NET/IB : No device found.\n"
        "h:1:1 [0] NCCL INFO Using network Socket\n"
        "h:1:1 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p\n"
        "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "h:1:1 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "h:1:1 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/Socket/0\n"
    )
    facts = nccl_log.read_nccl_log([log])
    assert facts["transports"] == {"P2P/CUMEM": 2, "NET/Socket": 1}
    assert facts["network"] == "Socket"
    assert facts["nvls_channels"] == 0
    assert (facts["nics"], facts["gdr"]) == ([0], False)
    assert nccl_log.read_nccl_log([tmp_path / "none"]) == {}


@pytest.mark.parametrize(
    ("capability", "channels", "setting", "nvls"),
    [
        (9.0, 16, "", True), (8.9, 16, "", False), (10.0, 16, "", True), (None, 16, "", True),
        (9.0, 0, "", False), (9.0, None, "", None), (9.0, 16, "NCCL_NVLS_ENABLE=0", False),
        (9.0, 16, "NCCL_NVLS_ENABLE=1", True),
    ],
)  # fmt: skip
def test_nvls_is_used_from_hopper_on_where_nccl_has_channels_for_it(
    capability, channels, setting, nvls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = "" if channels is None else f"24 coll channels, 0 collnet channels, {channels} nvls\n"
    log = log.replace(" nvls", " nvls channels, 32 p2p channels")
    (tmp_path / "nccl-rank0.0.log").write_text(f"h:1:1 [0] NCCL INFO {log}")
    (tmp_path / "nccl.conf").write_text(f"{setting}\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    monkeypatch.setattr(nccl_log, "_counted_nics", lambda _: 0)
    for multinode, domains_by in ((None, "NVML"), ("0", "host"), ("1", "NVML")):
        if multinode is None:
            monkeypatch.delenv("NCCL_MNNVL_ENABLE", raising=False)
        else:
            monkeypatch.setenv("NCCL_MNNVL_ENABLE", multinode)
        facts_of_device = {"compute_capability": capability, "fabric": "ab/1"}
        ranks: Any = SimpleNamespace(
            device_facts=lambda facts=facts_of_device: facts, folder=tmp_path, rank=0, node="a",
            on_gpu=True, gather=lambda item: [item], spec={},
        )  # fmt: skip
        found, facts = nccl_log.conditions(ranks, (0,))
        assert found.get("nvls") is nvls
        assert facts["domains_by"].startswith(domains_by)
