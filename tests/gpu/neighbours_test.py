"""Tern, PyTorch and CuPy in one process: all allocate, all compute, on each other's streams.

The three share the device's primary context, so an address of one is an address of all, and a
stream by its handle is one stream whoever submits to it: nothing below synchronises between the
steps of a chain.

Ends with 0, with 1 and a sentence, or with 77 where there is no GPU or neither of the two; where
TERN_REQUIRE names cuda that is a failure too.
"""

import ctypes
import os
import sys
import threading

SKIPPED = 77
COUNT = 1 << 20

DOUBLE = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry doubled(.param .u64 values, .param .u32 count)
{
  .reg .pred %outside;
  .reg .b32 %index, %block, %size, %thread, %limit;
  .reg .b64 %base, %offset;
  .reg .f32 %value;
  ld.param.u64 %base, [values];
  ld.param.u32 %limit, [count];
  mov.u32 %block, %ctaid.x;
  mov.u32 %size, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.s32 %index, %block, %size, %thread;
  setp.ge.u32 %outside, %index, %limit;
  @%outside ret;
  cvta.to.global.u64 %base, %base;
  mul.wide.u32 %offset, %index, 4;
  add.s64 %base, %base, %offset;
  ld.global.f32 %value, [%base];
  add.f32 %value, %value, %value;
  st.global.f32 [%base], %value;
  ret;
}
"""


def skip(why):
    required = "cuda" in os.environ.get("TERN_REQUIRE", "").split(",")
    print(("TERN_REQUIRE=cuda, but " if required else "skipped: ") + why)
    sys.exit(1 if required else SKIPPED)


def expect(condition, sentence):
    print(f"{'ok    ' if condition else 'FAILED'}  {sentence}")
    if not condition:
        sys.exit(1)


class Neighbour:
    """The C functions of neighbour.cpp; a failure is an exception with its sentence."""

    def __init__(self, path):
        self._library = ctypes.CDLL(path)
        self._library.neighbour_error.restype = ctypes.c_char_p

    def __getattr__(self, name):
        function = getattr(self._library, "neighbour_" + name)

        def call(*arguments):
            if function(*arguments) != 0:
                raise RuntimeError(self._library.neighbour_error().decode())

        return call

    def stream(self, handle=None):
        number, native = ctypes.c_size_t(), ctypes.c_size_t()
        borrowed = handle is not None
        self._checked("neighbour_stream", ctypes.c_int(borrowed),
                      ctypes.c_size_t(handle or 0), ctypes.byref(number), ctypes.byref(native))
        return number, native.value

    def allocate_floats(self, count, stream):
        address = ctypes.c_void_p()
        self._checked("neighbour_allocate", ctypes.c_size_t(4 * count), stream,
                      ctypes.byref(address))
        return address

    def live_bytes(self):
        value = ctypes.c_size_t()
        self._checked("neighbour_live_bytes", ctypes.byref(value))
        return value.value

    def _checked(self, name, *arguments):
        if getattr(self._library, name)(*arguments) != 0:
            raise RuntimeError(self._library.neighbour_error().decode())


def current_context():
    context = ctypes.c_void_p(1)
    ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
    return context.value


def beside_torch(tern, torch):
    for name, side in (("its default stream", torch.cuda.default_stream()),
                       ("a stream of its pool", torch.cuda.Stream())):
        with torch.cuda.stream(side):
            stream, _ = tern.stream(side.cuda_stream)
            ours = tern.allocate_floats(COUNT, stream)
            theirs = torch.zeros(COUNT, device="cuda")
            result = torch.empty(COUNT, device="cuda")
            # Tern writes their memory, they compute, Tern takes it and computes, they read.
            tern.fill(stream, ctypes.c_void_p(theirs.data_ptr()), ctypes.c_size_t(COUNT),
                      ctypes.c_float(3))
            theirs += 1
            tern.copy(stream, ours, ctypes.c_void_p(theirs.data_ptr()), ctypes.c_size_t(4 * COUNT))
            tern.launch(stream, DOUBLE, b"doubled", ours, ctypes.c_uint32(COUNT))
            tern.copy(stream, ctypes.c_void_p(result.data_ptr()), ours, ctypes.c_size_t(4 * COUNT))
            tern.free(ours, stream)
            total = float(result.sum())
        expect(total == 8.0 * COUNT, f"PyTorch and Tern compute in one order on {name}")


def on_our_stream(tern, torch):
    stream, native = tern.stream()
    external = torch.cuda.ExternalStream(native)
    ours = tern.allocate_floats(COUNT, stream)
    with torch.cuda.stream(external):
        theirs = torch.full((COUNT,), 5.0, device="cuda")
        tern.copy(stream, ours, ctypes.c_void_p(theirs.data_ptr()), ctypes.c_size_t(4 * COUNT))
        tern.launch(stream, DOUBLE, b"doubled", ours, ctypes.c_uint32(COUNT))
        tern.copy(stream, ctypes.c_void_p(theirs.data_ptr()), ours, ctypes.c_size_t(4 * COUNT))
        total = float(theirs.sum())
    tern.free(ours, stream)
    expect(total == 10.0 * COUNT, "PyTorch computes on a stream of Tern's")


def under_capture(tern, torch):
    graph = torch.cuda.CUDAGraph()
    value = torch.zeros(COUNT, device="cuda")
    failures = []

    def grow():
        try:
            tern.grow(ctypes.c_size_t(8 << 20))
        except RuntimeError as error:
            failures.append(str(error))

    with torch.cuda.graph(graph):
        value += 1
        # Another thread makes a pool grow in the middle of the strictest kind of capture.
        thread = threading.Thread(target=grow)
        thread.start()
        thread.join()
        value += 1
    graph.replay()
    graph.replay()
    expect(not failures, "a pool grows while PyTorch captures" + "".join(f": {f}" for f in failures))
    expect(float(value.sum()) == 4.0 * COUNT, "and the captured graph is whole")


def beside_cupy(tern, cupy):
    with cupy.cuda.Stream(non_blocking=True) as side:
        stream, _ = tern.stream(side.ptr)
        ours = tern.allocate_floats(COUNT, stream)
        theirs = cupy.zeros(COUNT, dtype=cupy.float32)
        tern.fill(stream, ctypes.c_void_p(theirs.data.ptr), ctypes.c_size_t(COUNT),
                  ctypes.c_float(1.5))
        theirs += 1
        tern.copy(stream, ours, ctypes.c_void_p(theirs.data.ptr), ctypes.c_size_t(4 * COUNT))
        tern.launch(stream, DOUBLE, b"doubled", ours, ctypes.c_uint32(COUNT))
        tern.copy(stream, ctypes.c_void_p(theirs.data.ptr), ours, ctypes.c_size_t(4 * COUNT))
        tern.free(ours, stream)
        total = float(theirs.sum())
    expect(total == 5.0 * COUNT, "CuPy and Tern compute in one order on a stream of CuPy's")


def leaves_threads_alone(tern):
    found = []

    def look():
        stream, _ = tern.stream()
        tern.synchronize(stream)
        found.append(current_context())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    expect(found == [None], "a thread without a context has none after calling Tern")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: neighbours_test.py LIBRARY")
    tern = Neighbour(sys.argv[1])
    try:
        tern.open(b"cuda:0")
    except RuntimeError as error:
        skip(str(error))
    torch = cupy = None
    try:
        import torch
    except ImportError:
        pass
    try:
        import cupy
    except ImportError:
        pass
    if torch is None and cupy is None:
        skip("neither PyTorch nor CuPy is installed.")
    leaves_threads_alone(tern)
    if torch is not None:
        beside_torch(tern, torch)
        on_our_stream(tern, torch)
        under_capture(tern, torch)
    if cupy is not None:
        beside_cupy(tern, cupy)
    expect(tern.live_bytes() == 0, "Tern has all of its memory back")


if __name__ == "__main__":
    main()
