"""Whole rehearsals: --lf, workers, a kept server."""

from __future__ import annotations

import html
import re
import shlex

import httpx
import psutil

from tests.conftest import beside
from tests.unit.session.conftest import ONE, Project

FAILS_ONCE = """
@pytest.mark.parametrize("number", [1, 2])
def test_answers(api_server, number):
    assert number == 1 or os.path.exists("mended")
"""

#: While it has a server, this test looks for any other of the same run on the same GPU.
ALONE = """
def servers(folder):
    found = {}
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            continue
        if environment.get("REHEARSAL_LEDGER") == folder and "LMDEPLOY_SUITE_SERVER" in environment:
            found[environment["LMDEPLOY_SUITE_SERVER"]] = environment["CUDA_VISIBLE_DEVICES"]
    return found

@pytest.mark.parametrize("number", range(3))
def test_alone(api_server, client, number):
    environment = psutil.Process(api_server.pid).environ()
    for _ in range(3):
        client.canary()
        gpus = list(servers(environment["REHEARSAL_LEDGER"]).values())
        assert gpus.count(environment["CUDA_VISIBLE_DEVICES"]) == 1, gpus
"""


@beside(Project)
def test_last_failed(project):
    """After a failed rehearsal --lf runs what failed and nothing else, without -m; workers change no names."""
    project.multigpu(FAILS_ONCE)
    code, output = project.run(*ONE, "-m", "multigpu", "-n", "2")
    assert code == 1, output
    assert "1 failed, 1 passed" in output
    (project.folder / "mended").touch()
    code, output = project.run(*ONE, "--lf", "-v")
    assert code == 0, output
    assert set(re.findall(r"tests/multigpu/\S+::\S+", output)) == {
        "tests/multigpu/test_here.py::test_answers[turbomind-tp1-fp16-2]"
    }
    assert "1 passed" in output
    assert not project.processes()


@beside(Project)
def test_a_failed_pair_can_be_repeated(project):
    """By the line that its report ends with, which has the run's options; --junitxml has that and the evidence."""
    options = ["--rehearse", "--gpus=3,2,1", "--fault", "pair-wrong-zeros", "--pair-timeout=20"]
    selected = ["-k", "GPU1 and GPU2 and p2p_on", "tests/multigpu/test_pairs.py"]
    code, output = project.run(*options, "-n", "1", "--junitxml=junit.xml", *selected)
    assert code == 1, output
    nodeid = "tests/multigpu/test_pairs.py::test_all_reduce[GPU2-GPU1-PHB-p2p_on]"
    again = [*options, nodeid]
    assert f"\npytest {shlex.join(again)}\n" in output
    text = (project.folder / "junit.xml").read_text()
    assert f"pytest {shlex.join(again)}" in html.unescape(text)
    assert "GPU2: all_reduce int32 4 B, iteration 2: " in text
    code, output = project.run(*again)
    assert code == 1, output
    assert "1 failed" in output


@beside(Project)
def test_workers(project):
    """A configuration stays on one worker, and two of them that want the same GPU take turns."""
    project.multigpu(ALONE)
    code, output = project.run("--rehearse", "--tp=1", "--gpus=0", "-m", "multigpu", "-n", "2", "-v")
    assert code == 0, output
    assert "9 passed" in output
    workers: dict[str, set[str]] = {}
    for worker, configuration in re.findall(r"^\[(gw\d)\].* PASSED .*\[(.*tp1-\w+)-\d\]", output, re.MULTILINE):
        workers.setdefault(configuration, set()).add(worker)
    assert list(map(len, workers.values())) == [1, 1, 1]
    assert len(set.union(*workers.values())) == 2
    assert not project.processes()


@beside(Project)
def test_kept_server(project):
    """--keep-server leaves one server that answers, and says how to end it; then nothing is left."""
    code, output = project.run(*ONE, "--keep-server", "-k", "three_canaries", "tests/multigpu")
    assert code == 0, output
    [(configuration, url, pids)] = re.findall(
        r"^(\S+) is kept: (http\S+), log .*; end it with: kill (.+)$", output, re.M
    )
    assert configuration == "turbomind-tp1-fp16"
    [server] = project.servers().values()
    assert {int(pid) for pid in pids.split()} <= {process.pid for process in server}
    assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 200
    left = project.processes()
    for pid in pids.split():
        psutil.Process(int(pid)).terminate()
    assert psutil.wait_procs(left, timeout=20)[1] == []
