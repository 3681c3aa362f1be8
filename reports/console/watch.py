"""`python -m reports watch [RUN]`: all GPUs and links of a run in the terminal (login side).

Reads the telemetry files that the nodes of a run write into the job directories, during the run or
after it. Where only records were kept, the means of each workload are one frame.
"""

# Length: a terminal's figures from two sources, samples and records, with one table for both.

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fixtures.paths import RUNS
from fixtures.records.fields import is_number
from fixtures.records.files import Tail
from fixtures.records.inert import inert
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory
from fixtures.run.reader import RunReader
from fixtures.wording import abbreviated
from reports.console.live import render as render_progress
from reports.console.progress import Progress

LATEST = RUNS / "latest"
PERIOD_S, STALE_S = 0.5, 5.0
"""A node whose newest sample is older than this is shown as ended."""
SILENT_S = 600.0
"""No samples are taken between jobs; a node without one for longer than this is named."""
PIPE_COLUMNS = 120
"""Width of the output where it is not a terminal."""

COLUMNS = (
    "node", "GPU", "util\n%", "memory\nGiB", "temp\nC", "power\nW", "SM\nMHz", "",
    "NVLink out/in\nGB/s", "NICs out/in\nGB/s", "UUID",
)  # fmt: skip
"""The columns; where the terminal is too narrow they are left out from the right. The first
three are always there, and no name is ever cut."""
KEPT_COLUMNS = 3
UNKNOWN = "-"
"""Stands for a figure that was not measured."""
BAR = 10
"""Characters of the bar of a GPU's utilisation."""
HOT_C = 85.0
"""GPU temperature in C from which on it is red: datacenter GPUs slow down at 85 to 95."""
SLOWDOWN_REASONS = ((0x20 | 0x40, "thermal"), (0x80, "power brake"), (0x4, "power cap"))
"""Bits of NVML's clock event reasons that slow a GPU down, the most severe first."""


@dataclass
class Gpu:
    """The telemetry of one GPU at one time; None where it is unknown."""

    util: float | None = None
    mem_gib: float | None = None
    temp_c: float | None = None
    power_w: float | None = None
    sm_mhz: float | None = None
    nvlink_gb_s: tuple[float, float] | None = None
    slowed_by: str = ""


@dataclass
class Node:
    """The telemetry of one node at one time, in seconds since the epoch."""

    time: float
    gpus: dict[str, Gpu] = field(default_factory=dict)
    nics_gb_s: tuple[float, float] | None = None
    cpu_percent: float | None = None
    activity: str = ""


Frame = dict[str, Node]
"""Nodes by name."""


def add_to(commands: Any) -> None:
    """Add the subcommand and its options."""
    watch = commands.add_parser("watch", help="GPUs and links of a running or recorded run, live")
    watch.add_argument("run", type=Path, nargs="?", default=LATEST, metavar="RUN")
    watch.add_argument(
        "--once", action="store_true", help="print the newest (or highest) frame and exit"
    )
    watch.add_argument("--speed", type=float, metavar="X", help="replay a run at X times its speed")


def main(options: argparse.Namespace) -> int:
    """Show the run until it ends or Ctrl-C; return 0, or 4 where there is no such run."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS)
    root: Path = options.run.resolve()
    directory = RunDirectory(root)
    if not directory.run_json.exists():
        message = "there is no run yet" if options.run == LATEST else f"{root} has no run.json"
        print(f"reports watch: {message}: give a run directory", file=sys.stderr)
        return 4
    if options.speed is not None and options.speed <= 0:
        Console(stderr=True).print("reports watch: --speed must be above 0")
        return 4
    with suppress(KeyboardInterrupt):
        if options.speed is not None:
            _replay(console, directory, options.speed)
        elif options.once or not console.is_terminal:
            _print_newest_frame(console, directory)
        else:
            _follow(console, directory)
    return 0


def _print_newest_frame(console: Console, directory: RunDirectory) -> None:
    telemetry, progress = Telemetry(directory), Progress(directory)
    progress.refresh()
    updates = telemetry.refresh()
    if progress.verdict or progress.run.get("ended"):
        # The last sample was taken when all was over: it does not describe the run.
        updates = updates or [
            update for frame in frames_of_records(directory) for update in frame.items()
        ]
        console.print(render(highest_of(updates), progress, time.time(), console.width))
        return
    newest = telemetry.frame or next(reversed(list(frames_of_records(directory))), {})
    console.print(render(newest, progress, time.time(), console.width))


def _follow(console: Console, directory: RunDirectory) -> None:
    telemetry, progress = Telemetry(directory), Progress(directory)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            progress.refresh()
            telemetry.refresh()
            now = time.time()
            live.update(render(telemetry.frame, progress, now, console.width), refresh=True)
            if progress.verdict:
                break
            time.sleep(PERIOD_S)
    _print_newest_frame(console, directory)


def _replay(console: Console, directory: RunDirectory, speed: float) -> None:
    frames = list(frames_of_telemetry(directory)) or list(frames_of_records(directory))
    progress = Progress(directory)
    progress.refresh()
    if not console.is_terminal:
        for frame in frames:
            now = max(node.time for node in frame.values())
            console.print(render(frame, None, now, console.width))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        before = None
        for frame in frames:
            now = max(node.time for node in frame.values())
            time.sleep(min(5.0, max(0.0, (now - (before or now)) / speed)))
            before = now
            live.update(render(frame, None, now, console.width), refresh=True)
    _print_newest_frame(console, directory)


# --- frames from the files of the run


class Telemetry:
    """The newest sample of every node, with rates since the sample before it."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._files: dict[Path, Tail] = {}
        self._previous: dict[str, Mapping[str, Any]] = {}
        self.frame: Frame = {}

    def refresh(self) -> list[tuple[str, Node]]:
        """Read the new samples; return (node name, node), ordered by time."""
        for path in self._directory.telemetry_files():
            self._files.setdefault(path, Tail(path))
        new = [
            (sample["t"], inert(path.stem[len("telemetry-") :]), inert(path.parent.name), sample)
            for path, lines in self._files.items()
            for sample in lines.read()
            if is_number(sample.get("t")) and math.isfinite(sample["t"])
        ]
        updates = []
        for _, name, job, sample in sorted(new, key=lambda n: n[:2]):
            with suppress(KeyError, TypeError, IndexError, AttributeError):
                node = _node_of_sample(sample, self._previous.get(name), job)
                self._previous[name] = sample
                self.frame[name] = node
                updates.append((name, node))
        return updates


def frames_of_telemetry(directory: RunDirectory) -> Iterator[Frame]:
    """Yield all nodes as they were, for each second of the telemetry."""
    frame: Frame = {}
    shown: float | None = None
    for name, node in Telemetry(directory).refresh():
        if shown is not None and node.time - shown >= 1:
            yield dict(frame)
            shown = node.time
        shown = node.time if shown is None else shown
        frame[name] = node
    if frame:
        yield dict(frame)


HIGHEST = "the highest of each figure over the run:"


def highest_of(updates: Iterable[tuple[str, Node]]) -> Frame:
    """Return for each node and GPU the highest of every figure over a run; rates by their sum.

    A counter that did not move in a whole run counts nothing, and is not shown as a rate of 0.
    """
    frame: Frame = {}
    for name, node in updates:
        top = frame.setdefault(name, Node(time=node.time, activity=HIGHEST))
        top.time = max(top.time, node.time)
        top.nics_gb_s = _higher(top.nics_gb_s, node.nics_gb_s)
        top.cpu_percent = _higher(top.cpu_percent, node.cpu_percent)
        for uuid, gpu in node.gpus.items():
            best = top.gpus.setdefault(uuid, Gpu())
            for figure in ("util", "mem_gib", "temp_c", "power_w", "sm_mhz", "nvlink_gb_s"):
                setattr(best, figure, _higher(getattr(best, figure), getattr(gpu, figure)))
            slowed = [s for s in (*best.slowed_by.split(", "), *gpu.slowed_by.split(", ")) if s]
            best.slowed_by = ", ".join(dict.fromkeys(slowed))
    for node in frame.values():
        node.nics_gb_s = node.nics_gb_s if any(node.nics_gb_s or ()) else None
        for gpu in node.gpus.values():
            gpu.nvlink_gb_s = gpu.nvlink_gb_s if any(gpu.nvlink_gb_s or ()) else None
    return frame


def _higher(one: Any, other: Any) -> Any:
    """Return the higher of two figures, or of two pairs by their sum; None is unknown."""
    known = [x for x in (one, other) if x is not None]
    return max(known, key=lambda x: sum(x) if isinstance(x, tuple) else x, default=None)


def _node_of_sample(sample: Mapping[str, Any], before: Mapping[str, Any] | None, job: str) -> Node:
    seconds = sample["t"] - before["t"] if before else 0.0
    node = Node(time=float(sample["t"]), activity=job)
    for uuid, gauges in sample["gpus"].items():
        now = {name: value for name, value in gauges.items() if is_number(value)}
        previous = before["gpus"].get(uuid) if before else None
        previous_totals = [(previous or {}).get(k) for k in ("nvlink_tx", "nvlink_rx")]
        totals = [now.get(k) for k in ("nvlink_tx", "nvlink_rx")]
        reasons, memory = int(now.get("reasons") or 0), now.get("mem_mib")
        node.gpus[uuid] = Gpu(
            util=now.get("util"), temp_c=now.get("temp_c"), power_w=now.get("power_w"),
            sm_mhz=now.get("sm_mhz"), mem_gib=None if memory is None else memory / 1024,
            nvlink_gb_s=_rates(previous_totals, totals, seconds),
            slowed_by=next((name for bits, name in SLOWDOWN_REASONS if reasons & bits), ""),
        )  # fmt: skip
    if before and sample.get("nics"):
        both = [
            (before["nics"][n], now) for n, now in sample["nics"].items() if n in before["nics"]
        ]
        sums = [[sum(pair[side][way] for pair in both) for way in (0, 1)] for side in (0, 1)]
        node.nics_gb_s = _rates(sums[0], sums[1], seconds)
    if before and sample.get("cpu"):
        busy, total = (sample["cpu"][k] - before["cpu"][k] for k in (0, 1))
        node.cpu_percent = 100 * busy / total if total > 0 else None
    return node


def _rates(then: list[Any], now: list[Any], seconds: float) -> tuple[float, float] | None:
    """Return GB/s out and in from totals in bytes; None where one is missing or was reset."""
    if seconds <= 0 or None in then or None in now:
        return None
    out, into = ((b - a) / seconds / 1e9 for a, b in zip(then, now, strict=True))
    return (out, into) if out >= 0 and into >= 0 else None


def frames_of_records(directory: RunDirectory) -> Iterator[Frame]:
    """Yield a frame for each node and workload, from the means in the records that count.

    For runs whose telemetry files were not kept.
    """
    frame: Frame = {}
    samples = RunReader.of(directory).gather(_summaries)
    for _, name, node in sorted(samples, key=lambda f: f[:2]):
        frame[name] = node
        yield dict(frame)


def _summaries(record: Record) -> Iterator[tuple[float, str, Node]]:
    """Yield time, name and means of each node of a record."""
    for rank in record.ranks:
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            if summary := rank.facts.get("telemetry"):
                yield rank.end, rank.node, _node_of_summary(summary, rank.end, record.workload)


def _node_of_summary(summary: Mapping[str, Any], when: float, workload: str) -> Node:
    def mean(values: Mapping[str, Any], name: str) -> float | None:
        return float(values[name]["mean"]) if name in values else None

    node = Node(time=when, cpu_percent=summary.get("cpu_percent"), activity=f"{workload} (mean)")
    for uuid, gpu in summary["gpus"].items():
        memory = mean(gpu, "mem_mib")
        links = "nvlink_tx_gb_s" in gpu and "nvlink_rx_gb_s" in gpu
        shares = (("thermal_percent", "thermal"), ("power_cap_percent", "power cap"))
        node.gpus[uuid] = Gpu(
            util=mean(gpu, "util"), temp_c=mean(gpu, "temp_c"), power_w=mean(gpu, "power_w"),
            sm_mhz=mean(gpu, "sm_mhz"), mem_gib=None if memory is None else memory / 1024,
            nvlink_gb_s=(gpu["nvlink_tx_gb_s"], gpu["nvlink_rx_gb_s"]) if links else None,
            slowed_by=", ".join(f"{name} {gpu[k]:.0f} %" for k, name in shares if gpu.get(k)),
        )  # fmt: skip
    if nics := summary.get("nics"):
        ways = [sum(n[w] for n in nics.values()) for w in ("tx_gb_s", "rx_gb_s")]
        node.nics_gb_s = (ways[0], ways[1])
    return node


# --- output


def render(
    frame: Frame, progress: Progress | None, now: float, width: int = PIPE_COLUMNS
) -> RenderableType:
    """Return one frame to print, at most `width` characters wide.

    Names come from nodes, so they are printed as text, not markup.
    """
    rows = [
        texts
        for name, node in sorted(frame.items())
        for texts in _rows(name, node, ended=progress is not None and now - node.time > STALE_S)
    ]
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    columns = _fitting_columns(rows, width)
    for column in columns:
        left = column in ("node", "GPU", "UUID", "")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    for texts in rows:
        table.add_row(*texts[: len(columns)])
    parts: list[RenderableType] = []
    if progress is not None:
        run_id = progress.run.get("id", progress.directory.root.name)
        parts += [Text(f"run {run_id} {progress.verdict}".strip(), "bold")]
        parts += [render_progress(progress, now), Text("")]
    if any(node.activity == HIGHEST for node in frame.values()):
        parts += [Text(HIGHEST)]
    parts += [table] if frame else [Text("no telemetry yet")]
    parts += [Text(line, "yellow") for line in silent_nodes(frame, progress, now)]
    return Group(*parts)


def silent_nodes(frame: Frame, progress: Progress | None, now: float) -> Iterator[str]:
    """Yield the nodes of the run of which there is no sample, or none any more: news, no fault."""
    population = (progress.run.get("population") if progress is not None else None) or {}
    expected = [str(node) for node in population.get("nodes") or ()]
    if absent := [node for node in expected if node not in frame]:
        yield f"no sample of {abbreviated(absent)}"
    if progress is not None and not (progress.verdict or progress.run.get("ended")):
        for node in expected:
            if node in frame and now - frame[node].time > SILENT_S:
                minutes = (now - frame[node].time) / 60
                yield f"no sample of {node} for {minutes:.0f} min"


def _fitting_columns(rows: Sequence[Sequence[Text]], width: int) -> Sequence[str]:
    """Return as many of COLUMNS as fit beside each other."""
    used = 0
    for k, column in enumerate(COLUMNS):
        cells = [len(line) for line in column.split("\n")]
        cells += [row[k].cell_len for row in rows]
        used += max(cells) + (2 if k else 0)
        if used > width and k >= KEPT_COLUMNS:
            return COLUMNS[:k]
    return COLUMNS


def _rows(name: str, node: Node, *, ended: bool) -> Iterator[list[Text]]:
    nics = _format_rates(node.nics_gb_s)
    activity = "" if node.activity == HIGHEST else f"{node.activity}{', ended' if ended else ''}"
    if not node.gpus:
        cells = (name, "CPU", _bar(node.cpu_percent), "", "", "", "", activity, "", nics, "")
        yield [text if isinstance(text, Text) else Text(text) for text in cells]
    for k, (uuid, gpu) in enumerate(node.gpus.items()):
        first = k == 0
        yield [
            Text(name),
            Text(str(k)),
            _bar(gpu.util),
            Text(_format_number(gpu.mem_gib)),
            Text(_format_number(gpu.temp_c), "red" if (gpu.temp_c or 0.0) >= HOT_C else ""),
            *(Text(_format_number(v)) for v in (gpu.power_w, gpu.sm_mhz)),
            Text(gpu.slowed_by, "yellow") if gpu.slowed_by else Text(activity if first else ""),
            Text(_format_rates(gpu.nvlink_gb_s)),
            Text(nics if first else ""),
            Text(uuid.removeprefix("GPU-")[:8]),
        ]


def _bar(percent: float | None) -> Text:
    """Return a utilisation as a bar and a number, coloured by load."""
    if percent is None:
        return Text(UNKNOWN)
    full = round(BAR * min(max(percent, 0.0), 100.0) / 100)
    colour = "green" if percent >= 80 else "yellow" if percent >= 20 else "dim"
    return Text.assemble(("█" * full + "·" * (BAR - full), colour), f" {percent:3.0f}")


def _format_number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


def _format_rates(rates: tuple[float, float] | None) -> str:
    return UNKNOWN if rates is None else f"{rates[0]:.1f}/{rates[1]:.1f}"
