"""Load the plug-in modules; pytest reads `pytest_plugins` from the top-level conftest.py only."""

import importlib.util
import sys

if absent := [
    name
    for name in ("ClusterShell", "psutil", "pydantic", "submitit", "yaml")
    if importlib.util.find_spec(name) is None
]:
    # Usually another interpreter's pytest, first on the PATH: one line says more than a traceback.
    print(
        f"ERROR: {sys.executable} lacks {', '.join(absent)}: start .venv/bin/pytest (`make setup` "
        "makes it), or install this project into that interpreter",
        file=sys.stderr,
    )
    raise SystemExit(4)

pytest_plugins = [
    "fixtures.plugin.options",
    "fixtures.plugin.collection",
    "fixtures.plugin.budget",
    "fixtures.plugin.session",
    "fixtures.plugin.reporting",
    "fixtures.plugin.verdict_fixture",
    "fixtures.plugin.calibration",
    "reports.plugin",
    "reports.live",
]
