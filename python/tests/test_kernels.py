"""Kernels from source and from Python functions, and launches with declared uses."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ternmem as tern
from ternmem import Kernel, LaunchSize, elements, in_, inout, out, sim

opencl_saxpy = """
kernel void saxpy(global const float* x, global float* y, float a, uint n) {
  uint i = get_global_id(0);
  if (i < n) y[i] += a * x[i];
}
"""


@pytest.fixture(params=["host", "sim:0"])
def place(request: pytest.FixtureRequest) -> tern.Device:
    """A device that runs Python functions."""
    return tern.open_device(request.param)


@pytest.fixture
def simulated() -> Iterator[tern.Device]:
    device = sim.open(seed=5)
    yield device
    device.synchronize()
    assert sim.findings(device) == []


def filled(device: tern.Device, value: float, shape: Any = 100, kind: str = "buffer") -> Any:
    """Memory of each kind with equal elements."""
    if kind == "unified":
        made: Any = tern.UnifiedBuffer(shape, device=device)
    elif kind == "managed":
        made = tern.ManagedBuffer(shape, device=device)
    else:
        made = tern.Buffer(shape, device=device)
    return made.fill(value)


def saxpy(x: Any, y: Any, a: float) -> None:
    y += a * x


# --- Python functions


@pytest.mark.parametrize("kind", ["buffer", "unified", "managed"])
def test_a_function_computes_with_arrays(place: tern.Device, kind: str) -> None:
    kernel = Kernel.from_function(place, saxpy)
    x, y = filled(place, 2, kind=kind), filled(place, 3, kind=kind)
    mark = kernel.launch(None, elements(100), in_(x), inout(y), 10)
    mark.wait()
    assert (y.to_numpy() == 23).all()
    assert kernel.name == "saxpy"
    assert kernel.device == place
    assert "saxpy" in repr(kernel)


def test_the_arrays_have_the_declared_shape_and_access(place: tern.Device) -> None:
    seen: list[Any] = []

    def look(a: Any, b: Any, c: Any, text: str, thing: object) -> None:
        for array in (a, b, c):
            seen.append((array.shape, array.dtype, array.flags.writeable))
        seen.append((text, thing))
        b[...] = a[0, 0]
        c += 1

    thing = object()
    a = tern.Buffer((2, 3), "int16", place).fill(7)
    b = tern.Buffer((), "float64", place)
    c = tern.Buffer((0, 4), "uint8", place).fill(0)
    Kernel.from_function(place, look).launch(place.default_stream, 1, in_(a), out(b), inout(c), "text", thing)
    place.synchronize()
    assert seen == [
        ((2, 3), np.int16, False),
        ((), np.float64, True),
        ((0, 4), np.uint8, True),
        ("text", thing),
    ]
    assert b.item() == 7


def test_launches_on_two_streams_are_ordered_by_their_uses(simulated: tern.Device) -> None:
    kernel = Kernel.from_function(simulated, saxpy)
    first, second = simulated.stream("first"), simulated.stream("second")
    x, y = filled(simulated, 1), filled(simulated, 0)
    for _ in range(10):
        kernel.launch(first, 100, in_(x), inout(y), 1)
        kernel.launch(second, 100, in_(y), inout(x), 1)
    a, b = 1.0, 0.0
    for _ in range(10):
        b += a
        a += b
    assert (x.to_numpy() == a).all()
    assert (y.to_numpy() == b).all()


def test_a_missing_wait_is_found_on_sim() -> None:
    device = sim.open(seed=1, print_findings=False, mode="collect", schedule="lazy")
    kernel = Kernel.from_function(device, saxpy)
    x, y = filled(device, 1), filled(device, 0)
    device.synchronize()
    kernel.launch(device.stream("kernel"), 100, in_(x), inout(y), 1)
    device.stream("other").fill_bytes(y.ptr, 400, 0)  # the program orders this, and forgot to
    device.synchronize()
    found = sim.findings(device)
    assert found
    assert any(__file__ in (finding.site or "") for finding in found)


def test_an_undeclared_access_is_found_on_sim() -> None:
    device = sim.open(seed=1, print_findings=False, mode="collect", strict_kernels=True)
    x, y = filled(device, 1), filled(device, 0)
    device.synchronize()

    def sneaky(a: Any) -> None:
        ctypes.memset(a.ctypes.data, 3, 4)

    Kernel.from_function(device, sneaky).launch(None, 100, in_(x))
    device.synchronize()
    assert any("sneaky" in finding.what for finding in sim.findings(device))
    del y


def test_a_launch_brings_a_unified_buffer_to_its_device(accelerator: tern.Device) -> None:
    if not accelerator.spec.startswith("sim"):
        pytest.skip("only the simulated device runs Python functions")
    buffer = tern.UnifiedBuffer(1000, device=accelerator)
    buffer.host[:] = 2
    kernel = Kernel.from_function(accelerator, lambda x: np.multiply(x, 2, out=x))
    kernel.launch(None, 1000, inout(buffer))
    assert buffer.statistics["to_device"]["copies"] == 1
    assert buffer.state is tern.BufferState.DEVICE_DIRTY
    assert (buffer.to_numpy() == 4).all()


def test_nothing_is_launched_for_no_elements(place: tern.Device) -> None:
    called: list[int] = []
    kernel = Kernel.from_function(place, lambda x: called.append(1))
    x = filled(place, 1)
    marker = _Marker()
    kernel.launch(None, 0, inout(x))
    kernel.launch(None, LaunchSize((4, 0), 32), inout(x))
    Kernel.from_function(place, lambda x, m: called.append(2)).launch(None, elements(0), in_(x), marker)
    place.synchronize()
    assert called == []
    gone = weakref.ref(marker)
    del marker
    assert gone() is None  # the launch that did not run keeps nothing


class _Marker:
    pass


def test_a_failed_launch_keeps_nothing(place: tern.Device) -> None:
    marker = _Marker()
    gone = weakref.ref(marker)
    kernel = Kernel.from_function(place, lambda x, m: None)
    with pytest.raises(tern.NeverWrittenError):
        kernel.launch(None, 1, in_(tern.Buffer(4, device=place)), marker)
    del marker
    gc.collect()
    assert gone() is None


def test_memory_and_kernel_may_go_right_after_the_launch(place: tern.Device) -> None:
    results: list[float] = []
    stream = place.stream()
    x = filled(place, 5)
    Kernel.from_function(place, lambda a: results.append(float(a.sum()))).launch(stream, 1, in_(x))
    del x
    gc.collect()
    stream.synchronize()
    assert results == [500.0]


def test_an_array_that_the_function_keeps_stays_valid_memory(place: tern.Device) -> None:
    kept: list[Any] = []
    for kind in ("buffer", "unified", "managed"):
        x = filled(place, 5, kind=kind)
        Kernel.from_function(place, kept.append).launch(None, 1, inout(x))
        place.synchronize()
        del x
    gc.collect()
    others = [filled(place, 9) for _ in range(20)]
    place.synchronize()
    for array in kept:
        assert (array == 5).all()
        assert not array.flags.writeable
    del others


# --- Exceptions


class _Odd(Exception):
    pass


def fails(*arguments: Any) -> None:
    raise _Odd("in the kernel")


@pytest.mark.parametrize("wait", ["mark", "stream", "device", "read", "buffer"])
def test_an_exception_reaches_the_waiter(place: tern.Device, wait: str) -> None:
    x = filled(place, 1)
    place.synchronize()
    stream = place.stream("failing")
    kernel = Kernel.from_function(place, fails)
    with pytest.raises(_Odd, match="in the kernel") as raised:
        mark = kernel.launch(stream, 1, inout(x))
        {
            "mark": mark.wait,
            "stream": stream.synchronize,
            "device": place.synchronize,
            "read": x.to_numpy,
            "buffer": x.synchronize,
        }[wait]()
    assert any("test_kernels.py" in note for note in raised.value.__notes__)
    # It is raised once.
    place.synchronize()
    assert x.to_numpy().shape == (100,)


@pytest.mark.parametrize("wait", ["mark", "stream", "device", "read", "buffer", "unified"])
def test_an_exception_reaches_a_waiter_on_another_thread(wait: str) -> None:
    device = tern.open_device("host")
    x = tern.UnifiedBuffer(100, device=device) if wait == "unified" else tern.Buffer(100, device=device)
    x.fill(1)
    device.synchronize()
    stream = device.stream("failing")
    begin = threading.Event()

    def wait_and_fail(a: Any) -> None:
        assert begin.wait(20)
        raise _Odd("in the kernel")

    kernel = Kernel.from_function(device, wait_and_fail)
    mark = kernel.launch(stream, 1, inout(x))
    caught: list[BaseException] = []

    def waiter() -> None:
        try:
            {
                "mark": mark.wait,
                "stream": stream.synchronize,
                "device": device.synchronize,
                "read": x.to_numpy,
                "buffer": getattr(x, "synchronize", x.to_numpy),
                "unified": x.to_numpy,
            }[wait]()
        except _Odd as error:
            caught.append(error)

    thread = threading.Thread(target=waiter)
    thread.start()
    begin.set()
    thread.join(30)
    assert len(caught) == 1


def test_an_exception_of_a_thread_that_has_ended_is_not_raised_by_a_later_one() -> None:
    device, other = tern.open_device("host"), sim.open(seed=1)
    x = filled(device, 1)
    device.synchronize()
    failed = threading.Event()

    def fail(a: Any) -> None:
        failed.set()
        raise _Odd("in the kernel")

    def launch() -> None:
        Kernel.from_function(device, fail).launch(device.stream("failing"), 1, inout(x))
        assert failed.wait(20)
        time.sleep(0.05)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    raised: list[BaseException] = []

    def unrelated() -> None:
        try:
            filled(other, 1).to_numpy()
        except _Odd as error:
            raised.append(error)

    for _ in range(5):  # the system reuses the id of the first thread
        thread = threading.Thread(target=unrelated)
        thread.start()
        thread.join()
    assert raised == []
    with pytest.raises(_Odd):
        device.synchronize()


def test_an_awaited_mark_raises_the_exception() -> None:
    import asyncio

    device = tern.open_device("host")
    x = filled(device, 1)
    begin = threading.Event()

    def wait_and_fail(a: Any) -> None:
        assert begin.wait(20)
        raise _Odd("in the kernel")

    async def main() -> None:
        mark = Kernel.from_function(device, wait_and_fail).launch(device.stream(), 1, inout(x))
        asyncio.get_running_loop().call_later(0.01, begin.set)
        await mark

    with pytest.raises(_Odd):
        asyncio.run(main())


def test_system_exit_and_keyboard_interrupt_reach_the_waiter_too(place: tern.Device) -> None:
    for kind in (SystemExit, KeyboardInterrupt):

        def ends(a: Any) -> None:
            raise kind

        x = filled(place, 1)
        with pytest.raises(kind):
            Kernel.from_function(place, ends).launch(None, 1, inout(x))
            place.synchronize()


def test_a_wrong_number_of_arguments_is_a_type_error(place: tern.Device) -> None:
    x = filled(place, 1)
    with pytest.raises(TypeError, match="argument"):
        Kernel.from_function(place, lambda: None).launch(None, 1, inout(x))
        place.synchronize()


def test_a_function_that_calls_the_device_gets_an_error() -> None:
    simulated = sim.open(seed=5, print_findings=False)
    x = filled(simulated, 1)
    simulated.synchronize()
    with pytest.raises(tern.Error):
        Kernel.from_function(simulated, lambda a: x.to_numpy()).launch(None, 1, inout(x))
        simulated.synchronize()
    assert sim.findings(simulated)[0].code == "TERN-S404"


def test_each_of_several_exceptions_is_raised(place: tern.Device) -> None:
    x = filled(place, 1)
    place.synchronize()
    kernel = Kernel.from_function(place, fails)
    launched = raised = 0
    for _ in range(20):
        try:
            kernel.launch(None, 1, in_(x))
            launched += 1
        except _Odd:  # of an earlier launch; this one did not happen
            raised += 1
    for _ in range(20):
        try:
            place.synchronize()
        except _Odd:
            raised += 1
    assert launched == raised


def test_a_launch_never_raises_its_own_exception(place: tern.Device) -> None:
    x = filled(place, 1)
    place.synchronize()
    kernel = Kernel.from_function(place, fails)
    for _ in range(50):
        mark = kernel.launch(None, 1, in_(x))
        with pytest.raises(_Odd):
            mark.wait()


# --- Threads, and the end of the program


def test_threads_launch_and_wait_at_once(place: tern.Device) -> None:
    kernel = Kernel.from_function(place, saxpy)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            stream = place.stream()
            x, y = filled(place, 1), filled(place, 0)
            place.synchronize()
            for _ in range(30):
                kernel.launch(stream, 100, in_(x), inout(y), 1)
                scratch = filled(place, 3)
                unified = tern.UnifiedBuffer(10, device=place).fill(1)
                kernel.launch(stream, 100, in_(scratch), inout(scratch), 0)
                kernel.launch(stream, 100, in_(unified), inout(unified), 0)
                assert unified.state is not None
                del scratch, unified
                stream.mark()
            assert (y.to_numpy() == 30).all()
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    sys.setswitchinterval(interval)
    assert failures == []


@pytest.mark.parametrize("spec", ["host", "sim:0"])
def test_a_program_may_end_with_launches_in_flight(spec: str) -> None:
    program = f"""
import time
import ternmem as tern
device = tern.open_device({spec!r})
x = tern.Buffer(1000, device=device).fill(1)
kernel = tern.Kernel.from_function(device, lambda a: time.sleep(0.01))
for _ in range(5):
    kernel.launch(device.stream(), 1, tern.inout(x))
    kernel.launch(None, 1, tern.inout(x))
print("end")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "end\n"


def test_the_end_of_a_program_reports_an_exception_that_nobody_waited_for() -> None:
    program = """
import time
import ternmem as tern
device = tern.open_device("host")
x = tern.Buffer(1000, device=device).fill(1)
def odd(a):
    raise ValueError("nobody waits")
tern.Kernel.from_function(device, odd).launch(None, 1, tern.inout(x))
time.sleep(0.2)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "nobody waits" in done.stderr


def test_objects_may_end_inside_of_a_function(simulated: tern.Device) -> None:
    held: list[Any] = [filled(simulated, 1), tern.UnifiedBuffer(4, device=simulated).fill(1), simulated.stream()]
    held.append(filled(simulated, 1, kind="managed"))
    held.append(Kernel.from_function(simulated, saxpy))
    held.append(held[1].read_host())
    simulated.synchronize()

    def drops(a: Any) -> None:
        held.clear()
        gc.collect()

    x = filled(simulated, 1)
    Kernel.from_function(simulated, drops).launch(None, 1, inout(x))
    simulated.synchronize()
    assert held == []
    assert sim.findings(simulated) == []


# --- Source


@pytest.fixture
def opencl() -> tern.Device:
    found = [spec for spec in tern.devices() if spec.startswith("opencl")]
    if not found:
        pytest.skip("there is no OpenCL device")
    return tern.open_device(found[0])


@pytest.mark.parametrize("kind", ["buffer", "unified", "managed"])
def test_source_is_compiled_for_opencl(opencl: tern.Device, kind: str) -> None:
    if kind == "managed" and not opencl.can("managed_memory"):
        pytest.skip("the device has no managed memory")
    kernel = Kernel.from_source(opencl, opencl_saxpy, "saxpy")
    x, y = filled(opencl, 2, 1000, kind), filled(opencl, 3, 1000, kind)
    kernel.launch(opencl.stream(), elements(1000), in_(x), inout(y), np.float32(10), np.uint32(1000))
    kernel.launch(None, LaunchSize(8, 128), in_(x), inout(y), np.float32(1), np.uint32(1000))
    assert (y.to_numpy() == 25).all()
    info = kernel.info
    assert info["parameter_count"] == 4
    assert [one["kind"] for one in info["parameters"]] == ["address", "address", "value", "value"]


def test_source_is_compiled_for_cuda() -> None:
    if not any(spec.startswith("cuda:0") for spec in tern.devices()):
        pytest.skip("there is no CUDA device")
    device = tern.open_device("cuda:0")
    text = """
    extern "C" __global__ void saxpy(const float* x, float* y, float a, unsigned n) {
      unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) y[i] += a * x[i];
    }"""
    try:
        kernel = Kernel.from_source(device, text, "saxpy")
    except tern.UnsupportedError as error:
        pytest.skip(str(error))
    for kind in ("buffer", "unified", "managed"):
        x, y = filled(device, 2, 1000, kind), filled(device, 3, 1000, kind)
        kernel.launch(device.stream(), elements(1000), in_(x), inout(y), np.float32(10), np.uint32(1000))
        kernel.launch(None, LaunchSize(8, 128), in_(x), inout(y), np.float32(1), np.uint32(1000))
        assert (y.to_numpy() == 25).all()


def test_wrong_launches_of_source(opencl: tern.Device) -> None:
    kernel = Kernel.from_source(opencl, opencl_saxpy, "saxpy")
    x = filled(opencl, 1)
    with pytest.raises(ValueError) as raised:
        kernel.launch(None, 100, in_(x))
    assert isinstance(raised.value, tern.ShapeMismatchError)
    with pytest.raises(tern.SizeMismatchError):
        kernel.launch(None, 100, in_(x), inout(x), np.float64(1), np.uint32(100))
    with pytest.raises(tern.TypeMismatchError):
        kernel.launch(None, 100, np.int64(1), inout(x), np.float32(1), np.uint32(100))
    for value in (1.0, 1, "text", None, [1], np.zeros(3)):
        with pytest.raises(TypeError) as mistyped:
            kernel.launch(None, 100, in_(x), inout(x), value, np.uint32(100))
        assert isinstance(mistyped.value, tern.Error)
    with pytest.raises(TypeError):
        kernel.launch(None, 100, x, inout(x), np.float32(1), np.uint32(100))
    for scalar in (np.datetime64(1, "s"), np.str_("a"), np.zeros(1, [("a", "f4")])[0]):
        with pytest.raises(TypeError):
            kernel.launch(None, 100, in_(x), inout(x), scalar, np.uint32(100))


def test_source_that_does_not_compile(opencl: tern.Device) -> None:
    with pytest.raises(ValueError):
        Kernel.from_source(opencl, "kernel void f(global float* x) { no }", "f")
    with pytest.raises(LookupError, match="saxpy"):
        Kernel.from_source(opencl, opencl_saxpy, "no_such_kernel")


def test_each_device_says_which_form_it_takes(device: tern.Device) -> None:
    if device.spec.startswith("host"):
        with pytest.raises(NotImplementedError):
            Kernel.from_source(device, opencl_saxpy, "saxpy")
        with pytest.raises(NotImplementedError):
            Kernel.from_image(device, b"\0", "saxpy")
    elif device.spec.startswith("sim"):
        kernel = Kernel.from_source(device, opencl_saxpy, "saxpy")
        x, y = filled(device, 1), filled(device, 1)
        kernel.launch(None, 100, in_(x), inout(y), np.float32(1), np.uint32(100))
        device.synchronize()
        Kernel.from_image(device, "a text", "saxpy")
    elif device.spec.startswith("opencl"):
        with pytest.raises(NotImplementedError):
            Kernel.from_function(device, saxpy)
    elif device.spec.startswith("cuda"):
        with pytest.raises(NotImplementedError):
            Kernel.from_function(device, saxpy)
        with pytest.raises(ValueError, match="image"):
            Kernel.from_image(device, b"no image", "saxpy")
    with pytest.raises(TypeError):
        Kernel.from_image(device, 5, "saxpy")


# --- Bad arguments


def test_bad_arguments(place: tern.Device) -> None:
    kernel = Kernel.from_function(place, saxpy)
    x = filled(place, 1)
    for declare in (in_, out, inout):
        for bad in (np.zeros(3), "a", 5, [1]):
            with pytest.raises(TypeError) as raised:
                declare(bad)
            assert isinstance(raised.value, tern.Error)
    with pytest.raises(TypeError, match="not declared") as undeclared:
        kernel.launch(None, 100, x, inout(x), 1)
    assert isinstance(undeclared.value, tern.Error)
    for size in ("a", 1.5, (1, 2), [3]):
        with pytest.raises(TypeError):
            kernel.launch(None, size, in_(x), inout(x), 1)
    with pytest.raises(ValueError, match="negative"):
        kernel.launch(None, -1, in_(x), inout(x), 1)
    with pytest.raises(ValueError, match="negative"):
        elements(-1)
    with pytest.raises(OverflowError):
        kernel.launch(None, 1 << 62, in_(x), inout(x), 1)
    with pytest.raises(OverflowError):
        LaunchSize(1 << 32, 1)
    with pytest.raises(ValueError, match="axes"):
        LaunchSize((1, 1, 1, 1), 1)
    with pytest.raises(ValueError, match="axes"):
        LaunchSize((), 1)
    with pytest.raises(TypeError):
        LaunchSize("a", 1)
    with pytest.raises(TypeError) as uncallable:
        Kernel.from_function(place, 5)
    assert isinstance(uncallable.value, tern.Error)
    with pytest.raises(TypeError):
        kernel.launch("a stream", 1, in_(x), inout(x), 1)
    with pytest.raises(RuntimeError):
        kernel.launch(None, 1, *[in_(x)] * 70)
    made = LaunchSize((8, 2), 32, 64)
    assert (made.grid, made.block, made.shared_bytes) == ((8, 2, 1), (32, 1, 1), 64)
    assert in_(x).memory is x
    assert out(x).access == "out"


def test_memory_of_another_device_is_refused(simulated: tern.Device) -> None:
    other = sim.open(seed=9)
    kernel = Kernel.from_function(simulated, saxpy)
    with pytest.raises(tern.DeviceMismatchError):
        kernel.launch(None, 1, in_(filled(other, 1)), inout(filled(simulated, 1)), 1)
    with pytest.raises(tern.DeviceMismatchError):
        kernel.launch(other.default_stream, 1)


def test_fences_order_whole_streams(simulated: tern.Device) -> None:
    buffer = tern.Buffer(400, "uint8", simulated).fill(1)
    ours, theirs = simulated.stream("ours"), simulated.stream("theirs")
    simulated.synchronize()
    ours.fill_bytes(buffer.ptr, 400, 2)
    tern.fence_to(theirs, ours)
    theirs.fill_bytes(buffer.ptr, 400, 3)
    tern.fence_from(theirs, ours)
    ours.fill_bytes(buffer.ptr, 400, 4)
    ours.synchronize()
    assert (buffer.to_numpy() == 4).all()
