"""Attacks on what reads run directories and ranks' lines, in large numbers (`make soak`).

    python -m tests.tools.soak_hostile [--directories 5000] [--lines 50000] [--seed 1]

The same functions as in tests/selftests/records/test_foreign_fuzz.py, with other seeds, all pages
made too, and a bound of the memory. Then a folder and a manifest of a million entries. The exit
status is 0 where every attack was answered in one line, in time, and in at most 200 MB more than
sound runs take.
"""

from __future__ import annotations

import argparse
import io
import resource
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from fixtures.records.files import RecordError
from fixtures.records.foreign_files import text_lines
from fixtures.records.foreign_folders import MOST_ENTRIES, list_folder
from fixtures.records.run_directory import RunDirectory
from tests.selftests import hostile, support

MORE_KB = 200_000
A_MILLION = 1_000_000


def peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def directories(
    count: int, base: Path, folder: Path, seed: int, *, sound: bool = False
) -> list[str]:
    """Read changed copies of a run; `sound`: of each command once, and unchanged."""
    out, errors = io.StringIO(), io.StringIO()

    def output() -> tuple[str, str]:
        said = out.getvalue(), errors.getvalue()
        for stream in (out, errors):
            stream.seek(0)
            stream.truncate()
        return said

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        if sound:
            patch.setattr(hostile, "make_hostile", lambda *_: [])
        return hostile.fuzz_directories(
            count, base, folder, seed=seed, monkeypatch=patch, output=output, pages=True
        )


def a_million_entries(folder: Path) -> list[str]:
    """A folder and a manifest of a million entries are refused, or read, in time."""
    wrong = []
    many = folder / "many"
    many.mkdir()
    for k in range(MOST_ENTRIES + 1):
        (many / str(k)).touch()
    run = RunDirectory(folder / "run")
    run.root.mkdir()
    run.manifest.write_text("".join(f"{'0' * 64}  jobs/{k}\n" for k in range(A_MILLION)))
    reads: tuple[Callable[[], object], ...] = (
        lambda: list_folder(many), lambda: list(text_lines(run.manifest)),
    )  # fmt: skip
    for read in reads:
        try:
            with hostile.in_time():
                read()
        except RecordError:
            continue
        except hostile.TooSlow as error:
            wrong.append(f"a million entries: {error!r}")
    return wrong


def main() -> int:
    """Attack, and print what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.soak_hostile", description=__doc__)
    parser.add_argument("--directories", type=int, default=5000)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="acceptance-hostile-") as temporary:
        folder = Path(temporary)
        base = hostile.base_run(support.DATA / hostile.SOURCE, folder / "base")
        wrong = directories(2 * len(hostile.COMMANDS), base, folder, options.seed, sound=True)
        honest = peak_kb()
        wrong += directories(options.directories, base, folder, options.seed)
        wrong += hostile.fuzz_lines(options.lines, seed=options.seed, folder=folder)
        more = peak_kb() - honest
        wrong += a_million_entries(folder)
    print("\n".join(wrong), file=sys.stderr)
    print(
        f"{options.directories} run directories and {options.lines} lines: {len(wrong)} not "
        f"answered; {more / 1000:.0f} MB above sound runs"
    )
    return int(bool(wrong) or more > MORE_KB)


if __name__ == "__main__":
    sys.exit(main())
