"""Lists the plugins; everything else lives in fixtures/."""

pytest_plugins = [
    "fixtures.session.options",
    "fixtures.session.run_plugin",
    "fixtures.session.server_plugin",
    "fixtures.session.assertion_plugin",
    "fixtures.session.fabric_plugin",
    "fixtures.verdict.report_hook",
    "fixtures.session.preflight_plugin",
    "fixtures.session.report_plugin",
]
