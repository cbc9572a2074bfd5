"""Lists the plugins; everything else lives in fixtures/."""

pytest_plugins = [
    "fixtures.options",
    "fixtures.plugin",
    "fixtures.api_server.plugin",
    "fixtures.known_answer.plugin",
    "fixtures.collective.plugin",
    "fixtures.collective.joint",
    "fixtures.preflight.plugin",
    "fixtures.report.plugin",
]
