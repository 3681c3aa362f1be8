"""Whether a GPU's memory is cleared between processes, and whether the search would see it if not.

python -m tests.tools.tenant_memory_check [--gpus N] [--json FILE]

For each GPU, with the programs of the workloads `tenant_marks` and `tenant`:

* control: one process fills nearly all memory and counts the words in it, without giving it back:
  all of them must be found, else the search proves nothing;
* the same process gives it back to the driver and asks for it again: recorded;
* one process fills half and ends, another fills the rest and is killed, a third one searches.

About 20 s per GPU. Exit status 0 where the control found all words.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from fixtures.workloads.tenant.tenant_marks import ENDS, memory_process, words
from fixtures.workloads.tenant.tenant_memory import WORD, GpuMemory


def between_processes(index: int) -> dict[str, Any]:
    """Fill memory by two processes that go in two ways, and search it in a third one."""
    own = words(secrets.token_hex(16))
    device = {"device": "cuda", "index": index}
    begun, filled = time.perf_counter(), 0
    with memory_process() as ends, memory_process() as is_killed:
        for child, word, part in ((ends, own[0], 0.5), (is_killed, own[1], 1.0)):
            asked = {"do": "fill", "words": [word], "part": part}
            filled += int(child.ask(device | asked)["bytes"])
        is_killed.kill()
        ends.end()
    between = time.perf_counter()
    with memory_process() as child:
        answer = child.ask(device | {"do": "search", "words": own})
        child.end()
    return {
        "filled": filled / answer["total"],
        "searched": answer["bytes"] / answer["total"],
        "words": dict(zip(ENDS, answer["found"], strict=True)),
        "not_zero": answer["not_zero"],
        "fill_s": round(between - begun, 1),
        "search_s": round(time.perf_counter() - between, 1),
    }


def within_one_process(index: int) -> dict[str, Any]:
    """Count the words of memory that is still held, and of the same memory asked for anew."""
    import torch

    word, _ = words(secrets.token_hex(16))
    memory = GpuMemory(index)
    size = memory.fill(word, 1.0)
    begun = time.perf_counter()
    ((held,), _) = memory.count([word])
    took = time.perf_counter() - begun
    memory.release()
    _, (again,), not_zero = memory.search([word])
    memory.release()
    torch.cuda.synchronize(index)
    return {
        "words": size // WORD, "held": held, "asked_again": again, "not_zero": not_zero,
        "count_s": round(took, 2),
    }  # fmt: skip


def main() -> None:
    """Print one line per GPU, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, help="how many GPUs (all)")
    parser.add_argument("--json", type=Path, help="where to write the result")
    options = parser.parse_args()
    import torch

    found, complete = [], True
    for index in range(options.gpus or torch.cuda.device_count()):
        # First, while this process has no context on the GPU yet.
        between = between_processes(index)
        within = within_one_process(index)
        complete = complete and within["held"] == within["words"] > 0
        found.append({"gpu": index, "between_processes": between, "within_one_process": within})
        sys.stdout.write(json.dumps(found[-1]) + "\n")
        sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if complete and found else 1)


if __name__ == "__main__":
    main()
