// SharedArray: one array in several processes.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "interrupts.hpp"
#include "support.hpp"
#include "tern/buffer/shared_array.hpp"

namespace tern::python {
namespace {

/// A shared array that several threads may use: each call has it alone.
struct Shared {
  std::mutex mutex;
  SharedBuffer array;  // guarded by mutex, like buffer; both are empty after close()
  Buffer buffer;
  // Constant.
  Shape shape;
  DType dtype = DType::byte;
  Device device;
  std::string handle;
};

class PyShared {
 public:
  PyShared(SharedBuffer array, Shape shape) : shared_(std::make_shared<Shared>()) {
    shared_->buffer = array.buffer().try_reshape(shape, here()).value();
    shared_->shape = std::move(shape);
    shared_->dtype = shared_->buffer.dtype();
    shared_->device = shared_->buffer.device();
    shared_->handle = array.handle();
    shared_->array = std::move(array);
  }
  [[nodiscard]] const Shared* operator->() const noexcept { return shared_.get(); }
  /// Calls with the array, without the interpreter lock.
  template <class Call>
  auto with(Call call) const {
    return without_gil([&] {
      const std::lock_guard lock(shared_->mutex);
      return call(shared_->array);
    });
  }
  [[nodiscard]] Buffer buffer() const {
    Buffer buffer = without_gil([&] {
      const std::lock_guard lock(shared_->mutex);
      return shared_->buffer;
    });
    if (!buffer) {
      raise(Failure(ErrorCode::not_allocated,
                    "the shared array was closed, so it has no elements. Open it again.")
                .with("id", std::uint64_t{0}),
            here());
    }
    return buffer;
  }
  void close() const {
    without_gil([&] {
      const std::lock_guard lock(shared_->mutex);
      shared_->array = SharedBuffer();
      shared_->buffer = Buffer();
    });
  }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace
}  // namespace tern::python

TERN_RELEASE_HANDLE(tern::python::PyShared)

namespace tern::python {
namespace {

SharedOptions options_of(const std::shared_ptr<Budget>& budget,
                         const std::optional<std::string>& tag) {
  SharedOptions options;
  options.budget = budget;
  options.tag = tag_of(tag);
  options.site = here();
  return options;
}

PyShared make(nb::handle shape, nb::handle dtype, nb::handle device,
              const std::shared_ptr<Budget>& budget, const std::optional<std::string>& tag) {
  const Device on = device_of_object(device);
  const DType element = dtype.is_none() ? DType::f32 : dtype_of_object(dtype);
  const Shape extents = shape_of_object(shape);
  const SharedOptions options = options_of(budget, tag);
  static_cast<void>(extents.try_byte_count(element).value());
  const std::size_t count = extents.element_count();
  SharedBuffer made =
      without_gil([&] { return SharedBuffer::try_make(on, count, element, options); }).value();
  return {std::move(made), extents};
}

/// Durations of the library are integers, and those of Python any number.
std::optional<std::chrono::milliseconds> milliseconds_of(const std::optional<double>& seconds) {
  if (!seconds) return {};
  if (!(*seconds >= 0)) refuse_value("a timeout cannot be negative");
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(*seconds, 1e9) * 1000));
}

PyShared open(const std::string& handle, nb::handle device, nb::handle shape,
              const std::optional<double>& timeout, const std::shared_ptr<Budget>& budget,
              const std::optional<std::string>& tag) {
  const Device on = device_of_object(device);
  SharedOptions options = options_of(budget, tag);
  options.timeout = milliseconds_of(timeout);
  SharedBuffer made =
      without_gil([&] { return SharedBuffer::try_open(handle, on, options); }).value();
  Shape extents = shape.is_none() ? Shape::flat(made.size()) : shape_of_object(shape);
  return {std::move(made), std::move(extents)};
}

/// Waits in short turns, so that Ctrl-C ends the wait and close() of another thread is heard.
nb::object acquire(nb::object self, const std::optional<double>& timeout) {
  using Clock = std::chrono::steady_clock;
  const PyShared& shared = nb::cast<const PyShared&>(self);
  const std::optional<std::chrono::milliseconds> patience = milliseconds_of(timeout);
  const CallSite site = here();
  const Clock::time_point begin = Clock::now();
  for (;;) {
    std::chrono::milliseconds wait = turn;
    bool is_last = false;
    if (patience) {
      const auto passed =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
      const std::chrono::milliseconds left = std::max(*patience - passed, {});
      is_last = left <= turn;
      wait = std::min(left, wait);
    }
    const Result<void> acquired =
        shared.with([&](SharedBuffer& array) { return array.try_acquire(wait, site); });
    if (acquired) return self;
    if (acquired.failure().code() != ErrorCode::timeout || is_last) acquired.value(site);
    check_signals();
  }
}

void publish(const PyShared& self, nb::handle stream) {
  const StreamArgument on(stream, self->device);
  const CallSite site = here();
  self.with([&](SharedBuffer& array) { return array.try_publish(on.get(), site); }).value();
}

}  // namespace

void add_shared(nb::module_& module) {
  nb::class_<PyShared>(
      module, "SharedArray",
      "An array that several processes of this machine use, without a copy.\n\n"
      "The process that makes the array exports it. Other processes get it as a pickle, or open "
      "its "
      "handle. Processes take turns: publish() ends a turn, acquire() waits for the next one.\n\n"
      "Parameters\n----------\n"
      "shape : int or sequence of int\n"
      "dtype : dtype-like, default float32\n"
      "device : Device or str, optional\n    By default the current device.\n"
      "budget : Budget, optional\n    Charged with the memory, in whole pages.\n"
      "tag : str, optional\n    A name for reports.")
      .def(nb::new_(&make), nb::arg("shape"), nb::arg("dtype") = nb::none(),
           nb::arg("device") = nb::none(), nb::kw_only(), nb::arg("budget") = nb::none(),
           nb::arg("tag") = nb::none())
      .def_static("open", &open, nb::arg("handle"), nb::arg("device") = nb::none(),
                  nb::arg("shape") = nb::none(), nb::kw_only(), nb::arg("timeout") = nb::none(),
                  nb::arg("budget") = nb::none(), nb::arg("tag") = nb::none(),
                  "Open an array of another process, or of this one.\n\n"
                  "Parameters\n----------\n"
                  "handle : str\n    What ``handle`` is in the process that made the array.\n"
                  "device : Device or str, optional\n"
                  "    The device on which the array was made; by default the current device.\n"
                  "shape : int or sequence of int, optional\n    By default one dimension.\n"
                  "timeout : float, optional\n    Seconds to wait for an answer; by default ten.\n"
                  "budget : Budget, optional\n    Charged with the memory, in whole pages.\n"
                  "tag : str, optional\n    A name for reports.\n\n"
                  "Returns\n-------\nSharedArray")
      .def_prop_ro(
          "handle", [](const PyShared& self) { return self->handle; },
          nb::sig("def handle(self) -> str"),
          "The text with which processes of the same user open the array. It contains a secret.")
      .def_prop_ro(
          "buffer", [](const PyShared& self) { return self.buffer(); },
          "The elements as a Buffer, for kernels and copies. Use them only during a turn.")
      .def(
          "numpy", [](const PyShared& self) { return nb::cast(self.buffer()).attr("numpy")(); },
          "Return a NumPy array over the memory. Raises BufferError for memory that the host "
          "cannot "
          "use.")
      .def(
          "to_numpy",
          [](const PyShared& self) { return nb::cast(self.buffer()).attr("to_numpy")(); },
          "Return an independent NumPy array with the elements.")
      .def_prop_ro(
          "shape", [](const PyShared& self) { return tuple_of(self->shape); }, "The extents.")
      .def_prop_ro(
          "dtype", [](const PyShared& self) { return object_of_dtype(self->dtype); },
          "The type of an element.")
      .def_prop_ro(
          "size", [](const PyShared& self) { return self->shape.element_count(); },
          "The number of elements.")
      .def_prop_ro(
          "nbytes",
          [](const PyShared& self) {
            return self->shape.element_count() * size_bytes(self->dtype);
          },
          "The number of bytes.")
      .def_prop_ro(
          "device", [](const PyShared& self) { return self->device; }, "The device of the memory.")
      .def_prop_ro(
          "is_exporter",
          [](const PyShared& self) {
            return self.with([](SharedBuffer& array) { return array.is_exporter(); });
          },
          "Whether this process made the array.")
      .def_prop_ro(
          "has_turn",
          [](const PyShared& self) {
            return self.with([](SharedBuffer& array) { return array.has_turn(); });
          },
          "Whether this process may use the elements now.")
      .def_prop_ro(
          "importers",
          [](const PyShared& self) {
            return self.with([](SharedBuffer& array) { return array.importers(); });
          },
          "How many importers an exporter has now.")
      .def("publish", &publish, nb::arg("stream") = nb::none(),
           "End the turn after all earlier uses of the array, in stream order.\n\n"
           "The host does not wait. A simulated device works only while the host waits for it, so "
           "synchronize the stream there if no acquire() follows.")
      .def("acquire", &acquire, nb::arg("timeout") = nb::none(),
           nb::sig("def acquire(self, timeout: float | None = None) -> SharedArray"),
           "Wait for the next turn. Returns the array.\n\n"
           "Raises PeerLostError if the other process has ended, and TimeoutError after so many "
           "seconds. Ctrl-C ends the wait.")
      .def(
          "close", &PyShared::close,
          "Close the array now. Other processes are told, and the memory is freed when the last of "
          "them has closed it. Buffers of the array stay valid.")
      .def(
          "__reduce_ex__",
          [](nb::handle self, nb::handle) {
            return nb::module_::import_("ternmem._pickling").attr("reduce_shared")(self);
          },
          nb::arg("protocol"))
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> SharedArray"))
      .def(
          "__exit__", [](const PyShared& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](const PyShared& self) {
        return nb::str("SharedArray(shape={}, dtype={}, device='{}')")
            .format(tuple_of(self->shape), object_of_dtype(self->dtype),
                    std::string(self->device.spec()));
      });
}

}  // namespace tern::python
