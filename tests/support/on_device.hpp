// A test whose parameter names a device. It is skipped if the device cannot be opened.

#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tern/backends/catalog.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern::test {

class OnDevice : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Result<Device> opened = try_open_device(GetParam());
    if (!opened) GTEST_SKIP() << opened.failure().text();
    device = *opened;
    stream = Stream(device);
  }

  Device device;
  Stream stream;
};

}  // namespace tern::test
