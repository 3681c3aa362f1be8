"""Checkpoints against their manifests: what is intact, what is damaged, and what is awaited."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training import checkpoint_integrity as integrity

pytestmark = pytest.mark.cpu


def write(folder: Path, step: int, content: bytes = b"weights") -> Path:
    """An intact checkpoint of one file."""
    path = folder / f"step-{step:06}"
    path.mkdir(parents=True)
    (path / "a.distcp").write_bytes(content)
    files = {"a.distcp": [len(content), hashlib.sha256(content).hexdigest()]}
    (path / "manifest.json").write_text(json.dumps({"step": step, "files": files}))
    return path


def test_each_damage_is_told_with_the_file(tmp_path):
    path = write(tmp_path, 3)
    assert integrity.defect_of(path) is None
    assert integrity.step_of(path) == 3
    (path / "a.distcp").write_bytes(b"weighty")
    assert integrity.defect_of(path) == (
        "step-000003/a.distcp differs from what was written (sha256)"
    )
    (path / "a.distcp").write_bytes(b"w")
    assert integrity.defect_of(path) == "step-000003/a.distcp has 1 byte, expected 7"
    (path / "a.distcp").unlink()
    assert integrity.defect_of(path) == "step-000003/a.distcp is missing"
    for text in ('{"step": 3}', "{", '{"files": {"a": 1}}', '{"files": [1]}'):
        (path / "manifest.json").write_text(text)
        assert str(integrity.defect_of(path)).startswith("step-000003/manifest.json: ")


def test_the_newest_intact_checkpoint_is_taken(tmp_path):
    assert integrity.newest_intact(tmp_path) is None
    old, new = write(tmp_path, 9), write(tmp_path, 10)
    assert integrity.newest_intact(tmp_path) == new
    (new / "a.distcp").unlink()
    assert integrity.newest_intact(tmp_path) == old
    (old / "a.distcp").unlink()
    assert integrity.newest_intact(tmp_path) is None


@pytest.mark.parametrize(
    ("wanted", "appears_s", "step", "waited_s"),
    [
        (0, None, 2, 0), (2, None, 2, 0), (3, 1.0, 3, 1), (3, None, 2, 5), (3, 9.0, 2, 5),
    ],
)  # fmt: skip
def test_a_checkpoint_that_another_host_wrote_is_awaited(
    wanted, appears_s, step, waited_s, tmp_path, monkeypatch
):
    clock = SimpleNamespace(now=0.0)

    def pause(seconds: float) -> None:
        clock.now += seconds
        if appears_s is not None and clock.now >= appears_s and len(list(tmp_path.iterdir())) < 2:
            write(tmp_path, 3)

    fake = SimpleNamespace(monotonic=lambda: clock.now, sleep=pause)
    monkeypatch.setattr(integrity, "time", fake)
    write(tmp_path, 2)
    found = integrity.awaited_intact(tmp_path, wanted, timeout_s=5)
    assert found is not None
    assert integrity.step_of(found) == step
    assert clock.now == pytest.approx(waited_s, abs=0.3)


def test_without_any_checkpoint_the_wait_ends_too(tmp_path, monkeypatch):
    times = iter([0.0, 1.0, 6.0])
    fake = SimpleNamespace(monotonic=lambda: next(times), sleep=lambda seconds: None)
    monkeypatch.setattr(integrity, "time", fake)
    assert integrity.awaited_intact(tmp_path, timeout_s=5) is None


def test_a_file_is_read_in_blocks_of_16_mib():
    """Checkpoints have files of many GB; a rank's memory is full of its model."""
    asked: list[int] = []

    class File:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *given: Any) -> None:
            pass

        def read(self, size: int) -> bytes:
            asked.append(size)
            return b"ab" if len(asked) < 3 else b""

    path: Any = SimpleNamespace(open=lambda mode: File())
    assert integrity.sha256_of(path) == hashlib.sha256(b"abab").hexdigest()
    assert asked == [16 * 2**20] * 3
