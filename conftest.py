"""Lists the plugins; everything else lives in fixtures/."""

pytest_plugins = [
    "fixtures.options",
    "fixtures.plugin",
    "fixtures.report.plugin",
]
