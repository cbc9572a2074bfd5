"""Probing real interpreters that have a small lmdeploy of the test's own making, or none, or something broken."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.api_server.command import SHARED_GPU_LAUNCHER
from fixtures.errors import BadInput
from fixtures.interpreter.probe import Lmdeploy, NoLmdeploy, probe

#: What `lmdeploy serve api_server --help` needs, with the engine's configuration where the real one has it.
CLI = """
    import argparse
    import sys

    def run():
        print("Add dll path: a library talks on standard output")
        parser = argparse.ArgumentParser(prog="lmdeploy")
        serve = parser.add_subparsers().add_parser("serve").add_subparsers()
        server = serve.add_parser("api_server")
        server.add_argument("model_path")
        server.add_argument("--backend", choices=["pytorch", "turbomind"])
        server.add_argument("--communicator", choices=["nccl", "cuda-ipc"], help="x" * 100)
        print(parser.parse_args())
"""
MESSAGES = """
    from dataclasses import dataclass
    from typing import List, Optional

    @dataclass
    class TurbomindEngineConfig:
        tp: int = 1
        devices: Optional[List[int]] = None

        def __post_init__(self):
            assert self.tp >= 1
"""
PACKAGE = {
    "__init__.py": "from .messages import TurbomindEngineConfig\nfrom .version import __version__\n",
    "__main__.py": "from .cli import run\n\nif __name__ == '__main__':\n    run()\n",
    "version.py": "__version__ = '0.99.1'\n",
    "messages.py": MESSAGES,
    "cli.py": CLI,
}


@pytest.fixture
def lmdeploy_with(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Makes a package `lmdeploy`, some of its files replaced; returns an environment in which it is found."""

    def make(**replaced: str) -> dict[str, str]:
        package = tmp_path / "site" / "lmdeploy"
        package.mkdir(parents=True)
        for name, text in (PACKAGE | {f"{name}.py": text for name, text in replaced.items()}).items():
            (package / name).write_text(textwrap.dedent(text))
        return {"PATH": os.environ["PATH"], "PYTHONPATH": str(package.parent)}

    return make


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def refusal(python: str | Path, environment: dict[str, str] | None = None, time_limit: float = 60) -> str:
    """The one line of a refused interpreter."""
    with pytest.raises(BadInput) as refused:
        probe(python, environment, time_limit)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_working_one_is_described(lmdeploy_with: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    found = probe(sys.executable, lmdeploy_with() | {"COLUMNS": "20", "FORCE_COLOR": "1"})
    assert found.python == sys.executable
    assert found.version == "0.99.1"
    assert found.folder == str(tmp_path / "site" / "lmdeploy")
    assert found.python_version == ".".join(map(str, sys.version_info[:3]))
    assert set(found.flags.sections) == {"--help", "--backend", "--communicator"}
    assert found.flags.choices("--communicator") == ("nccl", "cuda-ipc")
    assert found.turbomind_fields == {"tp", "devices"}


def test_versions_come_from_the_torch_that_it_loads(
    lmdeploy_with: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    environment = lmdeploy_with(__init__="import torch\n")
    (tmp_path / "site" / "torch.py").write_text(
        "class version: cuda = '12.1'\nclass cuda:\n class nccl: version = staticmethod(lambda: (2, 20, 5))\n"
        "__version__ = '2.3.1+cu121'\n"
    )
    info = tmp_path / "site" / "transformers-4.44.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.44.2\n")
    found = probe(sys.executable, environment)
    assert (found.torch, found.cuda, found.nccl, found.transformers) == ("2.3.1+cu121", "12.1", "2.20.5", "4.44.2")


def test_an_interpreter_is_found_by_name(lmdeploy_with: Callable[..., dict[str, str]]) -> None:
    environment = lmdeploy_with() | {"PATH": str(Path(sys.executable).parent)}
    found = probe(Path(sys.executable).name, environment)
    assert isinstance(found, Lmdeploy)
    assert found.python == sys.executable


@pytest.mark.parametrize("in_the_way", [None, "lmdeploy"])
def test_no_lmdeploy_is_an_error_of_its_own(in_the_way: str | None, tmp_path: Path) -> None:
    if in_the_way:  # a folder of that name, such as a checkout's, is no package
        (tmp_path / in_the_way).mkdir()
    with pytest.raises(NoLmdeploy, match=r"\(Python 3\.\d+\.\d+\) has no lmdeploy$"):
        probe(sys.executable, {"PYTHONPATH": str(tmp_path)})


def test_paths_that_are_no_interpreter(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == f"{tmp_path}/none doesn't exist"
    assert refusal("no-such-python-3") == "no-such-python-3: no such program in PATH"
    assert refusal(tmp_path).startswith(f"{tmp_path} is a folder; the interpreter itself is wanted")
    plain = tmp_path / "plain"
    plain.write_text("")
    assert refusal(plain) == f"{plain} isn't executable"
    broken = program(tmp_path / "broken", "#!/no/such/interpreter\n")
    assert refusal(broken) == f"{broken} can't be run: No such file or directory"
    data = program(tmp_path / "data", "\x01\x02")
    assert refusal(data) == f"{data} can't be run: Exec format error"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("true", "isn't a Python interpreter (exit code 0, and it ran no Python)"),
        ("echo usage: x >&2; echo bad option >&2; exit 2", "doesn't start as Python: bad option (exit code 2)"),
        ("kill -SEGV $$", "doesn't start as Python: no message (ended by SIGSEGV)"),
    ],
)
def test_programs_that_are_no_python(script: str, words: str, tmp_path: Path) -> None:
    other = program(tmp_path / "other", f"#!/bin/bash\n{script}\n")
    assert refusal(other) == f"{other} {words}"


def test_a_python_that_is_too_old(tmp_path: Path) -> None:
    old = program(tmp_path / "old", '#!/bin/bash\necho \'{"started": [3, 7, 16]}\' > "$2"\n')
    assert refusal(old) == f"{old} (Python 3.7.16) is too old: 3.8 or newer is needed"


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (
            "raise ImportError('libcudart.so.12: cannot open shared object file')",
            "can't be imported: ImportError: libcudart.so.12: cannot open shared object file",
        ),
        ("import no_such_module", "can't be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("import os; os.abort()", "can't be imported: no message (ended by SIGABRT)"),
        (
            "import sys, os; sys.__stderr__.write('terminate called\\n'); os._exit(7)",
            "can't be imported: terminate called (exit code 7)",
        ),
        ("import sys; sys.exit('not here')", ": `serve api_server --help` ended with exit code 1: not here"),
    ],
)
def test_an_lmdeploy_that_cant_be_imported(
    broken: str, words: str, lmdeploy_with: Callable[..., dict[str, str]]
) -> None:
    text = refusal(sys.executable, lmdeploy_with(__init__=broken))
    assert text.startswith(f"lmdeploy of {sys.executable}")
    assert text.endswith(words)


def test_an_lmdeploy_without_api_server(lmdeploy_with: Callable[..., dict[str, str]]) -> None:
    text = refusal(sys.executable, lmdeploy_with(cli=CLI.replace("api_server", "triton")))
    assert text.startswith(f"lmdeploy 0.99.1 of {sys.executable}: `serve api_server --help` ended with exit code 2")
    assert "invalid choice: 'api_server'" in text


def test_an_lmdeploy_whose_help_is_empty(lmdeploy_with: Callable[..., dict[str, str]]) -> None:
    text = refusal(sys.executable, lmdeploy_with(cli="def run(): print('hello')\n"))
    assert text.endswith("`serve api_server --help` lists no option")


def test_one_that_hangs_is_ended_with_what_it_started(
    lmdeploy_with: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    hang = f"""
        import os, subprocess, time
        child = subprocess.Popen(["sleep", "60"])
        with open({str(pids)!r}, "w") as file:
            file.write("%d %d" % (os.getpid(), child.pid))
        time.sleep(60)
    """
    text = refusal(sys.executable, lmdeploy_with(__init__=hang), time_limit=1.5)
    assert text == f"lmdeploy of {sys.executable} can't be imported: no message (no answer within 1.5 s)"
    for pid in map(int, pids.read_text().split()):
        assert _gone(pid)


def test_what_it_leaves_behind_is_ended(lmdeploy_with: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    leave = f"import subprocess; open({str(pids)!r}, 'w').write(str(subprocess.Popen(['sleep', '60']).pid))\n"
    found = probe(sys.executable, lmdeploy_with(version=leave + PACKAGE["version.py"]))
    assert found.version == "0.99.1"
    assert _gone(int(pids.read_text()))


def _gone(pid: int) -> bool:
    """Ended, or about to be: an orphan's killed state may wait for init to collect it."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    return False


def test_launcher_puts_every_rank_on_the_one_gpu(lmdeploy_with: Callable[..., dict[str, str]]) -> None:
    run = """
        import sys
        from .messages import TurbomindEngineConfig

        def run():
            print(TurbomindEngineConfig(tp=2).devices, sys.argv[1:])
    """
    environment = lmdeploy_with(cli=run)
    argv = [sys.executable, str(SHARED_GPU_LAUNCHER), "serve", "api_server"]
    ran = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "[0, 0] ['serve', 'api_server']\n"


def test_launcher_refuses_an_engine_without_devices(lmdeploy_with: Callable[..., dict[str, str]]) -> None:
    environment = lmdeploy_with(messages=MESSAGES.replace("devices:", "others:"))
    argv = [sys.executable, str(SHARED_GPU_LAUNCHER), "serve", "api_server"]
    ran = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert ran.returncode == 1
    assert "two ranks can't share one GPU" in ran.stderr
