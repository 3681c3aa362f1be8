"""The command line of workloads by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.workloads import __main__ as program
from fixtures.workloads.runtime import standalone

pytestmark = pytest.mark.cpu


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[standalone.Request, Any]]:
    found: list[tuple[standalone.Request, Any]] = []
    monkeypatch.setattr(
        standalone, "start", lambda request, repeat: found.append((request, repeat))
    )
    return found


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["workloads", *arguments])
    program.main()


def test_options_become_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]
):
    run(monkeypatch, "gemm", "environment", "--out", str(tmp_path))
    ((request, repeat),) = started
    assert (request.names, request.out) == (["gemm", "environment"], tmp_path)
    assert (request.params, set(request.metrics), request.deadline_s) == ({}, set(), None)
    assert (request.cpu, repeat) == (False, None)
    run(
        monkeypatch, "gemm", "environment", "--out", str(tmp_path), "--metrics", "bf16,versions,",
        "--param", "gemm.size=[1]", "--param", 'a="b=c"', "--deadline", "3", "--repeat", "2",
        "--cpu",
    )  # fmt: skip
    request, repeat = started[-1]
    assert (request.params, repeat) == ({"gemm.size": [1], "a": "b=c"}, 2)
    assert (set(request.metrics), request.deadline_s, request.cpu) == (
        {"bf16", "versions"},
        3,
        True,
    )


def test_what_is_not_known_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any],
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    for arguments, says in (
        (["nothing"], "no workload 'nothing'"),
        (["gemm", "--metrics", "bf17"], "gemm has none of bf17"),
        (["gemm", "environment", "--metrics", "bf16"], "environment has none of bf16"),
        (["gemm", "--metrics", "bf16,bf17"], "no metric bf17 in gemm"),
        (["gemm", "--param", "size"], "--param wants NAME=JSON"),
        (["gemm", "--param", "size=x"], "--param wants NAME=JSON"),
    ):
        with pytest.raises(SystemExit) as ended:
            run(monkeypatch, *arguments, "--out", str(tmp_path / "x"))
        assert ended.value.code == 2
        assert says in capsys.readouterr().err
    assert started == []
    assert not (tmp_path / "x").exists()
