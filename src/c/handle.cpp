#include "tern/c/handle.hpp"

#include <memory>
#include <utility>

#include "c/handles.hpp"

namespace tern {

tern_resource* make_c_handle(ResourceHandle resource, Tag tag) {
  std::shared_ptr<PointerOwner> owner = PointerOwner::of(resource);
  return new tern_resource{std::move(resource), std::move(owner), tag};
}

ResourceHandle resource_of(const tern_resource* handle) noexcept { return handle->resource; }

}  // namespace tern
