// CopyStream is a stream for copies that a unified buffer makes on its own.
//
// If nothing has to be waited for, it is the device's copy stream. Else it is a new stream, because
// copies of other buffers on the copy stream would have to wait too. Streams of the program are
// used only for its own leases, because the program may destroy them. A value; needs no lock.

#pragma once

#include "tern/detail/buffer/storage.hpp"
#include "tern/device/stream.hpp"

namespace tern {

struct CopyStream {
  Stream own = {};  // empty if the stream belongs to the device or to the program
  StreamRef stream = {};

  /// Chooses a stream for work that reads or writes `storage`, and overwrites `written` if it is
  /// not null.
  [[nodiscard]] static Result<CopyStream> try_choose(const Device& device, Storage& storage,
                                                     Access access,
                                                     Storage* written = nullptr) noexcept;
};

/// Returns whether the device reports that it is lost. Queries a stream of the library, because a
/// stream of the program may be in a capture.
[[nodiscard]] bool is_lost(const Device& device) noexcept;

}  // namespace tern
