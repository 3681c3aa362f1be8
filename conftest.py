"""What must be at the top: the plug-in modules. Each does one thing and says so."""

pytest_plugins = [
    "fixtures.options",
    "fixtures.collection",
    "fixtures.budget",
    "fixtures.session",
    "fixtures.measurements",
    "fixtures.calibration",
    "reports.plugin",
    "reports.live",
]
