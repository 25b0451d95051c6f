#include "tern/core/place.hpp"

#include <fmt/format.h>

namespace tern {

std::string Place::text() const {
  switch (kind_) {
    case Kind::host:
      return "host";
    case Kind::host_numa:
      return fmt::format("host numa {}", index_);
    case Kind::host_numa_current:
      return "host numa current";
    case Kind::device:
      return fmt::format("device {}", index_);
    case Kind::file:
      return "file";
  }
  return "nowhere";
}

}  // namespace tern
