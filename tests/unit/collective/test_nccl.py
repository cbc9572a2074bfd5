"""The calls to NCCL, into a libnccl compiled here that notes what arrives: nothing else of them runs without a GPU."""

import ctypes
import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fixtures.collective

sys.path.insert(0, str(Path(fixtures.collective.__file__).parent / "under_test"))
nccl = importlib.import_module("nccl")

#: nccl.h's numbers.
SUM, REMOTE_ERROR, IN_PROGRESS = 0, 6, 7
TYPES = {torch.int32: 2, torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}
STREAM = 0x7F00_1234_5678
COUNT, WORLD_SIZE, RANK = 24, 4, 3


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not (gcc := shutil.which("gcc")):
        pytest.skip("no gcc here to compile the fake libnccl.so.2")
    path = tmp_path_factory.mktemp("nccl") / "libnccl.so.2"
    subprocess.run(
        [gcc, "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, Path(__file__).with_name("fake_nccl.c")], check=True
    )
    loaded = ctypes.CDLL(str(path))
    loaded.fake_notes.restype = ctypes.c_char_p
    return loaded


class Fake:
    """The library, mapped into this process, and CUDA's streams and events."""

    def __init__(self, library):
        self.library = library
        self.library.fake_reset()
        self.queries = 0  # the events' that come before they have happened
        self.recorded = []

    def set(self, **values):
        for name, value in values.items():
            kind = ctypes.c_char * 64 if isinstance(value, bytes) else ctypes.c_int
            kind.in_dll(self.library, f"fake_{name}").value = value

    def take(self):
        """The calls since the last time: name and arguments, pointers as numbers."""
        lines = self.library.fake_notes().decode().splitlines()
        self.library.fake_forget()
        return [
            (name, *(0 if word == "(nil)" else int(word, 0) for word in rest)) for name, *rest in map(str.split, lines)
        ]

    def stream(self, device):
        return SimpleNamespace(cuda_stream=STREAM + device.index)

    def event(self):
        left = iter(range(self.queries))
        return SimpleNamespace(
            record=lambda stream: self.recorded.append(stream.cuda_stream), query=lambda: next(left, None) is None
        )


@pytest.fixture
def fake(library, monkeypatch):
    fake = Fake(library)
    mapped = nccl.mapped_libraries  # where torch is built with NCCL, its own is mapped too
    monkeypatch.setattr(nccl, "mapped_libraries", lambda: [path for path in mapped() if path == library._name])
    monkeypatch.setattr(torch.cuda, "current_stream", fake.stream)
    monkeypatch.setattr(torch.cuda, "Event", fake.event)
    return fake


@pytest.fixture
def opened(fake):
    """A communicator, and its address as the library knows it."""
    (communicator,) = nccl.open_communicators(
        {"ids": [nccl.rendezvous()], "world_size": WORLD_SIZE}, RANK, torch.device("cuda", 1)
    )
    _, (_, handle, *_) = fake.take()
    return communicator, handle


@pytest.mark.parametrize(("code", "version"), [(22809, "2.28.9"), (21805, "2.18.5"), (2708, "2.7.8")])
def test_the_mapped_library_is_asked(fake, library, code, version):
    fake.set(version=code)
    assert nccl.versions() == {"nccl": version, "libnccl": [library._name]}


def test_the_ranks_of_a_communicator_meet_by_all_bytes_of_an_id(fake):
    """Two of them, in the ids' order; in `fake_nccl.c` an id's byte i is 2i."""
    ids = [nccl.rendezvous(), bytes(range(128)).hex()]
    assert ids[0] == bytes(2 * i for i in range(128)).hex()
    fake.take()
    ends = nccl.open_communicators({"ids": ids, "world_size": WORLD_SIZE}, RANK, torch.device("cuda", 1))
    sums = [sum((i + 1) * factor * i for i in range(128)) for factor in (2, 1)]
    calls = fake.take()
    assert [(name, *rest) for name, _, *rest in calls] == [("ncclCommInitRank", WORLD_SIZE, s, RANK) for s in sums]
    for end in ends:
        end.close()
    assert fake.take() == [("ncclCommDestroy", handle) for _, handle, *_ in calls]
    assert calls[0][1] != calls[1][1]


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_what_nccl_is_given(fake, opened, operation, dtype):
    """Counts as NCCL has them: of what is sent, of reduce-scatter what is received."""
    communicator, handle = opened
    whole, part = torch.zeros(COUNT * WORLD_SIZE, dtype=dtype), torch.zeros(COUNT, dtype=dtype)
    send, receive, name, more = {
        "all_reduce": (part, part.clone(), "ncclAllReduce", (SUM,)),
        "all_gather": (part, whole, "ncclAllGather", ()),
        "reduce_scatter": (whole, part, "ncclReduceScatter", (SUM,)),
        "broadcast": (part, part.clone(), "ncclBroadcast", (2,)),
    }[operation]
    getattr(communicator, operation)(send, receive, *((2,) if operation == "broadcast" else ()))
    memory = (send.data_ptr(), receive.data_ptr())
    assert fake.take() == [(name, *memory, COUNT, TYPES[dtype], *more, handle, STREAM + 1)]


def test_waiting_asks_for_errors_until_the_stream_is_done(fake, opened, monkeypatch):
    monkeypatch.setattr(nccl, "BUSY_WAIT", 0)  # with pauses
    communicator, handle = opened
    fake.queries = 3
    communicator.synchronize()
    assert fake.take() == [("ncclCommGetAsyncError", handle)] * 3
    assert fake.recorded == [STREAM + 1]


def test_what_is_in_progress_is_no_error(fake, opened):
    fake.queries = 3
    fake.set(**{"async": IN_PROGRESS})
    opened[0].synchronize()
    assert len(fake.take()) == 3


def test_an_error_that_comes_later_is_raised(fake, opened):
    """Of another rank's death NCCL tells nowhere else; the stream would never be done."""
    fake.queries = 10**9
    fake.set(after=2, **{"async": REMOTE_ERROR})
    with pytest.raises(nccl.NcclError, match=r"^asynchronous error: code 6 in words \(what happened last\)$"):
        opened[0].synchronize()
    assert len(fake.take()) == 3


@pytest.mark.parametrize("code", [1, 4])
def test_a_calls_error_is_raised(fake, opened, code):
    fake.set(failing=b"ncclAllReduce", code=code)
    part = torch.zeros(COUNT)
    with pytest.raises(nccl.NcclError, match=rf"^ncclAllReduce: code {code} in words \(what happened last\)$"):
        opened[0].all_reduce(part, part)


def test_an_error_in_the_question_itself_is_raised(fake, opened):
    fake.queries = 10**9
    fake.set(failing=b"ncclCommGetAsyncError", code=4)
    with pytest.raises(nccl.NcclError, match=r"^ncclCommGetAsyncError: code 4 in words"):
        opened[0].synchronize()


@pytest.mark.parametrize(("name", "call"), [("ncclGetVersion", nccl.versions), ("ncclGetUniqueId", nccl.rendezvous)])
def test_errors_before_there_is_a_communicator(fake, name, call):
    fake.set(failing=name.encode(), code=2)
    with pytest.raises(nccl.NcclError, match=rf"^{name}: code 2 in words \(what happened last\)$"):
        call()
