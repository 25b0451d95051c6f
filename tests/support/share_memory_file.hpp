// A memory file as exporters of shared memory have it, or nearly so.

#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

#include "buffer/share_socket.hpp"

namespace tern::test {

/// A memory file of this size, with or without the seal against shrinking.
[[nodiscard]] inline share::Descriptor share_memory_file(std::size_t bytes, bool is_sealed = true) {
  share::Descriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return {};
  if (is_sealed) fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return file;
}

}  // namespace tern::test
