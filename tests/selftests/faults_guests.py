"""Faults that other tools found, in the files that they left: --guest-results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from fixtures.sandbox import Sandbox, emulation
from tests.selftests import guest_samples
from tests.selftests.faults import Fault
from tests.selftests.faults_scheduler import CULPRIT, OTHER


def _files(make: Callable[[str, bool], dict[str, str]]) -> Any:
    """Files of both nodes; `make` gets a node's name, and whether it is the culprit."""

    @contextmanager
    def files(_: Sandbox) -> Iterator[list[str]]:
        with tempfile.TemporaryDirectory() as folder:
            for node in (CULPRIT, OTHER):
                guest_samples.write(Path(folder), **make(node, node == CULPRIT))
            yield [f"--guest-results={folder}"]

    return files


def dcgmi(node: str, bad: bool) -> dict[str, str]:
    """dcgmi diag fails the memory test of the culprit's second GPU."""
    return {f"{node}__dcgmi": guest_samples.dcgm4("memory" if bad else "")}


def fio(node: str, bad: bool) -> dict[str, str]:
    """fio met an I/O error on the culprit."""
    return {f"{node}__fio": guest_samples.fio(5 if bad else 0)}


def nvidia_smi(node: str, bad: bool) -> dict[str, str]:
    """The culprit's nvidia-smi shows a GPU that is no longer there."""
    uuids = [emulation.gpu_uuid(node, k) for k in range(2)]
    if bad:
        uuids[1] = "GPU-0badcafe-0000-1111-2222-333333333333"
    text = guest_samples.smi(uuids, driver=emulation.DRIVER_VERSION, name="Emulated GPU")
    return {f"{node}__smi": text}


Inject = Callable[[Sandbox], AbstractContextManager[Any]]


def _fault(criterion: str, name: str, inject: Inject, says: str) -> Fault:
    return Fault(
        criterion=criterion, name=name, where="a file of --guest-results", culprit=CULPRIT,
        inject=inject, select="guests", says=says,
    )  # fmt: skip


FAULTS = [
    _fault("guests.dcgmi", "dcgmi diag fails the memory of a GPU", _files(dcgmi), "GPU 1"),
    _fault("guests.nvidia_smi", "nvidia-smi shows another GPU", _files(nvidia_smi), "0badcafe"),
    _fault("guests.fio", "fio met an error", _files(fio), "error 5"),
]  # fmt: skip
"""In a sandbox of two nodes with two GPUs."""
