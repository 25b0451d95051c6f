// Random programs over buffers, arrays, views and files on several streams: fills, copies, resizes,
// launches, adopted and released memory; with faults and device loss. Every byte that is read is
// compared.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "soak/byte_model.hpp"
#include "soak/field.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/file.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/launch/kernel.hpp"

namespace tern::soak {
namespace {

constexpr std::size_t max_bytes = 3000;

/// A file that every program reads; its bytes are those of `file_byte`.
constexpr std::size_t file_bytes = 4096;
Byte file_byte(std::size_t index) { return static_cast<Byte>(index * 7 % 0xBF); }
/// In memory, so that nothing is left behind by a program that crashes.
const std::string& file_path() {
  static const std::string path = [] {
    const int file = memfd_create("soak", MFD_CLOEXEC);
    std::vector<Byte> bytes(file_bytes);
    for (std::size_t i = 0; i < file_bytes; ++i) bytes[i] = file_byte(i);
    require(write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(file_bytes),
            "a file cannot be written");
    return fmt::format("/proc/self/fd/{}", file);
  }();
  return path;
}

struct Object {
  Array<Byte> array;  // the same storage as the buffer, where it is one of device memory
  Buffer buffer;
  ByteModel model;

  [[nodiscard]] bool is_array() const noexcept {
    return array.id() == buffer.id() && !array.empty();
  }
};

/// Memory that the library has adopted.
struct Adopted {
  std::vector<Byte> memory;
  int releases = 0;
};

class BufferProgram {
 public:
  explicit BufferProgram(const Program& program)
      : program_(program), random_(program.seed), field_(program, random_) {}

  void run() {
    const std::size_t steps = 20 + random_.below(80);
    for (std::size_t i = 0; i < steps; ++i) {
      if (objects_.empty() || (objects_.size() < 6 && random_.one_in(6))) add_object();
      if (!objects_.empty()) step();
      field_.count_step();
    }
    field_.clear_faults();
    program_.say("the end: read everything");
    for (Object& one : objects_) {
      for (const Range& run : one.model.written_runs()) copy_to(one, run);
    }
    objects_.clear();
    field_.drain_streams();
    check_pending();
    static_cast<void>(reclaim_deferred());
    field_.finish();
    for (const auto& one : adopted_) {
      require(one->releases == 1, "adopted memory was released {} times", one->releases);
    }
  }

 private:
  struct Pending {
    std::vector<Byte> seen;
    ByteModel expected;
    Mark mark;
  };

  // --- Making objects

  void add_object() {
    const Device device = field_.any_device();
    const std::size_t bytes = 1 + random_.below(max_bytes);
    if (random_.one_in(6)) return adopt(device, bytes);
    StorageOptions options;
    constexpr std::array kinds = {MemoryKind::device, MemoryKind::device, MemoryKind::pinned,
                                  MemoryKind::managed};
    options.kind = random_.any_of(kinds);
    if (options.kind == MemoryKind::device) options.resource = field_.resource_of(device);
    if (random_.one_in(4)) options.contents = Contents::zero;
    if (options.kind == MemoryKind::managed && !device.can(Capability::managed_memory)) return;
    if (options.kind == MemoryKind::pinned && !device.can(Capability::pinned_memory)) return;
    Object made;
    made.model = ByteModel(bytes);
    if (random_.one_in(2)) {
      Result<Array<Byte>> array = Array<Byte>::try_uninitialized(device, bytes, options);
      if (!array) return field_.expect_reason(array.failure(), "allocating");
      made.array = *std::move(array);
      made.buffer = made.array.buffer();
    } else {
      Result<Buffer> buffer = Buffer::try_make(device, Shape{bytes}, DType::u8, options);
      if (!buffer) return field_.expect_reason(buffer.failure(), "making a buffer");
      made.buffer = *std::move(buffer);
    }
    program_.say("buffer {} = {} bytes of {} on {}", made.buffer.id().value, bytes,
                 name(options.kind), device.spec());
    if (options.contents == Contents::zero) made.model.write({0, bytes}, Byte{0});
    objects_.push_back(std::move(made));
    if (!random_.one_in(3)) copy_from(objects_.back(), {0, bytes});
  }

  void adopt(const Device& device, std::size_t bytes) {
    if (!device.info().is_host) return;
    auto memory = std::make_shared<Adopted>();
    memory->memory.assign(bytes, 3);
    Adoption adoption;
    adoption.on_release = [kept = memory] { ++kept->releases; };
    Result<Buffer> buffer =
        try_adopt(device, memory->memory.data(), Shape{bytes}, DType::u8, std::move(adoption));
    if (!buffer) return field_.expect_reason(buffer.failure(), "adopting");
    Object made{{}, *std::move(buffer), ByteModel(bytes)};
    made.model.write({0, bytes}, Byte{3});
    objects_.push_back(std::move(made));
    adopted_.push_back(std::move(memory));
  }

  // --- Steps

  void step() {
    const std::size_t number = random_.below(objects_.size());
    Object& one = objects_[number];
    const Range range = any_range(random_, one.model.size());
    const Byte value = any_byte(random_);
    const StreamRef stream = field_.any_stream_of(one.buffer.device());
    const auto say = [&](const char* what) {
      program_.say("buffer {} [{}, {}) {} {:#04x} on {}", one.buffer.id().value, range.begin,
                   range.end(), what, value, stream.name());
    };
    switch (random_.below(20)) {
      case 0:
      case 1:
      case 2:
        say("fill");
        return fill(one, range, value, stream);
      case 3:
      case 4:
        say("copy from");
        return copy_from(one, range);
      case 5:
      case 6:
      case 7:
        say("copy to");
        return copy_to(one, range);
      case 8:
      case 9:
        say("copy between");
        return copy_between(one, range, stream);
      case 10:
        say("copy from a file");
        return copy_file(one, range, stream);
      case 11:
        say("read later");
        return read_later(one, stream);
      case 12:
        say("write with a stream");
        return write_with_stream(one, stream);
      case 13:
        say("host access");
        return access_host(one, range, value);
      case 14:
        say("resize");
        return resize(one, stream);
      case 15:
        say("clone");
        return clone(one, stream);
      case 16:
      case 17:
        say("launch");
        return launch(one, range, stream);
      case 18:
        say("drop");
        return drop(number, stream);
      default:
        if (random_.one_in(2)) return field_.replace_stream();
        program_.say("wait for all");
        field_.drain_streams();
        check_pending();
    }
  }

  void expect_reason(Object& one, Range range, const Failure& failure, const char* what) {
    field_.expect_reason(failure, what, one.model.may_fail(range));
    if (field_.may_fail()) one.model.hurt(range);
  }

  void fill(Object& one, Range range, Byte value, StreamRef stream) {
    const Result<Mark> filled =
        one.buffer.byte_view(range.begin, range.count).as<Byte>().try_fill(value, stream);
    if (!filled) {
      expect_reason(one, range, filled.failure(), "filling");
      one.model.may_write(range, value);
      return;
    }
    one.model.write(range, value);
  }

  void copy_from(Object& one, Range range) {
    std::vector<Byte> source(range.count);
    std::ranges::generate(source, [&] { return any_byte(random_); });
    const Result<void> copied =
        one.buffer.byte_view(range.begin, range.count).try_copy_from(source.data(), source.size());
    if (!copied) {
      expect_reason(one, range, copied.failure(), "copying to the buffer");
      one.model.may_write(range, source.data());
    } else {
      one.model.write(range, source.data());
    }
    // The call has returned: what becomes of the memory is the caller's affair.
    std::ranges::fill(source, source_garbage);
    field_.keep(std::move(source));
  }

  void copy_to(Object& one, Range range) {
    if (!one.model.may_be_written(range)) return;
    std::vector<Byte> seen(range.count, destination_canary);
    const Result<void> copied =
        one.buffer.byte_view(range.begin, range.count).try_copy_to(seen.data(), seen.size());
    if (!copied) {
      expect_reason(one, range, copied.failure(), "copying from the buffer");
      field_.abandon(std::move(seen));
      return;
    }
    one.model.see(range, seen.data(), "in a copy");
  }

  void copy_between(Object& one, Range range, StreamRef stream) {
    Object& from = random_.any_of(objects_);
    if (from.model.size() < range.count) return;
    const Range source{random_.below(from.model.size() - range.count + 1), range.count};
    if (!from.model.is_written(source)) return;
    if (random_.one_in(2)) stream = field_.any_stream_of(from.buffer.device());
    const Buffer to = one.buffer.byte_view(range.begin, range.count);
    const Buffer of = from.buffer.byte_view(source.begin, source.count);
    const bool is_blocking = random_.one_in(3);
    Result<void> copied = {};
    if (is_blocking) {
      copied = try_copy(to, of);
    } else if (const Result<Mark> queued = try_copy(to, of, stream); !queued) {
      copied = queued.failure();
    }
    if (!copied) {
      field_.expect_reason(copied.failure(), "copying between buffers",
                           from.model.may_fail(source) || one.model.may_fail(range));
      one.model.copy(range, from.model, source.begin, true);
      return;
    }
    one.model.copy(range, from.model, source.begin);
  }

  void copy_file(Object& one, Range range, StreamRef stream) {
    FileOptions options;
    options.offset_bytes = random_.below(file_bytes - range.count + 1);
    options.bytes = range.count;
    options.map = random_.one_in(2);
    Result<Buffer> file = try_open_file(file_path(), options);
    if (!file) return field_.expect_reason(file.failure(), "opening a file");
    std::vector<Byte> bytes(range.count);
    for (std::size_t i = 0; i < range.count; ++i) bytes[i] = file_byte(options.offset_bytes + i);
    const Buffer to = one.buffer.byte_view(range.begin, range.count);
    Result<void> copied = {};
    if (random_.one_in(2)) {
      copied = try_copy(to, *file);
    } else if (const Result<Mark> queued = try_copy(to, *file, stream); !queued) {
      copied = queued.failure();
    }
    if (!copied) {
      expect_reason(one, range, copied.failure(), "copying from a file");
      one.model.may_write(range, bytes.data());
      return;
    }
    one.model.write(range, bytes.data());
  }

  /// A copy to the host in the order of a stream; looked at when the stream was waited for.
  void read_later(Object& one, StreamRef stream) {
    if (!one.is_array() || !one.model.is_written({0, one.model.size()})) return;
    Pending later{std::vector<Byte>(one.model.size(), destination_canary), one.model, {}};
    const Result<Mark> queued = one.array.try_copy_to(later.seen, stream);
    if (!queued) {
      expect_reason(one, {0, one.model.size()}, queued.failure(), "queueing a copy");
      return field_.abandon(std::move(later.seen));
    }
    later.mark = *queued;
    pending_.push_back(std::move(later));
    if (random_.one_in(2)) check_pending();
  }
  void check_pending() {
    for (Pending& one : pending_) {
      if (const Result<void> done = Device::try_wait(one.mark); !done) {
        field_.expect_reason(done.failure(), "waiting for a mark");
        field_.keep(std::move(one.seen));
        continue;
      }
      // A mark of a device that is lost counts as done; nothing arrived then.
      if (field_.may_fail()) {
        field_.keep(std::move(one.seen));
        continue;
      }
      one.expected.see({0, one.seen.size()}, one.seen.data(), "in a copy in stream order");
    }
    pending_.clear();
  }

  void write_with_stream(Object& one, StreamRef stream) {
    if (!one.is_array()) return;
    const Range all{0, one.model.size()};
    std::vector<Byte> source(all.count);
    std::ranges::generate(source, [&] { return any_byte(random_); });
    const Result<Mark> queued = one.array.try_copy_from(source, stream);
    if (!queued) {
      expect_reason(one, all, queued.failure(), "queueing a copy");
      one.model.may_write(all, source.data());
      std::ranges::fill(source, source_garbage);
    } else {
      one.model.write(all, source.data());
    }
    field_.keep(std::move(source));
  }

  void access_host(Object& one, Range range, Byte value) {
    if (!one.buffer.reach().host_writes) return;
    Buffer view = one.buffer.byte_view(range.begin, range.count).as<Byte>();
    if (random_.one_in(2) && one.model.may_be_written(range)) {
      const Result<HostView<const Byte>> seen = view.try_read_host<Byte>();
      if (!seen) return expect_reason(one, range, seen.failure(), "reading in place");
      one.model.see(range, seen->data(), "in place");
      return;
    }
    const Result<HostView<Byte>> memory = view.try_discard_host<Byte>();
    if (!memory) return expect_reason(one, range, memory.failure(), "writing in place");
    std::fill_n(memory->data(), range.count, value);
    one.model.write(range, value);
  }

  void resize(Object& one, StreamRef stream) {
    if (!one.is_array()) return;
    const std::size_t before = one.model.size(), bytes = 1 + random_.below(max_bytes);
    one.buffer = {};
    const Result<void> resized = one.array.try_resize(bytes, stream);
    const std::size_t expected = resized ? bytes : before;
    one.buffer = one.array.buffer();
    program_.say("  from {} to {}, now buffer {}", before, bytes, one.buffer.id().value);
    require(one.array.size() == expected,
            "the array has {} bytes after a resize, and should have {}", one.array.size(),
            expected);
    if (!resized) return expect_reason(one, {0, before}, resized.failure(), "resizing");
    one.model.resize_with_any(bytes);
  }

  void clone(Object& one, StreamRef stream) {
    const Range all{0, one.model.size()};
    if (!one.model.is_written(all)) return;
    Result<Buffer> made = one.buffer.try_clone(stream);
    if (!made) return expect_reason(one, all, made.failure(), "cloning");
    Object copy{{}, *std::move(made), one.model};
    program_.say("  as buffer {}", copy.buffer.id().value);
    if (objects_.size() < 6) {
      objects_.push_back(std::move(copy));
    } else {
      copy_to(copy, all);
    }
  }

  void launch(Object& one, Range range, StreamRef stream) {
    const Device device = stream.device();
    const Kernel* const kernel = field_.copy_kernel(device);
    if (kernel == nullptr) return;
    Object& from = random_.any_of(objects_);
    if (from.model.size() < range.count || from.buffer.device() != device) return;
    const Range source{random_.below(from.model.size() - range.count + 1), range.count};
    const bool overlaps = &from == &one && source.begin < range.end() && range.begin < source.end();
    if (overlaps || !from.model.is_written(source)) return;
    const Buffer of = from.buffer.byte_view(source.begin, source.count).as<Byte>();
    Buffer to = one.buffer.byte_view(range.begin, range.count).as<Byte>();
    const Result<Mark> launched =
        kernel->try_launch(stream, elements(range.count), in(of), out(to));
    if (!launched) {
      field_.expect_reason(launched.failure(), "launching",
                           from.model.may_fail(source) || one.model.may_fail(range));
      if (field_.may_fail()) one.model.hurt(range);
      return;
    }
    one.model.copy(range, from.model, source.begin);
  }

  void drop(std::size_t number, StreamRef stream) {
    Object one = std::move(objects_[number]);
    objects_.erase(objects_.begin() + static_cast<std::ptrdiff_t>(number));
    if (one.is_array() || one.buffer.is_external() || !one.buffer.is_allocated()) return;
    if (!random_.one_in(2)) return;
    one.array = {};
    Result<Released> memory = try_release(std::move(one.buffer), stream);
    if (!memory) {
      // A stream cannot wait for what another backend's device still does.
      const bool is_elsewhere = memory.failure().code() == ErrorCode::device_mismatch;
      if (!is_elsewhere) field_.expect_reason(memory.failure(), "releasing");
      return;
    }
    if (!random_.one_in(2)) return;
    if (const Result<void> back = memory->try_give_back(stream); !back) {
      field_.expect_reason(back.failure(), "giving memory back");
    }
  }

  const Program& program_;
  Random random_;
  Field field_;
  std::vector<std::shared_ptr<Adopted>> adopted_;
  std::vector<Pending> pending_;
  std::vector<Object> objects_;
};

}  // namespace

void run_buffers(const Program& program) { BufferProgram(program).run(); }

}  // namespace tern::soak
