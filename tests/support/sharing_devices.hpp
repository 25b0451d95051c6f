// The devices on which memory is shared in tests: those that every machine has, and the first GPU.

#pragma once

#include <string>
#include <vector>

#include "tern/backends/catalog.hpp"

namespace tern::test {

[[nodiscard]] inline std::vector<std::string> sharing_devices() {
  std::vector<std::string> specs = {"host", "sim", "cuda:0?driver=sim"};
  for (const BackendListing& backend : list_backends()) {
    for (const std::string& spec : backend.devices) {
      if (spec == "cuda:0") specs.push_back(spec);
    }
  }
  return specs;
}

}  // namespace tern::test
