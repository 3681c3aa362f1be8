"""What must be at the top: the plug-in modules. Each does one thing and says so."""

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
