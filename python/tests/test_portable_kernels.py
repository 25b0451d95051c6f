"""Kernels that are written once and run on every device."""

from __future__ import annotations

import typing

import numpy as np
import numpy.typing as npt
import pytest

import ternmem as tern


saxpy = tern.elementwise("in<float> x, inout<float> y, float a", "y += a * x", name="saxpy")
dot = tern.reduction("double", "in<float> x, in<float> y", "x * y", name="dot")
histogram = tern.kernel("""
    kernel histogram(in<uint32_t> keys, inout<uint32_t> counts) {
      if (index.x < size(keys)) atomic_add(counts, keys[index.x], 1);
    }""")


def array(device: tern.Device | str, values: npt.NDArray[typing.Any]) -> tern.Array:
    return tern.Array(values, device=device)


def test_elementwise_kernels_run_on_every_device(device: tern.Device) -> None:
    x, y = array(device, np.arange(1000, dtype=np.float32)), array(device, np.ones(1000, np.float32))
    saxpy(x, y, 2)
    np.testing.assert_array_equal(y.to_numpy(), 1 + 2 * np.arange(1000, dtype=np.float32))


def test_a_unified_buffer_moves_to_the_device_of_the_stream(device: tern.Device) -> None:
    x, y = tern.UnifiedBuffer(100, device=device).fill(2), tern.UnifiedBuffer(100, device=device).fill(3)
    saxpy(x, y, 10, stream=device.default_stream)
    assert (y.to_numpy() == 23).all()


def test_reductions_have_the_same_bits_on_every_device(device: tern.Device) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.random(20_000, dtype=np.float32), rng.random(20_000, dtype=np.float32)
    result = array(device, np.zeros(1))
    dot(array(device, x), array(device, y), result)
    host = array("host", np.zeros(1))
    dot(array("host", x), array("host", y), host)
    assert result.to_numpy()[0] == host.to_numpy()[0]
    assert abs(host.to_numpy()[0] - np.dot(x.astype(float), y)) < 1e-2


def test_a_kernel_takes_the_number_of_threads(device: tern.Device) -> None:
    keys = np.arange(5000, dtype=np.uint32) % 7
    counts = array(device, np.zeros(7, np.uint32))
    histogram(array(device, keys), counts, size=5000)
    np.testing.assert_array_equal(counts.to_numpy(), np.bincount(keys))


def test_numbers_are_converted_to_the_declared_type(device: tern.Device) -> None:
    add = tern.elementwise("inout<int32_t> x, int8_t n", "x += n")
    x = array(device, np.zeros(4, np.int32))
    add(x, np.int64(3))
    assert x.to_numpy().tolist() == [3, 3, 3, 3]
    for wrong in (3.5, 300, "three", [1, 2], None):
        with pytest.raises((tern.TypeMismatchError, tern.SizeOverflowError)):
            add(x, wrong)
    assert x.to_numpy().tolist() == [3, 3, 3, 3]


def test_a_wrong_text_names_its_line(device: tern.Device) -> None:
    with pytest.raises(tern.InvalidArgumentError, match="line 2"):
        tern.kernel("element k(in<float> x) {\n x = 1; }").on(device)


def test_the_text_is_compiled_once_for_each_device(device: tern.Device) -> None:
    assert saxpy.on(device) is saxpy.on(device)


def test_memory_of_another_kernel_needs_a_declaration() -> None:
    device = tern.open_device("sim")
    kernel = tern.Kernel.from_source(device, "text", "entry")
    with pytest.raises(tern.TypeMismatchError, match="Declare memory with in_"):
        kernel.launch(None, 10, array(device, np.zeros(4, np.float32)))


def test_a_race_is_reported_with_its_line() -> None:
    device = tern.sim.open(mode="collect", print_findings=False)
    total = tern.kernel("kernel total(in<float> x, inout<float> y) {\n  if (index.x < size(x)) y[0] += x[index.x];\n}")
    total(array(device, np.ones(64, np.float32)), array(device, np.zeros(1, np.float32)), size=64)
    device.synchronize()
    found = tern.sim.findings(device)
    assert [one.code for one in found] == ["TERN-S306"]
    assert "line 2" in found[0].what
