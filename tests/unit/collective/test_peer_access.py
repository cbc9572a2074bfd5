"""The peer access check: real workers over an emulated driver that lies, hangs, dies and refuses."""

import itertools
import os
import signal
import threading
from dataclasses import replace

import pytest

from fixtures.collective.peer_access import METHODS
from fixtures.collective.steps import LIGHT_PEER_SIZES
from fixtures.processes.proctable import stat_fields
from tests.unit.collective.conftest import LONG, PATIENCE, lives, until

LMDEPLOY = "lmdeploy's cuda-ipc communicator"


def check(rig, writer=0, owner=1, method="peer_write"):
    return rig.fabric.peer_access(rig.seats[writer], rig.seats[owner], method)


def alive(rig):
    """GPU of each living worker: its pid."""
    return {name.split("-")[1]: worker.pid for name, worker in rig.workers().items() if lives(worker.pid)}


def held(rig):
    """GPUs of which a living process holds memory; a dead one's is given back by the kernel."""
    places = [path.name.split("-")[1:3] for path in rig.nursery.folder.glob("memory-*")]
    return {gpu for gpu, pid in places if lives(int(pid))}


def test_each_direction_by_each_method(rig):
    """Eight bytes, then more; the owner's process takes part only where there are two."""
    for (writer, owner), method in itertools.product(((0, 1), (1, 0)), METHODS):
        outcome = check(rig, writer, owner, method)
        how = {"peer_write": "one process", "cuda_ipc": "two processes, CUDA IPC"}[method]
        assert (outcome.status, outcome.words) == ("pass", f"GPU{owner} reads what GPU{writer} stored ({how})")
        assert outcome.sizes == LIGHT_PEER_SIZES
        assert outcome.sizes[0] == 8 < outcome.sizes[1]
        assert len(alive(rig)) == (1 if (writer, method) == (0, "peer_write") else 2)
        assert not held(rig)


WRONG = {
    "lost": "2 of 2 words wrong, first at 0 (deadbeef for 00000001): the store never reached the owner",
    "half lost": "1 of 2 words wrong, first at 0 (deadbeef for 00000001): never written",
    "zeros": "2 of 2 words wrong, first at 0 (00000000 for 00000001): zeros",
    "other": "1 of 2 words wrong, first at 0 (00000081 for 00000001): other data",
}


@pytest.mark.parametrize("method", METHODS)
def test_what_arrives_wrong_is_told(rig, method):
    """One direction only; both sizes are tried, and the path is called broken, not refused. No worker is replaced."""
    assert check(rig, 0, 1, method).status == "pass"
    before = alive(rig)
    for data, words in WRONG.items():
        rig.break_at(driver={"store": {"device": 1, "data": data}})
        outcome = check(rig, 1, 0, method)
        assert outcome.status == "wrong"
        words = f"what GPU1 stored isn't what GPU0 reads: 8 bytes: {words}; granted but broken: "
        assert outcome.words.startswith(words)
        lmdeploy = LMDEPLOY in outcome.words
        assert ("would lose data between them" in outcome.words) == lmdeploy == (method == "peer_write")
        assert [line.partition(" bytes")[0] for line in outcome.evidence] == [str(size) for size in LIGHT_PEER_SIZES]
        assert outcome.culprits == ("GPU1", "GPU0")
        assert check(rig, 0, 1, method).status == "pass"
    assert before.items() <= alive(rig).items()


def test_an_owners_bad_memory_is_not_the_paths_fault(rig):
    rig.break_at(driver={"store": {"data": "other"}})
    for method in METHODS:
        outcome = check(rig, 0, 1, method)
        assert outcome.status == "wrong"
        told = "; GPU1's own stores come back wrong too: its memory or its kernels, not the path"
        assert outcome.words.endswith(told)
        assert outcome.culprits == ("GPU1",)


@pytest.mark.parametrize(
    ("method", "call", "gpu", "doing", "number"),
    [
        ("peer_write", "store", 0, "storing 8 bytes", "SIGSTOP"),
        ("peer_write", "store", 0, "storing 8 bytes", "SIGKILL"),
        ("cuda_ipc", "store", 0, "storing 8 bytes", "SIGKILL"),
        ("cuda_ipc", "read", 1, "reading 8 bytes back", "SIGSTOP"),
    ],
)
def test_a_worker_that_stops_or_dies(rig, method, call, gpu, doing, number):
    """Its GPU is named and its process replaced; the other's lives on, its memory given back."""
    assert check(rig, 0, 1, method).status == "pass"
    before = alive(rig)
    rig.break_at(driver={call: {"device": gpu, "signal": number}})
    if number == "SIGSTOP":
        rig.fabric.pair_timeout = PATIENCE
    outcome = check(rig, 0, 1, method)
    rig.fabric.pair_timeout = LONG
    where = f"GPU{gpu} (pid {before[f'GPU{gpu}']})"
    if number == "SIGSTOP":
        assert outcome.status == "hung"
        told = f"no answer for {PATIENCE:g} s while {doing}: {where} is stopped by a signal (state T)"
        assert outcome.words.startswith(told)
    else:
        assert (outcome.status, outcome.words) == ("crashed", f"{where} was killed by SIGKILL (Killed) while {doing}")
    assert outcome.culprits == (f"GPU{gpu}",)
    assert outcome.sizes == (8,)
    assert not lives(before.pop(f"GPU{gpu}"))
    assert alive(rig) == before
    assert not held(rig)
    rig.break_at()
    assert check(rig, 0, 1, method).status == "pass"


def test_a_drivers_error_is_the_first_one(rig):
    """After it CUDA's other calls fail as well, so the worker is replaced; what it wrote is evidence."""
    errors = {"store": {"device": 0, "error": "cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS"}}
    for call in ("free", "close", "disable_peer_access"):
        errors[call] = {"device": 0, "error": "CUDA_ERROR_ILLEGAL_ADDRESS"}
    rig.break_at(driver=errors)
    for method in METHODS:
        outcome = check(rig, 0, 1, method)
        assert (outcome.status, outcome.culprits) == ("crashed", ("GPU0",))
        told = " while storing 8 bytes: DriverError: cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS"
        assert outcome.words.startswith("GPU0 (pid ")
        assert outcome.words.endswith(told)
        assert "GPU0" not in alive(rig)


REFUSALS = [
    ("peer_write", "enable_peer_access", "cuCtxEnablePeerAccess", f"{LMDEPLOY} can't work between them; NCCL falls"),
    (
        "cuda_ipc",
        "export",
        "cuIpcGetMemHandle",
        "NCCL shares memory between their processes by P2P/CUMEM or falls back",
    ),
    ("cuda_ipc", "open", "cuIpcOpenMemHandle_v2", "NCCL shares memory between their processes by P2P/CUMEM or falls"),
]


def test_what_the_driver_refuses_is_waived(rig):
    """Nothing is broken, so no worker is replaced and none keeps memory."""
    assert check(rig, 0, 1, "cuda_ipc").status == "pass"
    before = alive(rig)
    for method, call, of_cuda, meaning in REFUSALS:
        error = f"{of_cuda}: CUDA_ERROR_NOT_SUPPORTED"
        rig.break_at(driver={call: {"refused": error}})
        outcome = check(rig, 0, 1, method)
        assert (outcome.status, outcome.sizes, outcome.trials) == ("waived", (), 0)
        assert outcome.words.startswith(f"{error} between GPU0 and GPU1: {meaning}")
        assert "broken" not in outcome.words
        assert not held(rig)
        rig.break_at()
        assert check(rig, 0, 1, method).status == "pass"
    assert alive(rig) == before


def test_no_peer_access_needs_no_worker(rig):
    """The topology says it, of this direction alone; each method says what it means to whom."""
    machine = rig.fabric.machine
    assert machine.peer[0][3] is False
    for method, meaning in (
        ("peer_write", f"{LMDEPLOY} can't work between them; NCCL falls back to SHM"),
        ("cuda_ipc", "NCCL falls back to SHM between their processes"),
    ):
        outcome = check(rig, 0, 3, method)
        words = f"no peer access between GPU0 and GPU3 (chipset not supported): {meaning}"
        assert (outcome.status, outcome.words, outcome.trials) == ("waived", words, 0)
    assert alive(rig) == {}


def test_the_driver_is_asked_where_the_topology_doesnt_tell(rig, monkeypatch):
    monkeypatch.setattr(rig.fabric, "machine", replace(rig.fabric.machine, peer=()))
    for method in METHODS:
        outcome = check(rig, 0, 3, method)
        assert outcome.status == "waived"
        assert outcome.words.startswith("the driver grants no peer access between GPU0 and GPU3: ")
        assert (LMDEPLOY in outcome.words) == (method == "peer_write")
        assert not held(rig)


def test_peer_access_in_one_direction(rig, monkeypatch):
    machine = rig.fabric.machine
    rows = [list(row) for row in machine.peer]
    rows[1][0] = False
    monkeypatch.setattr(rig.fabric, "machine", replace(machine, peer=tuple(map(tuple, rows))))
    assert [check(rig, *pair).status for pair in ((0, 1), (1, 0))] == ["pass", "waived"]


def test_memory_that_isnt_there_says_nothing_of_the_path(rig):
    assert check(rig, 0, 1, "cuda_ipc").status == "pass"
    before = alive(rig)
    rig.break_at(driver={"allocate": {"error": "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"}})
    for method in METHODS:
        outcome = check(rig, 0, 1, method)
        assert outcome.status == "inconclusive"
        assert outcome.words.endswith(": DriverError: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY")
    rig.break_at()
    for method in METHODS:
        assert check(rig, 0, 1, method).status == "pass"
    assert alive(rig) == before


def test_without_workers_nothing_is_known(make_rig, tmp_path):
    rig = make_rig(str(tmp_path / "python"))
    outcome = check(rig)
    assert outcome.status == "inconclusive"
    assert f"{tmp_path}/python" in outcome.words


def test_an_idle_workers_death_is_told(rig):
    """As it may have taken with it what the next check would have found."""
    assert check(rig).status == "pass"
    pid = alive(rig)["GPU0"]
    (worker,) = rig.workers().values()
    os.kill(pid, signal.SIGKILL)
    until(worker.ended.done, "its end is known")
    outcome = check(rig)
    assert outcome.status == "pass"
    told = f"; fresh workers, for before it GPU0's idle worker (pid {pid}) was killed by SIGKILL (Killed)"
    assert outcome.words.endswith(told)


class GivenUp(Exception):
    """Somebody's patience was at an end."""


@pytest.fixture
def give_up_when():
    """Call it with a condition: once that holds, what the test waits for is given up, as by a time limit."""

    def give_up(*_):
        raise GivenUp

    def watch(condition):
        until(condition, "what is to be given up is under way")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    former = signal.signal(signal.SIGUSR1, give_up)
    yield lambda condition: threading.Thread(target=watch, args=[condition]).start()
    signal.signal(signal.SIGUSR1, former)


def test_a_check_that_was_given_up_hangs_no_other(rig, give_up_when):
    """A test's time limit may be shorter than the check's: the hung worker is replaced all the same."""
    assert check(rig, 1, 0).status == "pass"
    rig.fabric.pair_timeout = 5  # for the second check's sake, if it should hang
    rig.break_at(driver={"store": {"device": 1, "signal": "SIGSTOP"}})
    give_up_when(lambda: [stat_fields(pid)[0] for pid in alive(rig).values()] == ["T"])  # the worker stops itself
    with pytest.raises(GivenUp):
        check(rig, 1, 0)
    rig.break_at()
    assert check(rig, 1, 0).status == "pass"
