"""Run directories and ranks' lines that an attacker would hand over, seeded; and what reads them.

Used by tests/selftests/records/test_foreign_fuzz.py and, with larger numbers, by tests/tools/
soak_hostile.py.
"""

# Length: the attacks, what they change, and what is attacked are one table and its functions.

from __future__ import annotations

import copy
import json
import math
import os
import random
import shutil
import signal
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fixtures.jobs.collector import ResultCollector
from fixtures.jobs.context import RunContext
from fixtures.jobs.submission import Submission
from fixtures.jobs.watcher import JobState
from fixtures.plan.jobs import Job
from fixtures.records import verdict_file
from fixtures.records.absence import JobKind
from fixtures.records.files import Tail, append_line, read_json, read_lines
from fixtures.records.foreign_files import read_bytes
from fixtures.records.run_directory import RunDirectory
from fixtures.run import burn_in, previous_runs
from fixtures.run.devices_of_record import DeviceIndex
from fixtures.run.evidence import Evidence
from reports import __main__ as reports
from reports.evidence.run_files import CommandError
from tests.selftests import support

CPU_S, HANG_S = 5, 60
"""CPU seconds of one call, and seconds after which it counts as one that does not end."""
SOURCE = "sandbox-2x2-cpu-failures"
"""A small recorded run."""
Json = Any


class Hostile:
    """Loading it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.trace}",)


class TooSlow(BaseException):
    """A call that did not end in time; not an Exception, so that nothing answers it."""


@contextmanager
def in_time() -> Iterator[None]:
    """Raise TooSlow in what takes more than CPU_S of CPU time, or does not end."""

    def end(number: int, _frame: Any) -> None:
        raise TooSlow(signal.Signals(number).name)

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, CPU_S), (signal.SIGALRM, signal.ITIMER_REAL, HANG_S),
    )  # fmt: skip
    before = [(number, signal.signal(number, end)) for number, _, _ in timers]
    try:
        for _, timer, seconds in timers:
            signal.setitimer(timer, seconds)
        yield
    finally:
        for _, timer, _ in timers:
            signal.setitimer(timer, 0)
        for number, handler in before:
            signal.signal(number, handler)


# --- mutations of JSON


def deep(levels: int) -> Json:
    made: Json = 1
    for k in range(levels):
        made = [made] if k % 2 else {"a": made}
    return made


VALUES: tuple[Callable[[], Json], ...] = (
    lambda: None, lambda: True, lambda: 0, lambda: -1, lambda: 10**9, lambda: 10**30,
    lambda: -0.5, lambda: math.nan, lambda: math.inf, lambda: "", lambda: "soon",
    lambda: "../..", lambda: "a\nb", lambda: "\u2028\u202e\x1b[2J", lambda: "\ud800",
    lambda: "x" * 5000, lambda: "gpu[0-99999999]", lambda: [], lambda: {}, lambda: [None],
    lambda: {"": None}, lambda: deep(70), lambda: deep(400), lambda: list(range(2000)),
)  # fmt: skip


def places(data: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value."""
    yield path
    inner = (
        data if isinstance(data, dict) else dict(enumerate(data if isinstance(data, list) else ()))
    )
    for key, value in inner.items():
        yield from places(value, (*path, key))


def mutated(data: Json, rng: random.Random) -> Json:
    """Return a copy with one to three values replaced, removed or added."""
    data = copy.deepcopy(data)
    for _ in range(rng.randint(1, 3)):
        # The first levels more often than one of a thousand samples.
        found = [p for p in places(data) if p]
        shallow = [p for p in found if len(p) <= 2]
        path = rng.choice(shallow if shallow and rng.random() < 0.7 else found or [()])
        if not path:
            return rng.choice(VALUES)()
        holder = data
        for step in path[:-1]:
            holder = holder[step]
        if rng.random() < 0.2:
            del holder[path[-1]]
        elif rng.random() < 0.1 and isinstance(holder, dict):
            holder["stranger"] = rng.choice(VALUES)()
        else:
            holder[path[-1]] = rng.choice(VALUES)()
    return data


# --- lines of ranks


def line_of(rng: random.Random) -> Json:
    """Return a sound line of a rank, of any kind."""
    k = 0
    if rng.random() < 0.5:
        measured = [support.value("bf16", "TFLOPS", 700.0), support.value("fp32", "TFLOPS", 50.0)]
        return support.result_line(k, *measured, absent=[])
    event = rng.choice(["started", "alive", "error", "end", "fault", "regained"])
    more = {"kind": "raised", "error": "text", "stack": "stack"} if event == "error" else {}
    return support.line(event, k, **more)


def bytes_of(data: Json, rng: random.Random) -> bytes:
    """Return a line of JSON, seldom of something else."""
    text = json.dumps(data).encode()
    kind = rng.random()
    if kind < 0.03:
        return b"[" * 100_000
    if kind < 0.06:
        return text[: rng.randrange(len(text))]
    if kind < 0.09:
        return text.replace(b'"', b"\xff", 1)
    if kind < 0.12:
        return text[:-1] + b', "a": ' + b"9" * 5000 + b"}"
    return text


# --- directories


LOCATED = {
    "schema": 1, "explained": True, "why": "", "because": ["x"],
    "culprits": [{"kind": "node", "nodes": ["worker0"], "line": "worker0"}],
    "rounds": [[{"placement": "worker0", "nodes": ["worker0"], "failed_rails": [0]}]],
}  # fmt: skip


def base_run(source: Path, into: Path) -> Path:
    """Make a run directory with one of each file that a run has, of a recorded run."""
    support.judged(source, into)
    run = RunDirectory(into)
    data = read_json(run.run_json)
    nonce, records = data["nonce"], sorted(run.records.iterdir())
    job = run.job("node-worker0")
    (job / "submitit").mkdir(parents=True)
    (job / "submitit" / "5_0_log.out").write_text("line\n")
    (job / "submitit" / "5_log.out").symlink_to("/elsewhere/5_0_log.out")
    (job / "job.json").write_text(json.dumps({"name": job.name, "started": 1.0, "ended": 2.0}))
    (job / "process.json").write_text(json.dumps({"pid": 1, "start": "0"}))
    for k in range(2):
        append_line(job / f"rank{k}.jsonl", {**support.line("started", k), "nonce": nonce})
        append_line(job / f"rank{k}.jsonl", {**support.result_line(k), "nonce": nonce})
    gpu = {"power_w": 100.0, "util": 1.0, "mem_mib": 1.0, "temp_c": 30, "sm_mhz": 1}
    append_line(job / "telemetry-worker0.jsonl", {"t": 1.0, "gpus": {"GPU-1": gpu}})
    reason = {"workload": "gemm", "placement": "x", "attempt": 1, "kind": "rank died", "time": 1.0}
    append_line(run.missing, {"schema": 1, "nonce": nonce, "reason": "r", **reason})
    run.guests.mkdir(exist_ok=True)
    (run.guests / "worker0.fio.json").write_text("{}")
    run.located.write_text(json.dumps(LOCATED | {"nonce": nonce}))
    run.write_manifest()
    assert records
    return into


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    if os.geteuid() == 0:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
    else:
        path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 20 << 30)


def _many_lines(path: Path) -> None:
    path.write_bytes(b'{"a": 1}\n' * 20_000)


SPECIAL: tuple[Callable[[Path], None], ...] = (
    _fifo, _device, _sparse, _many_lines,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/proc/self/mem"),
    lambda path: path.symlink_to("/etc/passwd"),
    lambda path: path.symlink_to("nowhere"),
    lambda path: path.mkdir(),
    lambda path: None,
    lambda path: path.touch() or os.truncate(path, 2 << 20),
    lambda path: path.write_bytes(b"\xff\xfe\x00"),
    lambda path: path.write_bytes(b"[" * 200_000) and None,
    lambda path: path.write_bytes(b'{"a":' * 500 + b"1" + b"}" * 500) and None,
    lambda path: path.write_text("x" * 100_000 + "\n") and None,
    lambda path: path.write_bytes(b"") and None,
)  # fmt: skip
"""Each makes something else of a file that was removed."""

NAMES = (b"new\nline", "sep\u2028".encode(), b"\xff\xfe", b"\x1b[2J", b"..json", b"a" * 200)


def _put_special(run: Path, rng: random.Random) -> str:
    files = sorted(p for p in run.rglob("*") if p.is_file() or p.is_symlink())
    path = rng.choice(files)
    path.unlink()
    make = rng.randrange(len(SPECIAL))
    SPECIAL[make](path)
    return f"{path.relative_to(run)}: special {make}"


def _put_name(run: Path, rng: random.Random) -> str:
    folder = rng.choice([run, *(p for p in run.rglob("*") if p.is_dir() and not p.is_symlink())])
    name = os.fsdecode(rng.choice(NAMES))
    if rng.random() < 0.5:
        (folder / name).touch()
    else:
        (folder / name).mkdir(exist_ok=True)
    return f"{folder.relative_to(run)}: a file {name!r}"


def _link_folder(run: Path, rng: random.Random) -> str:
    folder = rng.choice(sorted(p for p in run.rglob("*") if p.is_dir() and not p.is_symlink()))
    shutil.rmtree(folder)
    target = rng.choice(["/etc", "/proc/self", ".", "..", "nowhere"])
    folder.symlink_to(target)
    return f"{folder.relative_to(run)}: a link to {target}"


def _of_size(run: Path, pattern: str) -> list[Path]:
    """Return files that can be changed; a special one was put there by an earlier change."""
    found = (p for p in run.rglob(pattern) if p.is_file() and not p.is_symlink())
    return sorted(p for p in found if p.stat().st_size < 1 << 20)


def _mutate_json(run: Path, rng: random.Random) -> str:
    files = _of_size(run, "*.json")
    first = [path for path in files if path.parent == run]
    path = rng.choice([*first, *first, *files])
    data = mutated(json.loads(path.read_bytes()), rng)
    path.write_text(json.dumps(data))
    return f"{path.relative_to(run)}: {json.dumps(data)[:100]}"


def _mutate_lines(run: Path, rng: random.Random) -> str:
    path = rng.choice(_of_size(run, "*.jsonl"))
    lines = path.read_bytes().splitlines()[:50]
    k = rng.randrange(len(lines))
    lines[k] = bytes_of(mutated(json.loads(lines[k]), rng), rng)
    path.write_bytes(b"\n".join(lines) + b"\n")
    return f"{path.relative_to(run)}:{k}: {lines[k][:100]!r}"


CHANGES = (_put_special, _put_name, _link_folder, _mutate_json, _mutate_json, _mutate_lines)


def make_hostile(run: Path, rng: random.Random) -> list[str]:
    """Change a copy of a run in one to three ways; return what was done."""
    done = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        try:
            done.append(rng.choice(CHANGES)(run, rng))
        except (OSError, ValueError, IndexError, KeyError, RecursionError):
            continue  # a change before it took away what it needs
    return done


# --- what reads them


def read_as_replay(source: Path, into: Path) -> None:
    """Read all that a replay reads; ConfigError or RecordError for what cannot be read."""
    data = previous_runs.load_run_json(source)
    run, nonce = RunDirectory(source), str(data.get("nonce"))
    previous_runs.started_records(run, nonce)
    copied = RunDirectory(into)
    previous_runs.copy_for_replay(run, copied)
    previous_runs.salvage(run, run_id="r", nonce=nonce, into=copied)
    evidence = Evidence(copied, nonce)
    for path in sorted(copied.records.iterdir()):
        workload, _, placement = path.name.removesuffix(".json").partition("@")
        evidence.get(workload, placement)
    burn_in.read(DeviceIndex(copied, nonce), ["x"])
    copied.write_manifest()


COMMANDS = ("tables", "energy", "watch", "verify", "summary", "rejudge", "export", "render")
MORE = {"watch": ["--once"], "summary": ["--github"], "export": ["--json"]}


def read_by_command(
    command: str, run: Path, into: Path, monkeypatch: Any, *, pages: bool = False
) -> int:
    """Carry out a command of `python -m reports` on a run, without the process of its replay.

    `pages`: as if the records gave the verdict that is stated, so that all pages are made too.
    """

    def replay(source: Path, run_dir: Path, *_: str) -> Json:
        read_as_replay(source, run_dir)
        if not pages:
            raise CommandError("judged elsewhere")
        there = RunDirectory(run_dir)
        there.run_json.write_bytes(read_bytes(RunDirectory(source).run_json))
        return verdict_file.read_verdict(RunDirectory(source))

    monkeypatch.setattr(reports, "_replay", replay)
    return reports.main([command, str(run), *MORE.get(command, [])])


def attack_line(rng: random.Random) -> bytes:
    return bytes_of(mutated(line_of(rng), rng) if rng.random() < 0.95 else line_of(rng), rng)


def fuzz_lines(count: int, *, seed: int, folder: Path) -> list[str]:
    """Let a rank write so many lines, a few at a time; return what went wrong."""
    wrong, done = [], 0
    while done < count:
        rng = random.Random(f"{seed} {done}")
        lines = [attack_line(rng) for _ in range(rng.randint(1, 5))]
        done += len(lines)
        where = folder / str(done)
        try:
            with in_time():
                _, missing = collected(lines, where)
        except (Exception, TooSlow) as error:
            wrong.append(f"{seed} {done - len(lines)}: {lines!r:.300}: {error!r:.200}")
            missing = []
        for one in missing:
            if (one["node"], one["rank"]) != ("worker0", 0) and one["kind"] == JobKind.MALFORMED:
                wrong.append(f"{lines!r:.300}: names {one['node']} and rank {one['rank']}")
        shutil.rmtree(where)
    return wrong


def fuzz_directories(
    count: int, base: Path, folder: Path, *, seed: int, monkeypatch: Any,
    output: Callable[[], Iterable[str]], pages: bool = False,
) -> list[str]:  # fmt: skip
    """Read so many changed copies of a run by one command each; return what went wrong.

    `output` returns what was printed since it was last asked.
    """
    wrong = []
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        run, into = folder / f"run{number}", folder / f"into{number}"
        shutil.copytree(base, run, symlinks=True)
        done = make_hostile(run, rng)
        command = COMMANDS[number % len(COMMANDS)]
        label = f"{seed} {number} {command} {done!r:.400}"
        try:
            with in_time():
                status = read_by_command(command, run, into, monkeypatch, pages=pages)
            out, errors = output()
            lines = (out + errors if command == "summary" else errors).splitlines()
            if "Traceback" in out + errors or (status == 4 and len(lines) != 1):
                wrong.append(f"{label}: {errors!r:.300}")
            elif any("holds what no run has" in line for line in lines):
                wrong.append(f"{label}: {lines[-1]:.300}")
        except (Exception, SystemExit, TooSlow) as error:
            wrong.append(f"{label}: {error!r:.300}")
            output()
        for made in (run, into):
            shutil.rmtree(made, ignore_errors=True)
    return wrong


def collected(lines: Iterable[bytes], folder: Path) -> tuple[Submission, list[Json]]:
    """Collect the output of a job of two ranks, of which the first writes these lines; return the
    submission, and what of it is missing."""
    run = RunDirectory(folder)
    job_folder = run.job(JOB.name)
    job_folder.mkdir(parents=True)
    run.records.mkdir()
    tails = [Tail(job_folder / f"rank{k}.jsonl", below=folder) for k in range(2)]
    tails[0].path.write_bytes(b"".join(line + b"\n" for line in lines))
    append_line(
        tails[1].path, support.result_line(1, support.value("bf16", "TFLOPS", 700.0), absent=[])
    )
    context = RunContext(
        directory=run, run_id="r", nonce=support.NONCE, population=support.population(1),
        attempts={("gemm", "worker0"): 1}, spec_facts={},
    )  # fmt: skip
    s = Submission(
        job=JOB, name=JOB.name, directory=job_folder, number=1, tails=tails, pending={"gemm"},
        parts={"1": JobState("COMPLETED")},
    )  # fmt: skip
    ResultCollector(context).collect(s)
    return s, list(read_lines(run.missing))


JOB = Job(
    name="node-worker0", stage="node", placement="worker0", nodes=("worker0",), ranks_per_node=2,
    workloads=(("gemm", ("bf16",)),),
)  # fmt: skip
