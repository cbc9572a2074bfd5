"""What a process of a rehearsal sees: the GPUs of CUDA_VISIBLE_DEVICES in that order, under the injected fault."""

import pytest

from fixtures.collective.under_test.peer import PeerCheck
from fixtures.errors import BadInput
from fixtures.rehearsal.cuda import Driver, DriverError, Refused
from fixtures.rehearsal.gloo import versions
from fixtures.rehearsal.nodes import load_node
from fixtures.rehearsal.process_view import broken_paths, injected_fault, visible_node, whole_node

T4X4, A100X8 = load_node("t4x4"), load_node("a100x8")
SIZE, SEED = 8, 1


def uuids(node, *indices):
    return ",".join(node.gpus[index].uuid for index in indices)


@pytest.fixture
def process(monkeypatch, tmp_path):
    """Makes this process one of a rehearsal on a node, which sees these GPUs (none given: all)."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "REHEARSAL_FAULT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def become(node, *indices, fault=None):
        monkeypatch.setenv("REHEARSAL_NODE", node.name)
        if indices:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuids(node, *indices))
        if fault:
            path = tmp_path / "own.toml"
            path.write_text(f'description = "x"\n[[fabric]]\n{fault}', encoding="utf-8")
            monkeypatch.setenv("REHEARSAL_FAULT", str(path))

    return become


def granted(driver, count):
    """The devices between which peer access is granted, writer first."""
    places = range(count)
    return {(a, b) for a in places for b in places if a != b and driver.grants_peer_access(a, b)}


def wrong(driver, count):
    """The devices between which a store doesn't arrive, writer first."""
    check = PeerCheck(driver)
    pairs = granted(driver, count)
    return {(a, b) for a, b in pairs if check.write(writer=a, owner=b, size=SIZE, seed=SEED)["wrong"]}


@pytest.mark.parametrize("indices", [(), (2, 0), (3, 0, 1, 2), (1,)])
def test_gpus_in_the_order_of_device_numbers(process, indices):
    process(T4X4, *indices)
    seen = visible_node()
    assert seen == (T4X4.keeping(indices) if indices else T4X4)
    assert whole_node() == T4X4
    assert versions()["nccl"] == T4X4.nccl


def test_cudas_rules_for_the_list(process, monkeypatch):
    """Those of a real process (machine/visible.py): integers, the end at the first bad entry, no GPU named twice."""
    process(T4X4)
    for visible, indices in {"2,0": [2, 0], f"3,{uuids(T4X4, 1)[:9]}": [3, 1], "1,9,2": [1], "": []}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert [gpu.index for gpu in visible_node().gpus] == indices
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,1")
    with pytest.raises(BadInput, match="GPU 1 is named twice"):
        visible_node()


def test_without_a_fault(process):
    process(T4X4, 3, 1)
    assert injected_fault() is None
    assert broken_paths() == ()


@pytest.mark.parametrize(
    ("indices", "apart"),
    [((), 3), ((3, 0, 1, 2), 0), ((0, 3, 2), 1), ((2, 1), None)],
)
def test_the_driver_grants_what_the_node_grants(process, indices, apart):
    """GPU3 alone has no peer access, whatever its device number."""
    process(T4X4, *indices)
    driver, places = Driver(), range(len(indices) or 4)
    assert granted(driver, len(places)) == {(a, b) for a in places for b in places if a != b and apart not in (a, b)}
    for other in places:
        if apart not in (None, other):
            with pytest.raises(Refused, match="PEER_ACCESS_UNSUPPORTED"):
                driver.enable_peer_access(other, apart)
    assert wrong(driver, len(places)) == set()


def test_a_lie_is_about_the_same_gpus_in_any_order(process):
    """GPU1 and GPU2; both ways, and between processes too."""
    process(A100X8, 5, 2, 7, 1, fault='action = "lying_peer_access"\ngpus = [1, 2]')
    driver = Driver()
    assert len(granted(driver, 4)) == 12
    assert wrong(driver, 4) == {(1, 3), (3, 1)}
    owner = PeerCheck(Driver())
    for writer, lost in ((1, True), (0, False), (3, False)):
        handle = owner.own(device=3, size=SIZE)["handle"]
        assert PeerCheck(driver).store(device=writer, owner=3, handle=handle, size=SIZE, seed=SEED) == {}
        assert bool(owner.verify(handle=handle, size=SIZE, seed=SEED)["wrong"]) is lost


def test_a_lie_of_gpus_that_arent_seen(process):
    process(A100X8, 5, 6, 7, fault='action = "lying_peer_access"\ngpus = [1, 2]')
    assert wrong(Driver(), 3) == set()


def test_refused_peer_access(process):
    """The driver's own answer, not only what the run was told of the node."""
    process(A100X8, 6, 2, 1, fault='action = "no_peer_access"\ngpus = [1, 2]')
    assert [visible_node().peer_words[1][place] for place in range(3)] == ["OK", "X", "CNS"]
    driver = Driver()
    assert granted(driver, 3) == {(0, 1), (1, 0), (0, 2), (2, 0)}
    handle = driver.export(2, driver.allocate(2, SIZE))
    with pytest.raises(Refused, match="cuIpcOpenMemHandle"):
        driver.open(1, handle)
    assert driver.open(0, handle) == handle


def test_processes_that_number_the_gpus_otherwise_share_memory(process):
    """A handle means the GPU, not the number that its own process gave it."""
    process(T4X4, 3, 0)
    owner = Driver()
    handle = owner.export(1, owner.allocate(1, SIZE))  # of GPU0
    process(T4X4, 1, 0, 3)
    writer = Driver()
    assert writer.open(0, handle) == handle
    with pytest.raises(Refused):
        writer.open(2, handle)  # by GPU3


def test_a_device_number_that_isnt_there(process):
    process(T4X4, 2, 1)
    for call in (lambda driver: driver.allocate(2, SIZE), lambda driver: driver.grants_peer_access(0, 2)):
        with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_DEVICE"):
            call(Driver())
