// The simulated device: options, findings, faults and schedules.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "devices.hpp"
#include "tern/backends/sim.hpp"

namespace tern::python {
namespace {

template <class Value, std::size_t count>
Value choice(const std::string& text, const char* what,
             const std::array<std::pair<const char*, Value>, count>& all) {
  std::string known;
  for (const auto& [name, value] : all) {
    if (text == name) return value;
    known += known.empty() ? name : std::string(", ") + name;
  }
  refuse_choice(what, text, ("one of: " + known).c_str());
}

sim::Options options_of(std::uint64_t seed, const std::string& schedule, const std::string& mode,
                        const std::string& reuse, const std::string& faults,
                        const std::string& profile, std::optional<std::size_t> memory_bytes,
                        bool print_findings, bool per_thread_host, bool strict_kernels) {
  using sim::Mode, sim::Policy, sim::Reuse;
  sim::Options options;
  options.seed = seed;
  options.policy =
      choice(schedule, "schedule",
             std::to_array<std::pair<const char*, Policy>>({{"mix", Policy::mix},
                                                            {"lazy", Policy::lazy},
                                                            {"eager", Policy::eager},
                                                            {"random", Policy::random},
                                                            {"skewed", Policy::skewed},
                                                            {"stall_one", Policy::stall_one},
                                                            {"pct", Policy::pct}}));
  options.mode =
      choice(mode, "mode",
             std::to_array<std::pair<const char*, Mode>>(
                 {{"raise", Mode::raise}, {"collect", Mode::collect}, {"abort", Mode::abort}}));
  options.reuse = choice(reuse, "reuse",
                         std::to_array<std::pair<const char*, Reuse>>(
                             {{"hostile", Reuse::hostile}, {"friendly", Reuse::friendly}}));
  options.faults = faults;
  options.profile = profile;
  options.memory_bytes = memory_bytes;
  options.print_findings = print_findings;
  options.per_thread_host = per_thread_host;
  options.strict_kernels = strict_kernels;
  return options;
}

nb::list objects_of(const std::vector<Finding>& findings) {
  nb::list made;
  for (const Finding& one : findings) made.append(nb::cast(one));
  return made;
}

}  // namespace

void add_simulation(nb::module_& module) {
  nb::module_ sim = module.def_submodule(
      "sim",
      "The simulated device: a device in host memory that checks the order of every access.");
  nb::class_<Finding>(sim, "Finding",
                      "An error that the checker found. ``print(finding)`` shows the whole report.")
      .def_prop_ro(
          "code", [](const Finding& self) { return code_text(self.code); },
          "The code, such as ``TERN-S101``.")
      .def_prop_ro(
          "title", [](const Finding& self) { return std::string(title(self.code)); },
          "The name of the code, such as ``missing-wait``.")
      .def_ro("what", &Finding::what, "What is wrong, as a sentence.")
      .def_ro("fix", &Finding::fix, "What to change.")
      .def_ro("replay", &Finding::replay, "How to repeat the run.")
      .def_prop_ro(
          "site",
          [](const Finding& self) -> nb::object {
            if (!self.site.is_known()) return nb::none();
            return nb::str("{}:{}").format(self.site.file, self.site.line);
          },
          "The line that made the error, or None if it is not known.")
      .def("json", &Finding::json, "Return the finding as a JSON object.")
      .def("__str__", &Finding::text)
      .def("__repr__", [](const Finding& self) {
        return nb::str("Finding('{}': {})").format(code_text(self.code), self.what);
      });
  sim.def(
      "open",
      [](std::uint64_t seed, const std::string& schedule, const std::string& mode,
         const std::string& reuse, const std::string& faults, const std::string& profile,
         std::optional<std::size_t> memory_bytes, bool print_findings, bool per_thread_host,
         bool strict_kernels) {
        const sim::Options options =
            options_of(seed, schedule, mode, reuse, faults, profile, memory_bytes, print_findings,
                       per_thread_host, strict_kernels);
        return released([&] { return sim::open(options); });
      },
      nb::kw_only(), nb::arg("seed") = 0, nb::arg("schedule") = "mix", nb::arg("mode") = "raise",
      nb::arg("reuse") = "hostile", nb::arg("faults") = "", nb::arg("profile") = "",
      nb::arg("memory_bytes") = nb::none(), nb::arg("print_findings") = true,
      nb::arg("per_thread_host") = false, nb::arg("strict_kernels") = false,
      "Open a new simulated device.\n\n"
      "Parameters\n----------\n"
      "seed : int\n    Determines every choice of the device.\n"
      "schedule : {'mix', 'lazy', 'eager', 'random', 'skewed', 'stall_one', 'pct'}\n"
      "    How the device chooses the stream that runs next.\n"
      "mode : {'raise', 'collect', 'abort'}\n"
      "    When the checker finds an error: raise ViolationError, keep it for findings(), or end "
      "the process.\n"
      "reuse : {'hostile', 'friendly'}\n    Which freed memory the simulated driver reuses.\n"
      "faults : str\n    The fault plan, such as ``allocate#3=oom``.\n"
      "profile : str\n    The simulated hardware: ``h200``, ``small`` or the path of a profile.\n"
      "memory_bytes : int, optional\n    The size of device memory; by default that of the "
      "profile.\n"
      "print_findings : bool\n    Whether findings are also printed to standard error.\n"
      "per_thread_host : bool\n    Whether the checker treats the threads of the host separately.\n"
      "strict_kernels : bool\n    Whether the checker finds what a kernel touches and did not "
      "declare.");
  sim.def(
      "findings",
      [](const Device& device) {
        return objects_of(released([&] { return sim::findings(device); }));
      },
      nb::arg("device"), "Return what the checker has found so far.");
  sim.def(
      "leaks",
      [](const Device& device) { return objects_of(released([&] { return sim::leaks(device); })); },
      nb::arg("device"), "Return the live allocations as findings.");
  sim.def(
      "set_faults",
      [](const Device& device, const std::string& plan) {
        released([&] { sim::set_faults(device, plan); });
      },
      nb::arg("device"), nb::arg("plan"), "Replace the fault plan.");
  sim.def(
      "calls",
      [](const Device& device, const std::string& what) {
        return released([&] { return sim::calls(device, what); });
      },
      nb::arg("device"), nb::arg("fault_class"),
      "Return the number of calls of a class, such as ``copy``.");
  sim.def(
      "migrated_bytes",
      [](const Device& device) { return released([&] { return sim::migrated_bytes(device); }); },
      nb::arg("device"),
      "Return how many bytes of managed memory had to migrate so far, in either direction.");
  sim.def(
      "virtual_time_ns",
      [](const Device& device) { return released([&] { return sim::virtual_time_ns(device); }); },
      nb::arg("device"),
      "Return the virtual time since the device was opened, in nanoseconds. The profile of the "
      "device sets\nhow long operations take.");
  sim.def(
      "trace_hash",
      [](const Device& device) { return released([&] { return sim::trace_hash(device); }); },
      nb::arg("device"),
      "Return a hash of everything that happened. Equal runs have equal hashes.");
  sim.def(
      "hold",
      [](const PyStream& stream) { return released([&] { return sim::hold(stream.get()); }); },
      nb::arg("stream"), "Hold a stream at this point. Returns a number for resume().");
  sim.def(
      "resume",
      [](const Device& device, std::uint64_t hold) {
        released([&] { sim::resume(device, hold); });
      },
      nb::arg("device"), nb::arg("hold"), "End a hold.");
}

}  // namespace tern::python
