"""Load the plug-in modules where the installed plug-in (fixtures/plugin/start.py) has not."""

import os
import sys

from fixtures.plugin import PLUGINS, unfit
from fixtures.plugin.option_list import path_options

if reason := unfit():
    print(f"ERROR: {reason}", file=sys.stderr)
    raise SystemExit(4)

pytest_plugins = list(PLUGINS)  # pytest registers none of them twice

if not getattr(sys.modules.get("gpu_cluster_acceptance"), "loaded", False):
    lacks = f"the pytest of {sys.executable} lacks this suite's plug-in"
    start = "start .venv/bin/pytest (`make setup` makes it)"
    # pytest has taken what follows such an option for a place of tests.
    if separate := sorted(path_options() & {*sys.argv}):
        print(f"ERROR: {lacks}, which {separate[0]} needs: {start}", file=sys.stderr)
        raise SystemExit(4)

    def pytest_sessionstart(session):
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and "PYTEST_XDIST_WORKER" not in os.environ:
            reporter.write_line(f"note: {lacks}: {start}")
