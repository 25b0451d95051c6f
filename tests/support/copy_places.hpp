// Sources and destinations of copies: every kind of memory of a device, as buffers.

#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/served_bytes.hpp"
#include "support/simulated.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/core/bytes.hpp"

namespace tern::test {

using Bytes = std::vector<std::byte>;

/// Heap memory that is registered (page-locked) on first use.
class RegisteredMemory final : public StorageOrigin {
 public:
  RegisteredMemory(Device device, std::size_t bytes) : device_(std::move(device)), bytes_(bytes) {}
  const char* what() const noexcept override { return "registered memory"; }
  Result<Memory> try_begin(CallSite) noexcept override {
    const Result<void*> address = device_.try_register_host(bytes_.data(), bytes_.size());
    if (!address) return address.failure();
    is_registered_ = true;
    return Memory{*address, bytes_.data(), bytes_.size()};
  }
  bool try_end() noexcept override {
    if (!is_registered_) return true;
    EXPECT_TRUE(device_.try_unregister_host(bytes_.data()));
    return true;
  }

 private:
  Device device_;
  Bytes bytes_;
  bool is_registered_ = false;  // false until the first use
};

/// Pages of the device that are mapped to an address range.
class MappedMemory final : public StorageOrigin {
 public:
  MappedMemory(Device device, std::size_t bytes)
      : device_(std::move(device)), bytes_(*checked_round_up(bytes, device_.info().page_bytes)) {}
  const char* what() const noexcept override { return "mapped memory"; }
  Result<Memory> try_begin(CallSite) noexcept override {
    address_ = device_.try_reserve(bytes_).value();
    pages_ = device_.try_create_pages(bytes_).value();
    device_.try_map(address_, pages_).value();
    device_.try_set_access(address_, bytes_, PageAccess::read_write).value();
    return Memory{address_, nullptr, bytes_};
  }
  bool try_end() noexcept override {
    if (address_ == nullptr) return true;
    EXPECT_TRUE(device_.try_unmap(address_, bytes_));
    EXPECT_TRUE(device_.try_release_pages(pages_));
    EXPECT_TRUE(device_.try_unreserve(address_, bytes_));
    return true;
  }

 private:
  Device device_;
  std::size_t bytes_;
  void* address_ = nullptr;
  NativePages pages_ = {};
};

struct CopyPlace {
  std::string name;  // "D0": the kind and the number of the device
  Device device;
  MemoryKind kind = MemoryKind::device;

  [[nodiscard]] Buffer make(std::size_t bytes) const {
    std::unique_ptr<StorageOrigin> origin;
    if (kind == MemoryKind::registered) origin = std::make_unique<RegisteredMemory>(device, bytes);
    if (kind == MemoryKind::mapped) origin = std::make_unique<MappedMemory>(device, bytes);
    if (origin) {
      return Buffer::try_over(Storage::try_make(device, bytes, kind, std::move(origin), {}).value(),
                              0, Shape{bytes}, DType::byte)
          .value();
    }
    StorageOptions options;
    if (kind == MemoryKind::pinned) options.kind = MemoryKind::pinned;
    if (kind == MemoryKind::managed) options.kind = MemoryKind::managed;
    return Buffer(device, {bytes}, DType::byte, options);
  }
  /// Makes a buffer with these bytes, or a file with them.
  [[nodiscard]] Buffer holding(const Bytes& bytes) const {
    if (kind == MemoryKind::file) {
      auto file = std::make_shared<ServedFile>();
      file->bytes = bytes;
      return open_served(device, file);
    }
    Buffer made = make(bytes.size());
    made.try_copy_from(bytes.data(), bytes.size()).value();
    return made;
  }
};

inline Bytes bytes_of(const Buffer& buffer) {
  Bytes bytes(buffer.size_bytes());
  buffer.try_copy_to(bytes.data(), bytes.size()).value();
  return bytes;
}

/// Returns all kinds of memory of the device. The names end with `number`.
inline std::vector<CopyPlace> places_of(const Device& device, const std::string& number) {
  if (device.info().is_host) {
    return {{"H" + number, device, MemoryKind::host},
            {"P" + number, device, MemoryKind::pinned},
            {"M" + number, device, MemoryKind::managed}};
  }
  std::vector<CopyPlace> places = {{"D" + number, device, MemoryKind::device}};
  const auto add = [&](const char* letter, MemoryKind kind, Capability needed) {
    if (device.can(needed)) places.push_back({letter + number, device, kind});
  };
  add("P", MemoryKind::pinned, Capability::pinned_memory);
  add("M", MemoryKind::managed, Capability::managed_memory);
  add("R", MemoryKind::registered, Capability::registered_memory);
  add("V", MemoryKind::mapped, Capability::virtual_memory);
  return places;
}

/// Returns all 16-bit values, including all NaNs of half floats, and one more byte.
inline Bytes every_pair_of_bytes() {
  Bytes all(2 * 65536 + 1, std::byte{0x5A});
  for (std::size_t i = 0; i < 65536; ++i) {
    all[2 * i] = static_cast<std::byte>(i & 0xFF);
    all[2 * i + 1] = static_cast<std::byte>(i >> 8);
  }
  return all;
}

inline Bytes counted(std::size_t bytes, unsigned seed = 1) {
  Bytes made(bytes);
  std::uint32_t state = seed * 2654435761u + 1;
  for (std::byte& byte : made) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return made;
}

inline void expect_no_findings(const Device& device) {
  if (!is_simulated(device)) return;
  for (const Finding& finding : sim::findings(device)) ADD_FAILURE() << finding.text();
}

}  // namespace tern::test
