// The resources that the memory tests run on: every kind, on every device that can have it.

#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/memory/async_resource.hpp"
#include "tern/memory/direct_resource.hpp"

namespace tern::test {

struct ResourceCase {
  std::string name;
  std::function<Device()> open;
  std::function<ResourceHandle(const Device&)> make;
};

inline void PrintTo(const ResourceCase& one, std::ostream* out) { *out << one.name; }

inline std::vector<ResourceCase> every_resource() {
  const std::function<Device()> on_host = [] { return open_device("host"); };
  // A device of its own for each test, so that what one leaves does not show in the next.
  const std::function<Device()> on_sim = [] { return sim::open({.policy = sim::Policy::lazy}); };
  const auto direct = [](MemoryKind kind) {
    return [kind](const Device& device) -> ResourceHandle {
      return std::make_shared<DirectResource>(device, kind);
    };
  };
  const auto async = [](const Device& device) -> ResourceHandle {
    return std::make_shared<AsyncResource>(device);
  };
  return {{"direct_on_host", on_host, direct(MemoryKind::device)},
          {"pinned_on_host", on_host, direct(MemoryKind::pinned)},
          {"direct_on_sim", on_sim, direct(MemoryKind::device)},
          {"pinned_on_sim", on_sim, direct(MemoryKind::pinned)},
          {"managed_on_sim", on_sim, direct(MemoryKind::managed)},
          {"async_on_sim", on_sim, async}};
}

inline std::string case_name(const testing::TestParamInfo<ResourceCase>& info) {
  return info.param.name;
}

}  // namespace tern::test
