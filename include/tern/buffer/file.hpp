// Files as buffers: read-only bytes, which become memory only when somebody wants them there.
//
// A file is opened and its length is looked at; nothing is read. Copies from it (copy.hpp) read the
// range they copy. The host's access in place (Buffer::read_host) reads the whole range that was
// opened into host memory, once, whoever comes first. With `map` the range is mapped instead, and
// its pages come as they are touched. Such a buffer has no device, no kernel can use it, and
// writing it is refused with read_only.
//
// Files change under their readers. Whoever reads looks at the length again, and is refused with
// `file` (path, call, os_code, why, and where it is too short the bytes that are wanted and those
// there are) before anything is read; other changes are not noticed. A mapping whose file was cut
// shows zeros where bytes are missing, and the next access is refused. To be able to, the first
// file that is mapped installs a handler for SIGBUS, which stays, and passes on all faults that are
// not in mappings of Tern's.
//
// The file stays open as long as the buffer, so renaming or deleting it changes nothing. All of it
// works in a forked child too. Each x() throws what try_x() returns. Thread-safe, as buffers are.

#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "tern/buffer/buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"

namespace tern {

struct FileOptions {
  /// The first byte. At the end of the file, or with no bytes, the buffer is empty.
  std::size_t offset_bytes = 0;
  /// Unset: to the end.
  std::optional<std::size_t> bytes = {};
  /// What the bytes are; the buffer has one dimension.
  DType dtype = DType::byte;
  /// Into the address space, now, instead of reading.
  bool map = false;
  Tag tag = {};
  /// As StorageOptions::checked.
  std::optional<bool> checked = {};
  CallSite site = CallSite::here();
};

/// Refused with `file` if it is missing, unreadable, no regular file, or shorter than what is asked
/// for; with size_mismatch if the bytes are no whole number of elements; with misaligned if they
/// are mapped where elements cannot be; with invalid_argument for a path with a zero byte, and for
/// elements without bytes.
[[nodiscard]] TERN_EXPORT Result<Buffer> try_open_file(std::string_view path,
                                                       const FileOptions& options = {}) noexcept;
[[nodiscard]] inline Buffer open_file(std::string_view path, const FileOptions& options = {}) {
  return try_open_file(path, options).value();
}

/// By the text that names it among devices, "disk:/data/a.bin". "disk" may be in any case; the path
/// is what follows the colon, as it is. Also refused with invalid_device, for another text.
[[nodiscard]] TERN_EXPORT Result<Buffer> try_open_disk(std::string_view spec,
                                                       const FileOptions& options = {}) noexcept;
[[nodiscard]] inline Buffer open_disk(std::string_view spec, const FileOptions& options = {}) {
  return try_open_disk(spec, options).value();
}

}  // namespace tern
