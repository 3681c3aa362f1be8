"""Does patrol find a GPU that lost 3 %, and no other? Visits of this host beside a neighbour.

python -m tests.tools.patrol_gpu --certificate RUN [--healthy 3] [--visits 10] [--launches 2]
[--out DIR] [--json FILE]

RUN is a run that measured the GPUs of this host. Visits are the command of `python -m
fixtures.patrol`, one after another, without Slurm: first with the GPUs left alone, then with a
process on GPU 0 that computes 1.6 ms times LAUNCHES of every 0.1 s, until GPU 0 is accused.
`python -m reports patrol` judges after every visit. A visit takes about 25 s. Exit status 0 where
nobody was accused before, GPU 0 was within VISITS, and no other GPU was.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fixtures.patrol.visits import DONE, FAILED, values_of, visit_command
from fixtures.records.files import append_line, read_json
from tests.tools.bench import machine, save
from tests.tools.gpus import gpus_here, neighbour
from tests.tools.soak_gpu import NEIGHBOUR


def main(arguments: list[str] | None = None) -> int:
    """Visit, judge, and print where every GPU stands after each visit."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.patrol_gpu", description=__doc__)
    parser.add_argument("--certificate", type=Path, required=True, metavar="RUN")
    parser.add_argument("--healthy", type=int, default=3, help="visits without the neighbour")
    parser.add_argument("--visits", type=int, default=10, help="at most, beside the neighbour")
    parser.add_argument("--launches", type=int, default=2, help="products of 8192 cubed in 0.1 s")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the state of the patrol here")
    parser.add_argument("--cpu", action="store_true", help="without GPUs: healthy visits only")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    state = (options.out or Path(tempfile.mkdtemp(prefix="patrol-gpu-"))).absolute()
    state.mkdir(parents=True, exist_ok=True)
    series: list[dict[str, Any]] = []
    for number in range(options.healthy):
        series.append(visited(state, options, number, beside=False))
    accused_before = sorted({gpu for visit in series for gpu in visit["accused"]})
    named: list[int] = []
    if not options.cpu:
        with neighbour(NEIGHBOUR, options.launches):
            for number in range(options.visits):
                series.append(visited(state, options, options.healthy + number, beside=True))
                if named := series[-1]["accused"]:
                    break
    save("patrol-gpu", series, machine(), options.json)
    beside = sum(visit["neighbour"] for visit in series)
    print(f"left alone: {options.healthy} visits, accused {accused_before or 'nobody'}; "
          f"beside the neighbour: accused {named or 'nobody'} after {beside} visits")  # fmt: skip
    return 0 if not accused_before and (options.cpu or named == [0]) else 1


def visited(
    state: Path, options: argparse.Namespace, number: int, *, beside: bool
) -> dict[str, Any]:
    """Visit this host once, judge, and return where its GPUs stand."""
    start, node = time.time(), os.uname().nodename
    directory = state / "visits" / str(number)
    directory.mkdir(parents=True)
    done = subprocess.run(
        visit_command(directory, 1 if options.cpu else gpus_here(), cpu=options.cpu),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    values = values_of(directory / "run") if done.returncode == 0 else []
    append_line(
        state / "visits.jsonl",
        {
            "node": node, "job": str(number), "start": start, "end": time.time(),
            "outcome": DONE if values else FAILED, "values": values,
        },
    )  # fmt: skip
    if not values:
        raise SystemExit(f"visit {number} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    command = [sys.executable, "-m", "reports", "patrol", str(state),
               "--certificate", str(options.certificate)]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode > 1:  # 1 is "somebody is accused"
        raise SystemExit(f"{' '.join(command)}:\n{said.stdout[-1000:]}{said.stderr[-2000:]}")
    gpus = [g for g in read_json(state / "status.json")["gpus"] if g["certified"]]
    shown = "; ".join(
        f"gpu{g['gpu']} {g['metric']} {100 * (g['last'] / g['certified'] - 1):+.2f} %, "
        f"sum {100 * g['sum'] / g['limit']:.0f} %"
        for g in gpus
    )
    accused = sorted({g["gpu"] for g in gpus if g["accused"]})
    seconds = time.time() - start
    print(f"visit {number}{' beside the neighbour' if beside else ''}: {seconds:.0f} s; {shown}; "
          f"accused {accused or 'nobody'}", flush=True)  # fmt: skip
    if not gpus:
        raise SystemExit(f"{options.certificate} did not measure these GPUs: {json.dumps(values)}")
    return {"neighbour": beside, "seconds": seconds, "gpus": gpus, "accused": accused}


if __name__ == "__main__":
    sys.exit(main())
