// Copies between a file and a device, compared with what `dd` does: one thread that reads or writes
// blocks of the same size, one after the other, into host memory.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/case.hpp"
#include "bench/measure.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/file.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

constexpr std::size_t page = 4096;

struct AlignedBlock {
  explicit AlignedBlock(std::size_t bytes)
      : data(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(page)))) {
    std::fill_n(data, bytes, std::byte{0x5A});
  }
  AlignedBlock(const AlignedBlock&) = delete;
  AlignedBlock& operator=(const AlignedBlock&) = delete;
  ~AlignedBlock() { ::operator delete(data, std::align_val_t(page)); }
  std::byte* data;
};

/// Reads or writes a file block by block, as `dd` does.
class Dd {
 public:
  /// With `flags` O_DIRECT, as `dd iflag=direct` and `oflag=direct`. Without it if the file system
  /// has no direct access.
  Dd(const std::string& path, int flags, std::size_t block_bytes)
      : file_(::open(path.c_str(), O_RDWR | O_CLOEXEC | flags)),
        block_(block_bytes),
        block_bytes_(block_bytes) {
    if (file_ < 0) file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file_ < 0) throw std::runtime_error("the bench could not open " + path);
  }
  Dd(const Dd&) = delete;
  Dd& operator=(const Dd&) = delete;
  ~Dd() { ::close(file_); }

  void read(std::size_t bytes) const { transfer(bytes, ::pread); }
  void write(std::size_t bytes) const { transfer(bytes, ::pwrite); }

 private:
  template <class Call>
  void transfer(std::size_t bytes, Call call) const {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t some =
          call(file_, block_.data, std::min(block_bytes_, bytes - done), static_cast<off_t>(done));
      if (some <= 0) throw std::runtime_error("the bench could not transfer a block of its file");
      done += static_cast<std::size_t>(some);
    }
  }

  int file_;
  AlignedBlock block_;
  std::size_t block_bytes_;
};

/// A file in the temporary directory, which is deleted at the end.
struct BenchFile {
  BenchFile() : path((std::filesystem::temp_directory_path() / "tern-bench-XXXXXX").string()) {
    const int file = ::mkstemp(path.data());
    if (file < 0) throw std::runtime_error("the bench could not create " + path);
    ::close(file);
  }
  BenchFile(const BenchFile&) = delete;
  BenchFile& operator=(const BenchFile&) = delete;
  ~BenchFile() { ::unlink(path.c_str()); }

  /// Removes the file from the page cache, so that the next read comes from the disk.
  void leave_cache() const {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ::fdatasync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
  std::string path;
};

void run(Context& context) {
  const std::size_t bytes = context.usual_or_quick(512 * mib, 2 * mib);
  const std::size_t block = context.usual_or_quick(8 * mib, 1 * mib);
  const Device device = open_device(context.device());
  const Stream stream(device);
  const BenchFile at;
  const Buffer file = open_file(at.path, {.bytes = bytes, .create = true});
  Buffer memory(device, {bytes}, DType::byte);
  memory.as(DType::u8).try_fill(std::uint8_t{7}, stream).value();
  copy(file, memory, stream);
  stream.synchronize();
  const Dd direct(at.path, O_DIRECT, block), cached(at.path, 0, block);
  const auto to_device = [&] {
    copy(memory, file, stream);
    stream.synchronize();
  };
  const auto to_file = [&] {
    copy(file, memory, stream);
    stream.synchronize();
  };
  const auto compare = [&](const std::string& what, const std::string& with, const Body& dd,
                           const Body& tern) {
    context.step(what);
    const std::vector<double> seconds = median_seconds({dd, tern}, context.seconds_per_figure());
    const auto rate = [&](std::size_t i) { return static_cast<double>(bytes) / seconds[i] / 1e9; };
    context.add({.name = fmt::format("{}, {}", format_bytes(bytes), what),
                 .value = rate(1),
                 .unit = "GB/s",
                 .baseline_name = fmt::format("{}, blocks of {}", with, format_bytes(block)),
                 .baseline = rate(0),
                 .goal_ratio = 0.9});
  };
  compare(
      "memory to file, around the page cache", "dd oflag=direct", [&] { direct.write(bytes); },
      to_file);
  compare(
      "file to memory, not in the page cache", "dd iflag=direct",
      [&] {
        at.leave_cache();
        direct.read(bytes);
      },
      [&] {
        at.leave_cache();
        to_device();
      });
  cached.read(bytes);
  compare(
      "file to memory, in the page cache", "dd", [&] { cached.read(bytes); }, to_device);
}

const Registration registered({"file.copy", "copies with files against blocks as dd does", run});

}  // namespace
}  // namespace tern::bench
