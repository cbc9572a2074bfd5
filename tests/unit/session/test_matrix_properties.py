"""What holds for the matrix of any selection on any machine."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fixtures.matrix import BACKENDS, COMMUNICATORS, PRECISIONS, configurations, plan
from fixtures.nccl.arms import P2P_ARMS
from fixtures.rehearsal.nodes import load_node, node_names
from fixtures.report.names import configuration_of
from tests.unit.session.conftest import select

NODES = [load_node(name) for name in node_names()]


def some(values):
    """A non-empty tuple of them, in any order."""
    return st.lists(st.sampled_from(values), min_size=1, unique=True).map(tuple)


SELECTIONS = st.builds(
    select,
    backend=some(BACKENDS),
    communicator=some(COMMUNICATORS),
    tp=some((1, 2, 4, 8, 16)),
    precision=st.none() | some(PRECISIONS),
    p2p=some(P2P_ARMS),
)


@st.composite
def machines(draw):
    """A node with some of its GPUs, any of them in MIG mode, taken for real or not."""
    node = draw(st.sampled_from(NODES))
    places = draw(st.lists(st.integers(0, len(node.gpus) - 1), unique=True))
    kept = node.keeping(places)
    gpus = tuple(replace(gpu, mig=draw(st.booleans())) for gpu in kept.gpus)
    return replace(kept, gpus=gpus)


@given(selection=SELECTIONS, machine=machines(), oversubscribe=st.booleans())
def test_every_cell_has_gpus_or_a_reason(selection, machine, oversubscribe):
    cells = plan(selection, machine, oversubscribe=oversubscribe, missing=lambda _: None)
    here = {gpu.index: gpu for gpu in machine.gpus}
    for cell in cells:
        configuration = cell.configuration
        assert configuration.backend in selection["backend"]
        assert configuration.tp in selection["tp"]
        assert (configuration.communicator is None) == (configuration.tp == 1)
        if cell.skip_reason is not None:
            assert cell.skip_reason.strip()
            assert "\n" not in cell.skip_reason
            continue
        assert len(set(configuration.gpus)) == len(configuration.gpus)
        assert set(configuration.gpus) <= set(here)
        assert len(configuration.gpus) == (1 if configuration.shared_gpu else configuration.tp)
        assert oversubscribe or not configuration.shared_gpu
        if configuration.shared_gpu:
            assert configuration.tp > len(here)
        elif configuration.tp > 1:
            assert not any(here[index].mig for index in configuration.gpus)
    # Nothing that was selected is lost: each configuration stands there, or what it shares one GPU with.
    ids = {cell.configuration.id for cell in cells}
    assert len(ids) == len(cells)
    for wanted in configurations(selection):
        assert wanted.id in ids or replace(wanted, shared_gpu=True, p2p=None).id in ids


@given(selection=SELECTIONS)
def test_ids_name_one_configuration_each(selection):
    """An id is unique, and found again in a test's node id: by the scheduler of -n and by the report."""
    found = list(configurations(selection))
    ids = [configuration.id for configuration in found]
    assert len(set(ids)) == len(set(found)) == len(ids)
    for name in ids:
        for parameters in (name, f"{name}-3", f"prompt-{name}", f"1-{name}-long"):
            assert configuration_of(f"tests/multigpu/test_x.py::test_y[{parameters}]", ids) == name
