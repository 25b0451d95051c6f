// An OutputFile replaces a file as a whole: it writes a temporary file beside the path, and
// commit() renames it. Without commit(), whatever was at the path before stays as it was.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tern/core/result.hpp"
#include "tools/formats/output.hpp"

namespace tern::tools {

class OutputFile final : public Output {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile() override;

  /// Creates the temporary file. Fails with file if that is impossible, or if something other than
  /// a regular file is at the path.
  [[nodiscard]] Result<void> try_open();
  /// Appends bytes. If a write fails, the rest is ignored, and commit() returns the failure.
  void write(std::string_view bytes) override;
  /// Fails with file, for example if the disk is full.
  [[nodiscard]] Result<void> try_commit();

  /// The number of bytes that were written.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  void flush();

  const std::string path_;
  std::string temporary_;
  std::string buffer_;
  std::uint64_t size_bytes_ = 0;
  int file_ = -1;
  int error_ = 0;  // errno of the first write that failed
};

}  // namespace tern::tools
