"""Tables and columns, and their exchange with pyarrow, polars and pandas."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import ternmem as tern
from ternmem import Column, Field, LogicalType, Schema, Table, sim

pa = pytest.importorskip("pyarrow")

numbers = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]


# --- Columns


@pytest.mark.parametrize("dtype", [*numbers, "bool"])
def test_columns_of_numbers(device: tern.Device, dtype: str) -> None:
    values = (np.arange(100) % 7).astype(dtype)
    column = Column(values, device=device)
    assert (len(column), column.capacity) == (100, 100)
    assert column.device == device
    assert column.null_count == 0
    assert not column.is_nullable
    np.testing.assert_array_equal(column.to_numpy(), values)
    assert column.to_pylist() == values.tolist()
    part = column.slice(10, 5)
    assert part.to_pylist() == values[10:15].tolist()
    assert column.valid().all()


def test_columns_with_missing_values(device: tern.Device) -> None:
    column = Column(np.arange(4), device=device, valid=[True, False, True, False])
    assert column.is_nullable
    assert column.null_count == 2
    assert column.count_nulls(2) == 1
    assert column.to_pylist() == [0, None, 2, None]
    assert column.slice(1, 2).to_pylist() == [None, 2]
    assert column.valid().tolist() == [True, False, True, False]
    assert column.validity is not None
    assert column.null_count is None  # a kernel may write the bitmap
    assert column.count_nulls() == 2


@pytest.mark.parametrize("type", ["int64", "float32", "bool", "date32", LogicalType.timestamp("us")])
def test_lists_without_values_have_the_type_that_is_asked_for(device: tern.Device, type: Any) -> None:
    assert Column([], type, device).to_pylist() == []
    missing = Column([None, None], type, device)
    assert missing.type == LogicalType(type) if isinstance(type, str) else type
    assert missing.to_pylist() == [None, None]
    assert missing.null_count == 2
    with pytest.raises(ValueError, match="not both"):
        Column([None], type, device, valid=[True])


def test_columns_of_texts(device: tern.Device) -> None:
    for values in (["a", "", "äöü", None], [b"a", None, b"\0\xff"]):
        column = Column(values, "utf8" if isinstance(values[0], str) else "binary", device=device)
        assert column.to_pylist() == values
        assert column.null_count == 1
        assert column.offsets.dtype == np.int32
        assert column.type.is_variable
    assert Column(["a", "b"], device=device).type == LogicalType("utf8")
    assert Column(np.array(["a", "b"]), device=device).to_pylist() == ["a", "b"]
    assert Column(np.array([b"a"]), device=device).type.kind == "binary"
    assert Column([], "large_utf8", device=device).to_pylist() == []
    with pytest.raises(tern.Error):
        Column(["a"], device=device).to_numpy()


def test_columns_of_times(device: tern.Device) -> None:
    times = np.array(["2020-01-01T00:00:00", "NaT", "1969-12-31T23:59:59"], "M8[us]")
    column = Column(times, device=device)
    assert str(column.type) == "timestamp[us]"
    assert column.null_count == 1
    read = column.to_numpy()
    assert read[0] == times[0]
    assert read[2] == times[2]
    durations = np.array([1, 2], "m8[ns]")
    np.testing.assert_array_equal(Column(durations, device=device).to_numpy(), durations)
    days = np.array(["2020-01-01"], "M8[D]")
    assert Column(days, device=device).type == LogicalType("date32")
    zoned = Column(times[:1], LogicalType.timestamp("ns", "UTC"), device)
    assert zoned.type.zone == "UTC"
    assert zoned.to_numpy()[0] == times[0]


def test_bytes_and_bits(device: tern.Device) -> None:
    booleans = tern.Buffer(10, "bool", device)
    booleans.copy_from(np.arange(10) % 3 == 0)
    column = Column.pack(booleans)
    assert column.type.kind == "bool"
    np.testing.assert_array_equal(column.unpack().to_numpy().astype(bool), np.arange(10) % 3 == 0)


def test_columns_over_buffers(device: tern.Device) -> None:
    values = tern.Buffer(4, "int32", device)
    values.copy_from([1, 2, 3, 4])
    column = Column.over("i32", 3, values, first=1)
    assert column.to_pylist() == [2, 3, 4]
    assert column.values.shape == (3,)
    with pytest.raises(tern.SizeMismatchError):
        Column.over("i32", 5, values)
    with pytest.raises(tern.TypeMismatchError):
        Column.over("f64", 1, values)
    made = Column.allocate("f32", 8, device, nullable=True)
    assert made.nbytes >= 33


def test_bad_columns(device: tern.Device) -> None:
    for bad in (np.zeros((2, 2)), 5):
        with pytest.raises(ValueError):
            Column(bad, device=device)
    with pytest.raises(TypeError):
        Column([1, "a", object()], device=device)
    with pytest.raises(TypeError):
        Column(["a", 5], "utf8", device=device)
    for dtype in (">i4", "complex64"):
        with pytest.raises(TypeError):
            Column(np.zeros(3, dtype), device=device)
    with pytest.raises(TypeError):
        Column(np.zeros(3, [("a", "f4")]), device=device)
    with pytest.raises(TypeError):
        Column([1.5], "i32", device=device)
    with pytest.raises(TypeError):
        Column([1], "no such type", device=device)
    with pytest.raises(ValueError):
        Column([1, 2], device=device, valid=[True])
    with pytest.raises(TypeError):
        Column([1, 2], device=device, valid=[1, 0])
    with pytest.raises(IndexError):
        Column([1, 2], device=device).slice(1, 2)
    with pytest.raises(ValueError, match="negative"):
        Column([1, 2], device=device).slice(-1, 1)
    with pytest.raises(ValueError, match="negative"):
        Column.allocate("i32", -1, device)
    with pytest.raises(tern.Error):
        Column.allocate("i32", 1 << 62, device)
    with pytest.raises(ValueError):
        LogicalType.timestamp("hours")
    with pytest.raises(TypeError):
        LogicalType("M8[5us]")


# --- Tables


def made_table(device: tern.Device) -> Table:
    return Table(
        {
            "price": Column([1.5, 2.5, 3.5], device=device),
            "name": Column(["a", None, "c"], "utf8", device=device),
            "flag": Column([True, False, True], device=device),
        }
    )


def test_tables(device: tern.Device) -> None:
    table = made_table(device)
    assert (table.arity, table.capacity, table.rows, len(table)) == (3, 3, 3, 3)
    assert table.names == ["price", "name", "flag"]
    assert table.device == device
    assert table["name"].to_pylist() == ["a", None, "c"]
    assert table[-1].to_pylist() == [True, False, True]
    assert [column.type.kind for column in table.columns] == ["f64", "utf8", "bool"]
    assert table.select(["flag", "price"]).names == ["flag", "price"]
    assert table.select([1]).names == ["name"]
    assert table.slice(1, 2)["price"].to_pylist() == [2.5, 3.5]
    assert Table.concat([table, table])["name"].to_pylist() == ["a", None, "c", "a", None, "c"]
    assert table.copy_to("host")["price"].to_pylist() == [1.5, 2.5, 3.5]
    assert table.nbytes > 0
    with pytest.raises(LookupError) as missing:
        table["no such column"]
    assert isinstance(missing.value, tern.Error)
    with pytest.raises(IndexError):
        table[3]
    with pytest.raises(TypeError):
        table[1.5]
    with pytest.raises(LookupError):
        table.select(["no such column"])
    with pytest.raises(IndexError):
        table.select([7])
    with pytest.raises(IndexError):
        table.slice(2, 2)


def test_a_kernel_sets_the_row_count() -> None:
    device = sim.open(seed=2)
    table = Table.allocate([("x", "f64"), Field("y", "i32", nullable=False)], 100, device)
    assert table.rows is None
    assert "unknown" in repr(table)

    def kernel(x: Any, count: Any) -> None:
        x[:] = np.arange(1, 101)
        count[...] = 3

    tern.Kernel.from_function(device, kernel).launch(None, 1, tern.out(table["x"].values), tern.out(table.row_count))
    assert table.rows_host() == 3
    assert table.rows == 3
    table.set_rows(2)
    assert len(table) == 2
    with pytest.raises(IndexError):
        table.set_rows(101)
    device.synchronize()
    assert sim.findings(device) == []


def test_bad_tables(device: tern.Device) -> None:
    column = Column([1, 2], device=device)
    with pytest.raises(tern.SizeMismatchError):
        Table({"a": column, "b": Column([1], device=device)})
    with pytest.raises(tern.ShapeMismatchError):
        Table([("a", "i64")], [column, column])
    with pytest.raises(tern.TypeMismatchError):
        Table([("a", "f64")], [column])
    with pytest.raises(IndexError):
        Table({"a": column}, rows=5)
    with pytest.raises(TypeError):
        Table(5)
    with pytest.raises(TypeError):
        Table([("a", "i64")], [5])
    with pytest.raises(TypeError):
        Table({5: column})
    with pytest.raises(ValueError):
        Table.concat([])


def test_schemas() -> None:
    schema = Schema([("a", "i32"), Field("b", "utf8", False, {"key": "value"})], {"k": "v"})
    assert schema.names == ["a", "b"]
    assert len(schema) == 2
    assert schema.metadata == {"k": "v"}
    assert schema.fields[1].metadata == {"key": "value"}
    assert not schema.fields[1].nullable
    assert schema == Schema(schema)
    assert schema != Schema([("a", "i32")])
    schema.check_match(schema)
    with pytest.raises(tern.TypeMismatchError):
        Schema([("a", "i32")]).check_match([("a", "u32")])
    Schema([("a", "i32")]).check_match([("a", "u32")], allows_sign_change=True)
    assert pa.schema(schema).equals(
        pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.string(), False, {"key": "value"})], {"k": "v"}), True
    )
    assert Schema(pa.schema(schema)) == schema
    for bad in ([5], [("a",)], [(1, "i32")], [("a", 1.5j)]):
        with pytest.raises(TypeError):
            Schema(bad)
    with pytest.raises(BufferError):
        Schema(pa.schema([pa.field("a", pa.list_(pa.int32()))]))
    with pytest.raises(TypeError):
        Field("a", "i32", metadata={"a": 5})


# --- pyarrow

arrow_columns = [
    pa.array([1, None, 3], pa.int32()),
    pa.array([1.5, 2.5], pa.float64()),
    pa.array([True, None, False]),
    pa.array(["a", None, "äö"]),
    pa.array(["a", None, "äö"], pa.large_string()),
    pa.array([b"\0", b"x"], pa.binary()),
    pa.array([1, 2], pa.timestamp("us", "Europe/Berlin")),
    pa.array([1, None], pa.duration("s")),
    pa.array([5], pa.date32()),
    pa.array([5], pa.time64("ns")),
    pa.array([], pa.int64()),
    pa.array([0, 1, 2, None, 4, 5], pa.int16()).slice(2, 3),
    pa.array(["a", "b", None, "d"]).slice(1, 2),
    pa.array([True, False, True, None]).slice(1, 3),
]


@pytest.mark.parametrize("array", arrow_columns, ids=lambda array: f"{array.type}-{len(array)}")
def test_columns_go_to_pyarrow_and_back(array: Any) -> None:
    column = tern.from_arrow(array)
    assert isinstance(column, Column)
    assert len(column) == len(array)
    assert column.null_count == array.null_count
    back = pa.array(column)
    assert back.type == array.type
    assert back.equals(array)
    assert pa.field(column).type == array.type


def test_nothing_is_copied() -> None:
    array = pa.array(np.arange(1000))
    column = tern.from_arrow(array)
    assert column.is_external
    assert column.values.ptr == array.buffers()[1].address
    back = pa.array(Column(np.arange(10), device="host"))
    again = tern.from_arrow(back)
    assert again.values.ptr == back.buffers()[1].address


def test_tables_go_to_pyarrow_and_back() -> None:
    table = made_table(tern.open_device("host"))
    expected = {"price": [1.5, 2.5, 3.5], "name": ["a", None, "c"], "flag": [True, False, True]}
    batch = pa.record_batch(table)
    assert batch.to_pydict() == expected
    assert pa.table(table).to_pydict() == expected
    assert pa.RecordBatchReader.from_stream(table).read_all().to_pydict() == expected
    for source in (batch, pa.table(table), pa.RecordBatchReader.from_batches(batch.schema, [batch, batch])):
        back = tern.from_arrow(source)
        assert isinstance(back, Table)
        assert back.names == ["price", "name", "flag"]
        assert back["name"].to_pylist()[:3] == ["a", None, "c"]
    assert Schema(table).names == table.names


def test_chunks_are_put_together() -> None:
    chunked = pa.chunked_array([[1, 2], [], [None, 4]], pa.int64())
    assert tern.from_arrow(chunked).to_pylist() == [1, 2, None, 4]
    assert tern.from_arrow(pa.chunked_array([], pa.string())).to_pylist() == []
    table = pa.table({"a": chunked})
    assert tern.from_arrow(table)["a"].to_pylist() == [1, 2, None, 4]


def test_memory_of_a_device_needs_the_device_protocol(accelerator: tern.Device) -> None:
    table = made_table(accelerator)
    with pytest.raises(BufferError):
        table.__arrow_c_array__()
    with pytest.raises(BufferError):
        table["price"].__arrow_c_array__()
    if accelerator.spec.startswith("opencl"):
        return
    for thing in (table, table["price"]):
        back = tern.from_arrow(_Only(thing, "__arrow_c_device_array__"), device=accelerator)
        assert back.device == accelerator
    back = tern.from_arrow(_Only(table, "__arrow_c_device_stream__"), device=accelerator)
    assert back["name"].to_pylist() == ["a", None, "c"]


class _Only:
    """An object with one protocol of another one."""

    def __init__(self, thing: Any, protocol: str) -> None:
        setattr(self, protocol, getattr(thing, protocol))


@pytest.mark.parametrize("protocol", ["__arrow_c_array__", "__arrow_c_device_array__", "__arrow_c_stream__", "__arrow_c_device_stream__"])
def test_every_protocol(protocol: str) -> None:
    table = made_table(tern.open_device("host"))
    back = tern.from_arrow(_Only(table, protocol))
    assert back["name"].to_pylist() == ["a", None, "c"]
    pulled = tern.from_arrow(_Only(pa.record_batch(table), protocol)) if hasattr(pa.RecordBatch, protocol) else back
    assert pulled["flag"].to_pylist() == [True, False, True]


def test_imported_memory_lives_as_long_as_it_is_used() -> None:
    array = np.arange(100000)
    gone = weakref.ref(array)
    column = tern.from_arrow(pa.py_buffer(array) and pa.array(array))
    del array
    gc.collect()
    assert gone() is not None
    part = column.slice(5, 2)
    del column
    gc.collect()
    assert part.to_pylist() == [5, 6]
    del part
    gc.collect()
    assert gone() is None


def test_exported_memory_lives_as_long_as_it_is_used() -> None:
    array = pa.array(Column(np.arange(100000), device="host"))
    gc.collect()
    others = [Column(np.zeros(100000, "int64"), device="host") for _ in range(5)]
    assert array[99999].as_py() == 99999
    assert array.to_numpy().sum() == np.arange(100000).sum()
    del others


def test_types_that_tables_do_not_have() -> None:
    for array in (pa.array([[1]]), pa.array(["a"]).dictionary_encode(), pa.nulls(3), pa.array([None, {"a": 1}])):
        with pytest.raises(BufferError) as raised:
            tern.from_arrow(array)
        assert isinstance(raised.value, tern.ArrowRejectedError)


# --- polars and pandas


def test_polars() -> None:
    pl = pytest.importorskip("polars")
    table = made_table(tern.open_device("host"))
    frame = pl.DataFrame(table)
    assert frame.to_dict(as_series=False) == {"price": [1.5, 2.5, 3.5], "name": ["a", None, "c"], "flag": [True, False, True]}
    back = tern.from_arrow(frame)
    assert back["name"].to_pylist() == ["a", None, "c"]
    assert back["price"].to_pylist() == [1.5, 2.5, 3.5]
    assert tern.from_arrow(pl.Series([1, None, 3])).to_pylist() == [1, None, 3]
    assert tern.from_arrow(pl.Series(["a", "b"])).to_pylist() == ["a", "b"]
    assert pl.Series(table["name"]).to_list() == ["a", None, "c"]


def test_pandas() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": [1.5, 2.5], "y": [1, 2], "z": ["a", "b"]})
    table = tern.from_arrow(frame)
    assert table["x"].to_pylist() == [1.5, 2.5]
    assert table["z"].to_pylist() == ["a", "b"]
    back = pa.table(table).to_pandas()
    assert back["y"].tolist() == [1, 2]


# --- Hostile objects


class _Returns:
    def __init__(self, **results: Any) -> None:
        for name, result in results.items():
            setattr(self, f"__arrow_c_{name}__", lambda result=result: result)


def capsule(name: bytes, address: int = 1) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, name, None)


_kept = [b"arrow_schema", b"arrow_array", b"other"]  # the names must outlive the capsules


def test_hostile_objects() -> None:
    schema, array = pa.array([1]).__arrow_c_array__()
    for result in (None, 5, (), (schema,), (schema, array, array), [schema, array], (array, schema), (schema, 5), (None, None)):
        with pytest.raises(BufferError) as raised:
            tern.from_arrow(_Returns(array=result))
        assert isinstance(raised.value, tern.ArrowRejectedError)
        with pytest.raises(BufferError):
            tern.from_arrow(_Returns(device_array=result))
    for result in (None, 5, array, capsule(_kept[2])):
        with pytest.raises(BufferError):
            tern.from_arrow(_Returns(stream=result))
        with pytest.raises(BufferError):
            tern.from_arrow(_Returns(device_stream=result))
    # What was refused so far was not consumed.
    assert tern.from_arrow(_Returns(array=(schema, array))).to_pylist() == [1]
    with pytest.raises(BufferError, match="consumed"):
        tern.from_arrow(_Returns(array=(schema, array)))
    for thing in (5, "a", object(), np.zeros(3)):
        with pytest.raises(TypeError) as mistyped:
            tern.from_arrow(thing)
        assert isinstance(mistyped.value, tern.Error)


def test_a_released_structure_is_refused() -> None:
    empty = (ctypes.c_byte * 256)()
    address = ctypes.addressof(empty)
    with pytest.raises(BufferError):
        tern.from_arrow(_Returns(array=(capsule(_kept[0], address), capsule(_kept[1], address))))


def test_a_producer_that_raises() -> None:
    class Raises:
        def __arrow_c_array__(self) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tern.from_arrow(Raises())

    def batches() -> Any:
        yield pa.record_batch({"a": [1, 2]})
        raise ZeroDivisionError("in the middle")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches())
    with pytest.raises(BufferError, match="in the middle"):
        tern.from_arrow(reader)

    def numbers_of() -> Any:
        yield pa.record_batch({"a": [1, 2]})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), numbers_of())
    assert tern.from_arrow(reader)["a"].to_pylist() == [1, 2]


def test_a_consumer_that_raises_releases_the_structures() -> None:
    table = made_table(tern.open_device("host"))
    gone = [table.__arrow_c_array__(), table.__arrow_c_stream__(), table.__arrow_c_device_array__(), table.__arrow_c_schema__()]
    del gone  # nobody consumed them
    gc.collect()
    with pytest.raises(NotImplementedError):
        table.__arrow_c_device_array__(stream=5)
    table.__arrow_c_device_array__(stream=None)
    assert pa.record_batch(table).num_rows == 3


def tracked() -> tuple[tern.Device, tern.TrackingResource]:
    """A simulated device whose memory is counted."""
    device = sim.open(seed=6)
    resource = tern.TrackingResource(tern.Pool(device))
    tern.set_default_resource(resource)
    return device, resource


@pytest.mark.parametrize("protocol", ["__arrow_c_device_array__", "__arrow_c_device_stream__", "__arrow_c_schema__"])
def test_exports_that_nobody_takes_free_their_memory(protocol: str) -> None:
    device, resource = tracked()
    table = made_table(device)
    assert resource.live_blocks()
    exported = getattr(table, protocol)()
    del table
    gc.collect()
    assert (protocol != "__arrow_c_schema__") == bool(resource.live_blocks())
    del exported
    gc.collect()
    device.synchronize()
    left = tern.reclaim_deferred()
    assert left == tern.deferred_frees()
    assert resource.live_blocks() == []


@pytest.mark.parametrize("protocol", ["__arrow_c_device_array__", "__arrow_c_device_stream__"])
def test_exports_that_are_taken_free_their_memory(protocol: str) -> None:
    device, resource = tracked()
    back = tern.from_arrow(_Only(made_table(device), protocol), device=device)
    gc.collect()
    assert back["price"].to_pylist() == [1.5, 2.5, 3.5]
    del back
    gc.collect()
    tern.reclaim_exported()
    assert resource.live_blocks() == []
    other = tern.open_device("host")
    with pytest.raises(tern.Error):  # memory of another device
        tern.from_arrow(_Only(made_table(device), protocol), device=other)
    gc.collect()
    tern.reclaim_exported()
    assert resource.live_blocks() == []


def test_texts_without_utf8(device: tern.Device) -> None:
    for make in (
        lambda: Column(["\ud800"], "utf8", device),
        lambda: Table({"\ud800": Column([1], device=device)}),
        lambda: Schema([("\ud800", "i32")]),
        lambda: Schema([], {"a": "\ud800"}),
        lambda: made_table(device)["\ud800"],
        lambda: made_table(device).select(["\ud800"]),
    ):
        with pytest.raises(ValueError, match="UTF-8") as raised:
            make()
        assert isinstance(raised.value, tern.Error)


def test_threads_exchange_tables() -> None:
    device, _ = tracked()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                table = made_table(device)
                back = tern.from_arrow(_Only(table, "__arrow_c_device_array__"), device=device)
                del table
                assert back.copy_to("host")["name"].to_pylist() == ["a", None, "c"]
                assert pa.table(back.copy_to("host")).num_rows == 3
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failures == []


def test_text_is_checked_on_request() -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], "i4")), pa.py_buffer(b"\xff")])
    assert len(tern.from_arrow(bad)) == 1
    with pytest.raises(BufferError):
        tern.from_arrow(bad, checks_text=True)


# --- Lists with None


def test_a_list_of_numbers_with_none_has_missing_values(device: tern.Device) -> None:
    column = Column([1, 2, None], device=device)
    assert column.type == LogicalType("int64")
    assert column.to_pylist() == [1, 2, None]
    assert Column([1.5, None], device=device).to_pylist() == [1.5, None]
    assert Column([None, True], "bool", device=device).to_pylist() == [None, True]
    assert Column([1, None], "int16", device=device).to_pylist() == [1, None]
    assert Column([None, None], device=device).to_pylist() == [None, None]


def test_none_and_valid_exclude_each_other(device: tern.Device) -> None:
    with pytest.raises(tern.InvalidArgumentError, match="and not both"):
        Column([1, None], device=device, valid=[True, True])


def test_a_list_of_texts_and_numbers_is_refused(device: tern.Device) -> None:
    with pytest.raises(tern.TypeMismatchError, match="no value 1"):
        Column([1, "a"], device=device)
    assert Column(np.array(["1", "a"]), device=device).to_pylist() == ["1", "a"]


def test_what_is_not_arrow_data_is_refused_with_advice() -> None:
    with pytest.raises(tern.TypeMismatchError) as caught:
        tern.from_arrow({})
    assert str(caught.value).startswith("dict is not Arrow data")
    assert str(caught.value).endswith("or make a Table from a dict of columns.")
