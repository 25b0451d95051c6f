// The operations in the queue of a simulated stream.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/kernel_launch.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/device/operations.hpp"

namespace tern::sim {

/// Where an event was recorded. A wait keeps the record that it saw.
struct RecordPoint {
  std::size_t stream = 0;
  std::uint64_t position = 0;
  std::uint64_t time_ns = 0;               // virtual time at which the stream passed it
  std::uint64_t step = ~std::uint64_t{0};  // step of the simulation at which the stream passed it
  std::uint64_t sequence = 0;              // sequence number of the record in the checker
};

/// One queued operation, with users' addresses.
struct Operation {
  enum class Kind : std::uint8_t {
    copy,
    copy_2d,
    fill,
    call,
    launch,
    birth,
    death,
    record,
    wait,
    prefetch,
    discard,
    fault,
    hold,
  };
  Kind kind = Kind::call;
  void* destination = nullptr;
  const void* source = nullptr;
  std::size_t bytes = 0;
  Copy2D copy_2d = {};
  Pattern pattern = {};
  HostFunction function = nullptr;
  void* context = nullptr;
  std::uint64_t generation = 0;
  std::uint64_t earliest_ns = 0;
  bool is_slow = false;  // set by the fault plan: runs only if nothing else can run
  std::unique_ptr<KernelLaunch> launch = {};
  std::shared_ptr<RecordPoint> point = {};
  Place place = {};                    // target of a prefetch
  CallSite site = {};                  // call site, for operations that run users' code
  std::uint64_t sequence = 0;          // sequence number in the checker
  std::vector<std::byte> staged = {};  // the source of a copy, if it was read at submission
  std::uint64_t watch = 0;             // the number in the HostWatch, if pageable memory is used
};

}  // namespace tern::sim
