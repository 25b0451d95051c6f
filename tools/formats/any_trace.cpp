#include "tools/formats/any_trace.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "core/file_failure.hpp"
#include "tools/formats/pickle.hpp"
#include "tools/formats/pytorch_snapshot.hpp"
#include "tools/formats/rmm_log.hpp"

namespace tern::tools {
namespace {

bool is_memory_trace(std::string_view beginning) {
  return beginning.size() >= sizeof trace::file_magic &&
         std::memcmp(beginning.data(), &trace::file_magic, sizeof trace::file_magic) == 0;
}

}  // namespace

bool is_recording(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  char bytes[sizeof trace::file_magic];
  std::ifstream file(path, std::ios::binary);
  file.read(bytes, sizeof bytes);
  return is_memory_trace({bytes, static_cast<std::size_t>(file.gcount())});
}

Result<trace::MemoryTrace> try_read_any(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(path, ignored);
  // The first bytes of a pipe can be read only once.
  if (exists(there) && !is_regular_file(there) && !is_directory(there)) {
    return Failure(ErrorCode::file, "'{path}' is a pipe or a device. Copy it to a regular file.")
        .with("path", path);
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return file_failure(path, "open", errno);
  char bytes[64];
  errno = 0;
  file.read(bytes, sizeof bytes);
  if (file.gcount() == 0 && errno != 0) return file_failure(path, "read", errno);
  const std::string_view beginning(bytes, static_cast<std::size_t>(file.gcount()));
  if (is_memory_trace(beginning)) return trace::MemoryTrace::try_read(path);
  if (Pickle::is_pickle(beginning)) return try_read_pytorch_snapshot(path);
  if (is_rmm_log(beginning)) return try_read_rmm_log(path);
  // torch.save() writes archives, which begin with these letters.
  if (beginning.starts_with("PK\x03\x04")) {
    return Failure(ErrorCode::bad_format,
                   "'{path}' is not a memory trace: it is a zip archive. Write the PyTorch "
                   "snapshot with torch.cuda.memory._dump_snapshot(), not with torch.save().")
        .with("path", path);
  }
  return Failure(ErrorCode::bad_format,
                 "'{path}' is not a memory trace. Tern reads its own recordings, PyTorch memory "
                 "snapshots and RMM logs.")
      .with("path", path);
}

}  // namespace tern::tools
