"""What NVML tells of each GPU: pynvml's own calls on a fake library; fabric answers put into its structures."""

from __future__ import annotations

import os

import pynvml
import pytest

from fixtures.machine.facts import FabricState, GpuState, User
from fixtures.machine.gpu_states import states_of
from fixtures.rehearsal.nodes import load_node
from tests.unit.machine.conftest import description, fake_library, fake_nvml

__all__ = ["fake_library", "fake_nvml"]
ALONE = load_node("h200x1")
[GPU] = ALONE.gpus


def answer(**fields):
    """What stands for an NVML call that fills a structure; `_obj` is what ctypes.byref holds."""

    def call(handle, structure):
        for name, value in fields.items():
            setattr(structure._obj, name, value)
        return pynvml.NVML_SUCCESS

    return call


def refused(*arguments):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def state_of_alone() -> GpuState:
    return states_of(ALONE.gpus)[GPU.uuid]


def test_a_driver_that_tells_nothing_of_it(fake_nvml):
    """Old drivers lack the functions: unknown, not false."""
    fake_nvml(description(ALONE))
    state = state_of_alone()
    assert (state.capability, state.persistence, state.fabric, state.users) == (None, None, None, ())
    assert state.used_mib == 0


def test_who_is_on_it(fake_nvml, monkeypatch):
    """A pid of this host by name; one that is nobody's here has none."""
    fake_nvml(description(ALONE))
    monkeypatch.setattr("fixtures.machine.gpu_states.processes_on", lambda uuid: [(os.getpid(), 500), (2**30, None)])
    mine, hidden = state_of_alone().users
    assert (mine.pid, mine.mib, bool(mine.name)) == (os.getpid(), 500, True)
    assert hidden == User(2**30, None, None)


def test_capability_and_persistence(fake_nvml, monkeypatch):
    fake_nvml(description(ALONE))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCudaComputeCapability", lambda handle: (9, 0))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPersistenceMode", lambda handle: 0)
    assert (state_of_alone().capability, state_of_alone().persistence) == ("9.0", False)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"state": 0}, FabricState("not supported")),
        ({"state": 1}, FabricState("not started")),
        ({"state": 2}, FabricState("in progress")),
        ({"state": 3}, FabricState("completed")),
        ({"state": 3, "status": pynvml.NVML_ERROR_TIMEOUT}, FabricState("completed", "Timeout")),
        ({"state": 2, "status": pynvml.NVML_ERROR_TIMEOUT}, FabricState("in progress")),
        ({"state": 9}, FabricState("state 9")),
    ],
)
@pytest.mark.parametrize("form", ["newer", "older"])
def test_fabric(fake_nvml, monkeypatch, fields, expected, form):
    fake_nvml(description(ALONE))
    newer, older = (answer(**fields), refused) if form == "newer" else (refused, answer(**fields))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGpuFabricInfoV", newer)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGpuFabricInfo", older)
    assert state_of_alone().fabric == expected


@pytest.mark.parametrize(("mask", "error"), [(0, None), (1, "degraded bandwidth"), (2, None)])
def test_fabric_health(fake_nvml, monkeypatch, mask, error):
    fake_nvml(description(ALONE))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetGpuFabricInfoV", answer(state=3, healthMask=mask))
    assert state_of_alone().fabric == FabricState("completed", error)


def test_a_lost_gpu_is_left_out(fake_nvml):
    """Its uuid is nobody's any more; the others are told."""
    fake_nvml(description(load_node("t4x4")))
    assert states_of(ALONE.gpus) == {}
    assert len(states_of((*ALONE.gpus, *load_node("t4x4").gpus))) == 4
