// PausableResource: memory whose pages leave the device and come back.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>

#include "arrays.hpp"
#include "support.hpp"
#include "tern/buffer/pausable_resource.hpp"

namespace tern::python {
namespace {

Keep keep_of(const std::string& text) {
  for (const Keep one : {Keep::host, Keep::disk, Keep::nothing}) {
    if (name(one) == text) return one;
  }
  refuse_choice("keep", text, "'host', 'disk' or 'nothing'");
}

/// What a call pauses or resumes, with a share of its memory.
class Target {
 public:
  explicit Target(nb::handle what) {
    if (what.is_none()) return;
    if (nb::isinstance<nb::str>(what)) {
      target_ = Tag(nb::cast<std::string>(what));
    } else if (nb::isinstance<Buffer>(what)) {
      memory_ = nb::cast<const Buffer&>(what);
    } else if (nb::isinstance<PyArray>(what)) {
      memory_ = nb::cast<const PyArray&>(what).buffer();
    } else {
      refuse_type("what is paused or resumed must be a tag, a Buffer, an Array or None.");
    }
    if (memory_) target_ = memory_->storage();
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  ~Target() {
    if (memory_) release(*memory_);
  }
  [[nodiscard]] const PauseTarget& get() const noexcept { return target_; }

 private:
  std::optional<Buffer> memory_;
  PauseTarget target_ = PauseTarget::everything();
};

/// None means no stream, and not the default stream.
std::optional<StreamArgument> stream_of(nb::handle object, const Device& device) {
  std::optional<StreamArgument> made;
  if (!object.is_none()) made.emplace(object, device);
  return made;
}

nb::dict statistics_of(const PauseStatistics& now) {
  nb::dict made;
  made["reserved_bytes"] = now.reserved_bytes;
  made["resident_bytes"] = now.resident_bytes;
  made["leaving_bytes"] = now.leaving_bytes;
  made["paused_bytes"] = now.paused_bytes;
  made["host_bytes"] = now.host_bytes;
  made["disk_bytes"] = now.disk_bytes;
  made["total_paused_bytes"] = now.total_paused_bytes;
  made["total_resumed_bytes"] = now.total_resumed_bytes;
  return made;
}

}  // namespace

void add_pausing(nb::module_& module) {
  nb::class_<PausableResource, Resource>(
      module, "PausableResource",
      "Memory whose pages can leave the device and come back, while its addresses stay.\n\n"
      "Parameters\n----------\n"
      "device : Device or str, optional\n    By default the current device.\n"
      "budget : Budget, optional\n    Charged for the pages that are on the device.\n"
      "directory : str\n    Where ``pause(keep='disk')`` writes files, which have no names.\n"
      "verify : bool\n    Compare checksums when bytes come back.")
      .def(nb::new_([](nb::handle device, const std::shared_ptr<Budget>& budget,
                       const std::string& directory, bool verify) {
             const Device on = device_of_object(device);
             const PausableOptions options{
                 .budget = budget, .directory = directory, .verify = verify};
             return without_gil([&] { return std::make_shared<PausableResource>(on, options); });
           }),
           nb::arg("device") = nb::none(), nb::kw_only(), nb::arg("budget").none() = nb::none(),
           nb::arg("directory") = "/var/tmp", nb::arg("verify") = true)
      .def(
          "pause",
          [](PausableResource& self, nb::handle what, const std::string& keep, nb::handle after) {
            const CallSite site = here();
            const Keep kept = keep_of(keep);
            const Target target(what);
            const std::optional<StreamArgument> stream = stream_of(after, self.device());
            const StreamRef behind = stream ? stream->get() : StreamRef();
            static_cast<void>(without_gil([&] {
                                return self.try_pause(target.get(), kept, behind, site);
                              }).value());
          },
          nb::arg("what").none() = nb::none(), nb::kw_only(), nb::arg("keep") = "host",
          nb::arg("after") = nb::none(),
          "Let memory leave the device behind all work that uses it. Does not wait.\n\n"
          "Parameters\n----------\n"
          "what : str, Buffer or Array, optional\n"
          "    A tag, or one piece of memory. Without it, everything.\n"
          "keep : {'host', 'disk', 'nothing'}\n    Where the bytes are meanwhile.\n"
          "after : Stream, optional\n    A stream whose work uses the memory by its address.")
      .def(
          "resume",
          [](PausableResource& self, nb::handle what, nb::handle stream) {
            const CallSite site = here();
            const Target target(what);
            const std::optional<StreamArgument> given = stream_of(stream, self.device());
            const StreamRef on = given ? given->get() : StreamRef();
            static_cast<void>(
                without_gil([&] { return self.try_resume(target.get(), on, site); }).value());
          },
          nb::arg("what").none() = nb::none(), nb::kw_only(), nb::arg("stream") = nb::none(),
          "Bring the bytes back to the same addresses: all of them, or none if there is too little "
          "memory.\n\n"
          "Parameters\n----------\n"
          "what : str, Buffer or Array, optional\n"
          "    A tag, or one piece of memory. Without it, everything.\n"
          "stream : Stream, optional\n    Its later work comes after the bytes.")
      .def(
          "reclaim",
          [](PausableResource& self) { return without_gil([&] { return self.reclaim(); }); },
          "Free pages whose bytes have left. Returns the number of bytes. Does not wait.")
      .def(
          "wait",
          [](PausableResource& self) {
            const CallSite site = here();
            without_gil([&] { return self.try_wait(site); }).value();
          },
          "Wait until the pages of everything that is paused are freed.")
      .def_prop_ro(
          "pause_statistics",
          [](const PausableResource& self) {
            return statistics_of(released([&] { return self.pause_statistics(); }));
          },
          "The bytes of addresses, of pages on the device, and of what is paused, as a dict.");
}

}  // namespace tern::python
