// Hints on managed memory: policies, advice, prefetch, discard, and plans of prefetches.

#include "tern/coherence/hints.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "devices.hpp"
#include "managed.hpp"
#include "owner.hpp"
#include "places.hpp"
#include "tern/coherence/prefetch_plan.hpp"
#include "unified.hpp"

TERN_RELEASE_HANDLE(tern::Hints)
TERN_RELEASE_HANDLE(tern::HintUndo)

namespace tern::python {
namespace {

std::vector<std::string> texts_of(const std::vector<Place>& places) {
  std::vector<std::string> made;
  for (const Place place : places) made.push_back(place.text());
  return made;
}

/// The stream of a hint. None means the default stream of the memory's device.
StreamArgument stream_of(nb::handle stream, const Hints& hints) {
  return {stream, hints.buffer().device()};
}

using Report = Result<HintReport>;

/// Adds a function for advice that names a place, or none.
void add_advice(nb::class_<Hints>& type, const char* name, Advice advice, const char* doc) {
  type.def(
      name,
      [advice](const Hints& self, nb::handle range) {
        const auto bytes = range_of_object(range);
        const CallSite site = here();
        return without_gil([&] { return self.try_advise({advice, {}}, bytes, site); }).value();
      },
      nb::arg("range") = nb::none(), doc);
}
void add_advice_at(nb::class_<Hints>& type, const char* name, Advice advice, const char* doc) {
  type.def(
      name,
      [advice](const Hints& self, nb::handle place, nb::handle range) {
        const Place where = place_of_object(place);
        const auto bytes = range_of_object(range);
        const CallSite site = here();
        return without_gil([&] { return self.try_advise({advice, where}, bytes, site); }).value();
      },
      nb::arg("place"), nb::arg("range") = nb::none(), doc);
}

void add_policy(nb::module_& module) {
  nb::class_<MigrationPolicy>(
      module, "MigrationPolicy",
      "Where pages of managed memory should be, and which places keep them mapped.\n\n"
      "An immutable value. Make one with a static method and apply it with :meth:`Hints.apply`.\n"
      "A place is ``'host'``, ``'host numa 1'``, a Device, or the spec of a device.")
      .def(nb::init<>())
      .def_static("none", &MigrationPolicy::none,
                  "Return the driver's own policy: pages move to the processor that touches them.")
      .def_static("read_mostly", &MigrationPolicy::read_mostly,
                  "Return a policy that lets every reader have a copy of a page.")
      .def_static(
          "prefer_device",
          [](nb::handle device) {
            return MigrationPolicy::prefer_device(device_of_object(device));
          },
          nb::arg("device"), "Return a policy that keeps pages on a device.")
      .def_static("prefer_host", &MigrationPolicy::prefer_host,
                  "Return a policy that keeps pages on the host.")
      .def_static(
          "prefer_host_numa",
          [](nb::handle node) {
            return MigrationPolicy::prefer_host_numa(
                static_cast<std::uint32_t>(size_of_object(node, "node")));
          },
          nb::arg("node"), "Return a policy that keeps pages on one NUMA node of the host.")
      .def_static(
          "prefer_host_numa_current", &MigrationPolicy::prefer_host_numa_current,
          "Return a policy that keeps pages on the NUMA node of the thread that applies it.")
      .def(
          "accessed_by",
          [](const MigrationPolicy& self, nb::handle place) {
            return self.accessed_by(place_of_object(place));
          },
          nb::arg("place"), "Return this policy with one more place that keeps the pages mapped.")
      .def_prop_ro("is_default", &MigrationPolicy::is_default,
                   "Whether applying the policy does nothing.")
      .def_prop_ro("is_read_mostly", &MigrationPolicy::is_read_mostly,
                   "Whether every reader may have a copy of a page.")
      .def_prop_ro(
          "preferred",
          [](const MigrationPolicy& self) { return object_of_place(self.preferred()); },
          "The place where pages should stay, or None.")
      .def_prop_ro(
          "accessors", [](const MigrationPolicy& self) { return texts_of(self.accessors()); },
          "The places that keep the pages mapped.")
      .def("__eq__",
           [](const MigrationPolicy& self, nb::handle other) {
             return nb::isinstance<MigrationPolicy>(other) &&
                    self == nb::cast<const MigrationPolicy&>(other);
           })
      .def("__hash__",
           [](const MigrationPolicy& self) { return std::hash<MigrationPolicy>()(self); })
      .def("__str__", &MigrationPolicy::text)
      .def("__repr__", [](const MigrationPolicy& self) {
        return nb::str("MigrationPolicy({})").format(self.text());
      });
}

void add_reports(nb::module_& module) {
  nb::class_<HintRange>(module, "HintRange",
                        "The bytes that a hint is about, and those that share their pages.")
      .def(
          "__init__",
          [](HintRange* self, nb::handle offset_bytes, nb::handle bytes) {
            new (self) HintRange{size_of_object(offset_bytes, "offset_bytes"),
                                 size_of_object(bytes, "bytes")};
          },
          nb::arg("offset_bytes"), nb::arg("bytes"))
      .def_ro("offset_bytes", &HintRange::offset_bytes, "The first byte.")
      .def_ro("bytes", &HintRange::bytes, "The number of bytes.")
      .def_ro("before_bytes", &HintRange::before_bytes,
              "How many bytes before the range the hint affects too.")
      .def_ro("after_bytes", &HintRange::after_bytes,
              "How many bytes after the range the hint affects too.")
      .def("__eq__",
           [](const HintRange& self, nb::handle other) {
             return nb::isinstance<HintRange>(other) && self == nb::cast<const HintRange&>(other);
           })
      .def("__repr__", [](const HintRange& self) {
        return nb::str("HintRange(offset_bytes={}, bytes={}, before_bytes={}, after_bytes={})")
            .format(self.offset_bytes, self.bytes, self.before_bytes, self.after_bytes);
      });
  nb::class_<HintReport>(module, "HintReport", "What a hint did.")
      .def_prop_ro("is_sent", &HintReport::is_sent, "Whether the hint reached the driver.")
      .def_prop_ro(
          "skipped",
          [](const HintReport& self) -> nb::object {
            return self.is_sent() ? nb::none() : nb::object(nb::str(name(self.skipped)));
          },
          "Why the hint did not reach the driver, as a sentence; None if it did.")
      .def_ro("range", &HintReport::range, "The bytes that the hint is about.")
      .def_ro("moved_bytes", &HintReport::moved_bytes,
              "The bytes that move, for a unified buffer; None for managed memory.")
      .def("__repr__", [](const HintReport& self) {
        return nb::str("HintReport(is_sent={}, bytes={})").format(self.is_sent(), self.range.bytes);
      });
  nb::class_<ManagedInfo>(module, "ManagedInfo",
                          "The settings of managed memory that the driver reports.")
      .def_ro("is_read_mostly", &ManagedInfo::is_read_mostly,
              "Whether every reader may have a copy of a page.")
      .def_prop_ro(
          "accessed_by", [](const ManagedInfo& self) { return texts_of(self.accessed_by); },
          "The places that keep the pages mapped.")
      .def_prop_ro(
          "preferred", [](const ManagedInfo& self) { return object_of_place(self.preferred); },
          "The preferred place, or None.")
      .def_prop_ro(
          "last_prefetch",
          [](const ManagedInfo& self) { return object_of_place(self.last_prefetch); },
          "The place of the last prefetch, or None.")
      .def_ro("is_read_mostly_mixed", &ManagedInfo::is_read_mostly_mixed,
              "Whether parts of the range differ in is_read_mostly.")
      .def_ro("is_preferred_mixed", &ManagedInfo::is_preferred_mixed,
              "Whether parts of the range differ in preferred.")
      .def_ro("is_accessed_by_mixed", &ManagedInfo::is_accessed_by_mixed,
              "Whether parts of the range differ in accessed_by.")
      .def_ro("is_last_prefetch_mixed", &ManagedInfo::is_last_prefetch_mixed,
              "Whether parts of the range differ in last_prefetch.")
      .def("__repr__", [](const ManagedInfo& self) {
        return nb::str("ManagedInfo(is_read_mostly={}, preferred={}, accessed_by={})")
            .format(self.is_read_mostly, object_of_place(self.preferred),
                    texts_of(self.accessed_by));
      });
  nb::class_<HintUndo>(module, "HintUndo",
                       "The settings from before a policy was applied. In a ``with`` statement "
                       "they are restored at the end.")
      .def_prop_ro("report", &HintUndo::report, "What the policy did.")
      .def(
          "restore",
          [](const HintUndo& self) {
            const CallSite site = here();
            without_gil([&] { return self.try_restore(site); }).value();
          },
          "Restore the settings that the policy has changed.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> HintUndo"))
      .def("__exit__", [](const HintUndo& self, const nb::args&) {
        const CallSite site = here();
        without_gil([&] { return self.try_restore(site); }).value();
      });
}

void add_hints_class(nb::module_& module) {
  nb::class_<Hints> type(
      module, "Hints",
      "Tells the driver how managed memory will be used.\n\n"
      "A hint covers the whole buffer, or the bytes of ``range``: a tuple (offset_bytes, bytes). "
      "Drivers\n"
      "apply hints to whole pages. A hint that the device does not support is skipped, and the "
      "report\n"
      "says why.\n\n"
      "Parameters\n----------\n"
      "buffer : ManagedBuffer or Buffer\n    The memory, which stays allocated as long as this "
      "object.\n"
      "strict : bool\n    Raise UnsupportedError for a hint that the device does not support.");
  type.def(
      "__init__",
      [](Hints* self, nb::handle buffer, bool strict) {
        new (self)
            Hints(Hints::try_make(managed_of_object(buffer), {.strict = strict}, here()).value());
      },
      nb::arg("buffer"), nb::kw_only(), nb::arg("strict") = false);
  type.def_static(
      "over",
      [](nb::handle device, std::uintptr_t address, nb::handle bytes, nb::object owner,
         bool strict) {
        const Device on = device_of_object(device);
        const std::size_t size = size_of_object(bytes, "bytes");
        const CallSite site = here();
        std::shared_ptr<void> kept = owner.is_none() ? nullptr : shared_owner(std::move(owner));
        return without_gil([&] {
                 return Hints::try_over(on, reinterpret_cast<void*>(address), size, std::move(kept),
                                        {.strict = strict}, site);
               })
            .value();
      },
      nb::arg("device"), nb::arg("address"), nb::arg("bytes"), nb::arg("owner").none(),
      nb::kw_only(), nb::arg("strict") = false,
      "Return hints on managed memory of another library.\n\n"
      "Parameters\n----------\ndevice : Device or str\naddress : int\nbytes : int\n"
      "owner : object\n    Keeps the memory alive. The hints hold a reference to it.\nstrict : "
      "bool");
  type.def_prop_ro(
      "buffer", [](const Hints& self) { return self.buffer(); }, "The memory as a Buffer.");
  type.def_prop_ro(
      "strict", [](const Hints& self) { return self.options().strict; },
      "Whether unsupported hints raise.");
  type.def(
      "effective_range",
      [](const Hints& self, nb::handle range) {
        const auto bytes = range_of_object(range);
        const CallSite site = here();
        return without_gil([&] { return self.try_effective_range(bytes, site); }).value();
      },
      nb::arg("range") = nb::none(),
      "Return the bytes that a hint on the range would affect. Allocates the memory.");
  add_advice(type, "set_read_mostly", Advice::set_read_mostly,
             "Let every reader have a copy of a page.");
  add_advice(type, "unset_read_mostly", Advice::unset_read_mostly, "Undo set_read_mostly().");
  add_advice_at(type, "set_preferred_location", Advice::set_preferred_location,
                "Keep the pages in a place.");
  add_advice(type, "unset_preferred_location", Advice::unset_preferred_location,
             "Remove the preferred place.");
  add_advice_at(type, "set_accessed_by", Advice::set_accessed_by,
                "Keep the pages mapped for a place.");
  add_advice_at(type, "unset_accessed_by", Advice::unset_accessed_by,
                "Do not keep the pages mapped for a place any more.");
  type.def(
      "apply",
      [](const Hints& self, const MigrationPolicy& policy, nb::handle range, nb::handle place) {
        const auto bytes = range_of_object(range);
        const CallSite site = here();
        if (place.is_none())
          return without_gil([&] { return self.try_apply(policy, bytes, site); }).value();
        const Place where = place_of_object(place);
        return without_gil([&] { return self.try_apply_at(policy, where, bytes, site); }).value();
      },
      nb::arg("policy"), nb::arg("range") = nb::none(), nb::kw_only(),
      nb::arg("place") = nb::none(),
      "Apply a policy, all of it or nothing.\n\n"
      "Parameters\n----------\npolicy : MigrationPolicy\nrange : tuple of int, optional\n"
      "place : str or Device, optional\n    Raise DeviceMismatchError if the policy prefers "
      "another place.\n\n"
      "Returns\n-------\nHintUndo\n    Restores the settings from before.");
  type.def(
      "query",
      [](const Hints& self, nb::handle range) {
        const auto bytes = range_of_object(range);
        const CallSite site = here();
        return without_gil([&] { return self.try_query(bytes, site); }).value();
      },
      nb::arg("range") = nb::none(),
      "Return the settings that the driver reports. Raises UnsupportedError on a device without "
      "advice.");
  type.def(
      "prefetch",
      [](const Hints& self, nb::handle place, nb::handle stream, nb::handle range) {
        const Place where = place_of_object(place);
        const StreamArgument on = stream_of(stream, self);
        const auto bytes = range_of_object(range);
        const CallSite site = here();
        return without_gil([&] { return self.try_prefetch(where, on.get(), bytes, site); }).value();
      },
      nb::arg("place"), nb::arg("stream") = nb::none(), nb::arg("range") = nb::none(),
      "Move the pages to a place, in stream order. Returns a HintReport.");
  type.def(
      "discard",
      [](const Hints& self, nb::handle stream, nb::handle range) {
        const StreamArgument on = stream_of(stream, self);
        const auto bytes = range_of_object(range);
        const CallSite site = here();
        return without_gil([&] { return self.try_discard(on.get(), bytes, site); }).value();
      },
      nb::arg("stream") = nb::none(), nb::arg("range") = nb::none(),
      "Say that the bytes are no longer needed: they count as never written. Returns a "
      "HintReport.");
  type.def(
      "discard_prefetch",
      [](const Hints& self, nb::handle place, nb::handle stream, nb::handle range) {
        const Place where = place_of_object(place);
        const StreamArgument on = stream_of(stream, self);
        const auto bytes = range_of_object(range);
        const CallSite site = here();
        return without_gil([&] { return self.try_discard_prefetch(where, on.get(), bytes, site); })
            .value();
      },
      nb::arg("place"), nb::arg("stream") = nb::none(), nb::arg("range") = nb::none(),
      "Discard the bytes and move the empty pages to a place. Returns a HintReport.");
}

/// A plan that several threads may use. Its mutex is taken without the interpreter lock.
class PyPlan {
 public:
  PyPlan() = default;
  explicit PyPlan(PrefetchPlan plan) : plan_(std::move(plan)) {}
  PyPlan(PyPlan&&) = default;
  ~PyPlan() { release(plan_); }

  /// Returns body(plan), which must not touch Python objects.
  template <class Body>
  auto use(Body&& body) {
    return without_gil([&] {
      const std::lock_guard lock(*mutex_);
      return body(plan_);
    });
  }

 private:
  PrefetchPlan plan_;
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
};

void add_to_plan(PyPlan& plan, nb::handle memory, nb::handle place, nb::handle range) {
  const CallSite site = here();
  const Place where = place_of_object(place);
  const auto bytes = range_of_object(range);
  if (nb::isinstance<PyUnified>(memory)) {
    const RawUnified& raw = nb::cast<const PyUnified&>(memory).raw();
    plan.use([&](PrefetchPlan& with) { return with.try_add(raw, where, bytes, site); }).value();
    return;
  }
  const Buffer buffer = managed_of_object(memory);
  plan.use([&](PrefetchPlan& with) { return with.try_add(buffer, where, bytes, site); }).value();
}

PrefetchPlan::Report execute(PyPlan& plan, nb::handle stream, bool strict) {
  const CallSite site = here();
  const HintOptions options{.strict = strict};
  if (!nb::isinstance<nb::list>(stream) && !nb::isinstance<nb::tuple>(stream)) {
    if (stream.is_none()) {
      // None names a stream only with the device, which the first entry knows.
      const std::optional<Device> device = plan.use([](const PrefetchPlan& with) {
        return with.empty() ? std::optional<Device>()
                            : std::optional<Device>(with.entries().front().target->device());
      });
      if (!device) return {};
      const StreamArgument on(stream, *device);
      return plan
          .use([&](const PrefetchPlan& with) { return with.try_execute(on.get(), options, site); })
          .value();
    }
    const StreamArgument on(stream, device_of_object(nb::none()));
    return plan
        .use([&](const PrefetchPlan& with) { return with.try_execute(on.get(), options, site); })
        .value();
  }
  std::vector<StreamShare> shares;
  std::vector<StreamRef> streams;
  for (const nb::handle one : nb::iter(stream)) {
    if (!nb::isinstance<PyStream>(one)) refuse_type("streams are ternmem.Stream objects");
    shares.push_back(nb::cast<const PyStream&>(one).share());
    streams.push_back(nb::cast<const PyStream&>(one).get());
  }
  return plan
      .use([&](const PrefetchPlan& with) { return with.try_execute(streams, options, site); })
      .value();
}

void add_plan(nb::module_& module) {
  nb::class_<PyPlan> type(module, "PrefetchPlan",
                          "A list of memory and the places that it should move to. Made once, "
                          "executed any number of times.");
  nb::class_<PrefetchPlan::Report>(type, "Report", "What an execution did, counted in entries.")
      .def_ro("sent", &PrefetchPlan::Report::sent, "Entries that were sent.")
      .def_ro("skipped", &PrefetchPlan::Report::skipped,
              "Entries of which nothing had to move, or that the device does not support.")
      .def_ro("bytes", &PrefetchPlan::Report::bytes,
              "Bytes sent, and for unified buffers bytes that move.")
      .def("__repr__", [](const PrefetchPlan::Report& self) {
        return nb::str("Report(sent={}, skipped={}, bytes={})")
            .format(self.sent, self.skipped, self.bytes);
      });
  type.def(nb::init<>());
  type.def(
      "add",
      [](nb::object self, nb::handle memory, nb::handle place, nb::handle range) {
        add_to_plan(nb::cast<PyPlan&>(self), memory, place, range);
        return self;
      },
      nb::arg("memory"), nb::arg("place"), nb::arg("range") = nb::none(),
      nb::sig("def add(self, memory: object, place: object, range: object | None = None) -> "
              "PrefetchPlan"),
      "Add an entry. If it fails, the plan stays as it was.\n\n"
      "Parameters\n----------\nmemory : ManagedBuffer, Buffer or UnifiedBuffer\nplace : str or "
      "Device\n"
      "range : tuple of int, optional\n    (offset_bytes, bytes); by default all bytes.\n\n"
      "Returns\n-------\nPrefetchPlan\n    The plan itself.");
  type.def("__len__", [](PyPlan& self) {
    return self.use([](const PrefetchPlan& plan) { return plan.size(); });
  });
  type.def_prop_ro(
      "entries",
      [](PyPlan& self) {
        return self.use([](const PrefetchPlan& plan) {
          std::vector<std::string> made;
          for (const PrefetchEntry& entry : plan.entries()) made.push_back(entry.text());
          return made;
        });
      },
      "One line of text for each entry, in the order of adding.");
  type.def(
      "merged",
      [](PyPlan& self) {
        return PyPlan(self.use([](const PrefetchPlan& plan) { return plan.merged(); }));
      },
      "Return an equivalent plan with as few entries as possible.");
  type.def_prop_ro(
      "peaks",
      [](PyPlan& self) {
        nb::dict made;
        for (const auto& [place, bytes] :
             self.use([](const PrefetchPlan& plan) { return plan.peaks(); }))
          made[object_of_place(place)] = bytes;
        return made;
      },
      "The largest number of bytes that the plan has at each place at one time, by place.");
  type.def(
      "check",
      [](PyPlan& self, nb::handle place, const Budget& budget) {
        const Place where = place_of_object(place);
        const CallSite site = here();
        return self
            .use([&](const PrefetchPlan& plan) { return plan.try_check(where, budget, site); })
            .value();
      },
      nb::arg("place"), nb::arg("budget"),
      "Return the peak at a place, or raise OutOfBudgetError if it does not fit into the budget.");
  type.def(
      "execute", &execute, nb::arg("stream") = nb::none(), nb::kw_only(), nb::arg("strict") = false,
      "Queue all prefetches.\n\n"
      "Parameters\n----------\nstream : Stream or list of Stream, optional\n    One stream, or one "
      "for each device.\n"
      "strict : bool\n    Raise UnsupportedError for an entry that the device does not support.\n\n"
      "Returns\n-------\nPrefetchPlan.Report");
  type.def("__str__", [](PyPlan& self) {
    return self.use([](const PrefetchPlan& plan) { return plan.text(); });
  });
  type.def("__repr__", [](PyPlan& self) {
    return nb::str("PrefetchPlan of {} entries").format(self.use([](const PrefetchPlan& plan) {
      return plan.size();
    }));
  });
}

}  // namespace

void add_hints(nb::module_& module) {
  add_policy(module);
  add_reports(module);
  add_hints_class(module);
  add_plan(module);
}

}  // namespace tern::python
