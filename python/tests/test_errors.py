"""Exceptions: each is a tern.Error, and the built-in class that fits."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable

import numpy as np
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
        ("PeerLostError", ConnectionError),
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


MISTAKES: list[tuple[Callable[[tern.Buffer], object], type[Exception], str]] = [
    (lambda grid: tern.Buffer(np.zeros(3), device="sim"), TypeError, r"not ndarray.*copy_from\(array\)"),
    (lambda grid: tern.UnifiedBuffer(2.5), TypeError, "sequence of integers, and not float"),
    (lambda grid: tern.Buffer((2, "3")), TypeError, "sequence of integers"),
    (lambda grid: tern.Buffer(3, "float33"), TypeError, "^'float33' is not an element type"),
    (lambda grid: tern.Buffer(3, device=0), TypeError, "'sim' or 'host', and not int"),
    (lambda grid: tern.Buffer(3, kind="pined"), ValueError, "kind is 'pined'. Use 'device', 'pinned'"),
    (lambda grid: tern.Buffer(3, contents="zeros"), ValueError, "contents is 'zeros'. Use .*'zero'"),
    (lambda grid: tern.Pool("sim", kind="host"), ValueError, "kind is 'host'"),
    (lambda grid: tern.Budget("b", 1, overflow="evit"), ValueError, "overflow is 'evit'. Use .*'evict'"),
    (lambda grid: tern.UnifiedBuffer(3, pinned="yes"), ValueError, "pinned is 'yes'. Use True, False or 'prefer'"),
    (lambda grid: tern.sim.open(schedule="lzy"), ValueError, "schedule is 'lzy'. Use one of: mix, lazy"),
    (lambda grid: grid[0, 1], TypeError, "one integer or one slice as an index, and not tuple"),
    (lambda grid: grid[None], TypeError, "one integer or one slice as an index, and not NoneType"),
    (lambda grid: grid[np.ones(4, bool)], TypeError, "one integer or one slice as an index, and not ndarray"),
    (lambda grid: grid.fill(1, "compute"), TypeError, "a stream is a ternmem.Stream.*and not str"),
    (lambda grid: memoryview(grid), BufferError, "the host cannot access device memory of 'sim:0'"),
    (lambda grid: np.asarray(tern.Column([1, 2])), TypeError, r"to_numpy\(\) and valid\(\)"),
    (lambda grid: grid.to_numpy(), ValueError, "never written.*contents='zero' or contents='unspecified'"),
    (lambda grid: tern.sim.findings(tern.open_device("host")), ValueError, r"with sim\.open\(\)"),
    (lambda grid: tern.from_dlpack([1, 2]), TypeError, "list has no __dlpack__"),
    (lambda grid: tern.Table({"a": tern.Column([1, 2])})[5], IndexError, "no column 5 in a table of 1"),
]


@pytest.mark.parametrize(("mistake", "builtin", "message"), MISTAKES)
def test_the_message_of_a_mistake_says_what_to_do(
    mistake: Callable[[tern.Buffer], object], builtin: type[Exception], message: str
) -> None:
    grid = tern.Buffer((4, 3), device="sim")
    with pytest.raises(builtin, match=message) as caught:
        mistake(grid)
    assert isinstance(caught.value, tern.Error)


@pytest.mark.parametrize("spec", ["sim", "cuda:0?driver=sim"])
def test_numpy_makes_no_array_of_objects(spec: str) -> None:
    x = tern.UnifiedBuffer(3, device=spec).fill(1)
    with x.read_device() as lent, pytest.raises(BufferError, match="NumPy cannot use memory of"):
        np.asarray(lent)
    with pytest.raises(BufferError, match="NumPy cannot use memory of"):
        np.asarray(tern.Array([1, 2], device=spec))
    with pytest.raises(TypeError, match=r"contiguous\(\)"):
        np.asarray(tern.from_dlpack(np.zeros((4, 4))[:, ::2]))


def test_numpy_uses_leases_and_arrays_of_the_host() -> None:
    with tern.UnifiedBuffer(3, device="host").fill(1).rw_device() as lent:
        assert np.asarray(lent).tolist() == [1, 1, 1]
        assert np.asarray(lent, dtype="int32").dtype == np.int32
    assert np.asarray(tern.Array([1, 2], device="host")).tolist() == [1, 2]


def test_reprs_name_the_limit_and_the_device() -> None:
    assert repr(tern.Budget("open", None)) == "Budget('open', limit_bytes=None, used_bytes=0)"
    pool = tern.Pool("sim")
    assert repr(pool) == "Pool(device='sim:0', limit_bytes=0, live_bytes=0, held_bytes=0)"
    assert repr(tern.BudgetResource(pool, tern.Budget("b", 1))) == "BudgetResource(device='sim:0')"
    strided = tern.from_dlpack(np.zeros((4, 4), "float32")[:, ::2])
    assert repr(strided) == "StridedBuffer(shape=(4, 2), strides=[4, 2], dtype=float32, device='host')"


def test_messages_name_no_option_of_cpp() -> None:
    root = pathlib.Path(__file__).resolve().parents[2]
    if not (root / "src").is_dir():
        pytest.skip("the sources of the library are not here")
    named = set()
    for file in (root / "src").rglob("*.cpp"):
        for text in re.findall(r'"([^"\n]*)"', file.read_text()):
            named.update(re.findall(r"\b[A-Z]\w+::\w+", text))
    translated = (root / "python/src/errors.cpp").read_text()
    # Python has no guard, so the message about it cannot appear.
    left = {name for name in named if name not in translated} - {"UnifiedOptions::guard"}
    assert not left


def test_a_name_is_translated_everywhere_in_a_message() -> None:
    x = tern.Buffer(4, "int8", "sim:0")
    with pytest.raises(tern.Error) as caught:
        x.to_numpy()
    assert "::" not in str(caught.value)


@pytest.mark.parametrize(("shape", "helps"), [(4.0, False), (np.zeros((2, 2)), True), ("4", True)])
def test_a_wrong_shape_names_from_numpy_where_it_helps(shape: object, helps: bool) -> None:
    with pytest.raises(tern.TypeMismatchError) as caught:
        tern.Buffer(shape, "int8")
    assert ("from_numpy" in str(caught.value)) == helps


def test_wrong_sizes_and_values_are_errors_of_tern() -> None:
    device = tern.open_device("host")
    x = tern.Buffer(3, "int32", device)
    wrong: list[tuple[Callable[[], object], type[Exception]]] = [
        (lambda: device.allocate(-1), ValueError),
        (lambda: tern.Pool(device, limit_bytes=-1), ValueError),
        (lambda: tern.Pool(device, initial_bytes=2**70), OverflowError),
        (lambda: tern.Budget("small", -1), ValueError),
        (lambda: tern.Budget("small", 1.5), TypeError),
        (lambda: x.fill(float("nan")), ValueError),
        (lambda: x.fill(2**70), OverflowError),
        (lambda: x.fill("a"), ValueError),
    ]
    for call, kind in wrong:
        with pytest.raises(tern.Error) as caught:
            call()
        assert isinstance(caught.value, kind)
