// Recordings of memory events: start, stop, rings, named ranges.

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "support.hpp"
#include "tern/trace/recorder.hpp"

namespace tern::python {
namespace {

/// A range that a with statement begins and ends.
class PyRange {
 public:
  explicit PyRange(std::string name) : name_(std::move(name)) {}
  void enter() {
    if (range_) {
      raise(Failure(ErrorCode::stream_misuse, "the range has begun already. Make another one."),
            here());
    }
    range_ = std::make_unique<trace::Range>(name_, here());
  }
  void exit() { range_.reset(); }

 private:
  std::string name_;
  std::unique_ptr<trace::Range> range_;
};

}  // namespace

void add_trace(nb::module_& module) {
  nb::module_ trace = module.def_submodule(
      "trace", "Records what happens to memory, in a file that ``tern report`` shows.");
  trace.def(
      "start",
      [](const std::filesystem::path& path) {
        const CallSite site = here();
        without_gil([&] { return trace::try_start(path.string()); }).value(site);
      },
      nb::arg("path"),
      "Create the file, or replace it, and start to record.\n\n"
      "Parameters\n----------\npath : str or os.PathLike\n    ``%p`` stands for the process id.\n\n"
      "Raises\n------\nFileError\n    If the file cannot be created.\nInvalidArgument\n    If this "
      "process is recording already, or another one is recording to the file.");
  trace.def(
      "start_ring",
      [](std::size_t size_bytes) {
        const CallSite site = here();
        without_gil([&] { return trace::try_start_ring(size_bytes); }).value(site);
      },
      nb::arg("size_bytes"),
      "Record into memory of this size, in which new events replace the oldest.\n\n"
      "Parameters\n----------\nsize_bytes : int\n    At least 1 MiB. An event needs 64 bytes.");
  trace.def(
      "dump",
      [](const std::filesystem::path& path) {
        const CallSite site = here();
        without_gil([&] { return trace::try_dump(path.string()); }).value(site);
      },
      nb::arg("path"),
      "Write the events of the ring to a file. Recording goes on.\n\n"
      "Parameters\n----------\npath : str or os.PathLike");
  trace.def(
      "stop", [] { trace::stop(); },
      "Stop recording and close the file. Does nothing if nothing is recorded.");
  trace.def(
      "is_recording", [] { return trace::lost_events().has_value(); },
      "Return whether this process is recording.\n\nReturns\n-------\nbool");
  trace.def(
      "lost_events", [] { return trace::lost_events().value_or(0); },
      "Return how many events could not be recorded since the start.\n\nReturns\n-------\nint");
  nb::class_<PyRange>(trace, "Range",
                      "Names what this thread does inside of a ``with`` statement.\n\n"
                      "Parameters\n----------\nname : str\n\nExamples\n--------\n"
                      ">>> with trace.Range(\"step 12\"):\n...     train()")
      .def(nb::init<std::string>(), nb::arg("name"))
      .def("__enter__",
           [](nb::object self) {
             nb::cast<PyRange&>(self).enter();
             return self;
           })
      .def(
          "__exit__", [](PyRange& self, nb::handle, nb::handle, nb::handle) { self.exit(); },
          nb::arg("type").none(), nb::arg("value").none(), nb::arg("traceback").none());
}

}  // namespace tern::python
