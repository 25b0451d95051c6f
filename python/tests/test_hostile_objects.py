"""Objects that are not what a call expects: they raise an error, and do not end the process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ternmem as tern


def run(program: str) -> None:
    """Run a program that may crash or hang."""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30,
                           env={**os.environ, "PYTHONWARNINGS": "ignore"})
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("call", ["read_host(5)", "rw_device(5)", "allocate(5)", "fill(5, 1)", "__setitem__(5, 0, 1)"])
def test_a_method_of_another_class_is_refused(call: str) -> None:
    run(f"import ternmem as tern\ntry: tern.UnifiedBuffer.{call}\nexcept TypeError: pass\nelse: raise SystemExit(1)\n")


@pytest.mark.parametrize("name", ["Buffer", "HostMemory"])
def test_an_object_without_init_exports_no_memory(name: str) -> None:
    run(f"from ternmem import _core\nmade = _core.{name}.__new__(_core.{name})\n"
        "try: memoryview(made)\nexcept BufferError: pass\nelse: raise SystemExit(1)\n")


def test_texts_without_a_utf8_form_are_refused() -> None:
    run("""
import ternmem as tern
class Odd:
    def __repr__(self): return chr(0xd800)
class OddType(type):
    def __repr__(self): return chr(0xd800)
class Other(metaclass=OddType): pass
unified = tern.UnifiedBuffer(3, device="host")
for call in (lambda: tern.Buffer(3, chr(0xd800), "host"), lambda: tern.Buffer(3, Odd(), "host"), lambda: tern.in_(Other()),
             lambda: tern.from_arrow(Other()), lambda: tern.Kernel.from_function("host", Odd()),
             lambda: tern.PrefetchPlan().add(unified, chr(0xd800)), lambda: tern.PrefetchPlan().add(unified, Odd())):
    try: call()
    except (TypeError, ValueError): pass
    else: raise SystemExit(1)
""")


@pytest.mark.parametrize("name", ["i8", "u8", "i4", "f8", "f4", "u1", "byte", "c8"])
def test_names_of_dtypes_mean_what_they_mean_in_numpy(name: str) -> None:
    assert tern.Buffer(3, name, "host").dtype == np.dtype(name)
    assert tern.UnifiedBuffer(3, name, device="host").dtype == np.dtype(name)


def test_names_of_dtypes_that_numpy_does_not_know() -> None:
    assert tern.Buffer(3, "i16", "host").dtype == np.dtype("int16")
    assert tern.Buffer(3, "f64", "host").dtype == np.dtype("float64")


def test_commit_of_more_elements_than_there_are_commits_all(device: tern.Device) -> None:
    for count in (10, 11, 1 << 62, (1 << 62) + 1):
        buffer = tern.UnifiedBuffer(10, "float32", device=device)
        lease = buffer.discard_host()
        lease.array[:] = 7
        lease.commit(count)
        assert (buffer.to_numpy() == 7).all()


@pytest.mark.parametrize("place", [5, None, "ab", {0: 1, 1: 0}, ("a", "b"), (2.5, 0), (1,), (1, 1 << 40)])
def test_a_dlpack_device_that_is_no_pair_of_integers(place: Any) -> None:
    class Producer:
        def __dlpack_device__(self) -> Any:
            return place

        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError("not asked")

    with pytest.raises(tern.Error):
        tern.from_dlpack(Producer())
    if isinstance(place, tuple):
        with pytest.raises(tern.Error):
            tern.Buffer(3, device="host").allocate().__dlpack__(dl_device=place)


@pytest.mark.parametrize("shape", ["ab", 1.5, (1.5,), [None]])
def test_a_shape_of_other_objects_is_a_type_mismatch(shape: Any) -> None:
    with pytest.raises(tern.TypeMismatchError):
        tern.Buffer(shape, device="host")


def test_a_kernel_that_waits_for_its_device_is_refused() -> None:
    run("""
import ternmem as tern
device = tern.sim.open(mode="raise", print_findings=False)
buffer = tern.Buffer(10, device=device).fill(1)
raised = []
def kernel(x):
    for wait in (device.synchronize, buffer.to_numpy):
        try: wait()
        except tern.Error as error: raised.append(error)
tern.Kernel.from_function(device, kernel).launch(device.default_stream, 1, tern.inout(buffer))
device.synchronize()
assert len(raised) == 2, raised
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_awaits_marks_although_a_thread_of_its_parent_held_the_lock() -> None:
    run("""
import asyncio, os, signal
import ternmem as tern
from ternmem import _waiting
async def program():
    device = tern.sim.open(print_findings=False)
    stream = device.stream("held")
    hold = tern.sim.hold(stream)
    buffer = tern.Buffer(10, device=device).fill(1, stream)
    asyncio.get_running_loop().call_later(0.05, tern.sim.resume, device, hold)
    await stream.mark()
asyncio.run(program())
with _waiting._waiter._changed:
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        asyncio.run(program())
        os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""")
