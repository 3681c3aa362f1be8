"""The diagrams of a run, of a node and, for users, of an acceptance, made from the tables below.

python -m tests.tools.diagrams            say which committed diagrams differ from the tables
python -m tests.tools.diagrams --write    write them anew in docs/images

Each box names the file of the suite that makes it and a word of that file, and
tests/selftests/tools/test_diagrams.py holds that both are there. A box with a note shows the note
instead of the file. A diagram is a grid of columns and rows;
an arrow goes from the side of one box to the facing side of the other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGES = CHECKOUT / "docs" / "images"

BOX_W, BOX_H, GAP_X, GAP_Y, MARGIN, HEADING = 240, 50, 60, 26, 20, 34
FILLS = {"code": "#eef3f8", "file": "#f6f1e6", "other": "#eeeeee"}
"""Colors of a box by its kind: a part of the suite, a file, something that is not ours."""


@dataclass(frozen=True)
class Box:
    """One part of a diagram."""

    title: str
    column: int
    row: int
    source: str
    """File of the suite, from the top of the checkout, that holds or writes it."""
    word: str
    """What of that file shows it: a function, a class, a file name."""
    kind: str = "code"
    note: str = ""
    """Shown below the title instead of the source: for users, who do not look for files."""


@dataclass(frozen=True)
class Diagram:
    """Columns of boxes, and arrows between them."""

    name: str
    title: str
    columns: Sequence[str]
    boxes: Sequence[Box]
    arrows: Sequence[tuple[str, str]]
    """(title of a box, title of the box that gets something from it)"""
    page: str = "docs/architecture.md"
    """The page that shows it, from the top of the checkout."""

    @property
    def path(self) -> Path:
        return IMAGES / f"{self.name}.svg"


RUN = Diagram(
    name="run",
    title="The way of a run: from thresholds.yaml to the certificate",
    columns=("login node", "Slurm", "shared filesystem", "compute nodes"),
    boxes=(
        Box("thresholds.yaml", 0, 0, "fixtures/paths.py", "thresholds.yaml", "file"),
        Box("plan: items and jobs", 0, 1, "fixtures/plan/jobs.py", "def jobs_for("),
        Box("submission queue", 0, 2, "fixtures/jobs/submission_queue.py", "class SubmissionQueue"),
        Box("spec.json of each job", 2, 1, "fixtures/jobs/submitter.py", '"spec.json"', "file"),
        Box("sbatch", 1, 2, "fixtures/jobs/launcher.py", "submitit", "other"),
        Box("entry: the workloads of a job", 3, 2, "fixtures/entry.py", "def run("),
        Box("squeue and sacct", 1, 3, "fixtures/jobs/watcher.py", "sacct", "other"),
        Box("watcher", 0, 3, "fixtures/jobs/watcher.py", "class SlurmWatcher"),
        Box("ranks", 3, 4, "fixtures/workloads/runtime/rank_main.py", "def run_spec("),
        Box("lines of each rank", 2, 4, "fixtures/jobs/submitter.py", 'rank{k}.jsonl"', "file"),
        Box("collector", 0, 4, "fixtures/jobs/collector.py", "class ResultCollector"),
        Box("records", 2, 5, "fixtures/records/run_directory.py", "def record(", "file"),
        Box("judge", 0, 5, "fixtures/verdict/judge.py", "def judge("),
        Box("ledger", 2, 6, "fixtures/records/run_directory.py", '"ledger.jsonl"', "file"),
        Box("conclusion", 0, 6, "fixtures/run/run.py", "def finish("),
        Box("verdict and manifest", 2, 7, "fixtures/records/run_directory.py", "manifest", "file"),
        Box("reports", 0, 7, "reports/console/plugin.py", "def pytest_"),
        Box(
            "report and certificate",
            2,
            8,
            "reports/pages/certificate.py",
            "certificate.html",
            "file",
        ),
    ),
    arrows=(
        ("thresholds.yaml", "plan: items and jobs"),
        ("plan: items and jobs", "submission queue"),
        ("plan: items and jobs", "spec.json of each job"),
        ("submission queue", "sbatch"),
        ("sbatch", "entry: the workloads of a job"),
        ("spec.json of each job", "entry: the workloads of a job"),
        ("entry: the workloads of a job", "ranks"),
        ("squeue and sacct", "watcher"),
        ("watcher", "collector"),
        ("ranks", "lines of each rank"),
        ("lines of each rank", "collector"),
        ("collector", "records"),
        ("records", "judge"),
        ("judge", "ledger"),
        ("ledger", "conclusion"),
        ("conclusion", "verdict and manifest"),
        ("verdict and manifest", "reports"),
        ("reports", "report and certificate"),
    ),
)

_RANK_MAIN = "fixtures/workloads/runtime/rank_main.py"
_TELEMETRY = "fixtures/workloads/telemetry/telemetry.py"
NODE = Diagram(
    name="node",
    title="A compute node during a job: one rank per GPU, and the node's telemetry",
    columns=("processes of the node", "within a rank", "job's directory (shared)"),
    boxes=(
        Box("slurmstepd", 0, 0, "fixtures/jobs/launcher.py", "slurm", "other"),
        Box("rank of GPU 0 (leads the node)", 0, 1, _RANK_MAIN, "leads_node"),
        Box("telemetry: GPUs, NICs, CPUs", 0, 3, _TELEMETRY, "PERIOD_S"),
        Box("rank of each other GPU: alike", 0, 4, _RANK_MAIN, "def run_spec("),
        Box("cores near the GPU", 1, 0, "fixtures/workloads/devices/core_binding.py", "near"),
        Box("workloads, in turn", 1, 1, _RANK_MAIN, "def _run_one("),
        Box("watchdog: deadline, stacks", 1, 2, "fixtures/workloads/runtime/watchdog.py", "class"),
        Box("spec.json", 2, 0, "fixtures/jobs/submitter.py", '"spec.json"', "file"),
        Box("rank<k>.jsonl", 2, 1, "fixtures/jobs/submitter.py", "rank{k}.jsonl", "file"),
        Box("rank<k>.stacks", 2, 2, _RANK_MAIN, ".stacks", "file"),
        Box("telemetry-<node>.jsonl", 2, 3, _TELEMETRY, "telemetry-{node}.jsonl", "file"),
    ),
    arrows=(
        ("slurmstepd", "rank of GPU 0 (leads the node)"),
        ("rank of GPU 0 (leads the node)", "cores near the GPU"),
        ("rank of GPU 0 (leads the node)", "workloads, in turn"),
        ("rank of GPU 0 (leads the node)", "watchdog: deadline, stacks"),
        ("rank of GPU 0 (leads the node)", "telemetry: GPUs, NICs, CPUs"),
        ("spec.json", "workloads, in turn"),
        ("workloads, in turn", "rank<k>.jsonl"),
        ("watchdog: deadline, stacks", "rank<k>.stacks"),
        ("telemetry: GPUs, NICs, CPUs", "telemetry-<node>.jsonl"),
    ),
)
ACCEPTANCE = Diagram(
    name="acceptance",
    title="An acceptance: from the order to the signature",
    columns=("1. agree", "2. measure", "3. judge and sign"),
    boxes=(
        Box("Order", 0, 0, "fixtures/thresholds/contract.py", "class Contract", "file",
            "nodes, GPU model, agreed limits"),
        Box("Plan", 0, 1, "fixtures/plan/jobs.py", "def jobs_for(", "code",
            "jobs, minutes and GPU-hours"),
        Box("Slurm jobs", 1, 0, "fixtures/jobs/launcher.py", "submitit", "other",
            "each node, pairs, then all together"),
        Box("Records", 1, 1, "fixtures/records/model.py", "class Record", "file",
            "raw samples of every GPU and link"),
        Box("Judge", 2, 0, "fixtures/verdict/judge.py", "def judge(", "code",
            "a missing value is never a pass"),
        Box("Report", 2, 1, "reports/pages/page.py", "def page(", "file",
            "what failed, where, what to do next"),
        Box("Signature", 2, 2, "reports/handover/signature.py", "def sign(", "other",
            "on a certificate that was verified"),
    ),
    arrows=(
        ("Order", "Plan"), ("Plan", "Slurm jobs"), ("Slurm jobs", "Records"), ("Records", "Judge"),
        ("Judge", "Report"), ("Report", "Signature"),
    ),
    page="README.md",
)  # fmt: skip
DIAGRAMS = (RUN, NODE, ACCEPTANCE)


def picture(diagram: Diagram) -> str:
    """Return the text of the SVG picture."""
    rows = 1 + max(box.row for box in diagram.boxes)
    width = 2 * MARGIN + len(diagram.columns) * (BOX_W + GAP_X) - GAP_X
    height = 2 * MARGIN + HEADING + rows * (BOX_H + GAP_Y) - GAP_Y
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="14">',
        f"<title>{escape(diagram.title)}</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#556677"/></marker>'
        "</defs>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for k, heading in enumerate(diagram.columns):
        x = MARGIN + k * (BOX_W + GAP_X)
        lines.append(
            f'<text x="{x + BOX_W / 2:g}" y="{MARGIN + 14}" text-anchor="middle" '
            f'font-weight="bold">{escape(heading)}</text>'
        )
    boxes = {box.title: box for box in diagram.boxes}
    for start, end in diagram.arrows:
        (x, y), (to_x, to_y) = _ends(boxes[start], boxes[end])
        lines.append(
            f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="#556677" '
            'marker-end="url(#arrow)"/>'
        )
    for box in diagram.boxes:
        x, y = _corner(box)
        lines.append(
            f'<rect x="{x}" y="{y}" width="{BOX_W}" height="{BOX_H}" rx="4" '
            f'fill="{FILLS[box.kind]}" stroke="#445566"/>'
            f'<text x="{x + BOX_W / 2:g}" y="{y + 21}" text-anchor="middle">'
            f"{escape(box.title)}</text>"
            f'<text x="{x + BOX_W / 2:g}" y="{y + 39}" text-anchor="middle" font-size="11" '
            f'fill="#445566">{escape(shown_source(box))}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def shown_source(box: Box) -> str:
    """Return the second line of a box; fixtures/workloads/ is left out where it does not fit."""
    if box.note:
        return box.note
    return box.source.replace("fixtures/workloads/", "") if len(box.source) > 38 else box.source


def _corner(box: Box) -> tuple[int, int]:
    return MARGIN + box.column * (BOX_W + GAP_X), MARGIN + HEADING + box.row * (BOX_H + GAP_Y)


def _ends(start: Box, end: Box) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return where an arrow begins and ends, on the facing sides of two boxes."""
    (x, y), (to_x, to_y) = _corner(start), _corner(end)
    middle, to_middle = y + BOX_H / 2, to_y + BOX_H / 2
    if start.column < end.column:
        return (x + BOX_W, middle), (to_x, to_middle)
    if start.column > end.column:
        return (x, middle), (to_x + BOX_W, to_middle)
    return (x + BOX_W / 2, y + BOX_H), (to_x + BOX_W / 2, to_y)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.diagrams")
    parser.add_argument("--write", action="store_true", help="write the diagrams anew")
    options = parser.parse_args()
    status = 0
    for diagram in DIAGRAMS:
        if options.write:
            diagram.path.write_text(picture(diagram), encoding="utf-8")
        elif diagram.path.read_text(encoding="utf-8") != picture(diagram):
            print(f"{diagram.path.relative_to(CHECKOUT)} is out of date: --write makes it anew")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
