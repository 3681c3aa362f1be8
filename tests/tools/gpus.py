"""What the tools for real GPUs share: how many there are, and a process that disturbs them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def gpus_here() -> int:
    """Return the number of GPUs that nvidia-smi lists; 0 where there is no nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return len(listed.stdout.splitlines())


@contextmanager
def neighbour(program: str, *arguments: object) -> Iterator[None]:
    """Run a Python program beside what is measured, from its first line of output on."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()
