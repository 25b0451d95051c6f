#include "trace/slabs.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <chrono>

#include "trace/event_clock.hpp"

namespace tern::trace {

static_assert(std::endian::native == std::endian::little, "events are written as they are");

FileHeader new_header() noexcept {
  FileHeader header;
  header.magic = file_magic;
  header.version = file_version;
  header.header_bytes = file_header_bytes;
  header.slab_bytes = slab_bytes;
  header.event_bytes = sizeof(MemoryEvent);
  header.start_ns = now_ns();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  header.start_unix_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
  header.process = static_cast<std::uint32_t>(getpid());
  const int file = ::open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    const ssize_t got = ::read(file, header.program, sizeof header.program - 1);
    if (got > 0 && header.program[got - 1] == '\n') header.program[got - 1] = '\0';
    ::close(file);
  }
  return header;
}

}  // namespace tern::trace
