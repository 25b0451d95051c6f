// Resources: pools, budgets, tracking, and what they say about their memory.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <vector>

#include "owner.hpp"
#include "places.hpp"
#include "support.hpp"
#include "tern/memory/budget.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/pressure_resource.hpp"
#include "tern/memory/shared_budget.hpp"
#include "tern/memory/tracking_resource.hpp"

namespace tern::python {
namespace {

Overflow overflow_of(const std::string& text) {
  for (const Overflow one : {Overflow::fail, Overflow::wait, Overflow::evict, Overflow::spill}) {
    if (name(one) == text) return one;
  }
  refuse_choice("overflow", text, "'fail', 'wait', 'evict' or 'spill'");
}

nb::object site_or_none(const CallSite& site) {
  if (!site.is_known()) return nb::none();
  return nb::str("{}:{}").format(site.file, site.line);
}

nb::dict statistics_of(const Statistics& statistics) {
  nb::dict made;
  made["live_bytes"] = statistics.live_bytes;
  made["live_blocks"] = statistics.live_blocks;
  made["pending_bytes"] = statistics.pending_bytes;
  made["reserved_bytes"] = statistics.reserved_bytes;
  made["peak_live_bytes"] = statistics.peak_live_bytes;
  made["requests"] = statistics.requests;
  made["reuses"] = statistics.reuses;
  made["refusals"] = statistics.refusals;
  made["frees"] = statistics.frees;
  made["hit_rate"] = statistics.hit_rate();
  return made;
}

BudgetLimit budget_limit_of(nb::handle limit_bytes) {
  return limit_bytes.is_none() ? BudgetLimit::unlimited()
                               : BudgetLimit::bytes(size_of_object(limit_bytes, "limit_bytes"));
}

nb::object limit_or_none(std::size_t limit_bytes) {
  return limit_bytes < max_request_bytes ? nb::object(nb::int_(limit_bytes)) : nb::none();
}

nb::list tenants_of(const SharedBudgetState& state) {
  nb::list made;
  for (const SharedTenant& one : state.tenants) {
    nb::dict entry;
    entry["name"] = one.name;
    entry["pid"] = one.pid;
    entry["is_alive"] = one.is_alive;
    entry["charged_bytes"] = one.charged_bytes;
    entry["peak_bytes"] = one.peak_bytes;
    entry["limit_bytes"] = limit_or_none(one.limit_bytes);
    entry["asked_bytes"] = one.asked_bytes;
    entry["answers"] = one.answers;
    entry["evicted_bytes"] = one.evicted_bytes;
    entry["trimmed_bytes"] = one.trimmed_bytes;
    made.append(entry);
  }
  return made;
}

std::shared_ptr<SharedBudget> join_shared(const std::string& name, const std::string& tenant,
                                          nb::handle limit_bytes, nb::handle tenant_limit_bytes) {
  SharedBudgetOptions options = {.tenant = tenant,
                                 .tenant_limit = budget_limit_of(tenant_limit_bytes)};
  if (!limit_bytes.is_none()) options.limit = budget_limit_of(limit_bytes);
  return without_gil([&] { return SharedBudget::try_join(name, options); }).value(here());
}

/// Calls the function with the number of bytes that a request needs. Returns the bytes that it has
/// freed, and none if Python ends.
std::size_t call_handler(const std::shared_ptr<void>& function, std::size_t need_bytes) {
  const InterpreterEntry entry;
  if (!entry) return 0;
  try {
    const nb::object freed =
        nb::borrow(static_cast<PyObject*>(function.get()))(nb::int_(need_bytes));
    return nb::cast<std::size_t>(freed);
  } catch (nb::python_error& error) {
    // The request fails with the error of the full budget. Nobody else would see this exception.
    error.discard_as_unraisable("a handler of ternmem.PressureResource");
  } catch (const nb::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "the handler must return the number of bytes that it freed.");
    PyErr_WriteUnraisable(static_cast<PyObject*>(function.get()));
  }
  return 0;
}

}  // namespace

void add_resources(nb::module_& module) {
  nb::class_<Resource>(
      module, "Resource",
      "Where memory comes from: a Pool, or a resource that adds a check to another one.")
      .def_prop_ro(
          "device", [](const Resource& self) { return self.device(); }, "The device of the memory.")
      .def_prop_ro(
          "name", [](const Resource& self) { return std::string(self.name()); },
          "The name of the kind of resource.")
      .def("__repr__",
           [](nb::handle self) {
             return nb::str("{}(device='{}')")
                 .format(type_text(self),
                         std::string(nb::cast<const Resource&>(self).device().spec()));
           })
      .def_prop_ro(
          "statistics",
          [](const Resource& self) {
            return statistics_of(released([&] { return self.statistics(); }));
          },
          "Bytes in use and held, and counts of allocations.")
      .def(
          "trim",
          [](Resource& self, std::size_t keep_bytes) {
            return without_gil([&] { return self.trim(keep_bytes); });
          },
          nb::arg("keep_bytes") = 0,
          "Return free memory to the driver, except for ``keep_bytes``. Returns the number of "
          "bytes.");
  nb::class_<PoolResource, Resource>(
      module, "Pool",
      "Keeps memory of the driver and reuses it, so most allocations cost nanoseconds.\n\n"
      "Parameters\n----------\n"
      "device : Device or str, optional\n    By default the current device.\n"
      "limit_bytes : int\n    The most memory that the pool holds; 0 for no limit.\n"
      "initial_bytes : int\n    Memory that the pool requests from the driver now.\n"
      "kind : {'device', 'pinned', 'managed'}\n    The kind of memory.")
      .def(nb::new_([](nb::handle device, nb::handle limit_bytes, nb::handle initial_bytes,
                       const std::string& kind) {
             const Device on = device_of_object(device);
             const PoolOptions options{
                 .kind = memory_kind_of(kind),
                 .limit_bytes = size_of_object(limit_bytes, "limit_bytes"),
                 .initial_bytes = size_of_object(initial_bytes, "initial_bytes")};
             return without_gil([&] { return std::make_shared<PoolResource>(on, options); });
           }),
           nb::arg("device") = nb::none(), nb::kw_only(), nb::arg("limit_bytes") = 0,
           nb::arg("initial_bytes") = 0, nb::arg("kind") = "device")
      .def(
          "set_limit",
          [](PoolResource& self, nb::handle limit_bytes) {
            const std::size_t limit = size_of_object(limit_bytes, "limit_bytes");
            without_gil([&] { self.set_limit(limit); });
          },
          nb::arg("limit_bytes"),
          "Change the most memory that the pool holds; 0 for no limit. Returns memory above it to "
          "the driver.")
      .def_prop_ro(
          "limit_bytes",
          [](const PoolResource& self) {
            return released([&] { return self.pool_statistics(); }).limit_bytes;
          },
          "The most memory that the pool holds; 0 for no limit.")
      .def("__repr__",
           [](const PoolResource& self) {
             const PoolStatistics now = released([&] { return self.pool_statistics(); });
             return nb::str("Pool(device='{}', limit_bytes={}, live_bytes={}, held_bytes={})")
                 .format(std::string(self.device().spec()), now.limit_bytes, now.live_bytes,
                         now.held_bytes);
           })
      .def_prop_ro(
          "pool_statistics",
          [](const PoolResource& self) {
            const PoolStatistics one = released([&] { return self.pool_statistics(); });
            nb::dict made;
            made["live_bytes"] = one.live_bytes;
            made["cached_bytes"] = one.cached_bytes;
            made["in_flight_bytes"] = one.in_flight_bytes;
            made["available_bytes"] = one.available_bytes;
            made["held_bytes"] = one.held_bytes;
            made["peak_held_bytes"] = one.peak_held_bytes;
            made["limit_bytes"] = one.limit_bytes;
            made["cache_hits"] = one.cache_hits;
            made["steals"] = one.steals;
            made["grows"] = one.grows;
            made["host_waits"] = one.host_waits;
            made["driver_calls"] = one.driver_calls();
            return made;
          },
          "What the pool holds, and how often it asked the driver and waited, as a dict.");
  nb::class_<SharedBudget>(
      module, "SharedBudget",
      "One limit on bytes for several processes of a user. This process joins as a tenant.\n\n"
      "Parameters\n----------\nname : str\n    The name that all tenants use.\n"
      "tenant : str\n    The name of this process, which no other living tenant has.\n"
      "limit_bytes : int, optional\n"
      "    The limit of all tenants together. It counts only if no process has joined yet. Without "
      "it, the first process that joins raises NotFoundError.\n"
      "tenant_limit_bytes : int, optional\n    The limit of this tenant. None means no limit.")
      .def(nb::new_(&join_shared), nb::arg("name"), nb::arg("tenant"), nb::kw_only(),
           nb::arg("limit_bytes").none() = nb::none(),
           nb::arg("tenant_limit_bytes").none() = nb::none())
      .def_prop_ro(
          "name", [](const SharedBudget& self) { return self.name(); }, "The name.")
      .def_prop_ro(
          "tenant", [](const SharedBudget& self) { return self.tenant(); },
          "The name of this tenant.")
      .def_prop_ro(
          "limit_bytes", [](const SharedBudget& self) { return limit_or_none(self.limit_bytes()); },
          "The limit of all tenants together in bytes. None means no limit.")
      .def_prop_ro(
          "charged_bytes", [](const SharedBudget& self) { return self.charged_bytes(); },
          "What all tenants together have charged.")
      .def_prop_ro(
          "peak_bytes",
          [](const SharedBudget& self) {
            return without_gil([&] { return self.state(); }).peak_bytes;
          },
          "The most bytes that all tenants together had charged at one time.")
      .def(
          "tenants",
          [](const SharedBudget& self) {
            return tenants_of(without_gil([&] { return self.state(); }));
          },
          "Return the tenants as a list of dicts.")
      .def(
          "set_limit",
          [](SharedBudget& self, nb::handle limit_bytes, const std::optional<std::string>& tenant) {
            const BudgetLimit limit = budget_limit_of(limit_bytes);
            without_gil([&] {
              if (tenant) {
                self.set_tenant_limit(*tenant, limit);
              } else {
                self.set_limit(limit);
              }
            });
          },
          nb::arg("limit_bytes").none(), nb::arg("tenant").none() = nb::none(),
          "Change the limit of all tenants together, or of one tenant; None for none. What is "
          "charged stays charged.")
      .def(
          "ask",
          [](SharedBudget& self, const std::string& tenant, nb::handle bytes) {
            const std::size_t size = size_of_object(bytes, "bytes");
            without_gil([&] { self.ask(tenant, size); });
          },
          nb::arg("tenant"), nb::arg("bytes"),
          "Ask a tenant to give bytes back. It answers in its next allocation that its pool cannot "
          "recycle, or in answer_requests().")
      .def(
          "answer_requests",
          [](SharedBudget& self) {
            const SharedAnswer answer = without_gil([&] { return self.answer_requests(); });
            nb::dict made;
            made["asked_bytes"] = answer.asked_bytes;
            made["evicted_bytes"] = answer.evicted_bytes;
            made["trimmed_bytes"] = answer.trimmed_bytes;
            return made;
          },
          "Evict copies of unified buffers and trim pools, if other tenants have asked for it. "
          "Return what was given back, as a dict.")
      .def(
          "collect",
          [](SharedBudget& self) { return without_gil([&] { return self.collect(); }); },
          "Take back what tenants had charged that have ended. Return the number of bytes.")
      .def("__repr__", [](const SharedBudget& self) {
        return nb::str("SharedBudget('{}', tenant='{}', limit_bytes={}, charged_bytes={})")
            .format(self.name(), self.tenant(), limit_or_none(self.limit_bytes()),
                    self.charged_bytes());
      });
  nb::class_<Budget>(
      module, "Budget",
      "A limit on bytes. A BudgetResource charges memory to it.\n\n"
      "Parameters\n----------\n"
      "name : str\n    A name for reports and errors.\n"
      "limit_bytes : int or None\n    None counts bytes and never refuses a request.\n"
      "parent : Budget, optional\n    A budget that is charged for the same bytes.\n"
      "overflow : {'fail', 'wait', 'evict', 'spill'}\n"
      "    What a request at the limit may do: raise OutOfBudgetError, wait for pending frees, "
      "drop copies\n"
      "    that can be fetched again, or also move data elsewhere.\n"
      "shared : SharedBudget, optional\n"
      "    A limit for several processes that is charged for the same bytes. Only for a budget "
      "without a parent.")
      .def(nb::new_([](const std::string& name, nb::handle limit_bytes,
                       std::shared_ptr<Budget> parent, const std::string& overflow,
                       std::shared_ptr<SharedBudget> shared) {
             return Budget::make(name, budget_limit_of(limit_bytes),
                                 {.parent = std::move(parent),
                                  .overflow = overflow_of(overflow),
                                  .shared = std::move(shared)});
           }),
           nb::arg("name"), nb::arg("limit_bytes").none(), nb::kw_only(),
           nb::arg("parent").none() = nb::none(), nb::arg("overflow") = "spill",
           nb::arg("shared").none() = nb::none())
      .def_prop_ro(
          "name", [](const Budget& self) { return self.name(); }, "The name.")
      .def_prop_ro(
          "path", [](const Budget& self) { return self.path(); },
          "The names from the topmost parent to this budget.")
      .def_prop_ro(
          "limit_bytes",
          [](const Budget& self) -> nb::object {
            return self.has_limit() ? nb::object(nb::int_(self.limit_bytes())) : nb::none();
          },
          "The limit in bytes. None means no limit.")
      .def(
          "set_limit",
          [](Budget& self, nb::handle limit_bytes) {
            const BudgetLimit limit = budget_limit_of(limit_bytes);
            without_gil([&] { self.set_limit(limit); });
          },
          nb::arg("limit_bytes").none(),
          "Change the limit; None for none. What is charged stays charged.")
      .def_prop_ro(
          "used_bytes", [](const Budget& self) { return self.used_bytes(); },
          "Bytes in use, and bytes whose free is still pending.")
      .def_prop_ro(
          "live_bytes", [](const Budget& self) { return self.live_bytes(); }, "Bytes in use.")
      .def_prop_ro(
          "pending_bytes", [](const Budget& self) { return self.pending_bytes(); },
          "Bytes that are freed but still charged, because their stream has not passed the free.")
      .def_prop_ro(
          "charged_bytes", [](const Budget& self) { return self.charged_bytes(); },
          "Used bytes, and bytes of requests that are under way or reserved.")
      .def_prop_ro(
          "peak_bytes", [](const Budget& self) { return self.peak_bytes(); },
          "The most bytes that were used at one time.")
      .def("__repr__", [](const Budget& self) {
        const nb::object limit =
            self.has_limit() ? nb::object(nb::int_(self.limit_bytes())) : nb::none();
        return nb::str("Budget('{}', limit_bytes={}, used_bytes={})")
            .format(self.path(), limit, self.used_bytes());
      });
  nb::class_<BudgetResource, Resource>(
      module, "BudgetResource",
      "Charges each block of another resource to a budget.\n\n"
      "Parameters\n----------\nupstream : Resource\n    Where the memory comes from.\n"
      "budget : Budget")
      .def(nb::new_([](std::shared_ptr<Resource> upstream, std::shared_ptr<Budget> budget) {
             return std::make_shared<BudgetResource>(std::move(upstream), std::move(budget));
           }),
           nb::arg("upstream"), nb::arg("budget"));
  nb::class_<PressureResource, Resource>(
      module, "PressureResource",
      "Calls a function when another resource is out of memory, and then tries the request again."
      "\n\nParameters\n----------\nupstream : Resource\n    Where the memory comes from.\n"
      "handler : callable\n"
      "    Gets the number of bytes that the request needs, frees memory, and returns the number "
      "of bytes freed.\n"
      "    Runs on the thread of the request. Must not use the memory that the request is for.")
      .def(nb::new_([](std::shared_ptr<Resource> upstream, nb::object handler) {
             if (!nb::isinstance<nb::callable>(handler))
               refuse_type("handler must be a function that takes a number of bytes.");
             auto made = std::make_shared<PressureResource>(std::move(upstream));
             made->add_handler([function = shared_owner(std::move(handler))](const Pressure& now) {
               return call_handler(function, now.need_bytes);
             });
             return made;
           }),
           nb::arg("upstream"), nb::arg("handler"));
  nb::class_<TrackingResource, Resource>(
      module, "TrackingResource",
      "Records each live block of another resource, and the line that allocated it.\n\n"
      "Parameters\n----------\nupstream : Resource\n"
      "check_overlap : bool\n    Check that no new block overlaps a live one.")
      .def(nb::new_([](std::shared_ptr<Resource> upstream, bool check_overlap) {
             return std::make_shared<TrackingResource>(
                 std::move(upstream), TrackingOptions{.check_overlap = check_overlap});
           }),
           nb::arg("upstream"), nb::kw_only(), nb::arg("check_overlap") = false)
      .def(
          "live_blocks",
          [](const TrackingResource& self) {
            const std::vector<LiveBlock> blocks = released([&] { return self.live_blocks(); });
            nb::list made;
            for (const LiveBlock& one : blocks) {
              nb::dict entry;
              entry["address"] = reinterpret_cast<std::uintptr_t>(one.block.address);
              entry["bytes"] = one.requested_bytes;
              entry["tag"] = std::string(one.tag.name());
              entry["site"] = site_or_none(one.site);
              entry["order"] = one.order;
              made.append(entry);
            }
            return made;
          },
          "Return the live blocks as a list of dicts, oldest first.")
      .def(
          "tag_totals",
          [](const TrackingResource& self) {
            const std::vector<TagTotal> totals = released([&] { return self.tag_totals(); });
            nb::dict made;
            for (const TagTotal& one : totals) {
              nb::dict entry;
              entry["live_bytes"] = one.live_bytes;
              entry["live_blocks"] = one.live_blocks;
              entry["peak_live_bytes"] = one.peak_live_bytes;
              entry["allocations"] = one.allocations;
              made[nb::str(std::string(one.tag.name()).c_str())] = entry;
            }
            return made;
          },
          "Return one snapshot of all tags that were ever used, by tag, the largest first.")
      .def(
          "histogram",
          [](const TrackingResource& self) {
            const SizeHistogram histogram = released([&] { return self.histogram(); });
            nb::dict made;
            for (std::size_t i = 0; i < SizeHistogram::bucket_count; ++i) {
              if (histogram.counts[i] > 0)
                made[nb::int_(SizeHistogram::bound_bytes(i))] = histogram.counts[i];
            }
            return made;
          },
          "Return the number of allocations in each size class. The keys are the upper bounds of "
          "the classes, in bytes.")
      .def(
          "leak_report",
          [](const TrackingResource& self) { return released([&] { return self.leak_report(); }); },
          "Return the live blocks by tag and line as text.")
      .def("__str__",
           [](const TrackingResource& self) { return released([&] { return self.text(); }); });
  module.def(
      "default_resource",
      [](nb::handle device, const std::string& kind) {
        const Device on = device_of_object(device);
        return without_gil([&] { return try_default_resource(on, memory_kind_of(kind)); })
            .value(here());
      },
      nb::arg("device") = nb::none(), nb::arg("kind") = "device",
      "Return the resource of buffers that name no resource.");
  module.def(
      "set_default_resource",
      [](std::shared_ptr<Resource> resource) {
        const Device device = resource->device();
        return without_gil([&] { return set_default_resource(device, std::move(resource)); });
      },
      nb::arg("resource"),
      nb::sig("def set_default_resource(resource: Resource) -> Resource | None"),
      "Use a resource for all buffers that name none, have its device and use its kind of "
      "memory.\n\n"
      "To undo this later, keep the result of default_resource() and set it again.\n\n"
      "Parameters\n----------\nresource : Resource\n\n"
      "Returns\n-------\nResource or None\n    The resource that was set before, or None if none "
      "was.");
}

}  // namespace tern::python
