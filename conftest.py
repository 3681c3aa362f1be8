"""Load the plug-in modules; pytest reads `pytest_plugins` from the top-level conftest.py only."""

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
