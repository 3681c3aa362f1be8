"""One node of a large fleet back to service: `python -m tests.tools.bench_recertify`.

In a light sandbox the whole fleet is probed and accepted; then one node is recertified after new
firmware. Prints the wall time, the suite's own time as bench_scale counts it, and what was measured
again. Exit status 0 where both goals are met, and nothing but that node was measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox
from reports.facts import recertified
from tests.tools.bench_scale import GPUS, probe

WALL_S, OWN_S = 600.0, 20.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench_recertify",
                                     description=__doc__)  # fmt: skip
    parser.add_argument("--nodes", type=int, default=1024)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="recertify-") as folder,
        Sandbox.up(nodes=options.nodes, gpus=GPUS, light=True) as sandbox,
    ):
        accepted, again = Path(folder) / "accepted", Path(folder) / "again"
        before = probe(sandbox, accepted)
        print(f"accepted: {before.counts}, {before.wall_s:.0f} s, own {before.own_s:.1f} s")
        node = sandbox.nodes[options.nodes // 2]
        after = probe(sandbox, again, f"--recertify={accepted}", f"--nodelist={node}",
                      "--new-firmware")  # fmt: skip
        if not after.counts:
            print((again.parent / f"{again.name}.txt").read_text()[-2000:])
            return 1
        (made,) = recertified.returns(RunDirectory(again), read_json(again / "run.json"))
    places = {text.rpartition(" on ")[2] for text in made.measured}
    print(f"recertified {node}: {after.counts}, {after.wall_s:.0f} s (goal {WALL_S:.0f}), own "
          f"{after.own_s:.1f} s (goal {OWN_S:.0f}), {after.first_submission_s:.1f} s before its "
          f"first job; measured again: {', '.join(made.measured)}")  # fmt: skip
    return 0 if after.wall_s <= WALL_S and after.own_s <= OWN_S and places == {node} else 1


if __name__ == "__main__":
    sys.exit(main())
