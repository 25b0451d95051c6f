#include "launch/moved_arguments.hpp"

#include <algorithm>
#include <new>
#include <optional>

#include "core/no_host_memory.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

/// Splits the ranges at all their bounds; each piece gets the combined access. Throws
/// std::bad_alloc.
std::vector<LaunchPart> merged(const std::vector<LaunchPart>& uses) {
  std::vector<std::size_t> borders;
  for (const LaunchPart& use : uses) {
    borders.push_back(use.begin);
    borders.push_back(use.end);
  }
  std::ranges::sort(borders);
  std::vector<LaunchPart> parts;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    const std::size_t begin = borders[i], end = borders[i + 1];
    if (begin == end) continue;
    std::optional<Access> access;
    bool is_input = false;
    for (const LaunchPart& use : uses) {
      if (use.begin > begin || use.end < end) continue;
      access = access ? merge(*access, use.access) : use.access;
      is_input |= use.access == Access::read;
    }
    if (!access) continue;
    if (!parts.empty() && parts.back().end == begin && parts.back().access == *access &&
        parts.back().is_input == is_input) {
      parts.back().end = end;
    } else {
      parts.push_back({.begin = begin, .end = end, .access = *access, .is_input = is_input});
    }
  }
  return parts;
}

}  // namespace

bool MovedArguments::are_among(std::span<const LaunchArgument> arguments) noexcept {
  return std::ranges::any_of(arguments,
                             [](const LaunchArgument& one) { return one.movable() != nullptr; });
}

Result<void> MovedArguments::try_acquire(std::span<const LaunchArgument> arguments,
                                         StreamRef stream, CallSite site) noexcept try {
  stream_ = stream;
  plain_.reserve(arguments.size());
  for (const LaunchArgument& argument : arguments) {
    LaunchMemory* const memory = argument.movable();
    if (memory == nullptr) continue;
    auto group = std::ranges::find(groups_, memory, &Group::memory);
    if (group == groups_.end()) {
      groups_.push_back({.memory = memory, .parts = {}, .storage = {}});
      group = groups_.end() - 1;
    }
    group->parts.push_back({.begin = argument.offset_bytes(),
                            .end = argument.offset_bytes() + argument.bytes(),
                            .access = argument.access()});
  }
  for (Group& group : groups_) group.parts = merged(group.parts);
  std::ranges::sort(groups_, {}, [](const Group& group) { return group.memory->number(); });
  // Do each step for all arguments before the next step, so that errors are found early.
  for (Group& group : groups_) {
    if (Result<void> claimed = group.memory->try_claim(group.parts, stream, site); !claimed) {
      return claimed;
    }
    group.is_claimed = true;
  }
  if (Result<void> room = try_make_room(site); !room) return room;
  for (Group& group : groups_) {
    Result<StorageHandle> storage = group.memory->try_make_ready(stream, group.is_new, site);
    if (!storage) return storage.failure();
    group.storage = *std::move(storage);
  }
  for (Group& group : groups_) {
    if (Result<void> brought = group.memory->try_bring(group.parts, stream, site); !brought) {
      return brought;
    }
  }
  for (const LaunchArgument& argument : arguments) {
    const auto group = std::ranges::find(groups_, argument.movable(), &Group::memory);
    plain_.push_back(group != groups_.end() ? argument.on(group->storage.get()) : argument);
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("a list of arguments", site);
}

Result<void> MovedArguments::try_make_room(CallSite site) {
  struct Sum {
    LaunchMemory::Missing missing;
    LaunchMemory* memory = nullptr;
    std::size_t memories = 0;
  };
  std::vector<Sum> sums;
  for (const Group& group : groups_) {
    Result<LaunchMemory::Missing> missing = group.memory->try_missing(stream_, site);
    if (!missing) return missing.failure();
    if (missing->bytes == 0) continue;
    auto sum = std::ranges::find_if(
        sums, [&](const Sum& one) { return one.missing.from == missing->from; });
    if (sum == sums.end()) {
      sums.push_back({*std::move(missing), group.memory, 1});
      continue;
    }
    // A sum that overflows cannot fit either.
    sum->missing.bytes =
        checked_add(sum->missing.bytes, missing->bytes).value_or(max_request_bytes);
    ++sum->memories;
  }
  for (const Sum& sum : sums) {
    // A single argument checks this itself.
    if (sum.memories < 2) continue;
    if (Result<void> room = sum.memory->try_make_room(sum.missing.bytes, stream_, site); !room) {
      return room;
    }
  }
  return {};
}

void MovedArguments::finish(bool is_submitted) noexcept {
  for (Group& group : groups_) {
    if (!group.is_claimed) continue;
    group.is_claimed = false;
    group.memory->finish(group.parts, stream_, is_submitted, group.is_new);
  }
}

}  // namespace tern
