"""Load the plug-in modules where the installed plug-in (fixtures/plugin/start.py) has not."""

import os
import sys

from fixtures.plugin import PLUGINS, unfit
from fixtures.plugin.option_list import path_options

installed = sys.modules.get("gpu_cluster_acceptance")
if reason := unfit():
    print(f"ERROR: {reason}", file=sys.stderr)
    raise SystemExit(4)
if not getattr(installed, "loaded", False) and "PYTEST_XDIST_WORKER" not in os.environ:
    # pytest has taken what follows such an option for a place of tests.
    separate = sorted(path_options() & {*sys.argv})
    print(
        f"{'ERROR' if separate else 'note'}: the pytest of {sys.executable} has not this suite's "
        f"plug-in{', which ' + separate[0] + ' needs' if separate else ''}: start "
        ".venv/bin/pytest (`make setup` makes it)",
        file=sys.stderr,
    )
    if separate:
        raise SystemExit(4)

pytest_plugins = list(PLUGINS)  # pytest registers none of them twice
