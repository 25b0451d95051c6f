// What a stream of the simulated world has in its queue.

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

/// Where an event was recorded; waits keep the record they saw.
struct RecordPoint {
  std::size_t stream = 0;
  std::uint64_t position = 0;
  std::uint64_t time_ns = 0;               // virtual, when the stream passed it
  std::uint64_t step = ~std::uint64_t{0};  // of the world, when the stream passed it
  std::uint64_t sequence = 0;              // of the record, as the checker counts
};

/// One queued operation. Addresses are those users hold.
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
  bool is_slow = false;  // by the fault plan: runs when nothing else can, and late
  std::unique_ptr<KernelLaunch> launch = {};
  std::shared_ptr<RecordPoint> point = {};
  Place place = {};                    // of a prefetch
  CallSite site = {};                  // of what runs users' code
  std::uint64_t sequence = 0;          // as the checker counts the operations of the stream
  std::vector<std::byte> staged = {};  // a copy's source, if it was read at once
  std::uint64_t watch = 0;  // its number among the uses of pageable memory, if it has one
};

}  // namespace tern::sim
