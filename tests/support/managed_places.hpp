// The devices for tests of managed memory: simulated devices, the CUDA backend on a simulated
// driver, and all devices of this machine. A test skips devices without managed memory.

#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <vector>

#include "tern/backends/catalog.hpp"
#include "tern/device/device.hpp"

namespace tern::test {

inline std::vector<std::string> managed_specs() {
  std::vector<std::string> specs = {"sim?schedule=lazy", "cuda?driver=sim"};
  for (const BackendListing& backend : list_backends()) {
    if (!backend.devices.empty()) specs.push_back(backend.devices.front());
  }
  return specs;
}

inline std::string managed_spec_name(const testing::TestParamInfo<std::string>& info) {
  std::string name;
  for (const char c : info.param) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

}  // namespace tern::test
