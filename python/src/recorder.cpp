// LaunchRecorder: the memory of a launch that Tern does not make itself.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "collected.hpp"
#include "managed.hpp"
#include "tern/launch/launch_recorder.hpp"
#include "unified.hpp"
#include "uses.hpp"

namespace tern::python {
namespace {

/// Unified buffers take part by leases, everything else by a recorder of the library.
class PyRecorder {
 public:
  PyRecorder(nb::handle stream, nb::handle device, const nb::args& uses, bool permissive)
      : device_(device.is_none() ? device_of(uses) : device_of_object(device)),
        stream_(stream, device_),
        is_permissive_(permissive) {
    for (const nb::handle one : uses) {
      if (!nb::isinstance<Use>(one)) {
        raise(Failure(ErrorCode::type_mismatch,
                      "'{actual}' is not a declared use. Pass in_(x), out(x) or inout(x).")
                  .with("actual", repr_of(one.type())),
              here());
      }
      uses_.push_back(nb::cast<const Use&>(one));
    }
  }
  PyRecorder(PyRecorder&&) = default;
  ~PyRecorder() { drop(); }

  /// Queues the waits. Returns the memory as a tuple of DeviceArray.
  nb::tuple preflight() {
    if (phase_ != Phase::idle)
      raise(Failure(ErrorCode::stream_misuse,
                    "the recorder was started already. Call commit() first."),
            here());
    // Waits let other threads run, and one of them may call this recorder.
    phase_ = Phase::starting;
    try {
      nb::tuple made = start();
      return made;
    } catch (...) {
      if (phase_ == Phase::starting) phase_ = Phase::idle;
      throw;
    }
  }
  /// Records the uses: the launch was submitted.
  void commit() {
    if (phase_ != Phase::open)
      raise(Failure(ErrorCode::stream_misuse,
                    "the recorder was not started, or has ended. Call preflight() first."),
            here());
    const CallSite site = here();
    auto [recorder, leases] = take();
    released([&] { leases.clear(); });
    const Result<void> done = released([&] { return recorder->try_commit(site); });
    release(recorder);
    done.value();
  }
  /// Ends the recorder: nothing was submitted.
  void cancel() {
    if (phase_ != Phase::open) return;
    auto [recorder, leases] = take();
    abandon(leases);
    released([&] { recorder->cancel(); });
    release(recorder);
  }
  /// Ends the recorder after an exception: work may have been submitted, but nothing counts as
  /// written.
  void drop() noexcept {
    if (phase_ != Phase::open) return;
    auto [recorder, leases] = take();
    abandon(leases);
    release(recorder);
  }
  [[nodiscard]] std::size_t size() const noexcept { return uses_.size(); }
  [[nodiscard]] std::size_t skipped() const noexcept {
    return recorder_ ? recorder_->skipped() : 0;
  }

  template <class Visit>
  friend void visit_objects(const PyRecorder& self, Visit visit) {
    for (const Use& use : self.uses_) visit(use.memory);
    visit(self.stream_.owner());
  }

 private:
  enum class Phase : std::uint8_t { idle, starting, open };
  struct Started {
    std::unique_ptr<LaunchRecorder> recorder;
    std::vector<RawLease> leases;
  };
  /// Ends the recorder for other threads, which may start it again before its leases are closed.
  [[nodiscard]] Started take() noexcept {
    phase_ = Phase::idle;
    return {std::move(recorder_), std::exchange(leases_, {})};
  }
  nb::tuple start() {
    const CallSite site = here();
    const StreamRef on = stream_.get();
    auto recorder =
        std::make_unique<LaunchRecorder>(on, RecorderOptions{.permissive = is_permissive_});
    std::vector<RawLease> leases;
    std::vector<std::optional<std::size_t>> places;
    for (const Use& use : uses_) {
      if (nb::isinstance<PyUnified>(use.memory)) {
        places.emplace_back();
        continue;
      }
      const Buffer buffer = buffer_of(use);
      places.push_back(
          released([&] { return recorder->try_use(buffer, use.access, site); }).value());
    }
    for (const Use& use : uses_) {
      if (!nb::isinstance<PyUnified>(use.memory)) continue;
      const RawUnified& raw = nb::cast<const PyUnified&>(use.memory).raw();
      const Access access = use.access;
      // If a later step fails, the leases that were opened close, and a discarded range counts as
      // unwritten.
      try {
        leases.push_back(
            without_gil([&] { return raw.open_device(access, on, LeaseWait::never(), site); }));
      } catch (...) {
        abandon(leases);
        throw;
      }
    }
    if (const Result<void> begun = released([&] { return recorder->try_preflight(site); });
        !begun) {
      abandon(leases);
      raise(begun.failure(), site);
    }
    recorder_ = std::move(recorder);
    leases_ = std::move(leases);
    phase_ = Phase::open;
    nb::list made;
    std::size_t lease = 0;
    for (std::size_t i = 0; i < uses_.size(); ++i) {
      const bool is_read_only = uses_[i].access == Access::read;
      if (!places[i]) {
        made.append(nb::cast(nb::cast<const PyUnified&>(uses_[i].memory)
                                 .device_array(leases_[lease++], on, is_read_only)));
        continue;
      }
      const Buffer buffer = buffer_of(uses_[i]);
      made.append(nb::cast(DeviceArray{buffer.storage(), on.device(),
                                       recorder_->pointer(*places[i]), buffer.shape(),
                                       buffer.dtype(), is_read_only, on, buffer.offset_bytes()}));
    }
    return nb::tuple(made);
  }

  static Device device_of(const nb::args& uses) {
    if (uses.size() == 0 || !nb::isinstance<Use>(uses[0])) return device_of_object(nb::none());
    const Use& first = nb::cast<const Use&>(nb::handle(uses[0]));
    if (nb::isinstance<PyUnified>(first.memory))
      return nb::cast<const PyUnified&>(first.memory).raw().device();
    return buffer_of(first).device();
  }
  static Buffer buffer_of(const Use& use) { return managed_of_object(use.memory); }
  static void abandon(std::vector<RawLease>& leases) noexcept {
    released([&] {
      for (RawLease& lease : leases) lease.commit(0);
      leases.clear();
    });
  }

  Device device_;
  StreamArgument stream_;
  bool is_permissive_ = false;
  std::vector<Use> uses_;
  std::unique_ptr<LaunchRecorder> recorder_;
  std::vector<RawLease> leases_;
  Phase phase_ = Phase::idle;
};

}  // namespace

void add_recorder(nb::module_& module) {
  nb::class_<PyRecorder>(
      module, "LaunchRecorder", nb::type_slots(Collected<PyRecorder>::slots),
      "Declares the memory of launches that Tern does not make: by CuPy, Numba, Triton or a "
      "driver.\n\n"
      "A ``with`` statement returns a DeviceArray for each use. The stream waits for the work that "
      "the uses\n"
      "need, and later uses wait for what was submitted in the block.\n\n"
      ">>> with tern.LaunchRecorder(stream, tern.in_(x), tern.inout(y)) as (a, b):  # doctest: "
      "+SKIP\n"
      "...     kernel(a, b)\n\n"
      "If the block raises, later work still waits for the block, and a Buffer does not count as "
      "written.\n\n"
      "Parameters\n----------\nstream : Stream, int, or an object with ``__cuda_stream__``\n"
      "    The stream of the launches; None for the default stream.\n"
      "*uses : Use\n    in_(x), out(x) or inout(x).\n"
      "device : Device or str, optional\n    By default the device of the first use.\n"
      "permissive : bool\n    Skip memory whose uses cannot be tracked, instead of raising "
      "UntrackedBufferError.")
      .def(
          "__init__",
          [](PyRecorder* self, nb::handle stream, const nb::args& uses, nb::handle device,
             bool permissive) { new (self) PyRecorder(stream, device, uses, permissive); },
          nb::arg("stream").none(), nb::arg("uses"), nb::kw_only(), nb::arg("device") = nb::none(),
          nb::arg("permissive") = false)
      .def("preflight", &PyRecorder::preflight,
           "Check all uses and queue the waits. Returns a tuple of DeviceArray.")
      .def("commit", &PyRecorder::commit, "Record the uses, after the launches were submitted.")
      .def("cancel", &PyRecorder::cancel,
           "End the recorder without a launch. Nothing counts as used.")
      .def_prop_ro("skipped", &PyRecorder::skipped, "The number of uses that were skipped.")
      .def("__len__", &PyRecorder::size)
      .def("__enter__", &PyRecorder::preflight)
      .def(
          "__exit__",
          [](PyRecorder& self, nb::handle type, nb::handle, nb::handle) {
            type.is_none() ? self.commit() : self.drop();
          },
          nb::arg("type").none() = nb::none(), nb::arg("value").none() = nb::none(),
          nb::arg("traceback").none() = nb::none());
  module.def(
      "launch_statistics",
      [] {
        const LaunchStatistics statistics = launch_statistics();
        nb::dict made;
        made["dropped"] = statistics.dropped;
        return made;
      },
      "Return ``{'dropped': n}``: the number of recorders that ended without commit().");
}

}  // namespace tern::python
