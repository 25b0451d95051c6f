// The transfer audit: counts of the bytes that copies move, and gates that refuse copies to the
// host. Also memory that waits to be freed.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/buffer/transfer_audit.hpp"

namespace tern::python {
namespace {

nb::dict dict_of(const CopyCount& count) {
  nb::dict made;
  made["copies"] = count.copies;
  made["bytes"] = count.bytes;
  return made;
}

nb::dict dict_of(const MemoryCount& count) {
  nb::dict made;
  made["count"] = count.count;
  made["bytes"] = count.bytes;
  return made;
}

template <class Value, std::size_t count>
Value choice(const std::string& text, const char* what,
             const std::array<std::pair<const char*, Value>, count>& all) {
  std::string known;
  for (const auto& [name, value] : all) {
    if (text == name) return value;
    known += (known.empty() ? "'" : ", '") + std::string(name) + "'";
  }
  raise(Failure(ErrorCode::invalid_argument, "{name} is one of {known}, and not '{value}'.")
            .with("name", what)
            .with("known", known)
            .with("value", text),
        here());
}

TransferDirection direction_of(const std::string& text) {
  return choice(text, "direction",
                std::to_array<std::pair<const char*, TransferDirection>>(
                    {{"host_to_device", TransferDirection::host_to_device},
                     {"device_to_host", TransferDirection::device_to_host},
                     {"device_to_device", TransferDirection::device_to_device},
                     {"between_devices", TransferDirection::between_devices}}));
}
TransferPurpose purpose_of(const std::string& text) {
  return choice(text, "purpose",
                std::to_array<std::pair<const char*, TransferPurpose>>(
                    {{"scalar", TransferPurpose::scalar},
                     {"metadata", TransferPurpose::metadata},
                     {"data", TransferPurpose::data},
                     {"result", TransferPurpose::result}}));
}
TransferGate::Mode mode_of(const std::string& text) {
  return choice(text, "mode",
                std::to_array<std::pair<const char*, TransferGate::Mode>>(
                    {{"allow", TransferGate::Mode::allow},
                     {"count", TransferGate::Mode::count},
                     {"refuse", TransferGate::Mode::refuse}}));
}

/// A gate, and its counts after it has ended.
struct OpenGate {
  std::optional<TransferGate> gate;
  CopyCount violations = {}, small_reads = {};

  OpenGate(TransferGate::Mode mode, CallSite site) { gate.emplace(mode, site); }
  void end() {
    violations = gate->violations();
    small_reads = gate->small_reads();
    gate.reset();
  }
};

/// The open gates of this thread, the innermost last. They are kept here, so that a gate whose
/// Python object ends early, as in a generator that is dropped, stays until the gate around it
/// ends.
std::vector<std::shared_ptr<OpenGate>>& open_gates() {
  thread_local std::vector<std::shared_ptr<OpenGate>> gates;
  return gates;
}

class PyGate {
 public:
  explicit PyGate(const std::string& mode) : mode_(mode_of(mode)) {}

  void enter() {
    if (is_open())
      raise(Failure(ErrorCode::stream_misuse, "the gate is open already. Make another one."),
            here());
    gate_ = std::make_shared<OpenGate>(mode_, here());
    open_gates().push_back(gate_);
  }
  void exit() {
    if (!is_open()) return;  // it ended with a gate around it
    auto& gates = open_gates();
    if (std::ranges::find(gates, gate_) == gates.end()) {
      raise(Failure(ErrorCode::stream_misuse,
                    "a gate was closed on another thread. Close it on the thread that opened it."),
            here());
    }
    // Gates inside of this one end with it, innermost first.
    while (is_open()) {
      gates.back()->end();
      gates.pop_back();
    }
  }
  [[nodiscard]] bool is_open() const { return gate_ && gate_->gate; }
  [[nodiscard]] CopyCount violations() const {
    if (!gate_) return {};
    return is_open() ? gate_->gate->violations() : gate_->violations;
  }
  [[nodiscard]] CopyCount small_reads() const {
    if (!gate_) return {};
    return is_open() ? gate_->gate->small_reads() : gate_->small_reads;
  }

 private:
  TransferGate::Mode mode_;
  std::shared_ptr<OpenGate> gate_;
};

}  // namespace

void add_audit(nb::module_& module) {
  nb::class_<TransferCounts>(
      module, "TransferCounts",
      "How many copies of buffers moved how many bytes, by direction and purpose.\n\n"
      "Subtract two readings of :func:`transfer_counts` to see what a piece of code moved.")
      .def_prop_ro(
          "host_to_device",
          [](const TransferCounts& self) { return dict_of(self.host_to_device()); },
          "``{'copies', 'bytes'}`` from the host to devices.")
      .def_prop_ro(
          "device_to_host",
          [](const TransferCounts& self) { return dict_of(self.device_to_host()); },
          "``{'copies', 'bytes'}`` from devices to the host.")
      .def_prop_ro(
          "device_to_device",
          [](const TransferCounts& self) { return dict_of(self.device_to_device()); },
          "``{'copies', 'bytes'}`` within a device.")
      .def_prop_ro(
          "between_devices",
          [](const TransferCounts& self) { return dict_of(self.between_devices()); },
          "``{'copies', 'bytes'}`` from one device to another.")
      .def(
          "at",
          [](const TransferCounts& self, const std::string& direction,
             const std::optional<std::string>& purpose) {
            return dict_of(purpose ? self.at(direction_of(direction), purpose_of(*purpose))
                                   : self.at(direction_of(direction)));
          },
          nb::arg("direction"), nb::arg("purpose") = nb::none(),
          "Return the count of a direction, or of a direction and a purpose.\n\n"
          "Parameters\n----------\ndirection : {'host_to_device', 'device_to_host', "
          "'device_to_device', 'between_devices'}\n"
          "purpose : {'scalar', 'metadata', 'data', 'result'}, optional\n\nReturns\n-------\ndict")
      .def(
          "__sub__",
          [](const TransferCounts& self, const TransferCounts& then) { return self - then; },
          nb::is_operator())
      .def("__eq__",
           [](const TransferCounts& self, nb::handle other) {
             return nb::isinstance<TransferCounts>(other) &&
                    self == nb::cast<const TransferCounts&>(other);
           })
      .def("__repr__", [](const TransferCounts& self) {
        return nb::str(
                   "TransferCounts(host_to_device={}, device_to_host={}, device_to_device={}, "
                   "between_devices={})")
            .format(dict_of(self.host_to_device()), dict_of(self.device_to_host()),
                    dict_of(self.device_to_device()), dict_of(self.between_devices()));
      });
  module.def(
      "transfer_counts",
      [](const std::optional<std::string>& tag) {
        return tag ? transfer_counts(tag_of(tag)) : transfer_counts();
      },
      nb::arg("tag") = nb::none(),
      "Return what copies of buffers have moved in this process so far.\n\n"
      "Parameters\n----------\ntag : str, optional\n    Count only memory with this "
      "tag.\n\nReturns\n-------\nTransferCounts");
  module.def(
      "transfer_counts_by_tag",
      [] {
        nb::dict made;
        for (const auto& [tag, counts] : transfer_counts_by_tag())
          made[nb::str(std::string(tag.name()).c_str())] = counts;
        return made;
      },
      "Return the counts of each tag, as a dict of TransferCounts.");
  module.def(
      "transfer_counts_of_other_tags", [] { return transfer_counts_of_other_tags(); },
      "Return the counts of the tags that are not counted separately.");
  module.def(
      "transfer_gate_statistics",
      [] {
        const TransferGateStatistics statistics = transfer_gate_statistics();
        nb::dict made;
        made["refused"] = dict_of(statistics.refused);
        made["counted"] = dict_of(statistics.counted);
        made["last"] =
            statistics.last.is_known()
                ? nb::object(nb::str("{}:{}").format(statistics.last.file, statistics.last.line))
                : nb::none();
        return made;
      },
      "Return the copies that all gates refused or counted, and the Python line of the latest "
      "one.");
  module.def(
      "deferred_frees", [] { return dict_of(released([] { return deferred_frees(); })); },
      "Return the number and the bytes of blocks whose buffers are deleted but whose memory is "
      "still in use.");
  module.def(
      "reclaim_deferred", [] { return dict_of(without_gil([] { return reclaim_deferred(); })); },
      "Free memory of deleted buffers that no work uses any more. Does not wait. Returns what is "
      "left.");
  module.def(
      "reclaim_exported",
      [] { return dict_of(without_gil([] { return try_reclaim_exported(); }).value(here())); },
      "Wait for the devices of exported memory without handles, and free the memory. Returns what "
      "is left.\n\n"
      "Another library may use memory on streams that Tern does not know, so exported memory is "
      "freed only after a\n"
      "wait for its device.");
  nb::class_<PyGate>(module, "TransferGate",
                     "A ``with`` block in which copies of data from devices to the host raise "
                     "DownloadRefusedError.\n\n"
                     "Scalars and metadata of up to 4,096 bytes may be read. A gate covers one "
                     "thread. Gates nest, and the\n"
                     "strictest one applies; inside of a gate with ``mode='allow'`` the gates "
                     "around it do not apply.\n\n"
                     "Parameters\n----------\nmode : {'refuse', 'count', 'allow'}\n"
                     "    ``'count'`` lets copies through and counts them.")
      .def(nb::init<const std::string&>(), nb::arg("mode") = "refuse")
      .def_prop_ro(
          "violations", [](const PyGate& self) { return dict_of(self.violations()); },
          "What the gate refused or counted.")
      .def_prop_ro(
          "small_reads", [](const PyGate& self) { return dict_of(self.small_reads()); },
          "The scalars and metadata that passed.")
      .def(
          "__enter__",
          [](nb::object self) {
            nb::cast<PyGate&>(self).enter();
            return self;
          },
          nb::sig("def __enter__(self) -> TransferGate"))
      .def("__exit__", [](PyGate& self, const nb::args&) { self.exit(); });
}

}  // namespace tern::python
