// The resources for the memory tests: every kind of resource, on every device that supports it.

#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/heap_resource.hpp"
#include "support/thorough.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/pausable_resource.hpp"
#include "tern/core/bytes.hpp"
#include "tern/interop/cuda_mr.hpp"
#include "tern/interop/pmr.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/logging_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/pressure_resource.hpp"
#include "tern/memory/tracking_resource.hpp"

namespace tern::test {

struct ResourceCase {
  std::string name;
  std::function<Device()> open;
  std::function<ResourceHandle(const Device&)> make;
  /// The resource keeps freed memory, so freeing a block makes no driver call.
  bool is_pool = false;
};

inline void PrintTo(const ResourceCase& one, std::ostream* out) { *out << one.name; }

/// A wrapper around another resource. To test a new wrapper, add one line to the list.
struct Wrapper {
  std::string name;
  std::function<ResourceHandle(ResourceHandle)> wrap;
};

template <class Wrapping>
Wrapper wrapper(const char* name) {
  return {name, [](ResourceHandle upstream) -> ResourceHandle {
            return std::make_shared<Wrapping>(std::move(upstream));
          }};
}

inline std::vector<Wrapper> every_wrapper() {
  return {wrapper<FaultResource>("fault"),
          wrapper<GuardResource>("guard"),
          wrapper<PressureResource>("pressure"),
          wrapper<TrackingResource>("tracking"),
          {"overlap",
           [](ResourceHandle upstream) -> ResourceHandle {
             return std::make_shared<TrackingResource>(std::move(upstream),
                                                       TrackingOptions{.check_overlap = true});
           }},
          {"logging", [](ResourceHandle upstream) -> ResourceHandle {
             return std::make_shared<LoggingResource>(std::move(upstream),
                                                      std::make_shared<RingSink>(16));
           }}};
}

inline std::vector<ResourceCase> every_resource() {
  const std::function<Device()> on_host = [] { return open_device("host"); };
  // Each test opens its own device, so that tests do not affect each other.
  const std::function<Device()> on_sim = [] { return sim::open({.policy = sim::Policy::lazy}); };
  const auto direct = [](MemoryKind kind) {
    return [kind](const Device& device) -> ResourceHandle {
      return std::make_shared<DirectResource>(device, kind);
    };
  };
  const auto async = [](const Device& device) -> ResourceHandle {
    return std::make_shared<AsyncResource>(device);
  };
  const auto pool = [](PoolOptions options) {
    return [options](const Device& device) -> ResourceHandle {
      return std::make_shared<PoolResource>(device, options);
    };
  };
  const auto pausable = [](const Device& device) -> ResourceHandle {
    return std::make_shared<PausableResource>(device);
  };
  std::vector<ResourceCase> grounds = {
      {"direct_on_host", on_host, direct(MemoryKind::device)},
      {"pinned_on_host", on_host, direct(MemoryKind::pinned)},
      {"direct_on_sim", on_sim, direct(MemoryKind::device)},
      {"pinned_on_sim", on_sim, direct(MemoryKind::pinned)},
      {"managed_on_sim", on_sim, direct(MemoryKind::managed)},
      {"async_on_sim", on_sim, async},
      {"pool_on_sim", on_sim, pool({}), true},
      {"pool_on_host", on_host, pool({}), true},
      {"segments_on_sim", on_sim, pool({.backing = PoolBacking::segments}), true},
      {"pinned_pool_on_sim", on_sim, pool({.kind = MemoryKind::pinned}), true},
      {"managed_pool_on_sim", on_sim, pool({.kind = MemoryKind::managed}), true},
      {"pinned_pool_on_host", on_host, pool({.kind = MemoryKind::pinned}), true},
      // Its pages are freed after the free of their block.
      {"pausable_on_host", on_host, pausable, true},
      {"pausable_on_sim", on_sim, pausable, true},
      {"pmr_on_host", on_host, [](const Device& device) -> ResourceHandle {
         return std::make_shared<PmrUpstream>(device, heap_resource());
       }}};
  // CUDA devices: those of this machine, and simulated ones.
  std::vector<std::pair<std::string, std::string>> cuda = {{"_on_cuda_sim", "cuda?driver=sim"}};
  for (const BackendListing& backend : list_backends()) {
    if (backend.name != "cuda") continue;
    for (std::size_t i = 0; i < backend.devices.size(); ++i) {
      cuda.emplace_back("_on_cuda_" + std::to_string(i), backend.devices[i]);
    }
  }
  for (const auto& [suffix, spec] : cuda) {
    const std::function<Device()> open = [spec = spec] { return open_device(spec); };
    const PoolOptions pages = {.limit_bytes = 256 * mib};
    grounds.push_back({"direct" + suffix, open, direct(MemoryKind::device)});
    grounds.push_back({"async" + suffix, open, async});
    grounds.push_back({"pool" + suffix, open, pool(pages), true});
    grounds.push_back({"cuda_mr" + suffix, open,
                       [pages](const Device& device) -> ResourceHandle {
                         const CudaMrAdapter<> memory(
                             std::make_shared<PoolResource>(device, pages));
                         return std::make_shared<CudaMrUpstream<CudaMrAdapter<>>>(device, memory);
                       },
                       true});
    grounds.push_back({"pinned_pool" + suffix, open,
                       pool({.kind = MemoryKind::pinned, .limit_bytes = 256 * mib}), true});
  }
  std::vector<ResourceCase> all = grounds;
  const auto add = [&all](const Wrapper& outer, const ResourceCase& inner) {
    all.push_back({outer.name + "_" + inner.name, inner.open,
                   [outer, inner](const Device& device) { return outer.wrap(inner.make(device)); },
                   inner.is_pool});
  };
  for (const Wrapper& outer : every_wrapper()) {
    for (const ResourceCase& ground : grounds) add(outer, ground);
  }
  // All pairs of wrappers, on memory that the host orders and on memory that a stream orders. Not
  // under a sanitizer, where the pairs are slow and find nothing more.
  if (is_sanitized) return all;
  for (const Wrapper& inner : every_wrapper()) {
    for (const ResourceCase& ground : {grounds[0], grounds[2], grounds[5], grounds[6]}) {
      const ResourceCase lower{
          inner.name + "_" + ground.name, ground.open,
          [inner, ground](const Device& device) { return inner.wrap(ground.make(device)); },
          ground.is_pool};
      for (const Wrapper& outer : every_wrapper()) add(outer, lower);
    }
  }
  return all;
}

inline std::string case_name(const testing::TestParamInfo<ResourceCase>& info) {
  return info.param.name;
}

}  // namespace tern::test
