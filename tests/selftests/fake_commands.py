"""Commands of Slurm that say what a test wants."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a command of Slurm on the PATH that says this, on which stream, with which status."""

    def make(name: str, out: str = "", *, err: str = "", status: int = 0) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.out").write_text(out)
        (folder / f"{name}.err").write_text(err)
        script = folder / name
        script.write_text(
            f'#!/bin/sh\nenv > "{folder}/{name}.env"\necho "$@" > "{folder}/{name}.args"\n'
            f'cat "{folder}/{name}.out"\n'
            f'cat "{folder}/{name}.err" >&2\nexit {status}\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    return make
