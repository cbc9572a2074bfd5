"""`pip install -e .` brings the dependencies only: no package of the suite's into anyone's environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

from tests.unit.session.conftest import ROOT


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The interpreter of an environment into which a copy of the suite was installed."""
    pytest.importorskip("setuptools")  # the build backend; taken from here so that nothing is downloaded
    pytest.importorskip("pip")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "conftest.py"):
        shutil.copy(ROOT / name, source)
    for package in ("fixtures", "tests"):  # named as what setuptools would find by itself
        (source / package).mkdir()
        (source / package / "__init__.py").touch()
    venv.create(tmp_path / "environment", with_pip=False)
    python = tmp_path / "environment" / "bin" / "python"
    import pip

    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-e", source],
        env={**os.environ, "PYTHONPATH": str(Path(pip.__file__).parents[1]), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=True,
        timeout=120,
    )
    return python


def test_installing_brings_dependencies_only(environment, tmp_path):
    script = """
import importlib.util, importlib.metadata as metadata
found = metadata.distribution("lmdeploy-multigpu")
print(",".join(name for name in ("fixtures", "tests", "conftest") if importlib.util.find_spec(name)) or "none")
print(*found.requires, sep="\\n")
"""
    result = subprocess.run([environment, "-c", script], cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True)
    packages, *requirements = result.stdout.splitlines()
    assert packages == "none"
    needed = {re.match(r"[\w-]+", line)[0] for line in requirements if "extra ==" not in line}
    assert {"pytest", "pytest-xdist", "torch", "numpy"} <= needed
    assert "lmdeploy" not in needed
