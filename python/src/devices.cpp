// Devices, streams, events and marks.

#include "devices.hpp"

#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <mutex>

#include "collected.hpp"
#include "interrupts.hpp"
#include "places.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/device/event.hpp"

TERN_RELEASE_HANDLE(tern::Device)
TERN_RELEASE_HANDLE(tern::Event)

namespace tern::python {
namespace {

std::mutex current_mutex;
Device& current() {
  static auto& device = *new Device;  // never destroyed: threads may outlive main()
  return device;
}

std::vector<std::string> device_specs() {
  std::vector<std::string> specs;
  for (const BackendListing& backend : list_backends()) {
    specs.insert(specs.end(), backend.devices.begin(), backend.devices.end());
  }
  return specs;
}

/// Python calls an accelerator by number: set_device(0) is the first device that is not the host.
Device device_of_number(std::int64_t number) {
  std::vector<std::string> found;
  for (const BackendListing& backend : list_backends()) {
    if (backend.name == "host" || backend.name == "sim" || backend.name == "disk") continue;
    found.insert(found.end(), backend.devices.begin(), backend.devices.end());
  }
  if (number < 0 || static_cast<std::size_t>(number) >= found.size()) {
    raise(
        Failure(ErrorCode::invalid_device,
                "there is no accelerator {number}: this machine has {count}, numbered from 0. Open "
                "a device by its name, such as 'host' or 'sim'.")
            .with_signed("number", number)
            .with("count", found.size()),
        here());
  }
  return try_open_device(found[static_cast<std::size_t>(number)]).value(here());
}

nb::object open_handle(const PyStream& stream) {
  const StreamShare share = stream.share();
  return nb::int_(released([&] { return stream.get().try_native(); }).value(here()).value);
}

nb::list capabilities(const Device& device) {
  nb::list made;
  for (const Capability one : all_capabilities) {
    if (device.can(one)) made.append(nb::str(name(one).data(), name(one).size()));
  }
  return made;
}

bool can(const Device& device, const std::string& what) {
  for (const Capability one : all_capabilities) {
    if (name(one) == what) return device.can(one);
  }
  raise(Failure(ErrorCode::invalid_argument,
                "'{value}' is not a capability. Device.capabilities lists those of a device.")
            .with("value", what),
        here());
}

/// A wait that a signal can interrupt: asks in short turns, and lets Python run its handlers.
void wait_for(Mark mark) {
  const CallSite site = here();
  for (;;) {
    Result<bool> done = without_gil([&] { return wait_for_a_while(mark); });
    if (done.value(site)) return check_launches({}, mark.stream);
    if (PyErr_CheckSignals() != 0) nb::raise_python_error();
  }
}

void add_device_class(nb::module_& module) {
  nb::class_<MemoryInfo>(module, "MemoryInfo", "Free and total bytes of device memory.")
      .def_ro("free_bytes", &MemoryInfo::free_bytes, "The bytes that are free.")
      .def_ro("total_bytes", &MemoryInfo::total_bytes, "All bytes.")
      .def("__repr__", [](const MemoryInfo& info) {
        return nb::str("MemoryInfo(free_bytes={}, total_bytes={})")
            .format(info.free_bytes, info.total_bytes);
      });
  nb::class_<Device>(module, "Device",
                     "An open device: its properties, its memory and its default stream.\n\n"
                     "Open one with :func:`open_device`. Two handles of one device are equal.")
      .def(
          "__init__",
          [](Device* self, const std::string& spec) {
            new (self) Device(without_gil([&] { return try_open_device(spec); }).value(here()));
          },
          nb::arg("spec"),
          "Open the device with this spec, such as ``cuda:0``, ``sim`` or ``host``.")
      .def_prop_ro(
          "spec", [](const Device& self) { return std::string(self.spec()); },
          "The text that opens the device, such as ``cuda:0``.")
      .def_prop_ro(
          "name", [](const Device& self) { return self.info().name; }, "The name of the hardware.")
      .def_prop_ro(
          "driver", [](const Device& self) { return self.info().driver; },
          "The version of the driver.")
      .def_prop_ro(
          "is_host", [](const Device& self) { return self.info().is_host; },
          "Whether the device is the host itself.")
      .def_prop_ro(
          "id", [](const Device& self) { return self.id().value; },
          "The number of the device in this process.")
      .def_prop_ro(
          "place", [](const Device& self) { return self.place().text(); },
          "The place of the device's memory, such as ``'device 1'``.")
      .def_prop_ro("capabilities", &capabilities,
                   "The names of the optional features that the device has.")
      .def("can", &can, nb::arg("capability"), "Return whether the device has a capability.")
      .def(
          "memory",
          [](const Device& self) {
            return without_gil([&] { return self.try_memory(); }).value(here());
          },
          "Return the free and total bytes of device memory now.")
      .def(
          "allocate",
          [](const Device& self, nb::handle size) {
            const std::size_t bytes = size_of_object(size, "bytes");
            const CallSite site = here();
            const Result<void*> made = without_gil(
                [&] { return self.try_allocate(MemoryKind::device, bytes, {.site = site}); });
            return reinterpret_cast<std::uintptr_t>(made.value());
          },
          nb::arg("bytes"), "Allocate memory without an owner. Returns its address, for release().")
      .def(
          "release",
          [](const Device& self, std::uintptr_t address) {
            const CallSite site = here();
            without_gil([&] {
              return self.try_release(reinterpret_cast<void*>(address), site);
            }).value();
          },
          nb::arg("address"), "Free memory of allocate(). No work may still use it.")
      .def(
          "synchronize",
          [](const Device& self) {
            wait_for_device(self);
            check_launches(self.id());
          },
          "Wait until all work of the device is complete. Ctrl-C ends the wait.")
      .def_prop_ro(
          "default_stream", [](const Device& self) { return PyStream(self); },
          nb::for_getter(nb::sig("def default_stream(self) -> Stream")),
          "The stream that operations use if the program names none.")
      .def(
          "stream",
          [](const Device& self, const std::optional<std::string>& name, int priority) {
            return PyStream(self, {.priority = priority, .name = name.value_or("")});
          },
          nb::arg("name") = nb::none(), nb::arg("priority") = 0,
          nb::sig("def stream(self, name: str | None = None, priority: int = 0) -> Stream"),
          "Make a stream. The name is for reports.")
      .def(
          "activity",
          [](const Device& self) {
            const DeviceActivity activity = self.activity();
            nb::dict made;
            made["events"] = activity.events;
            made["stream_waits"] = activity.stream_waits;
            made["host_waits"] = activity.host_waits;
            made["launches"] = activity.launches;
            return made;
          },
          "Return counts of recorded events, stream waits, host waits and kernel launches.")
      .def("__eq__",
           [](const Device& self, nb::handle other) {
             return nb::isinstance<Device>(other) && self == nb::cast<const Device&>(other);
           })
      .def("__hash__", [](const Device& self) { return std::hash<DeviceId>()(self.id()); })
      .def("__reduce__",
           [](const Device& self) {
             return nb::make_tuple(nb::type<Device>(), nb::make_tuple(std::string(self.spec())));
           })
      .def("__repr__", [](const Device& self) {
        return nb::str("Device('{}')").format(std::string(self.spec()));
      });
  module.def(
      "open_device",
      [](const std::string& spec) {
        return without_gil([&] { return try_open_device(spec); }).value(here());
      },
      nb::arg("spec"), "Open the device with this spec, such as ``cuda:0``, ``sim`` or ``host``.");
  module.def(
      "best_device",
      [] { return without_gil([] { return try_open_best_device(); }).value(here()); },
      "Open the device that ``TERN_DEVICE`` names, or the best one of this machine.");
  module.def(
      "devices", [] { return without_gil([] { return device_specs(); }); },
      "Return the specs of the devices that can be opened here.");
  module.def(
      "backends",
      [] {
        const std::vector<BackendListing> found = without_gil([] { return list_backends(); });
        nb::list made;
        for (const BackendListing& one : found) {
          nb::dict entry;
          entry["name"] = one.name;
          entry["is_available"] = one.is_available;
          entry["reason"] = one.reason;
          entry["devices"] = one.devices;
          made.append(entry);
        }
        return made;
      },
      "Return what Tern knows about each backend, and why one is not available.");
  module.def(
      "set_device",
      [](nb::handle device) {
        Device chosen = PyLong_Check(device.ptr())
                            ? device_of_number(nb::cast<std::int64_t>(device))
                            : device_of_object(device);
        const std::lock_guard lock(current_mutex);
        current() = std::move(chosen);
      },
      nb::arg("device"),
      "Choose the device of calls that name no device: a Device, a spec, or the number of an "
      "accelerator.");
  module.def(
      "current_device", [] { return device_of_object(nb::none()); },
      "Return the device of calls that name no device.");
}

/// Calls body(stream) without the interpreter lock. The stream does not end meanwhile.
template <class Body>
auto on_stream(const PyStream& self, Body&& body) {
  const StreamShare share = self.share();
  return without_gil([&] { return body(self.get()); });
}

void add_order_classes(nb::module_& module) {
  module.def(
      "copy_mark",
      [](const Device& device) {
        const StreamRef stream = released([&] { return device.try_copy_stream(); }).value(here());
        return stream.try_mark().value(here());
      },
      nb::arg("device"),
      "Return a mark for the copies that the library has queued on its own stream.");
  nb::class_<Mark>(module, "Mark",
                   "A point in the work of a stream. Stream.mark() makes it; ``await mark`` waits "
                   "in an event loop.\n\n"
                   "A mark costs nothing until a program waits for it.")
      .def_prop_ro(
          "is_done",
          [](const Mark& self) {
            const bool is_done =
                without_gil([&] { return Device::try_is_done(self); }).value(here());
            if (is_done) check_launches({}, self.stream);
            return is_done;
          },
          "Whether the work up to the mark is complete. Does not wait.")
      .def("wait", &wait_for,
           "Wait until the work up to the mark is complete. Ctrl-C ends the wait.")
      .def("__eq__",
           [](const Mark& self, nb::handle other) {
             return nb::isinstance<Mark>(other) && self == nb::cast<const Mark&>(other);
           })
      .def("__hash__",
           [](const Mark& self) {
             return std::hash<StreamId>()(self.stream) ^ std::hash<std::uint64_t>()(self.sequence);
           })
      .def("__repr__", [](const Mark& self) {
        return nb::str("Mark(stream={}, sequence={})").format(self.stream.number(), self.sequence);
      });
  nb::class_<Event>(
      module, "Event",
      "A driver event: to measure time, or to order work of code that uses events.\n\n"
      "Parameters\n----------\n"
      "device : Device or str, optional\n    By default the current device.\n"
      "timing : bool\n    Whether elapsed_ns() can measure with the event.")
      .def(
          "__init__",
          [](Event* self, nb::handle device, bool timing) {
            const Device of = device_of_object(device);
            new (self) Event(released([&] {
                               return timing ? Event::try_make_timed(of) : Event::try_make(of);
                             }).value(here()));
          },
          nb::arg("device") = nb::none(), nb::kw_only(), nb::arg("timing") = false)
      .def_prop_ro("is_recorded", &Event::is_recorded,
                   "Whether Stream.record() was called with the event.")
      .def_prop_ro(
          "is_done",
          [](const Event& self) {
            return released([&] { return self.try_is_done(); }).value(here());
          },
          "Whether the work up to the latest record is complete. Does not wait.")
      .def_prop_ro(
          "handle", [](const Event& self) { return self.native().value; }, "The driver's handle.")
      .def(
          "synchronize",
          [](const Event& self) {
            const CallSite site = here();
            call_when_ready([&] { return self.try_is_done(); },
                            [&] { return self.try_synchronize(site); })
                .value(site);
          },
          "Wait until the work up to the latest record is complete. Ctrl-C ends the wait.")
      .def(
          "elapsed_ns",
          [](const Event& self, const Event& start) {
            return released([&] { return self.try_elapsed_ns(start); }).value(here());
          },
          nb::arg("start"),
          "Return the nanoseconds from another event to this one. Both need ``timing=True``.");
  nb::class_<PyStream>(
      module, "Stream", nb::type_slots(Collected<PyStream>::slots),
      "A queue of work of a device. Work of one stream runs in order.\n\n"
      "Close it, or use it in a ``with`` statement; work that was submitted still completes.\n\n"
      "Parameters\n----------\n"
      "device : Device or str, optional\n    By default the current device.\n"
      "name : str, optional\n    A name for reports.\n"
      "priority : int\n    Lower numbers run first, as in CUDA.")
      .def(nb::new_([](nb::handle device, const std::optional<std::string>& name, int priority) {
             return PyStream(device_of_object(device),
                             {.priority = priority, .name = name.value_or("")});
           }),
           nb::arg("device") = nb::none(), nb::arg("name") = nb::none(), nb::arg("priority") = 0)
      .def_static(
          "borrow",
          [](nb::handle stream, nb::handle device) {
            return PyStream(stream, device_of_object(device));
          },
          nb::arg("stream"), nb::arg("device") = nb::none(),
          "Use a stream of another library: an object with ``__cuda_stream__``, or the driver's "
          "handle.")
      .def_prop_ro(
          "device", [](const PyStream& self) { return self.device(); }, "The device.")
      .def_prop_ro(
          "name", [](const PyStream& self) { return self.get().name(); }, "The name for reports.")
      .def_prop_ro("handle", &open_handle, "The driver's handle.")
      .def("__cuda_stream__",
           [](const PyStream& self) { return nb::make_tuple(0, open_handle(self)); })
      .def(
          "mark",
          [](const PyStream& self) {
            return on_stream(self, [](StreamRef on) { return on.try_mark(); }).value(here());
          },
          "Return a mark for everything submitted so far.")
      .def(
          "wait",
          [](const PyStream& self, nb::handle for_what) {
            const CallSite site = here();
            if (nb::isinstance<Mark>(for_what)) {
              const Mark mark = nb::cast<Mark>(for_what);
              return on_stream(self, [&](StreamRef on) { return on.try_wait(mark, site); }).value();
            }
            if (nb::isinstance<Event>(for_what)) {
              const Event& event = nb::cast<const Event&>(for_what);
              return on_stream(self, [&](StreamRef on) { return on.try_wait(event, site); })
                  .value();
            }
            const StreamArgument other(for_what, self.device());
            const Mark mark = other.get().try_mark().value(site);
            on_stream(self, [&](StreamRef on) { return on.try_wait(mark, site); }).value();
          },
          nb::arg("for_what"),
          "Make later work of this stream start after a mark, an event or the work of another "
          "stream.")
      .def(
          "record",
          [](const PyStream& self, Event& event) {
            const CallSite site = here();
            on_stream(self, [&](StreamRef on) { return on.try_record(event, site); }).value();
          },
          nb::arg("event"), "Record an event: it covers everything submitted so far.")
      .def(
          "copy_bytes",
          [](const PyStream& self, std::uintptr_t destination, std::uintptr_t source,
             std::size_t bytes) {
            const CallSite site = here();
            on_stream(self, [&](StreamRef on) {
              return on.try_copy(reinterpret_cast<void*>(destination),
                                 reinterpret_cast<const void*>(source), bytes, site);
            }).value();
          },
          nb::arg("destination"), nb::arg("source"), nb::arg("bytes"),
          "Queue a copy between addresses. The program orders it, not Tern.")
      .def(
          "fill_bytes",
          [](const PyStream& self, std::uintptr_t destination, std::size_t bytes,
             std::uint8_t value) {
            const CallSite site = here();
            Pattern pattern;
            pattern.bytes[0] = std::byte{value};
            on_stream(self, [&](StreamRef on) {
              return on.try_fill_bytes(reinterpret_cast<void*>(destination), bytes, pattern, site);
            }).value();
          },
          nb::arg("destination"), nb::arg("bytes"), nb::arg("value"),
          "Queue a fill at an address. The program orders it, not Tern.")
      .def_prop_ro(
          "is_idle",
          [](const PyStream& self) {
            return on_stream(self, [&](StreamRef on) { return on.try_is_idle(); }).value(here());
          },
          "Whether all submitted work is complete. Does not wait.")
      .def(
          "synchronize",
          [](const PyStream& self) {
            wait_for(on_stream(self, [](StreamRef on) { return on.try_mark(); }).value(here()));
          },
          "Wait until all work submitted so far is complete. Ctrl-C ends the wait.")
      .def("close", &PyStream::close, "End the stream. Work that was submitted still completes.")
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](PyStream& self, const nb::args&) { self.close(); })
      .def("__eq__",
           [](const PyStream& self, nb::handle other) {
             return nb::isinstance<PyStream>(other) &&
                    self.get() == nb::cast<const PyStream&>(other).get();
           })
      .def("__hash__", [](const PyStream& self) { return std::hash<StreamId>()(self.get().id()); })
      .def("__repr__", [](const PyStream& self) {
        return nb::str("Stream('{}', name='{}')")
            .format(std::string(self.device().spec()), self.get().name());
      });
}

}  // namespace

Result<bool> wait_for_a_while(Mark mark) noexcept {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(50);
  for (std::chrono::microseconds pause(5);;
       pause = std::min(pause * 2, std::chrono::microseconds(1000))) {
    Result<bool> done = Device::try_is_done(mark);
    if (!done || *done) return done;
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
  }
}

PyStream::PyStream(const Device& device) : device_(device), ref_(device.default_stream()) {}

PyStream::PyStream(const Device& device, const StreamOptions& options)
    : device_(device),
      owned_(released([&] { return Stream::try_make(device, options); }).value(here())),
      ref_(owned_.get()) {}

PyStream::PyStream(nb::handle object, const Device& device) : device_(device) {
  if (nb::isinstance<PyStream>(object)) {
    const auto& stream = nb::cast<const PyStream&>(object);
    device_ = stream.device_;
    owner_ = nb::borrow(object);
    ref_ = stream.ref_;
    return;
  }
  nb::object handle = nb::borrow(object);
  if (nb::hasattr(object, "__cuda_stream__")) {
    const nb::object answer = object.attr("__cuda_stream__")();
    const nb::tuple pair = nb::borrow<nb::tuple>(answer);
    if (!nb::isinstance<nb::tuple>(answer) || pair.size() != 2 ||
        nb::cast<std::int64_t>(pair[0]) != 0) {
      raise(Failure(ErrorCode::invalid_argument,
                    "__cuda_stream__() returned {value}, which is not (0, handle)")
                .with("value", repr_of(answer)),
            here());
    }
    handle = nb::borrow(pair[1]);
    owner_ = nb::borrow(object);
  }
  if (!PyLong_Check(handle.ptr())) {
    raise(Failure(ErrorCode::type_mismatch,
                  "a stream is a ternmem.Stream, a driver's handle, or an object with "
                  "__cuda_stream__, and not {actual}.")
              .with("actual", type_text(object)),
          here());
  }
  const std::uintptr_t value = nb::cast<std::uintptr_t>(handle);
  owned_ = StreamShare(
      released([&] { return Stream::try_borrow(device, NativeStream{value}); }).value(here()));
  ref_ = owned_.get();
}

StreamShare PyStream::share() const {
  if (is_closed_) {
    raise(Failure(ErrorCode::stream_misuse, "the stream was closed. Make a new one."), here());
  }
  return owned_;
}

void PyStream::close() noexcept {
  if (!owned_) return;
  is_closed_ = true;
  const StreamShare ended = std::move(owned_);
}

StreamArgument::StreamArgument(nb::handle object, const Device& device) {
  if (object.is_none()) {
    ref_ = device.default_stream();
  } else if (nb::isinstance<PyStream>(object)) {
    const auto& stream = nb::cast<const PyStream&>(object);
    share_ = stream.share();
    ref_ = stream.get();
    owner_ = nb::borrow(object);
  } else {
    const PyStream made(object, device);
    share_ = made.share();
    ref_ = made.get();
    owner_ = nb::borrow(object);
  }
}

Device device_of_object(nb::handle object) {
  if (nb::isinstance<Device>(object)) return nb::cast<Device>(object);
  if (nb::isinstance<nb::str>(object)) {
    const std::string spec = nb::cast<std::string>(object);
    return without_gil([&] { return try_open_device(spec); }).value(here());
  }
  if (!object.is_none()) {
    raise(Failure(ErrorCode::type_mismatch,
                  "a device is a ternmem.Device or a text such as 'cuda:0', 'sim' or 'host', and "
                  "not {actual}.")
              .with("actual", type_text(object)),
          here());
  }
  {
    const std::lock_guard lock(current_mutex);
    if (current().is_open()) return current();
  }
  Device best = without_gil([] { return try_open_best_device(); }).value(here());
  const std::lock_guard lock(current_mutex);
  if (!current().is_open()) current() = best;
  return current();
}

void add_devices(nb::module_& module) {
  add_device_class(module);
  add_order_classes(module);
}

}  // namespace tern::python
