"""PressureResource: a function that frees memory when a request does not fit."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

import ternmem as tern


def limited(device: tern.Device, handler: Any) -> tuple[tern.Budget, tern.PressureResource]:
    budget = tern.Budget("pressed", 2 << 20)
    return budget, tern.PressureResource(tern.BudgetResource(tern.Pool(device), budget), handler)


def test_a_handler_frees_memory_and_the_request_succeeds(device: tern.Device) -> None:
    kept: list[tern.Buffer] = []
    asked: list[int] = []

    def free_one(need_bytes: int) -> int:
        asked.append(need_bytes)
        return kept.pop(0).nbytes

    budget, resource = limited(device, free_one)
    for _ in range(5):
        kept.append(tern.Buffer(1 << 18, "float32", device, resource=resource).fill(1))
    assert asked == [1 << 20] * 3
    assert len(kept) == 2
    assert budget.peak_bytes == 2 << 20


def test_a_handler_that_frees_nothing_leaves_the_error(device: tern.Device) -> None:
    calls: list[int] = []

    def free_nothing(need_bytes: int) -> int:
        calls.append(need_bytes)
        return 0

    # Memory that an earlier test exported would be reclaimed, and the request made again.
    device.synchronize()
    tern.reclaim_exported()
    budget, resource = limited(device, free_nothing)
    with pytest.raises(tern.OutOfBudgetError):
        tern.Buffer(3 << 20, "uint8", device, resource=resource).allocate()
    assert len(calls) == 1
    assert budget.used_bytes == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("result", [ZeroDivisionError("planted"), "many", None, -1])
def test_a_handler_that_fails_leaves_the_error(device: tern.Device, result: Any) -> None:
    def fail(need_bytes: int) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    budget, resource = limited(device, fail)
    with pytest.raises(tern.OutOfBudgetError):
        tern.Buffer(3 << 20, "uint8", device, resource=resource).allocate()
    assert budget.used_bytes == 0
    assert tern.Buffer(16, "uint8", device, resource=resource).fill(1).to_numpy().sum() == 16


def test_a_handler_is_a_function_and_ends_with_its_resource() -> None:
    device = tern.open_device("host")
    with pytest.raises(TypeError, match="handler must be a function"):
        limited(device, 3)

    class Handler:
        def __call__(self, need_bytes: int) -> int:
            return 0

    handler = Handler()
    ended = weakref.ref(handler)
    budget, resource = limited(device, handler)
    del handler
    gc.collect()
    assert ended() is not None
    del budget, resource
    gc.collect()
    assert ended() is None
