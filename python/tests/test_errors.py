"""Exceptions: each is a tern.Error, and the built-in class that fits."""

from __future__ import annotations

import pytest

import ternmem as tern


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("SizeOverflowError", OverflowError),
        ("InvalidArgumentError", ValueError),
        ("InvalidViewError", IndexError),
        ("TypeMismatchError", TypeError),
        ("NotAllocatedError", BufferError),
        ("NotHostAccessibleError", BufferError),
        ("OutOfMemoryError", MemoryError),
        ("OutOfBudgetError", MemoryError),
        ("OutOfBoundsError", IndexError),
        ("UnsupportedError", NotImplementedError),
        ("TimeoutError", TimeoutError),
        ("NotFoundError", LookupError),
        ("FileError", OSError),
        ("DlpackRejectedError", BufferError),
        ("ArrowRejectedError", BufferError),
        ("CopyRequiredError", ValueError),
        ("CopyRequiredError", BufferError),
        ("DeviceLostError", RuntimeError),
    ],
)
def test_each_error_is_two_things(name: str, builtin: type[BaseException]) -> None:
    error = getattr(tern, name)
    assert issubclass(error, tern.Error)
    assert issubclass(error, builtin)
    assert issubclass(error, RuntimeError)


def test_an_error_has_its_numbers_and_its_line() -> None:
    pool = tern.Pool("sim", limit_bytes=16 << 20)
    budget = tern.Budget("small", 1 << 20)
    resource = tern.BudgetResource(pool, budget)
    with pytest.raises(tern.OutOfBudgetError) as caught:
        tern.Buffer(1 << 20, resource=resource).allocate()
    error = caught.value
    assert error.code == "out_of_budget"
    assert error.limit == 1 << 20
    assert error.requested == 4 << 20
    assert error.site is not None
    assert error.site.startswith(__file__)
    assert budget.used_bytes == 0


def test_unknown_devices_are_refused_with_the_range() -> None:
    with pytest.raises(tern.InvalidDeviceError):
        tern.open_device("cuda:99")
    with pytest.raises(ValueError, match="numbered from 0"):
        tern.set_device(99)
    with pytest.raises(TypeError):
        tern.set_device(1.5)
