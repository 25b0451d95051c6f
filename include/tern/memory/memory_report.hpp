// A MemoryReport is what a resource and its device did so far, as data and as text.
//
// It holds what is used, the peak, the hit rate, fragmentation, pending bytes, events, waits and
// launches, and live bytes per tag. The tags add up to the total of the report whatever other
// threads do meanwhile, because the total is their sum. Making one looks at every live block of the
// process.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tern/core/export.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/activity.hpp"
#include "tern/memory/resource.hpp"
#include "tern/memory/statistics.hpp"

namespace tern {

struct MemoryReport {
  struct TagUse {
    Tag tag = {};
    std::size_t bytes = 0;
    std::size_t blocks = 0;
  };

  std::string resource;  // its name
  std::string device;    // its spec
  Statistics statistics = {};
  DeviceActivity activity = {};
  /// Live blocks of the resource by tag, the largest first, and their sum.
  std::vector<TagUse> tags;
  std::size_t tagged_bytes = 0;

  [[nodiscard]] std::string text() const;
};

/// Of a stack of wrappers: the tags are those of the blocks that the program has. Throws
/// std::bad_alloc.
[[nodiscard]] TERN_EXPORT MemoryReport memory_report(const Resource& resource);

}  // namespace tern
