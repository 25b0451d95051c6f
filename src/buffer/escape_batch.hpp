// Escapes that begin and end together, of storages that somebody else keeps alive: a table has
// hundreds, and its one handle keeps all of them. They are counted all at once, when this ends.

#pragma once

#include <cstddef>

#include "tern/buffer/storage.hpp"

namespace tern {

/// Confined to a thread, and to the block it stands in.
class EscapeBatch {
 public:
  EscapeBatch() noexcept = default;
  EscapeBatch(const EscapeBatch&) = delete;
  EscapeBatch& operator=(const EscapeBatch&) = delete;
  ~EscapeBatch();

  /// False if the host has no memory. Whoever begins one ends it, here or in a later batch.
  [[nodiscard]] bool try_begin(Storage& storage) noexcept;
  void end(Storage& storage) noexcept;

 private:
  // Differences: what ends here has begun elsewhere, so they wrap.
  std::size_t escapes_ = 0, bytes_ = 0;
};

}  // namespace tern
