// A MemoryReport summarizes the memory use of a resource and the activity of its device.
//
//   std::puts(memory_report(*resource).text().c_str());
//
// The report has live and peak bytes, hit rate, fragmentation, pending bytes, live bytes per tag,
// and the device's events, waits and launches. The bytes per tag always add up to `tagged_bytes`,
// even while other threads allocate, because the total is computed as their sum. Making a report
// visits every live block of the process, so it is slow if there are many.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tern/core/tag.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/activity.hpp"
#include "tern/memory/resource.hpp"
#include "tern/memory/statistics.hpp"

namespace tern {

/// A snapshot of one resource and its device.
struct MemoryReport {
  /// Live blocks of the resource with one tag.
  struct TagUse {
    Tag tag = {};
    std::size_t bytes = 0;
    std::size_t blocks = 0;
  };

  std::string resource;  // Resource::name()
  std::string device;    // the device's spec, such as "cuda:0"
  Statistics statistics = {};
  DeviceActivity activity = {};
  /// Live blocks of the resource by tag, largest first, and the sum of their bytes.
  std::vector<TagUse> tags;
  std::size_t tagged_bytes = 0;

  /// Returns the report as several lines of text. Throws std::bad_alloc.
  [[nodiscard]] std::string text() const;
};

/// Returns a report on `resource`. For a stack of wrappers, the tags are those of the blocks that
/// the program holds: the blocks of the outermost GuardResource if there is one, else the blocks of
/// the resource at the bottom. Throws std::bad_alloc.
[[nodiscard]] TERN_EXPORT MemoryReport memory_report(const Resource& resource);

}  // namespace tern
