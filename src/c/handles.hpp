// The objects behind the handles of the C API.

#pragma once

#include <memory>

#include "memory/pointer_owner.hpp"
#include "tern/c/tern.h"
#include "tern/core/tag.hpp"
#include "tern/device/device.hpp"
#include "tern/memory/budget.hpp"
#include "tern/memory/resource.hpp"

struct tern_device {
  tern::Device device;
};

struct tern_resource {
  tern::ResourceHandle resource;
  std::shared_ptr<tern::PointerOwner> owner;
  tern::Tag tag;
};

struct tern_budget {
  tern::BudgetHandle budget;
};

namespace tern::c {

/// The text of a tag, with a terminating zero. Valid until the process ends.
[[nodiscard]] inline const char* tag_text(Tag tag) noexcept {
  return tag == Tag() ? "" : tag.name().data();
}

}  // namespace tern::c
