"""Memory that leaves the device and comes back to the same addresses."""

import pathlib

import numpy as np
import pytest

import ternmem as tern


@pytest.fixture(params=["host", "sim"])
def device(request: pytest.FixtureRequest) -> tern.Device:
    return tern.open_device(request.param)


@pytest.fixture
def memory(device: tern.Device, tmp_path: pathlib.Path) -> tern.PausableResource:
    return tern.PausableResource(device, directory=str(tmp_path))


def made(memory: tern.PausableResource, count: int = 1000, tag: str = "weights") -> tern.Buffer:
    buffer = tern.Buffer(count, "float32", memory.device, resource=memory, tag=tag)
    buffer.copy_from(np.arange(count, dtype=np.float32))
    return buffer


@pytest.mark.parametrize("keep", ["host", "disk"])
def test_bytes_come_back_to_the_same_addresses(memory: tern.PausableResource, keep: str) -> None:
    buffer = made(memory)
    memory.pause("weights", keep=keep)
    memory.wait()
    now = memory.pause_statistics
    assert now["resident_bytes"] == 0
    assert now["paused_bytes"] == now["reserved_bytes"] > 0
    assert now[f"{keep}_bytes"] > 0
    memory.resume("weights", stream=tern.Stream(memory.device))
    np.testing.assert_array_equal(buffer.to_numpy(), np.arange(1000, dtype=np.float32))
    assert memory.pause_statistics["paused_bytes"] == 0


def test_uses_of_paused_memory_name_the_tag(memory: tern.PausableResource) -> None:
    buffer = made(memory)
    memory.pause(buffer)
    with pytest.raises(tern.AccessConflictError) as error:
        buffer.to_numpy()
    assert error.value.tag == "weights"
    with pytest.raises(tern.AccessConflictError):
        memory.pause(buffer)
    memory.resume()
    with pytest.raises(tern.AccessConflictError):
        memory.resume("weights")
    with pytest.raises(tern.NotFoundError):
        memory.pause("unknown")


def test_bytes_can_be_given_up(memory: tern.PausableResource) -> None:
    buffer = made(memory)
    memory.pause(keep="nothing", after=tern.Stream(memory.device))
    memory.wait()
    memory.resume()
    with pytest.raises(tern.NeverWrittenError):
        buffer.to_numpy()


def test_a_budget_is_charged_for_pages(device: tern.Device) -> None:
    budget = tern.Budget("b", 4 << 20)
    memory = tern.PausableResource(device, budget=budget)
    first = made(memory, 1 << 20, "first")
    memory.pause("first")
    memory.wait()
    assert budget.used_bytes == 0
    second = made(memory, 1 << 20, "second")
    with pytest.raises(tern.OutOfBudgetError) as error:
        memory.resume("first")
    assert error.value.limit == 4 << 20
    del second
    device.synchronize()
    assert memory.reclaim() >= 0
    memory.resume("first")
    assert first.to_numpy()[7] == 7


def test_bad_arguments(memory: tern.PausableResource) -> None:
    with pytest.raises(ValueError, match="'host', 'disk' or 'nothing'"):
        memory.pause(keep="tape")
    with pytest.raises(TypeError, match="a tag, a Buffer"):
        memory.pause(3)
