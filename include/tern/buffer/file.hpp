// open_file() returns a buffer over the bytes of a file.
//
//   Buffer file = open_file("weights.bin", {.dtype = DType::f32});
//   copy(weights, file, stream);
//
//   Buffer saved = open_file("saved.bin", {.bytes = bytes, .create = true});
//   copy(saved, weights, stream);
//   flush(saved);
//
// Opening a file checks its length and reads nothing. Copies (copy.hpp) transfer only the bytes
// that they copy. A copy with a stream returns immediately, and the file is read or written in the
// background. The first Buffer::read_host() reads the whole opened range into host memory, once.
// With `map`, it maps the range instead, and pages load on first access. A file buffer has no
// device and cannot be used by kernels.
//
// A file is read-only unless it is opened with `writable` or `create`; writing to a read-only file
// fails with read_only. Host access to a writable file maps the file, so that writes change it.
// flush() waits until all writes are on the disk.
//
// Files may change while they are open. Every read first checks the length again, and fails with
// `file` if the file is too short. The error has the path, the system call, os_code and the reason;
// if the file is too short, also the wanted and the actual number of bytes. Other changes are not
// detected. If a mapped file is truncated, the missing bytes read as zeros, and the next access
// fails. For this, the first mapping installs a SIGBUS handler, which stays installed and forwards
// faults outside of Tern's mappings.
//
// The file stays open as long as the buffer lives, so the file may be renamed or deleted. A forked
// child can open and read files, but cannot use the streams of its parent. x() throws what try_x()
// returns. Thread-safe, like buffers.

#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "tern/buffer/buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

/// Options of open_file() and open_disk().
struct FileOptions {
  /// Offset of the first byte. If it is the end of the file, the buffer is empty.
  std::size_t offset_bytes = 0;
  /// Number of bytes. If unset: up to the end of the file.
  std::optional<std::size_t> bytes = {};
  /// Type of the elements. The buffer has one dimension.
  DType dtype = DType::byte;
  /// Map the range now, instead of reading it on first access.
  bool map = false;
  /// Open the file for reading and writing.
  bool writable = false;
  /// Like `writable`, and also create the file if it is missing, with mode 0666 less the umask, and
  /// extend it to the end of the range. Allocates the disk space when the file is opened, if the
  /// file system supports that. Needs `bytes`.
  bool create = false;
  Tag tag = {};
  /// Check host accesses, see StorageOptions::checked.
  std::optional<bool> checked = {};
  CallSite site = CallSite::here();
};

/// Opens a file. Reads nothing. Fails with `file` if the file is missing, unreadable, not a regular
/// file or shorter than the wanted range; size_mismatch if the range is not a whole number of
/// elements; misaligned if a mapped or writable range begins at an offset that does not fit the
/// alignment of the dtype; invalid_argument for a path with a zero byte, a dtype without bytes, or
/// `create` without `bytes`.
[[nodiscard]] TERN_EXPORT Result<Buffer> try_open_file(std::string_view path,
                                                       const FileOptions& options = {}) noexcept;
[[nodiscard]] inline Buffer open_file(std::string_view path, const FileOptions& options = {}) {
  return try_open_file(path, options).value();
}

/// Opens a file by its spec, such as "disk:/data/a.bin". "disk" is case-insensitive. The path is
/// everything after the colon. Fails like try_open_file(), and with invalid_device if the text is
/// not such a spec.
[[nodiscard]] TERN_EXPORT Result<Buffer> try_open_disk(std::string_view spec,
                                                       const FileOptions& options = {}) noexcept;
[[nodiscard]] inline Buffer open_disk(std::string_view spec, const FileOptions& options = {}) {
  return try_open_disk(spec, options).value();
}

/// Waits until all writes to the file, by streams and by the host, are on the disk. Fails with file
/// if a write has failed or the disk fails, with unsupported if the buffer is not a file, and with
/// not_allocated for an empty buffer. For a read-only file, only waits for uses of the buffer.
TERN_EXPORT Result<void> try_flush(const Buffer& file, CallSite site = CallSite::here()) noexcept;
inline void flush(const Buffer& file, CallSite site = CallSite::here()) {
  try_flush(file, site).value();
}

}  // namespace tern
