"""One line, and 0 ready, 1 not ready, 2 could not tell; within its time, whatever hangs."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fixtures.ready import __main__ as ready
from fixtures.ready import readings
from fixtures.ready.judge import Findings
from tests.selftests.ready_nodes import NODE, Node, certified

pytestmark = pytest.mark.cpu


@pytest.fixture
def folder(node: Node, tmp_path: Path, monkeypatch) -> Path:
    """An installation's folder, on the emulated node."""
    monkeypatch.setattr(ready, "ROOT", node.root)
    monkeypatch.setenv("SLURMD_NODENAME", NODE)
    (tmp_path / "certificate.json").write_text(json.dumps(certified(mounts=["/"])))
    monkeypatch.setattr(readings, "mount", lambda emit, point: None)
    return tmp_path


def said(folder: Path, capsys, *options: str) -> tuple[int, str]:
    status = ready.main([*options], folder=folder)
    out = capsys.readouterr().out
    assert out.count("\n") == 1, "one line"
    return status, out.strip()


def test_a_healthy_node_is_ready(folder: Path, capsys):
    status, line = said(folder, capsys)
    assert (status, line) == (0, "ready: 2 GPUs, 4 NICs, 1 mount as certified by accepted")


def test_what_could_not_be_seen_is_said_of_a_ready_node(folder: Path, node: Node, capsys):
    (node.root / "dev/kmsg").unlink()
    status, line = said(folder, capsys)
    assert status == 0
    assert line.endswith("; not seen: Xids (kernel log: No such file or directory)")


def test_a_sick_node_is_not_ready(folder: Path, node: Node, capsys):
    node.break_driver("1.link.3=0", "0.ecc.current=0")
    status, line = said(folder, capsys, "--all")
    assert status == 1
    assert line.startswith("not ready: GPU 0 00000000:18:00.0 (GPU-40ed73c2): ECC disabled")
    assert line.endswith("(and 1 more)")


def test_a_repair_names_the_command_that_certifies_it(folder: Path, node: Node, capsys):
    node.break_driver("1.uuid=GPU-new")
    status, line = said(folder, capsys)
    assert status == 1
    assert line.endswith(
        f"; after a repair: pytest -m multinode --recertify=/runs/accepted --nodelist={NODE}"
    )


@pytest.mark.parametrize("text", ["", "{}", "[]", "\0"])
def test_by_hand_a_broken_certificate_is_never_0(folder: Path, text: str, capsys):
    (folder / "certificate.json").write_text(text)
    status, line = said(folder, capsys)
    assert status == 2
    assert line.startswith("could not tell: certificate ")


def test_a_node_of_another_name_is_not_known(folder: Path, capsys):
    status, line = said(folder, capsys, "--node=gpu17")
    assert status == 2
    assert "has no node gpu17; name it by --node" in line


def test_an_error_of_the_check_is_could_not_tell(folder: Path, monkeypatch, capsys):
    monkeypatch.setattr(ready, "look", lambda *_, **__: 1 / 0)
    status, line = said(folder, capsys)
    assert (status, line) == (
        2, "could not tell: error of the check: ZeroDivisionError: division by zero",
    )  # fmt: skip


# --- what hangs


def test_a_driver_that_hangs_is_could_not_tell_within_its_time(folder: Path, node: Node, capsys):
    node.break_driver("1.delay=60000")
    began = time.monotonic()
    status, line = said(folder, capsys, "--limit=1.5")
    assert time.monotonic() - began < 4
    assert (status, line) == (2, "could not tell: the driver about GPU 1: no answer in time")


def test_a_driver_that_does_not_start_is_named(folder: Path, node: Node, capsys):
    node.break_driver("start=60000")
    status, line = said(folder, capsys, "--limit=1.5")
    assert status == 2
    assert "the driver to start (nvmlInit): no answer in time" in line


def test_a_driver_that_takes_its_time_to_start_is_ready(folder: Path, node: Node, capsys):
    """As one without persistence mode, which starts with each program that asks it."""
    node.break_driver("start=700")
    assert said(folder, capsys)[0] == 0


def test_what_is_sick_beside_a_driver_that_hangs_is_not_ready(folder: Path, node: Node, capsys):
    node.break_driver("0.link.3=0", "1.delay=60000")
    status, line = said(folder, capsys, "--limit=1.5")
    assert status == 1
    assert "17 of 18 NVLinks" in line


def test_a_mount_that_hangs_is_could_not_tell_and_named(folder: Path, monkeypatch, capsys):
    def hangs(emit: readings.Emit, point: str) -> None:
        emit({"asking": f"the file system at {point}"})
        threading.Event().wait()

    monkeypatch.setattr(readings, "mount", hangs)
    began = time.monotonic()
    status, line = said(folder, capsys, "--limit=1.5")
    assert time.monotonic() - began < 4
    assert (status, line) == (2, "could not tell: the file system at /: no answer in time")


@pytest.mark.parametrize("told", [False, True], ids=["nothing-told", "names-told"])
def test_a_kernel_that_is_slow_makes_no_nic_missing(folder: Path, monkeypatch, capsys, told):
    host = readings.host

    def slow(emit: readings.Emit, root: Path, nics: Any) -> None:
        emit({"asking": "the kernel about mlx5_0"})
        if told:
            host(lambda message: emit(message) if "nics" in message else None, root, nics)
        threading.Event().wait()

    monkeypatch.setattr(readings, "host", slow)
    status, line = said(folder, capsys, "--limit=1.5")
    assert status == 2
    assert line.startswith("could not tell: the kernel about mlx5_0: no answer in time")


def test_the_limit_is_never_above_ten_seconds(folder: Path, monkeypatch, capsys):
    limits = []

    def look(node, root, *, until: float) -> Findings:
        limits.append(until - time.monotonic())
        return Findings()

    monkeypatch.setattr(ready, "look", look)
    for limit in ("600", "-1", "nan"):
        said(folder, capsys, f"--limit={limit}")
    assert all(8.5 < left < 9.01 for left in limits), limits


def test_the_start_of_the_process_is_a_part_of_its_time():
    assert 0 < time.monotonic() - ready.process_began() < 86400


def test_the_line_is_printable_and_bounded():
    assert ready.inert("a\n\x1b[31m\u202e'\"b\u00e4") == "a??[31m???b?"
    found = Findings(sick=["x" * 5000])
    text = ready.inert(f"not ready: {ready.line(None, found)}")[: ready.MOST_CHARACTERS]
    assert len(text) == ready.MOST_CHARACTERS
