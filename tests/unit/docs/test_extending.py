"""docs/extending.md is true: its examples apply together, and one rehearsal shows each of them at work."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import beside
from tests.unit.session.conftest import ROOT, Project

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
#: Heading → diff.
EXAMPLES = dict(re.findall(r"^## (.+)\n(?:(?!##).*\n)*?```diff\n((?:.*\n)*?)```$", PAGE, re.MULTILINE))
TP1, TP2, PYTORCH = "turbomind-tp1-fp16-kv8", "turbomind-tp2-fp16-nccl-p2p_on-kv8", "pytorch-tp1-fp16-kv8"


class Extended(Project):
    """A copy of the suite with all examples in it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(folder, environment)
        for name in ("fixtures", "tests/rehearsal"):  # with what is compiled already
            shutil.copytree(ROOT / name, folder / name)
        for heading, diff in EXAMPLES.items():
            apply = subprocess.run(["git", "apply"], cwd=folder, input=diff, text=True, capture_output=True)
            assert apply.returncode == 0, f"docs/extending.md, {heading}: {apply.stderr}"


def test_every_part_has_an_example() -> None:
    assert list(EXAMPLES) == re.findall(r"^## (.+)$", PAGE, re.MULTILINE)


@beside(Extended)
def test_the_examples_work(project):
    """An old lmdeploy where the governor saves power, a fault on two GPUs, a kv8 axis, a longer session, a scatter."""
    node = (project.folder / "fixtures/rehearsal/nodes/l4x2.toml").read_text()
    (project.folder / "saving.toml").write_text(f'{node}\n[host]\ngovernor = "powersave"\n')
    where = ("--rehearse", "--node=saving.toml", "--fault=negated-share")
    matrix = ("--precision=fp16", "--communicator=nccl", "--p2p=p2p_on", "--kv-bits=8", "--session-len=4096")
    scatter = "scatter and not reduce_scatter and process_per_gpu and p2p_on"
    tests = ("tests/multigpu", "-k", f"governor or founding_request or usage_adds_up or {scatter}")
    code, output = project.run(*tests, *where, *matrix)
    assert code == 1, output
    report = json.loads(project.report_json.read_text())
    assert [(found["check"], found["level"]) for found in report["preflight"]] == [("governor", "warning")]
    assert [(group["operation"], group["status"]) for group in report["groups"]] == [("scatter", "pass")]
    found = {(test["check"], test["configuration"]): test["outcome"] for test in report["tests"]}
    assert found[("usage_adds_up", TP1)] == found[("founding_request", TP1)] == "passed"
    assert found[("founding_request", TP2)] == "failed"
    assert "differs at token 0: expected 'n0'" in output
    assert "--session-len 4096 " in output
    assert "--quant-policy 8" in output
    configurations = {entry["id"]: entry for entry in report["configurations"]}
    assert {entry["kv_bits"] for entry in configurations.values()} == {8}
    assert configurations[PYTORCH]["reason"] == "lmdeploy 0.6.0 has no --quant-policy for pytorch"
