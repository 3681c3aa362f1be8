"""The marks that a job leaves for its successor, in folders and processes of a test."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.workloads.tenant import tenant_marks

pytestmark = pytest.mark.cpu

TOKEN = "ab" * 16


def rank(folder: Path, **more: Any) -> Any:
    given = {"leads_node": True, "on_gpu": False, "local_rank": 1}
    return SimpleNamespace(**{**given, "spec": {"run_directory": str(folder)}, **more})


def test_every_mark_that_is_asked_for_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []

    def leave(name: str) -> Any:
        def function(*_: Any) -> float:
            made.append(name)
            if name == "process":
                raise OSError("no fork")
            return 2.0

        return function

    monkeypatch.setattr(tenant_marks, "_fill_memory", leave("memory"))
    monkeypatch.setattr(tenant_marks, "_start_process", leave("process"))
    monkeypatch.setattr(tenant_marks, "_write_file", lambda name, *_: leave(name)())
    found = tenant_marks.run(rank(tmp_path), list(tenant_marks.WORKLOAD.metrics))
    assert made == ["memory", "process", "shared_memory", "scratch"]
    assert [(m.metric, m.value, m.unit) for m in found.measurements] == [
        ("gpu_memory", 2, "MiB"), ("shared_memory", 2, "files"), ("scratch", 2, "files"),
    ]  # fmt: skip
    assert found.facts["not_left"] == {"processes": "no fork"}
    assert len(found.facts["token"]) == 32
    for metrics, marks in (
        (["processes"], ["process"]), (["variables"], ["process"]), (["gpu_processes"], []),
        (["scratch"], ["scratch"]), (["shared_memory"], ["shared_memory"]),
    ):  # fmt: skip
        made.clear()
        tenant_marks.run(rank(tmp_path), metrics)
        assert made == marks
    made.clear()
    other = rank(tmp_path, leads_node=False)
    tenant_marks.run(other, list(tenant_marks.WORKLOAD.metrics))
    assert made == ["memory"]


def test_words_of_a_token_are_two_of_64_bits_and_not_zero():
    first, second = tenant_marks.words(TOKEN)
    assert first != second
    assert all(word % 2 == 1 and -(2**63) <= word < 2**63 for word in (first, second))
    assert tenant_marks.words(TOKEN) == [first, second]


def test_a_file_of_4_kib_is_left_under_the_token_s_name(tmp_path: Path):
    facts: dict[str, Any] = {}
    assert tenant_marks._write_file("scratch", tmp_path, TOKEN, facts) == 1
    path = tmp_path / f"acceptance-tenant-scratch-{TOKEN}"
    assert path.read_text() == TOKEN * 128
    assert path.stat().st_size == 4096
    assert facts == {"files": {"scratch": str(path)}}
    with pytest.raises(FileExistsError):
        tenant_marks._write_file("scratch", tmp_path, TOKEN, facts)


def test_the_scratch_is_that_of_the_order_or_of_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tenant_marks.tempfile, "gettempdir", lambda: "/t")
    for spec, path in (
        ({}, "/t"), ({"host_order": None}, "/t"), ({"host_order": {"scratch": None}}, "/t"),
        ({"host_order": {"scratch": {"path": "/s"}}}, "/s"),
    ):  # fmt: skip
        assert tenant_marks._scratch(rank(tmp_path, spec=spec)) == Path(path)


def test_the_process_has_the_token_in_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def run(command: list[str], *, env: dict[str, str], timeout: float, **_: Any) -> Any:
        assert command[-2:] == [TOKEN, str(tmp_path / "run.json")]
        assert (env["ACCEPTANCE_TENANT"], timeout) == (TOKEN, 90)
        return SimpleNamespace(stdout="77\n")

    monkeypatch.setattr(tenant_marks.subprocess, "run", run)
    facts: dict[str, Any] = {}
    assert tenant_marks._start_process(rank(tmp_path), TOKEN, facts) == 1
    assert facts == {"process": 77}


def test_half_of_a_gpu_s_memory_is_filled_by_a_process_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    done: list[Any] = []

    class Process:
        def __init__(self) -> None:
            self.number = len([d for d in done if d == "start"])
            done.append("start")

        def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
            done.append((asked["device"], asked["index"], asked["part"], len(asked["words"])))
            return {"bytes": 3 << 20, "total": 9 << 20}

        def __getattr__(self, name: str) -> Any:
            return lambda: done.append((name, self.number))

    monkeypatch.setattr(tenant_marks, "MemoryProcess", Process)
    facts: dict[str, Any] = {}
    assert tenant_marks._fill_memory(rank(tmp_path), TOKEN, facts) == 6
    assert facts == {"memory": {"marked_bytes": 6 << 20, "total_bytes": 9 << 20}}
    assert done == [
        "start", "start", ("cpu", 1, 0.5, 1), ("cpu", 1, 0.5, 1), ("kill", 1), ("end", 0),
        ("close", 1), ("close", 0),
    ]  # fmt: skip
    done.clear()
    from fixtures.workloads.memory import memory

    released: list[int] = []
    monkeypatch.setattr(memory, "release_memory", lambda _: released.append(1))
    monkeypatch.setitem(sys.modules, "torch", sys.modules["json"])
    tenant_marks._fill_memory(rank(tmp_path, on_gpu=True), TOKEN, facts)
    assert done[2:4] == [("cuda", 1, 0.5, 1), ("cuda", 1, 1.0, 1)]
    assert released == [1]
    tenant_marks._fill_memory(rank(tmp_path), TOKEN, facts)
    monkeypatch.delitem(sys.modules, "torch")
    tenant_marks._fill_memory(rank(tmp_path, on_gpu=True), TOKEN, facts)
    assert released == [1], "nothing to release without a GPU, or where torch was not used"


PROGRAM = """
import json, sys
asked = json.loads(sys.stdin.readline())
if asked["do"] == "answer":
    print(json.dumps({"bytes": 1}), flush=True)
    sys.stdin.read()
elif asked["do"] == "say":
    raise SystemExit("first\\nno memory")
raise SystemExit(5 if asked["do"] == "end" else 0)
"""


def test_a_process_answers_or_says_why_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenant_marks, "MEMORY_PROGRAM", (sys.executable, "-I", "-S", "-c", PROGRAM))
    with tenant_marks.memory_process() as child:
        assert child.ask({"do": "answer"}) == {"bytes": 1}
        child.end()
        assert child._child.returncode == 0
    with tenant_marks.memory_process() as child:
        assert child._timer.interval == 90
        with pytest.raises(RuntimeError, match=r"^say: no memory$"):
            child.ask({"do": "say"})
    with (
        tenant_marks.memory_process() as child,
        pytest.raises(RuntimeError, match=r"^end: exit status 5; it has 90 s$"),
    ):
        child.ask({"do": "end"})
    assert child._child.stdout is not None
    assert child._child.stdout.closed
    assert not child._timer.is_alive() or child._timer.finished.is_set()
