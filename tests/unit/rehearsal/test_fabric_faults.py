"""What a fault file says of the fabric: read, refused in one line, and brought to bear on the right trials."""

import re

import pytest

from fixtures.errors import BadInput
from fixtures.rehearsal.fabric_faults import FabricFault, check_faults, fabric_faults, lying_pairs, without_peer_access
from fixtures.rehearsal.faults import fault_names, load_fault
from fixtures.rehearsal.nodes import load_node

HANG = 'action = "hang"\n'
WRONG = 'action = "wrong"\npattern = "zeros"\n'
HANGS = {"action": "hang"}
T4X4 = load_node("t4x4")
PROCESSES = "process_per_gpu"


@pytest.fixture
def loaded(tmp_path):
    """The fault that a file with this text is."""

    def load(text):
        path = tmp_path / "own.toml"
        path.write_text(f'description = "x"\n{text}', encoding="utf-8")
        return load_fault(path)

    return load


def test_every_field(loaded):
    fault = loaded(
        f'[[fabric]]\n{WRONG}gpus = [1, 2]\ngpu = 2\narms = ["p2p_off"]\nranks_min = 2\n'
        'process_model = "thread_per_gpu"\noperation = "all_gather"\ndtype = "float16"\nbytes_min = 65536\n'
        '[[fabric]]\naction = "crash"\nsignal = "SIGSEGV"\n[[fabric]]\naction = "slow"\nmilliseconds = 5'
    )
    assert not fault.action
    wrong, crash, slow = fault.fabric
    assert wrong == FabricFault(
        "wrong",
        gpus=(1, 2),
        gpu=2,
        arms=("p2p_off",),
        process_model="thread_per_gpu",
        operation="all_gather",
        dtype="float16",
        bytes_min=65536,
        pattern="zeros",
    )
    assert (crash.signal, slow.milliseconds) == ("SIGSEGV", 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[fabric]\n" + HANG, "field 'fabric' must be an array of tables: [[fabric]]"),
        ("fabric = [1]", "field 'fabric' must be an array of tables: [[fabric]]"),
        ("fabric = 3", "field 'fabric' must be an array of tables: [[fabric]]"),
        ("[[fabric]]\ngpus = [1, 2]", "[[fabric]] 1: field 'action' is missing; one of hang, wrong, crash, slow"),
        ('[[fabric]]\naction = "melt"', "[[fabric]] 1: field 'action' is 'melt', must be one of hang, wrong"),
        ('[[fabric]]\naction = ["hang"]', "[[fabric]] 1: field 'action' is ['hang'], must be one of hang, wrong"),
        (
            f"[[fabric]]\n{HANG}[[fabric]]\n{HANG}ranks = 3",
            "[[fabric]] 2: unknown field 'ranks' of hang; known: action",
        ),
        (f'[[fabric]]\n{HANG}pattern = "zeros"', "unknown field 'pattern' of hang"),
        ('[[fabric]]\naction = "no_peer_access"\ngpus = [1, 2]\ngpu = 2', "unknown field 'gpu' of no_peer_access"),
        (f"[[fabric]]\n{HANG}gpus = 2", "field 'gpus' is 2, must be a list of whole numbers"),
        (f"[[fabric]]\n{HANG}gpus = []", "field 'gpus' is [], must have one or more, all different"),
        (f"[[fabric]]\n{HANG}gpus = [1, 1]", "field 'gpus' is [1, 1], must have one or more, all different"),
        (f"[[fabric]]\n{HANG}gpus = [-1, 1]", "field 'gpus' has -1, must be 0 or more"),
        (f'[[fabric]]\n{HANG}gpus = ["GPU1", "GPU2"]', "field 'gpus' has 'GPU1', must be a whole number"),
        (f"[[fabric]]\n{HANG}gpu = true", "field 'gpu' is True, must be a whole number"),
        (f'[[fabric]]\n{HANG}arms = ["on"]', "field 'arms' has 'on', must be one of p2p_on, p2p_off"),
        (f"[[fabric]]\n{HANG}ranks_min = 1", "field 'ranks_min' is 1, must be 2 or more"),
        (f'[[fabric]]\n{HANG}process_model = "threads"', "field 'process_model' is 'threads', must be one of process"),
        (f'[[fabric]]\n{HANG}operation = "all_alone"', "field 'operation' is 'all_alone', must be one of all_reduce"),
        (f'[[fabric]]\n{HANG}dtype = "fp16"', "field 'dtype' is 'fp16', must be one of int32, float16"),
        (f"[[fabric]]\n{HANG}bytes_min = 0", "field 'bytes_min' is 0, must be 1 or more"),
        ('[[fabric]]\naction = "crash"\nsignal = "SIGKILL"', "field 'signal' is 'SIGKILL', must be one of SIGABRT"),
        ('[[fabric]]\naction = "slow"\nmilliseconds = 0.5', "field 'milliseconds' is 0.5, must be a whole number"),
        (
            '[[fabric]]\naction = "slow"\nmilliseconds = 3600001',
            "field 'milliseconds' is 3600001, must be 3600000 or less",
        ),
        ('[[fabric]]\naction = "wrong"', "field 'pattern' is missing; one of zeros, stale, shifted, share"),
        ('[[fabric]]\naction = "wrong"\npattern = "ones"', "field 'pattern' is 'ones', must be one of zeros"),
        (
            '[[fabric]]\naction = "wrong"\npattern = "doubled"\noperation = "broadcast"',
            "nothing is added in broadcast, so no share can be doubled",
        ),
        ('[[fabric]]\naction = "lying_peer_access"', "field 'gpus' must name 2 GPUs or more for lying_peer_access"),
        (
            '[[fabric]]\naction = "no_peer_access"\ngpus = [1]',
            "field 'gpus' must name 2 GPUs or more for no_peer_access",
        ),
        (f"[[fabric]]\n{HANG}gpus = [1, 2]\ngpu = 3", "field 'gpu' is 3, which isn't one of 'gpus'"),
    ],
)
def test_bad_tables(loaded, tmp_path, text, words):
    """One line that names file, table and field."""
    with pytest.raises(BadInput) as caught:
        loaded(text)
    assert str(caught.value).startswith(f"fault {tmp_path / 'own.toml'}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_ranks_than_the_node_has_gpus():
    """Nothing would ever be broken, and the rehearsal pass."""
    faults = fabric_faults("own.toml", [{"action": "hang", "ranks_min": 5}])
    with pytest.raises(BadInput, match=r"^--fault=own: \[\[fabric\]\] 1: node t4x4 has no 5 GPUs for ranks_min$"):
        check_faults("--fault=own", faults, T4X4)
    check_faults("--fault=own", fabric_faults("own.toml", [{"action": "hang", "ranks_min": 4}]), T4X4)
    check_faults("--fault=own", faults, T4X4.keeping([2]), ranks=8)  # that share one GPU


@pytest.mark.parametrize("table", [{"gpus": [2, 4]}, {"gpu": 4}])
def test_gpu_that_the_node_does_not_have(table):
    faults = fabric_faults("own.toml", [{"action": "hang"}, {"action": "hang", **table}])
    with pytest.raises(BadInput, match=r"^--fault=own: \[\[fabric\]\] 2: node t4x4 has no GPU4$"):
        check_faults("--fault=own", faults, T4X4)


def test_gpus_that_were_not_chosen():
    """A node's GPUs that the run doesn't use; those that it uses may stand in any order."""
    faults = fabric_faults("own.toml", [{"action": "lying_peer_access", "gpus": [1, 2]}])
    for places in ([1, 2], [2, 3, 1]):
        check_faults("--fault=own", faults, T4X4.keeping(places), chosen="as said")
    words = re.escape("--fault=own: [[fabric]] 1: node t4x4 with --gpus=3,1 has no GPU2")
    with pytest.raises(BadInput, match=f"^{words}$"):
        check_faults("--fault=own", faults, T4X4.keeping([3, 1]), chosen="3,1")


@pytest.mark.parametrize(
    ("table", "largest"),
    [
        ({}, 2**20 + 4),
        ({"dtype": "float16"}, 2**20 + 2),
        ({"operation": "all_gather"}, 4 * (4096 + 1)),
        ({"operation": "broadcast", "dtype": "bfloat16"}, 2 * (4096 + 1)),
        ({"ranks_min": 3}, 2**20),  # the measurement over the group
        ({"gpus": [0, 1, 2], "dtype": "int32"}, 4 * (4096 + 1)),
        ({"process_model": "thread_per_gpu", "dtype": "float16"}, 2 * (4096 + 1)),
        ({"arms": ["p2p_direct_off"], "dtype": "int32"}, 4 * (4096 + 1)),
    ],
)
def test_more_bytes_than_any_collective_has(table, largest):
    """The largest one that is tested is accepted; the step after it would never be met."""

    def check(size, *more):
        check_faults("--fault=own", fabric_faults("own.toml", [{**HANGS, **table, "bytes_min": size}]), T4X4, more)

    check(largest)
    words = f"--fault=own: [[fabric]] 1: bytes_min is {largest + 1}, the largest collective it meets has {largest}"
    with pytest.raises(BadInput, match=f"^{re.escape(words)}$"):
        check(largest + 1)
    if largest > 2**20:
        check(2**26, 2**26)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([{"gpus": [0, 3]}], "[[fabric]] 1: no peer access to lie about between GPU0 and GPU3: it is CNS"),
        ([{"gpus": [1, 2]}, {"gpus": [2, 1, 3]}], "[[fabric]] 2: no peer access to lie about between GPU1 and GPU3: "),
        (
            [{"gpus": [1, 2]}, {"action": "no_peer_access", "gpus": [0, 1, 2]}],
            "[[fabric]] 1: no peer access to lie about between GPU1 and GPU2: it is CNS",
        ),
    ],
)
def test_lie_where_nothing_is_granted(tables, words):
    faults = fabric_faults("own.toml", [{"action": "lying_peer_access", **table} for table in tables])
    with pytest.raises(BadInput, match=f"^{re.escape(f'--fault=own: {words}')}"):
        check_faults("--fault=own", faults, T4X4)
    check_faults("--fault=own", fabric_faults("own.toml", [{"action": "lying_peer_access", "gpus": [0, 1, 2]}]), T4X4)


@pytest.mark.parametrize("name", fault_names())
def test_the_catalogue_can_show(name):
    check_faults(f"--fault={name}", load_fault(name).fabric, T4X4)


@pytest.mark.parametrize(
    ("conditions", "concerns"),
    [
        ({}, True),
        ({"gpus": (1, 2), "gpu": 1, "arms": ("p2p_off", "p2p_on"), "process_model": PROCESSES}, True),
        ({"gpus": (0, 1)}, False),
        ({"gpu": 0}, False),
        ({"arms": ("p2p_off",)}, False),
        ({"ranks_min": 3}, False),
        ({"process_model": "thread_per_gpu"}, False),
    ],
)
def test_trials_that_it_concerns(conditions, concerns):
    """Of GPU1 and GPU2 with P2P on."""
    assert FabricFault("hang", **conditions).concerns([1, 2], "p2p_on", PROCESSES) is concerns


@pytest.mark.parametrize(
    ("conditions", "meets"),
    [
        ({"operation": "all_gather", "dtype": "float16", "bytes_min": 4096}, True),
        ({"operation": "all_reduce"}, False),
        ({"dtype": "int32"}, False),
        ({"bytes_min": 4097}, False),
        ({"pattern": "share"}, True),
        ({"pattern": "left_out"}, False),  # nothing is added
    ],
)
def test_collectives_that_it_meets(conditions, meets):
    """An all-gather of 4 KiB."""
    assert FabricFault("wrong", **conditions).meets("all_gather", "float16", 4096) is meets


def test_rank_that_it_befalls():
    """That of its GPU, else the last."""
    assert FabricFault("hang", gpu=5).victim([3, 5, 7]) == 1
    assert FabricFault("hang").victim([3, 5, 7]) == 2


def test_peer_access_of_pairs():
    """Of all pairs among its GPUs; a refusal is what the driver says, a lie isn't."""
    refused = FabricFault("no_peer_access", gpus=(2, 0, 1))
    lying = FabricFault("lying_peer_access", gpus=(3, 1))
    node = load_node("a100x8")
    seen = without_peer_access(node, [refused, lying])
    pairs = {(a, b) for a in range(8) for b in range(8) if a != b and not seen.peer[a][b]}
    assert pairs == {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}
    assert {seen.peer_words[a][b] for a, b in pairs} == {"CNS"}
    assert (seen.peer_words[1][3], seen.links) == ("OK", node.links)
    assert lying_pairs([refused, lying]) == {(1, 3)}
