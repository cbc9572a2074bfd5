"""Lists the plugins; everything else lives in fixtures/."""

pytest_plugins = [
    "fixtures.options",
]
