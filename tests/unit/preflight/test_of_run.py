"""What a run needs of its host."""

from dataclasses import replace

from fixtures.machine import here
from fixtures.machine.facts import SharedMemory
from fixtures.matrix import Cell, Configuration
from fixtures.nccl.segments import SEGMENT, bytes_needed
from fixtures.preflight.of_run import ranks_of, shm_problem
from fixtures.rehearsal.nodes import NODES
from fixtures.rehearsal.site import RehearsedNode


def test_the_largest_group_counts(this_run):
    """All GPUs, or more ranks than GPUs where they share one; a cell that can't run makes no group."""
    eight = Configuration("turbomind", "nccl", 8, "fp16", gpus=(0,), shared_gpu=True)
    assert ranks_of(this_run) == 4
    assert ranks_of(replace(this_run, cells=(Cell(eight, "can't"),))) == 4
    assert ranks_of(replace(this_run, cells=(Cell(eight),))) == 8


def test_shm_problem(this_run, tmp_path, monkeypatch):
    """For the collectives: one line, or None."""
    sizes = []

    def measured(refused):
        def measure(folder, wanted, proc):
            sizes.append((str(folder), wanted))
            return SharedMemory(67_108_864, 67_108_864, wanted, refused)

        return measure

    monkeypatch.setattr(here, "measure", measured("No space left on device"))
    assert shm_problem(this_run) == ("/dev/shm has 67 MB of 67 MB free, NCCL may need 154 MB: No space left on device")
    monkeypatch.setattr(here, "measure", measured(None))
    assert shm_problem(this_run) is None
    assert sizes == [("/dev/shm", bytes_needed(4))] * 2
    assert bytes_needed(4) > 16 * SEGMENT
    monkeypatch.setattr(here, "measure", lambda folder, wanted, proc: None)
    assert shm_problem(this_run) == "/dev/shm doesn't exist"
    (tmp_path / "full.toml").write_text((NODES / "t4x4.toml").read_text() + "\n[host]\nshm_free_mib = 0\n")
    rehearsed = replace(this_run, site=RehearsedNode(node=str(tmp_path / "full.toml")))
    assert "0 MB of 68719 MB free" in str(shm_problem(rehearsed))
    assert shm_problem(replace(rehearsed, site=RehearsedNode(node="t4x4"))) is None
