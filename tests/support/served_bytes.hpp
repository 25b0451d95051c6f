// A storage origin that acts like a file, for tests of copies. Its reads can be short and can fail.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tern/buffer/buffer.hpp"
#include "tern/buffer/storage_options.hpp"
#include "tern/detail/buffer/storage.hpp"

namespace tern::test {

/// The state of the file, which the test may read and change.
struct ServedFile {
  std::vector<std::byte> bytes;
  std::size_t reads = 0;
  std::size_t max_bytes = 0;  // maximum size of one read
  std::size_t fail_at = 0;    // the number of the read that fails, from 1
  bool was_mapped = false;
};

class ServedBytes final : public StorageOrigin {
 public:
  explicit ServedBytes(std::shared_ptr<ServedFile> file) : file_(std::move(file)) {}

  const char* what() const noexcept override { return "file 'served'"; }
  Result<Memory> try_begin(CallSite) noexcept override {
    file_->was_mapped = true;
    return Memory{nullptr, file_->bytes.data(), file_->bytes.size()};
  }
  [[nodiscard]] bool try_end() noexcept override { return true; }
  Result<void> try_read(std::size_t offset, std::size_t bytes, void* to,
                        CallSite site) noexcept override {
    ++file_->reads;
    file_->max_bytes = std::max(file_->max_bytes, bytes);
    if (file_->reads == file_->fail_at || offset + bytes > file_->bytes.size()) {
      return Failure(ErrorCode::file, "the file ends before {offset}.", site)
          .with("offset", offset);
    }
    std::memcpy(to, file_->bytes.data() + offset, bytes);
    return {};
  }

 private:
  std::shared_ptr<ServedFile> file_;
};

/// Makes a buffer of all bytes. `host` is the host device.
inline Buffer open_served(const Device& host, std::shared_ptr<ServedFile> file) {
  const std::size_t bytes = file->bytes.size();
  StorageHandle storage = Storage::try_make(host, bytes, MemoryKind::file,
                                            std::make_unique<ServedBytes>(std::move(file)), {})
                              .value();
  return Buffer::try_over(std::move(storage), 0, Shape{bytes}, DType::byte).value();
}

}  // namespace tern::test
