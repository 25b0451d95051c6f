"""Tables and tensors go to pyarrow and NumPy and come from them, through their own C structures.

Usage: peers_test.py LIBRARY [ENVIRONMENT]. The library is tests/python/peers.cpp. Where this Python
has no pyarrow and NumPy, that of the environment is taken, which scripts/setup makes; where there is
none either, the test is skipped. torch takes part if it is there (scripts/setup tests torch).
"""

import ctypes
import datetime
import gc
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
    import pyarrow as pa
except ImportError:
    PYTHON = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "", "bin", "python3")
    if len(sys.argv) > 2 and PYTHON.is_file() and not os.environ.get("PEERS_LOOKED_FOR"):
        os.environ["PEERS_LOOKED_FOR"] = "1"
        os.execv(PYTHON, [str(PYTHON), "-B", *sys.argv])
    print("skipped: there is no pyarrow and NumPy here; scripts/setup tests installs them.")
    sys.exit(77)

try:
    import torch
except ImportError:
    torch = None
NO_TORCH = "there is no torch here; scripts/setup tests torch installs it"

LIBRARY = ctypes.CDLL(sys.argv[1])
for name, result in {"error": ctypes.c_char_p, "exports": ctypes.c_uint64,
                     "import_array": ctypes.c_void_p, "import_device_array": ctypes.c_void_p,
                     "import_stream": ctypes.c_void_p, "copy": ctypes.c_void_p,
                     "slice": ctypes.c_void_p, "values": ctypes.c_uint64,
                     "import_tensor": ctypes.c_void_p, "export_tensor": ctypes.c_void_p,
                     "tensor_address": ctypes.c_uint64}.items():
    getattr(LIBRARY, f"tern_peer_{name}").restype = result


def call(name, *arguments):
    function = getattr(LIBRARY, f"tern_peer_{name}")
    wrapped = [ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments]
    return function(*wrapped)


def last_error():
    return LIBRARY.tern_peer_error().decode()


class Structure:
    """Room for one of Arrow's structures."""

    def __init__(self, size):
        self.memory = (ctypes.c_uint64 * (size // 8))()
        self.address = ctypes.addressof(self.memory)


def schema():
    return Structure(72)


def array():
    return Structure(80)


def device_array():
    return Structure(128)


def stream():
    return Structure(40)


ROWS = 13
COLUMNS = {
    "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(), "u8": pa.uint8(),
    "u16": pa.uint16(), "u32": pa.uint32(), "u64": pa.uint64(), "f32": pa.float32(),
    "f64": pa.float64(), "date32": pa.date32(), "time32": pa.time32("ms"), "time64": pa.time64("ns"),
    "stamp": pa.timestamp("us", "Europe/Berlin"), "local": pa.timestamp("s"),
    "span": pa.duration("ms")}


def sample(first=0):
    """A batch with a column of every type, and nulls in half of them."""
    columns, fields = [], []
    for at, (name, kind) in enumerate(COLUMNS.items()):
        values = pa.array([None if at % 2 and row % 5 == 2 else row for row in range(ROWS)], pa.int64())
        if pa.types.is_temporal(kind):
            values = values.cast(pa.int64()).cast(pa.int32() if kind.bit_width == 32 else pa.int64())
            values = values.view(kind) if values.null_count == 0 else values.cast(kind)
        else:
            values = values.cast(kind)
        columns.append(values)
        fields.append(pa.field(name, kind, metadata={"unit": "m", "tern.type": name}))
    columns.append(pa.array([row % 3 == 0 if row % 4 else None for row in range(ROWS)], pa.bool_()))
    fields.append(pa.field("flag", pa.bool_()))
    for name, kind in (("text", pa.string()), ("large", pa.large_string()), ("raw", pa.binary()),
                       ("huge", pa.large_binary())):
        words = ["ä" * (row % 4) if row % 6 else None for row in range(ROWS)]
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            words = [w if w is None else w.encode() for w in words]
        columns.append(pa.array(words, kind))
        fields.append(pa.field(name, kind))
    columns.append(pa.array([np.float16(row) for row in range(ROWS)], pa.float16()))
    fields.append(pa.field("half", pa.float16(), nullable=False))
    batch = pa.record_batch(columns, schema=pa.schema(fields, metadata={"origin": "pyarrow"}))
    return batch.slice(first)


def take(batch):
    """The batch as a table of Tern's."""
    made, form = array(), schema()
    batch._export_to_c(made.address, form.address)
    handle = call("import_array", made.address, form.address)
    assert handle, last_error()
    return handle


def give(handle):
    """A table of Tern's as a batch."""
    made, form = array(), schema()
    if call("export_array", handle, made.address, form.address) != 0:
        raise RuntimeError(last_error())
    return pa.RecordBatch._import_from_c(made.address, form.address)


class Arrow(unittest.TestCase):
    def tearDown(self):
        gc.collect()
        self.assertEqual(call("exports"), 0)

    def test_a_table_goes_there_and_back_in_the_same_memory(self):
        for first in (0, 1, 3, 8, ROWS):
            batch = sample(first)
            held = pa.total_allocated_bytes()
            handle = take(batch)
            back = give(handle)
            back.validate(full=True)
            self.assertTrue(back.equals(batch))
            self.assertTrue(back.schema.equals(batch.schema, check_metadata=True))
            if first == 0:
                there = batch.column("i64").buffers()[1].address
                self.assertEqual(back.column("i64").buffers()[1].address, there)
                self.assertEqual(call("values", handle, 3), there)
            # Whoever is last lets go.
            call("drop_table", handle)
            self.assertTrue(back.equals(batch))
            del back
            self.assertEqual(pa.total_allocated_bytes(), held)

    def test_memory_of_tern_is_read_by_pyarrow(self):
        batch = sample()
        handle = take(batch)
        own = call("copy", handle)
        call("drop_table", handle)
        part = call("slice", own, 3, 7)
        given = give(part)
        call("drop_table", part)
        call("drop_table", own)
        given.validate(full=True)
        self.assertTrue(given.equals(batch.slice(3, 7)))
        self.assertEqual([c.null_count for c in given.columns],
                         [c.null_count for c in batch.slice(3, 7).columns])

    def test_the_device_form_goes_both_ways(self):
        batch = sample(2)
        made, form = device_array(), schema()
        batch._export_to_c_device(made.address, form.address)
        handle = call("import_device_array", made.address, form.address)
        self.assertTrue(handle, last_error())
        made, form = device_array(), schema()
        self.assertEqual(call("export_device_array", handle, made.address, form.address), 0)
        self.assertEqual(ctypes.c_int64.from_address(made.address + 80).value, -1)
        self.assertEqual(ctypes.c_int32.from_address(made.address + 88).value, 1)
        back = pa.RecordBatch._import_from_c_device(made.address, form.address)
        call("drop_table", handle)
        self.assertTrue(back.equals(batch))

    def test_streams_go_both_ways(self):
        batches = [sample(), sample(4), sample(ROWS)]
        source = stream()
        pa.RecordBatchReader.from_batches(batches[0].schema, batches)._export_to_c(source.address)
        handle = call("import_stream", source.address)
        self.assertTrue(handle, last_error())
        out = stream()
        self.assertEqual(call("export_stream", handle, out.address), 0)
        call("drop_table", handle)
        reader = pa.RecordBatchReader._import_from_c(out.address)
        table = reader.read_all()
        expected = pa.Table.from_batches(batches + batches)
        self.assertTrue(table.combine_chunks().equals(expected.combine_chunks()))
        del reader, table

    def test_views_of_texts_are_understood(self):
        words = ["short", None, "a text that is longer than twelve bytes", "ä" * 20]
        batch = pa.record_batch([pa.array(words, pa.string_view())], names=["s"])
        handle = take(batch)
        self.assertEqual(give(handle).column(0).to_pylist(), words)
        call("drop_table", handle)

    def test_what_tables_have_no_type_for_is_refused_and_let_go(self):
        held = pa.total_allocated_bytes()
        for values in (pa.array([[1], [2, 3]]), pa.array(["a", "b"]).dictionary_encode(),
                       pa.array([1, 2]).cast(pa.decimal128(30, 2)), pa.nulls(2),
                       pa.array([{"x": 1}, {"x": 2}])):
            batch = pa.record_batch([values], names=["x"])
            made, form = array(), schema()
            batch._export_to_c(made.address, form.address)
            self.assertIsNone(call("import_array", made.address, form.address))
            self.assertIn("schema.children[0]", last_error())
        del batch, values
        self.assertEqual(pa.total_allocated_bytes(), held)

    def test_both_headers_stand_in_one_source_in_either_order(self):
        theirs = pathlib.Path(pa.get_include(), "arrow", "c", "abi.h")
        compiler = shutil.which("g++") or shutil.which("clang++")
        if not compiler or not theirs.is_file():
            self.skipTest("there is no header of Arrow's, or no compiler")
        root = pathlib.Path(__file__).resolve().parents[2]
        ours = root / "include/tern/detail/interop/arrow_abi.h"
        for order in ((ours, theirs), (theirs, ours)):
            with tempfile.NamedTemporaryFile("w", suffix=".cpp") as unit:
                unit.write("".join(f'#include "{header}"\n' for header in order))
                unit.flush()
                subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Werror",
                                "-I", str(pa.get_include()), unit.name], check=True)


GetPointer = ctypes.pythonapi.PyCapsule_GetPointer
GetPointer.restype, GetPointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
SetName = ctypes.pythonapi.PyCapsule_SetName
SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
NewCapsule = ctypes.pythonapi.PyCapsule_New
NewCapsule.restype = ctypes.py_object
NewCapsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
USED = {False: b"used_dltensor", True: b"used_dltensor_versioned"}


def take_tensor(capsule):
    versioned = "versioned" in repr(capsule)
    managed = GetPointer(capsule, NAMES[versioned])
    SetName(capsule, USED[versioned])
    handle = LIBRARY.tern_peer_import_tensor(ctypes.c_void_p(managed), int(versioned))
    assert handle, last_error()
    return handle, versioned


def rename(capsule, name):
    SetName(capsule, name)
    return capsule


def torch_tensors():
    """Every type that both have, and every way in which elements can lie."""
    kinds = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
             torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
             torch.complex128)
    yield from (torch.arange(12).reshape(3, 4).to(kind) for kind in kinds)
    whole = torch.arange(120, dtype=torch.float32).reshape(2, 3, 4, 5)
    yield from (whole, whole.permute(3, 1, 0, 2), whole[:, ::2, 1:, ::3], whole[1, 2, 3, 4],
                whole[:, :0], whole[0, 0, 0].expand(3, 5), torch.empty(0, dtype=torch.int64))


class Given:
    """An array of Tern's, as far as from_dlpack asks. The form is what was asked for here."""

    def __init__(self, handle, versioned):
        self.handle, self.versioned, self.asked = handle, versioned, {}

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **asked):
        self.asked = asked
        managed = LIBRARY.tern_peer_export_tensor(ctypes.c_void_p(self.handle), int(self.versioned))
        assert managed, last_error()
        return NewCapsule(managed, NAMES[self.versioned], None)


class DLPack(unittest.TestCase):
    ARRAYS = [np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(24).reshape(2, 3, 4)[:, ::2, 1:],
              np.arange(6, dtype=np.complex128).reshape(2, 3).T, np.zeros((3, 0, 2), np.int16),
              np.array(7, np.uint64), np.array([True, False, True])]

    def tearDown(self):
        gc.collect()
        self.assertEqual(call("exports"), 0)

    def forms(self, values):
        yield values.__dlpack__()
        try:
            yield values.__dlpack__(max_version=(1, 3))
        except TypeError:
            pass

    def test_numpy_both_ways_in_both_forms(self):
        seen = set()
        for values in self.ARRAYS:
            for capsule in self.forms(values):
                handle, versioned = take_tensor(capsule)
                seen.add(versioned)
                if values.size:
                    self.assertEqual(call("tensor_address", handle), values.ctypes.data)
                # The form without a version cannot say that nobody may write, as of no elements.
                for form in (False, True) if values.size else (True,):
                    back = np.from_dlpack(Given(handle, form))
                    np.testing.assert_array_equal(back, values)
                    self.assertEqual(back.dtype, values.dtype)
                    if values.size:
                        self.assertEqual(back.ctypes.data, values.ctypes.data)
                    del back
                call("drop_tensor", handle)
        self.assertIn(False, seen)
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
            self.assertIn(True, seen)

    @unittest.skipUnless(torch, NO_TORCH)
    def test_our_structures_are_laid_out_as_those_of_the_header_torch_has(self):
        theirs = pathlib.Path(torch.__file__).parent / "include/ATen/dlpack.h"
        compiler = shutil.which("g++") or shutil.which("clang++")
        if not compiler or not theirs.is_file():
            self.skipTest("there is no header of DLPack's, or no compiler")
        root = pathlib.Path(__file__).resolve().parents[2]
        fields = {"DLPackVersion": "major minor", "DLDevice": "device_type device_id",
                  "DLDataType": "code bits lanes",
                  "DLTensor": "data device ndim dtype shape strides byte_offset",
                  "DLManagedTensor": "dl_tensor manager_ctx deleter",
                  "DLManagedTensorVersioned": "version manager_ctx deleter flags dl_tensor"}
        words = ("kDLCPU kDLCUDA kDLCUDAHost kDLExtDev kDLCUDAManaged kDLInt kDLUInt kDLFloat "
                 "kDLBfloat kDLComplex kDLBool kDLFloat8_e4m3fn kDLFloat8_e5m2").split()
        checks = [f"static_assert(sizeof(::{name}) == sizeof(tern::abi::{name}) &&"
                  f" alignof(::{name}) == alignof(tern::abi::{name}));" for name in fields]
        checks += [f"static_assert(offsetof(::{name}, {field}) == offsetof(tern::abi::{name}, {field})"
                   f" && sizeof(::{name}::{field}) == sizeof(tern::abi::{name}::{field}));"
                   for name, all_of_it in fields.items() for field in all_of_it.split()]
        checks += [f"static_assert(int(::{word}) == int(tern::abi::{word}));" for word in words]
        # Theirs is a macro, so ours has to be named before it.
        source = "\n".join(["#include <cstddef>", '#include "tern/detail/interop/dlpack_abi.h"', "namespace {",
                            "constexpr auto ours = tern::abi::DLPACK_FLAG_BITMASK_READ_ONLY;", "}",
                            f'#include "{theirs}"', *checks,
                            "static_assert(DLPACK_FLAG_BITMASK_READ_ONLY == ours);"])
        with tempfile.NamedTemporaryFile("w", suffix=".cpp") as unit:
            unit.write(source)
            unit.flush()
            subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Werror",
                            "-I", str(root / "include"), unit.name], check=True)

    @unittest.skipUnless(torch, NO_TORCH)
    def test_torch_gives_both_forms(self):
        for tensor in torch_tensors():
            for asked, versioned in (({}, False), ({"max_version": (1, 0)}, True)):
                capsule = tensor.__dlpack__(**asked)
                self.assertIn(f'"{NAMES[versioned].decode()}"', repr(capsule))
                handle, seen = take_tensor(capsule)
                self.assertEqual(seen, versioned)
                if tensor.numel():
                    self.assertEqual(call("tensor_address", handle), tensor.data_ptr())
                back = torch.from_dlpack(Given(handle, True))
                self.assertEqual(back.shape, tensor.shape)
                self.assertTrue(torch.equal(back, tensor))
                del back
                call("drop_tensor", handle)

    @unittest.skipUnless(torch, NO_TORCH)
    def test_torch_takes_both_forms(self):
        for tensor in torch_tensors():
            handle, _ = take_tensor(tensor.__dlpack__(max_version=(1, 0)))
            # The form without a version cannot say that nobody may write what elements share.
            is_writable = tensor.numel() == 0 or 0 not in tensor.stride()
            if not is_writable:
                with self.assertRaisesRegex(AssertionError, "is read-only"):
                    torch.from_dlpack(Given(handle, False))
            for versioned in (False, True) if is_writable else (True,):
                given = Given(handle, versioned)
                back = torch.from_dlpack(given)
                self.assertEqual(given.asked.get("max_version"), (1, 0))
                self.assertEqual((back.dtype, back.shape), (tensor.dtype, tensor.shape))
                self.assertTrue(torch.equal(back, tensor))
                if tensor.numel():
                    self.assertEqual(back.data_ptr(), tensor.data_ptr())
                    self.assertEqual(back.stride(), tensor.stride())
                    self.assertEqual(call("exports"), 1)
                del back
            call("drop_tensor", handle)

    @unittest.skipUnless(torch, NO_TORCH)
    def test_torch_writes_what_tern_reads(self):
        tensor = torch.arange(6, dtype=torch.int32)
        handle, _ = take_tensor(tensor.__dlpack__(max_version=(1, 0)))
        for versioned in (False, True):
            back = torch.from_dlpack(Given(handle, versioned))
            back += 1
            del back
        self.assertEqual(tensor.tolist(), [2, 3, 4, 5, 6, 7])
        # Whoever is last lets go: torch is, though it gave the memory.
        back = torch.from_dlpack(Given(handle, True))
        call("drop_tensor", handle)
        del tensor
        gc.collect()
        self.assertEqual(call("exports"), 1)
        self.assertEqual(back.tolist(), [2, 3, 4, 5, 6, 7])

    @unittest.skipUnless(torch, NO_TORCH)
    def test_a_capsule_that_torch_refuses_is_still_ours(self):
        handle, _ = take_tensor(torch.arange(4).__dlpack__())
        used = NewCapsule(LIBRARY.tern_peer_export_tensor(ctypes.c_void_p(handle), 1),
                          USED[True], None)
        with self.assertRaises(Exception):
            torch.from_dlpack(used)
        self.assertEqual(call("exports"), 1)
        back, _ = take_tensor(rename(used, NAMES[True]))
        call("drop_tensor", back)
        call("drop_tensor", handle)


if __name__ == "__main__":
    print(f"pyarrow {pa.__version__}, NumPy {np.__version__}, "
          f"torch {torch.__version__ if torch else 'none'}")
    unittest.main(argv=sys.argv[:1])
