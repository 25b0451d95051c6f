#include "backends/memory_file.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

namespace tern {
namespace {

Failure refuse(const char* call, std::size_t bytes) noexcept {
  const int error = errno;
  const bool is_memory = error == ENOMEM || error == ENOSPC || error == EFBIG;
  return Failure(
             is_memory ? ErrorCode::out_of_memory : ErrorCode::driver,
             "{call} failed with error {code} on a memory file of {requested}. Use less memory, "
             "or raise the limits of the process.")
      .with("call", call)
      .with("name", "system error")
      .with("code", static_cast<std::uint64_t>(error))
      .with_bytes("requested", bytes);
}

}  // namespace

Result<int> try_make_memory_file(const char* name) noexcept {
  const int file = memfd_create(name, MFD_CLOEXEC);
  if (file < 0) return refuse("memfd_create", 0);
  return file;
}

Result<void> try_resize_memory_file(int file, std::size_t bytes) noexcept {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      bytes > limit.rlim_cur) {
    return Failure(ErrorCode::out_of_memory,
                   "a memory file of {requested} exceeds the file size limit of the process, "
                   "{limit}. Raise the limit (ulimit -f), or use less memory.")
        .with_bytes("requested", bytes)
        .with_bytes("limit", limit.rlim_cur);
  }
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) return refuse("ftruncate", bytes);
  return {};
}

}  // namespace tern
