"""Which engine serves, from real log wordings and from libraries that are really mapped."""

import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.api_server.backend_evidence import backend_in_use
from fixtures.processes.proctable import mapped_files

STAMP = "2026-08-21 10:00:00,000 - lmdeploy - \x1b[33mWARNING\x1b[0m - archs.py:49 - "


@pytest.fixture
def turbomind_mapped(tmp_path: Path) -> Iterator[Path]:
    """This process maps a library of the engine's name."""
    library = tmp_path / "_turbomind.cpython-311-x86_64-linux-gnu.so"
    library.write_bytes(bytes(mmap.PAGESIZE))
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        yield library


@pytest.mark.parametrize(
    "words",
    [
        "Fallback to pytorch engine because `/m` not supported by turbomind engine.",
        "Fallback to pytorch engine because turbomind engine is not installed correctly. If you insist to use it",
        "Try to run with pytorch engine because `/m` is not explicitly supported by lmdeploy. ",
        "Fallback to pytorch engine because '/m' not supported by turbomind engine.",
        "Fallback to pytorch engine because turbomind is not built.",
    ],
)
@pytest.mark.usefixtures("turbomind_mapped")
def test_a_fallback_line_of_any_version_outranks_the_mapped_library(words: str) -> None:
    backend, evidence = backend_in_use(["INFO: other", STAMP + words], *mapped_files([os.getpid()]))
    assert backend == "pytorch"
    assert evidence == f"its log says: {words.strip()}"


def test_mapped_library_shows_turbomind(turbomind_mapped: Path) -> None:
    backend, evidence = backend_in_use(
        ["n(2) > 1 hasn't been supported yet. Fallback to 1"], *mapped_files([os.getpid()])
    )
    assert backend == "turbomind"
    assert evidence == f"process {os.getpid()} maps {turbomind_mapped}"


def test_no_mapped_library_shows_pytorch() -> None:
    assert backend_in_use([], *mapped_files([os.getpid()])) == (
        "pytorch",
        f"no process maps _turbomind (looked at {os.getpid()})",
    )


@pytest.mark.parametrize("backend", ["turbomind", "pytorch"])
def test_the_engines_own_info_line_is_enough(backend: str) -> None:
    line = f"{STAMP}input backend={backend}, backend_config=TurbomindEngineConfig(dtype='auto')"
    assert backend_in_use([line], {}) == (backend, f"its log says: input backend={backend}")


def test_a_dead_process_shows_nothing() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    backend, evidence = backend_in_use([], *mapped_files([os.getpid(), process.pid]))
    assert backend is None
    assert f"/proc/{process.pid}/maps" in evidence


def test_no_process_shows_nothing() -> None:
    assert backend_in_use([], {})[0] is None
