// A CodeCache keeps compiled code in a folder on disk, so that the next run of a program does not
// compile its kernels again.
//
// Trust. A shared object from the cache is executed, so find() returns only what this user stored.
// The folder and every entry must belong to the user, and nobody else may be able to write to them:
// a folder of another kind turns the cache off, and such an entry is removed. The checksum of an
// entry detects damage, not attacks. Callers use the bytes that find() returns, which have been
// checked, and never the file.
//
// An entry that is damaged, that has another format, or whose key is another one with the same hash
// is removed and counts as missing. No function fails: if the folder cannot be written, or no
// memory is left, nothing is kept.
//
// Several processes may use one folder at the same time: an entry appears as a whole. When a store
// takes the entries over the limit, those that were not used for the longest time are removed.
//
// Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tern::language {

/// Everything that compiled code depends on. The version of Tern is added by the cache.
struct CodeKey {
  std::string_view kind;      // of code: "host", "ptx" or "opencl"
  std::string_view text;      // what was compiled
  std::string_view options;   // of the compiler
  std::string_view device;    // that the code is for
  std::string_view compiler;  // or driver, with its version
};

class CodeCache {
 public:
  /// Keeps entries of `limit_bytes` in total in the folder, which the first store() creates. An
  /// empty folder turns the cache off.
  CodeCache(std::string folder, std::uint64_t limit_bytes);

  /// Returns the cache that TERN_CACHE_DIR and TERN_CACHE_LIMIT describe. It is off if the
  /// configuration is invalid.
  [[nodiscard]] static const CodeCache& of_process();

  /// Returns the code, and counts as a use of the entry. Returns nullopt if there is none.
  [[nodiscard]] std::optional<std::vector<std::byte>> find(const CodeKey& key) const noexcept;

  /// Keeps the code, in place of older code for this key. Code that exceeds the limit by itself is
  /// not kept.
  void store(const CodeKey& key, std::span<const std::byte> code) const noexcept;

  /// Returns the name of the entry's file in the folder. For tests.
  [[nodiscard]] static std::string file_name(const CodeKey& key);

 private:
  std::string folder_;
  std::uint64_t limit_bytes_;
};

}  // namespace tern::language
