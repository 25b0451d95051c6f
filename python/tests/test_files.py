"""Files as buffers."""

from __future__ import annotations

import os
import pathlib

import numpy as np
import pytest

import ternmem as tern

DEVICES = ["host", "sim", "cuda:0?driver=sim"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> tern.Device:
    return tern.open_device(request.param)


def write(path: pathlib.Path, count: int = 5000) -> np.ndarray:
    values = np.arange(count, dtype=np.float32)
    path.write_bytes(values.tobytes())
    return values


def test_a_copy_from_a_file_is_in_stream_order(tmp_path: pathlib.Path, device: tern.Device) -> None:
    values = write(tmp_path / "weights.bin")
    file = tern.open_file(tmp_path / "weights.bin", "float32")
    assert (file.shape, file.kind, file.nbytes) == ((5000,), "file", 20000)
    stream = tern.Stream(device)
    weights = tern.Buffer(5000, "float32", device)
    weights.fill(1, stream)
    assert weights.copy_from(file, stream) is weights
    stream.synchronize()
    np.testing.assert_array_equal(weights.to_numpy(), values)


def test_a_part_of_a_file_has_a_shape(tmp_path: pathlib.Path) -> None:
    values = write(tmp_path / "weights.bin")
    part = tern.open_file(str(tmp_path / "weights.bin"), "float32", (10, 20), offset=400, tag="part")
    np.testing.assert_array_equal(part.to_numpy(), values[100:300].reshape(10, 20))
    np.testing.assert_array_equal(np.asarray(part), values[100:300].reshape(10, 20))
    np.testing.assert_array_equal(part[3].to_numpy(), values[160:180])


def test_a_file_is_made_and_written(tmp_path: pathlib.Path, device: tern.Device) -> None:
    values = np.arange(3000, dtype=np.int32).reshape(30, 100)
    source = tern.Buffer.from_numpy(values, device)
    saved = tern.open_file(tmp_path / "saved.bin", "int32", (30, 100), create=True)
    assert os.path.getsize(tmp_path / "saved.bin") == values.nbytes
    saved.copy_from(source)
    tern.flush(saved)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "saved.bin", np.int32).reshape(30, 100), values)
    saved.copy_from(values + 1)
    tern.flush(saved)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "saved.bin", np.int32).reshape(30, 100), values + 1)


def test_the_host_changes_a_writable_file_in_place(tmp_path: pathlib.Path) -> None:
    values = write(tmp_path / "weights.bin")
    file = tern.open_file(tmp_path / "weights.bin", "float32", writable=True)
    file.numpy()[10] = -1
    tern.flush(file)
    values[10] = -1
    np.testing.assert_array_equal(np.fromfile(tmp_path / "weights.bin", np.float32), values)


def test_a_file_is_read_only_by_default(tmp_path: pathlib.Path) -> None:
    values = write(tmp_path / "weights.bin")
    file = tern.open_file(tmp_path / "weights.bin", "float32")
    for use in (lambda: file.copy_from(values), lambda: file.copy_from(tern.Buffer.from_numpy(values, "host")), file.numpy):
        with pytest.raises(tern.ReadOnlyError, match="writable"):
            use()
    np.testing.assert_array_equal(file.to_numpy(), values)


def test_mistakes_have_sentences(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "weights.bin", 10)
    with pytest.raises(tern.FileError, match=r"none\.bin"):
        tern.open_file(tmp_path / "none.bin")
    with pytest.raises(tern.FileError, match="40"):
        tern.open_file(tmp_path / "weights.bin", "float32", 11)
    with pytest.raises(tern.SizeMismatchError):
        tern.open_file(tmp_path / "weights.bin", "float64", offset=4)
    with pytest.raises(tern.InvalidArgumentError, match="create"):
        tern.open_file(tmp_path / "new.bin", create=True)
    assert not (tmp_path / "new.bin").exists()
    with pytest.raises(tern.FileError):
        tern.open_file(tmp_path)
    with pytest.raises(tern.UnsupportedError):
        tern.flush(tern.Buffer(3, device="host").fill(1))


def test_a_file_that_shrinks_fails_at_the_next_wait(tmp_path: pathlib.Path, device: tern.Device) -> None:
    write(tmp_path / "weights.bin")
    file = tern.open_file(tmp_path / "weights.bin", "float32")
    os.truncate(tmp_path / "weights.bin", 100)
    stream = tern.Stream(device)
    weights = tern.Buffer(5000, "float32", device)
    with pytest.raises(tern.FileError, match=r"weights\.bin"):
        weights.copy_from(file, stream)
        stream.synchronize()


def test_properties_of_a_file_that_has_no_device(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "weights.bin")
    file = tern.open_file(tmp_path / "weights.bin", "float32")
    assert "kind='file'" in repr(file)
    assert not file.device.spec
