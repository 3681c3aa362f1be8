"""What people read of a run, made of its directory alone."""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("numpy") is None:
    # Before any module of the suite is imported, each of which would end in a traceback.
    _there = Path(__file__).resolve().parents[1] / ".venv" / "bin"
    print(
        f"{sys.executable} lacks the suite's packages: `. {_there}/activate` first, or call "
        f"{_there}/python (`make setup` makes it)",
        file=sys.stderr,
    )
    sys.exit(4)
