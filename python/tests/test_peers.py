"""Exchange with real libraries, both ways, without copies.

Each test is skipped where its library is not installed. The tests of GPUs show the order of streams: a kernel that
spins for a while delays the writer, and the reader must see what was written after the spin.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ternmem as tern

elements = np.arange(24, dtype="float32").reshape(4, 6)
spin_cycles = 400_000_000  # some tenths of a second


def peer(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed")


def moved() -> Any:
    return tern.unified_totals()["moved"]["copies"]


def host_buffer(dtype: str = "float32") -> tern.Buffer:
    made = tern.Buffer(elements.shape, dtype, "host")
    made.copy_from(elements.astype(dtype))
    return made


def plain(imported: tern.Buffer | tern.StridedBuffer) -> tern.Buffer:
    assert isinstance(imported, tern.Buffer)
    return imported


# --- NumPy


def test_numpy_and_a_unified_buffer_share_host_memory(device: tern.Device) -> None:
    unified = tern.UnifiedBuffer.from_numpy(elements, device=device)
    copies = moved()
    first, second = np.asarray(unified), np.asarray(unified)
    assert np.shares_memory(first, second)
    with unified.read_host() as lent:
        assert np.shares_memory(first, lent)
        if device.is_host or not device.can("host_access"):  # else the array is memory of the device
            assert plain(tern.from_dlpack(lent)).ptr == lent.ctypes.data
    assert moved() == copies
    unified.host[0, 0] = 5
    assert first[0, 0] == 5


# --- torch


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
                                   "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_torch_takes_every_dtype_and_gives_it_back(dtype: str) -> None:
    torch = peer("torch")
    tensor = torch.arange(6).to(getattr(torch, dtype))
    taken = plain(tern.from_dlpack(tensor))
    assert taken.ptr == tensor.data_ptr()
    back = torch.from_dlpack(taken)
    assert back.dtype == tensor.dtype
    assert back.data_ptr() == tensor.data_ptr()


def test_torch_shares_the_memory_of_a_buffer() -> None:
    torch = peer("torch")
    buffer = host_buffer()
    tensor = torch.from_dlpack(buffer)
    assert tensor.data_ptr() == buffer.ptr
    tensor[0, 0] = 99
    assert buffer.to_numpy()[0, 0] == 99
    del buffer
    gc.collect()
    assert tensor[0, 0].item() == 99


def test_a_buffer_shares_the_memory_of_a_tensor() -> None:
    torch = peer("torch")
    tensor = torch.from_numpy(elements.copy())
    buffer = plain(tern.from_dlpack(tensor))
    buffer.fill(3)
    buffer.synchronize()
    assert (tensor == 3).all()
    address = tensor.data_ptr()
    del tensor
    gc.collect()
    assert buffer.ptr == address
    assert (buffer.to_numpy() == 3).all()


def test_strided_tensors_arrive_with_their_strides() -> None:
    torch = peer("torch")
    tensor = torch.from_numpy(elements.copy()).t()
    taken = tern.from_dlpack(tensor)
    assert isinstance(taken, tern.StridedBuffer)
    assert taken.strides == [1, 6]
    np.testing.assert_array_equal(taken.contiguous().to_numpy(), elements.T)


def test_torch_reads_a_lease_without_a_copy() -> None:
    torch = peer("torch")
    unified = tern.UnifiedBuffer.from_numpy(elements, device="host")
    copies = moved()
    with unified.rw_device() as lent:
        tensor = torch.from_dlpack(lent)
        assert tensor.data_ptr() == lent.ptr
        tensor += 1
    np.testing.assert_array_equal(unified.to_numpy(), elements + 1)
    assert moved() == copies


def test_copy_from_takes_a_tensor() -> None:
    torch = peer("torch")
    buffer = tern.Buffer(elements.shape, "float32", "sim")
    buffer.copy_from(torch.from_numpy(elements))
    np.testing.assert_array_equal(buffer.to_numpy(), elements)


def test_a_tensor_that_needs_a_gradient_is_refused_by_torch() -> None:
    torch = peer("torch")
    with pytest.raises(BufferError, match="grad"):
        tern.from_dlpack(torch.ones(3, requires_grad=True))


# --- jax


def test_jax_shares_the_memory_of_a_buffer() -> None:
    peer("jax")
    from jax import numpy as jnp

    buffer = host_buffer()
    array = jnp.from_dlpack(buffer)
    np.testing.assert_array_equal(np.asarray(array), elements)
    assert array.unsafe_buffer_pointer() == buffer.ptr
    del buffer
    gc.collect()
    np.testing.assert_array_equal(np.asarray(array), elements)


def test_a_buffer_shares_the_memory_of_a_jax_array() -> None:
    peer("jax")
    from jax import numpy as jnp

    array = jnp.asarray(elements) + 0
    buffer = plain(tern.from_dlpack(array))
    assert buffer.ptr == array.unsafe_buffer_pointer()
    np.testing.assert_array_equal(buffer.to_numpy(), elements)


# --- pyarrow


def test_pyarrow_shares_the_memory_of_a_buffer() -> None:
    pa = peer("pyarrow")
    buffer = host_buffer("int64")
    shared = pa.py_buffer(buffer)
    assert shared.address == buffer.ptr
    assert shared.size == buffer.nbytes
    column = pa.Array.from_buffers(pa.int64(), buffer.size, [None, shared])
    assert column.to_pylist() == list(range(24))
    del buffer, shared
    gc.collect()
    assert column[23].as_py() == 23


def test_a_buffer_shares_the_memory_of_a_column() -> None:
    pa = peer("pyarrow")
    column = pa.array(range(100), pa.int32())
    buffer = plain(tern.from_dlpack(column))
    assert buffer.ptr == column.buffers()[1].address
    assert list(buffer.to_numpy()) == list(range(100))


# --- The order of streams, without a GPU


def test_an_export_makes_the_stream_of_the_consumer_wait() -> None:
    device = tern.open_device("cuda:0?driver=sim")
    consumer = tern.Stream(device, "consumer")
    for stream, waits in ((consumer.handle, 1), (-1, 0)):
        producer = tern.Stream(device, "producer")
        buffer = tern.Buffer(elements.shape, "float32", device)
        buffer.fill(1, producer)
        before = device.activity()["stream_waits"]
        capsule = buffer.__dlpack__(stream=stream, max_version=(1, 0))
        assert device.activity()["stream_waits"] - before == waits
        del capsule
        producer.close()
    consumer.close()


# --- GPUs


@pytest.fixture
def gpu() -> tern.Device:
    if "cuda:0" not in tern.devices():
        pytest.skip("this machine has no CUDA device")
    return tern.open_device("cuda:0")


def torch_cuda() -> Any:
    torch = peer("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA device")
    # The driver loads a kernel with its first launch, and may wait for running kernels then.
    warm = torch.zeros(8, device="cuda")
    torch.cuda._sleep(1)
    warm.fill_(1)
    warm += 1
    assert (warm.clone() == 2).all().item()
    torch.cuda.synchronize()
    return torch


def cupy_cuda() -> Any:
    cupy = peer("cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except Exception:
        pytest.skip("this cupy has no CUDA device")
    return cupy


def spin_kernel(cupy: Any) -> Callable[[], None]:
    kernel = cupy.RawKernel(
        'extern "C" __global__ void spin(long long n) { long long s = clock64(); while (clock64() - s < n) {} }', "spin"
    )
    kernel((1,), (1,), (np.int64(1),))
    warm = cupy.zeros(8, "float32")
    warm.fill(1)
    assert bool((warm.copy() == 1).all())
    cupy.cuda.Device().synchronize()
    return lambda: kernel((1,), (1,), (np.int64(spin_cycles),))


def test_torch_is_ordered_after_tern(gpu: tern.Device) -> None:
    torch = torch_cuda()
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    buffer = tern.Buffer(1 << 20, "float32", gpu).fill(0)
    gpu.synchronize()
    with torch.cuda.stream(producer):
        torch.cuda._sleep(spin_cycles)
    ours = tern.Stream.borrow(producer.cuda_stream, gpu)
    buffer.fill(9, ours)
    with torch.cuda.stream(consumer):
        tensor = torch.from_dlpack(buffer)  # passes its current stream to __dlpack__
        assert tensor.data_ptr() == buffer.ptr
        seen = tensor.clone()
    assert not producer.query(), "the spin is over too early to show anything"
    consumer.synchronize()
    assert (seen == 9).all().item()


def test_tern_is_ordered_after_torch(gpu: tern.Device) -> None:
    torch = torch_cuda()
    producer = torch.cuda.Stream()
    tensor = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(producer):
        torch.cuda._sleep(spin_cycles)
        tensor.fill_(7)
        buffer = plain(tern.from_dlpack(tensor))
        assert not producer.query(), "the spin is over too early to show anything"
    assert buffer.ptr == tensor.data_ptr()
    assert (buffer.to_numpy() == 7).all()


def test_an_explicit_stream_waits_and_minus_one_does_not(gpu: tern.Device) -> None:
    torch = torch_cuda()
    producer, consumer, unordered = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
    buffer = tern.Buffer(1 << 20, "float32", gpu).fill(0)
    gpu.synchronize()
    with torch.cuda.stream(producer):
        torch.cuda._sleep(spin_cycles)
    ours = tern.Stream.borrow(producer.cuda_stream, gpu)
    buffer.fill(4, ours)
    free = buffer.__dlpack__(stream=-1)
    with torch.cuda.stream(unordered):
        early = torch.utils.dlpack.from_dlpack(free).clone()
    capsule = buffer.__dlpack__(stream=consumer.cuda_stream)
    with torch.cuda.stream(consumer):
        seen = torch.utils.dlpack.from_dlpack(capsule).clone()
    unordered.synchronize()
    assert not producer.query()
    assert (early == 0).all().item(), "stream=-1 asks for no order"
    consumer.synchronize()
    assert (seen == 4).all().item()


def test_a_device_lease_is_ordered_by_its_stream(gpu: tern.Device) -> None:
    torch = torch_cuda()
    side = torch.cuda.Stream()
    unified = tern.UnifiedBuffer(1 << 20, "float32", device=gpu).fill(1)
    unified.sync_to_device()
    gpu.synchronize()
    copies = moved()
    ours = tern.Stream.borrow(side.cuda_stream, gpu)
    with unified.rw_device(ours) as lent, torch.cuda.stream(side):
        tensor = torch.from_dlpack(lent)
        torch.cuda._sleep(spin_cycles)
        tensor += 1
    assert moved() == copies
    assert (unified.to_numpy() == 2).all()
    assert moved() == copies + 1


def test_cupy_is_ordered_after_tern(gpu: tern.Device) -> None:
    cupy = cupy_cuda()
    spin = spin_kernel(cupy)
    producer, consumer = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    for take in (cupy.from_dlpack, cupy.asarray):  # DLPack, and the CUDA Array Interface
        buffer = tern.Buffer(1 << 20, "float32", gpu).fill(0)
        gpu.synchronize()
        with producer:
            spin()
        with tern.Stream.borrow(producer.ptr, gpu) as ours:  # ends before CuPy destroys its stream
            buffer.fill(9, ours)
        with consumer:
            array = take(buffer)
            assert array.data.ptr == buffer.ptr
            seen = array.copy()
        consumer.synchronize()
        assert bool((seen == 9).all())


def test_tern_is_ordered_after_cupy(gpu: tern.Device) -> None:
    cupy = cupy_cuda()
    spin = spin_kernel(cupy)
    producer = cupy.cuda.Stream(non_blocking=True)
    array = cupy.zeros(1 << 20, "float32")
    cupy.cuda.Device().synchronize()
    with producer:
        spin()
        array.fill(7)
        buffer = plain(tern.from_dlpack(array))
    assert buffer.ptr == array.data.ptr
    assert (buffer.to_numpy() == 7).all()


def test_jax_is_ordered_after_tern(gpu: tern.Device) -> None:
    jax = peer("jax")
    if not any(one.platform == "gpu" for one in jax.devices()):
        pytest.skip("this jax has no CUDA device")
    torch = torch_cuda()
    producer = torch.cuda.Stream()
    buffer = tern.Buffer(1 << 20, "float32", gpu).fill(0)
    gpu.synchronize()
    with torch.cuda.stream(producer):
        torch.cuda._sleep(spin_cycles)
    ours = tern.Stream.borrow(producer.cuda_stream, gpu)
    buffer.fill(9, ours)
    array = jax.numpy.from_dlpack(buffer)
    assert bool((array == 9).all())
    back = plain(tern.from_dlpack(array + 1))
    assert (back.to_numpy() == 10).all()
