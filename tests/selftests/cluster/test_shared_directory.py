"""How the login node sees the ordered shared directory."""

from __future__ import annotations

import subprocess

import pytest

from fixtures.cluster import shared_directory
from fixtures.thresholds.contract import Contract

pytestmark = pytest.mark.cpu


def order(directory: str | None) -> Contract:
    return Contract(
        nodes=2, gpus_per_node=8, gpu_model="H200 SXM", shared_directory=directory
    )  # fmt: skip


def test_an_ordered_directory_is_described_as_it_is_here(tmp_path):
    found = shared_directory.describe_for_spec(order(str(tmp_path)))
    assert found is not None
    assert found["path"] == str(tmp_path)
    assert str(tmp_path.stat().st_ino) in str(found["login"])


def test_without_an_order_there_is_none():
    assert shared_directory.describe_for_spec(None) is None
    assert shared_directory.describe_for_spec(order(None)) is None


class Child:
    """The probe's process, which says what the test wants."""

    said = ""
    hangs = False
    killed = 0
    waited: float = 0

    def __init__(self, argv, **more) -> None:
        assert more["start_new_session"]

    def communicate(self, text: str, timeout: float) -> tuple[str, None]:
        type(self).waited = timeout
        if self.hangs:
            raise subprocess.TimeoutExpired("probe", timeout)
        return self.said, None

    def kill(self) -> None:
        type(self).killed += 1


def test_a_directory_that_hangs_or_is_not_mounted_has_no_description(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", Child)
    for said, found in (
        ('{"result": {"inode": 7}}', {"inode": 7}), ('{"result": null}', {}), ("{}", {}), ("", {}),
        ("[]", {}),
    ):  # fmt: skip
        monkeypatch.setattr(Child, "said", said)
        described = shared_directory.describe_for_spec(order("/shared"))
        assert described == {"path": "/shared", "login": found}
    monkeypatch.setattr(Child, "hangs", True)
    assert shared_directory.describe_for_spec(order("/shared"))["login"] == {}
    assert Child.killed == 1
    assert Child.waited == 10  # a mount that answers does so at once
