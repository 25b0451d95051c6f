#include "backends/memory_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "backends/host/machine.hpp"

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

constexpr int size_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[nodiscard]] bool is_allocated(int file, std::size_t bytes) noexcept {
  int result = 0;
  do {
    result = fallocate(file, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

Failure not_shareable(const char* sentence, std::size_t bytes, std::uint64_t value) noexcept {
  return Failure(ErrorCode::bad_format, sentence)
      .with("what", "shared memory")
      .with("field", "descriptor")
      .with_bytes("bytes", bytes)
      .with_bytes("value", value);
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

Result<int> try_make_shareable_file(const char* name, std::size_t bytes) noexcept {
  // Beyond the memory of the machine, fallocate() would not fail: the system would kill processes.
  if (const std::size_t free = host::available_bytes(); bytes > free) {
    return Failure(ErrorCode::out_of_memory,
                   "the host could not allocate {requested} of shareable memory: {free} are "
                   "available. Share less, or free host memory.")
        .with_bytes("requested", bytes)
        .with_bytes("free", free);
  }
  const int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return refuse("memfd_create", bytes);
  Result<void> made = try_resize_memory_file(file, bytes);
  // Without this, a process would be killed (SIGBUS) when it first touches a page that the system
  // has no memory for.
  if (made && !is_allocated(file, bytes)) made = refuse("fallocate", bytes);
  if (made && fcntl(file, F_ADD_SEALS, size_seals) != 0) made = refuse("fcntl", bytes);
  if (made) return file;
  close(file);
  return made.failure();
}

Result<int> try_duplicate(int file) noexcept {
  const int copy = fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return refuse("fcntl", 0);
  return copy;
}

Result<void> check_shareable_file(int file, std::size_t bytes) noexcept {
  struct stat about = {};
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
    return not_shareable(
        "the descriptor for {bytes} of shared memory is not a memory file. Pass a descriptor that "
        "a device of this backend exported.",
        bytes, 0);
  }
  const auto size = static_cast<std::uint64_t>(about.st_size);
  if ((seals & F_SEAL_SHRINK) == 0) {
    return not_shareable(
        "the memory file for {bytes} of shared memory has no seal, so another process could remove "
        "memory that is in use. Pass a descriptor that a device of this backend exported.",
        bytes, size);
  }
  if (size != bytes) {
    return not_shareable(
        "the memory file for {bytes} of shared memory has {value}. Pass the size with which the "
        "memory was created.",
        bytes, size);
  }
  return {};
}

}  // namespace tern
