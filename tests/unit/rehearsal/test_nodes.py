"""Packaged nodes, and every complaint about a node file of the user's."""

from __future__ import annotations

import re

import pytest

from fixtures.errors import BadInput
from fixtures.rehearsal.nodes import NODES, load_node, node_names

T4X4 = (NODES / "t4x4.toml").read_text()


def test_names():
    assert node_names() == ["a100x8", "h200x1", "rtx4090x2", "t4x4", "v100x8"]


@pytest.mark.parametrize("name", node_names())
def test_packaged_nodes_are_complete(name):
    node = load_node(name)
    assert node.name == name
    assert len(node.gpus) == int(name.rpartition("x")[2])
    assert node.lmdeploy == "0.18.0"
    assert all((node.driver, node.cuda, node.nccl))
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", gpu.uuid) for gpu in node.gpus)


def test_no_two_nodes_share_a_uuid():
    uuids = [gpu.uuid for name in node_names() for gpu in load_node(name).gpus]
    assert len(set(uuids)) == len(uuids) == 23


def test_peer_access():
    assert load_node("rtx4090x2").peer == ((True, False), (False, True))
    assert load_node("t4x4").peer[0] == (True, True, True, False)
    assert all(all(row) for row in load_node("a100x8").peer)
    mesh = load_node("v100x8")
    assert [[word.startswith(("NV", "X")) for word in row] for row in mesh.links] == [list(row) for row in mesh.peer]


def test_every_v100_has_six_nvlinks():
    for row in load_node("v100x8").links:
        assert sum(int(word[2:]) for word in row if word.startswith("NV")) == 6


def test_a_file_of_the_users(tmp_path):
    path = tmp_path / "bench.toml"
    path.write_text(T4X4.replace('lmdeploy = "0.18.0"', 'lmdeploy = "0.6.0"').replace("CNS", "U"))
    node = load_node(path)
    assert (node.name, node.lmdeploy) == ("bench", "0.6.0")
    assert node.peer[0] == (True, True, True, None)
    assert node.gpus == load_node("t4x4").gpus


def test_affinities_are_optional(tmp_path):
    path = tmp_path / "bench.toml"
    path.write_text(re.sub(r'(cpus|numa) = ".*"\n', "", T4X4))
    assert {(gpu.cpus, gpu.numa) for gpu in load_node(path).gpus} == {(None, None)}


def test_unknown_name():
    with pytest.raises(BadInput) as caught:
        load_node("t4x5")
    expected = "unknown node 't4x5'; known: a100x8, h200x1, rtx4090x2, t4x4, v100x8, or a TOML file"
    assert str(caught.value) == expected


def test_missing_file(tmp_path):
    with pytest.raises(BadInput, match=rf"^node file {tmp_path}/no\.toml: No such file or directory$"):
        load_node(tmp_path / "no.toml")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(BadInput, match=r"Is a directory$"):
        load_node(f"{tmp_path}/")


def test_not_text(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=f"^node file {path}: not valid TOML: "):
        load_node(path)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('driver = "580.95.05"', "driver = ", "not valid TOML: Invalid value (at line 6, column 10)"),
        ('driver = "580.95.05"', "", "field 'driver' is missing"),
        ('driver = "580.95.05"', 'driver = ""', "field 'driver' is '', must be text that isn't empty"),
        ('cuda = "13.0"', "cuda = 13.0", "field 'cuda' is 13.0, must be text"),
        ('nccl = "2.28.9"', 'ncll = "2.28.9"', "unknown field 'ncll'; known: driver, cuda, nccl, lmdeploy, links, "),
        (
            'cuda = "13.0"',
            'cuda = "13.0"\nspeed = 1',
            "unknown field 'speed'; known: driver, cuda, nccl, lmdeploy, links, peer, gpus, host",
        ),
        ('links = """', 'lines = """', "unknown field 'lines'"),
        ('peer = """', 'links = """', "not valid TOML: "),
        ("X     NODE  NODE  SYS\n", "", "links: 3 rows for 4 GPUs"),
        ("X     NODE  NODE  SYS\n", "X NODE NODE\n", "links: row 0 has 3 words for 4 GPUs"),
        ("X     NODE  NODE  SYS\n", "X NODE PHB SYS\n", "links: asymmetric: GPU0-GPU2 is PHB, GPU2-GPU0 is NODE"),
        ("X     NODE  NODE  SYS\n", "PIX NODE NODE SYS\n", "links: GPU0-GPU0 is PIX; X stands on the diagonal"),
        ("X     NODE  NODE  SYS\n", "X X NODE SYS\n", "links: GPU0-GPU1 is X; X stands on the diagonal"),
        ("X     NODE  NODE  SYS\n", "X NVL NODE SYS\n", "links: GPU0-GPU1: unknown word 'NVL'"),
        ("X     NODE  NODE  SYS\n", "X NV0 NODE SYS\n", "links: GPU0-GPU1: unknown word 'NV0'"),
        ("X    OK   OK   CNS\n", "X OK yes CNS\n", "peer: GPU0-GPU2: unknown word 'yes'"),
        ("X    OK   OK   CNS\n", "X OK GNS CNS\n", "peer: asymmetric: GPU0-GPU2 is GNS, GPU2-GPU0 is OK"),
        ("X    OK   OK   CNS\n", "", "peer: 3 rows for 4 GPUs"),
        ('lmdeploy = "0.18.0"\n', 'lmdeploy = "0.18.0"\nhost = 1\n', "field 'host' is 1, must be a table"),
        (
            "[[gpus]]\nindex = 0",
            "[host]\nshm = 1\n[[gpus]]\nindex = 0",
            "unknown field 'host.shm'; known: shm_total_mib, shm_free_mib, ",
        ),
        (
            "[[gpus]]\nindex = 0",
            "[host]\nshm_free_mib = '9'\n[[gpus]]\nindex = 0",
            "field 'host.shm_free_mib' is '9', must be a whole number",
        ),
        (
            "[[gpus]]\nindex = 0",
            "[host]\nacs = ['0']\n[[gpus]]\nindex = 0",
            "field 'host.acs' has '0', must be a whole number",
        ),
        (
            "[[gpus]]\nindex = 0",
            "[host]\nxid = ['79']\n[[gpus]]\nindex = 0",
            "host: xid: not an Xid or SXid line: '79'",
        ),
        (
            "[[gpus]]\nindex = 0",
            "[host]\nshm_free_mib = -1\n[[gpus]]\nindex = 0",
            "field 'host.shm_free_mib' is -1, must be 0 or more",
        ),
        (
            "[[gpus]]\nindex = 0",
            "[host]\nfabric = 'started'\n[[gpus]]\nindex = 0",
            "field 'host.fabric' is 'started', must be one of not supported, not started, in progress, completed",
        ),
        (
            "[[gpus]]\nindex = 0",
            "[host]\ntorch_cuda = 'x.y'\n[[gpus]]\nindex = 0",
            "host: torch_cuda must be a CUDA version such as 12.8, not 'x.y'",
        ),
        (
            "[[gpus]]\nindex = 0",
            "[host]\nacs = [0, 4]\n[[gpus]]\nindex = 0",
            "host: acs: node bad has no GPU4",
        ),
        (
            "[[gpus]]\nindex = 0",
            "[host]\nbusy_mib = [0, 0, 0, 0, 9]\n[[gpus]]\nindex = 0",
            "host: busy_mib has 5 numbers, node bad has 4 GPUs",
        ),
        ("index = 2\n", "", "field 'gpus[2].index' is missing"),
        ("index = 2\n", "index = 1\n", "gpus[2].index: 1 is already gpus[1]'s"),
        ("index = 2\n", "index = 4\n", "gpus[2].index: must be 2 (the GPUs stand in index order), not 4"),
        ("index = 2\n", "index = true\n", "field 'gpus[2].index' is True, must be a whole number"),
        (
            "index = 2\n",
            "index = 2\nwatts = 70\n",
            "unknown field 'gpus[2].watts'; known: index, uuid, name, bus_id, memory_mib, cpus, numa",
        ),
        ("index = 2\n", "index = 2\n[gpus.x]\n", "unknown field 'gpus[2].x'"),
        ("GPU-2eb7dfbe", "GPU-2eb7dfb", "gpus[2].uuid: must look like GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"),
        ("GPU-2eb7dfbe", "GPU-2EB7DFBE", "gpus[2].uuid: must look like GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"),
        (":5F:", ":5E:", "gpus[2].bus_id: 00000000:5E:00.0 is already gpus[1]'s"),
        (":5F:", ":5D:", "gpus[2].bus_id: 00000000:5D:00.0 comes before the GPU above; GPUs stand in bus order"),
        ("00000000:5F:00.0", "5F:00.0", "gpus[2].bus_id: must look like 00000000:3B:00.0, not '5F:00.0'"),
        ("memory_mib = 15360\n", "memory_mib = 16106127360\n", "gpus[0].memory_mib: 16106127360 can't be MiB"),
        ("memory_mib = 15360\n", "memory_mib = 0\n", "gpus[0].memory_mib: 0 can't be MiB"),
        (
            "memory_mib = 15360\n",
            'memory_mib = "15 GB"\n',
            "field 'gpus[0].memory_mib' is '15 GB', must be a whole number",
        ),
    ],
)
def test_complaints_name_file_and_field(tmp_path, old, new, complaint):
    assert old in T4X4
    path = tmp_path / "bad.toml"
    path.write_text(T4X4.replace(old, new, 1))
    with pytest.raises(BadInput) as caught:
        load_node(path)
    assert str(caught.value).startswith(f"node file {path}: {complaint}")
    assert "\n" not in str(caught.value)


def test_a_uuid_twice(tmp_path):
    first, second = (gpu.uuid for gpu in load_node("t4x4").gpus[:2])
    path = tmp_path / "bad.toml"
    path.write_text(T4X4.replace(second, first))
    with pytest.raises(BadInput, match=rf"gpus\[1\]\.uuid: {first} is already gpus\[0\]'s$"):
        load_node(path)


@pytest.mark.parametrize("gpus", ["", "gpus = []\n", "gpus = 4\n", "gpus = [4]\n"])
def test_no_gpus(tmp_path, gpus):
    path = tmp_path / "bad.toml"
    path.write_text(gpus + T4X4.partition("[[gpus]]")[0])
    with pytest.raises(
        BadInput,
        match=r": (gpus: empty|field 'gpus' (is missing|is 4, must be an array of tables|has 4, must be a table))$",
    ):
        load_node(path)
