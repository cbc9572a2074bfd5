"""Lists the plugins; everything else lives in fixtures/."""

pytest_plugins: list[str] = []
