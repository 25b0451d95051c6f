// Random programs over unified buffers in several places: leases, fills, stores, resizes, drops,
// evictions, launches; with faults and device loss. Every byte that is read is compared.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "soak/byte_model.hpp"
#include "soak/field.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/launch/kernel.hpp"

namespace tern::soak {
namespace {

constexpr std::size_t max_bytes = 2000;
/// Room for a resize of one buffer while the copies of all others are evicted.
constexpr std::size_t pressed_bytes = 3 * 4096;

struct Unified {
  UnifiedBuffer<Byte> buffer;
  ByteModel model;
  /// Bytes that the host's copy has for certain: no loss of a device can take them.
  std::vector<bool> is_on_host;

  void set_on_host(Range range, bool is_there) {
    std::fill_n(is_on_host.begin() + static_cast<std::ptrdiff_t>(range.begin), range.count,
                is_there);
  }
  [[nodiscard]] bool is_all_on_host(Range range) const {
    const auto first = is_on_host.begin() + static_cast<std::ptrdiff_t>(range.begin);
    return std::all_of(first, first + static_cast<std::ptrdiff_t>(range.count),
                       [](bool is_there) { return is_there; });
  }
};

class UnifiedProgram {
 public:
  explicit UnifiedProgram(const Program& program)
      : program_(program), random_(program.seed), field_(program, random_, pressed_bytes) {}

  void run() {
    const std::size_t steps = 20 + random_.below(60);
    for (std::size_t i = 0; i < steps; ++i) {
      if (buffers_.empty() || (buffers_.size() < 4 && random_.one_in(10))) add_buffer();
      step();
      field_.count_step();
    }
    field_.clear_faults();
    program_.say("the end: read everything");
    for (Unified& one : buffers_) {
      for (const Range& run : one.model.written_runs()) {
        read_host(one, run);
        for (const Device& device : field_.devices()) read_device(one, run, device);
      }
    }
    if (const auto broken =
            std::ranges::find_if(buffers_, [](const Unified& one) { return !one.buffer.check(); });
        broken != buffers_.end()) {
      throw Mismatch(
          fmt::format("an invariant is broken: {}", broken->buffer.check().failure().text()));
    }
    buffers_.clear();
    field_.finish();
  }

 private:
  void add_buffer() {
    const std::size_t bytes = 1 + random_.below(max_bytes);
    UnifiedOptions options;
    options.device = field_.any_device();
    options.resources = field_.resources();
    // Devices that use the host's memory itself have no copy that could be page-locked.
    const bool has_copies = !options.device.can(Capability::host_access);
    if (has_copies && random_.one_in(4)) options.pinned = Pinned::required;
    if (random_.one_in(4)) options.coalesce_gap_bytes = random_.below(64);
    if (random_.one_in(8)) options.checked = true;
    program_.say("b{} = {} bytes, default {}", buffers_.size(), bytes, options.device.spec());
    Result<UnifiedBuffer<Byte>> made = UnifiedBuffer<Byte>::try_make(Shape{bytes}, options);
    if (!made) return field_.expect_reason(made.failure(), "making a buffer");
    buffers_.push_back({*std::move(made), ByteModel(bytes), std::vector<bool>(bytes)});
    if (random_.one_in(3)) return;
    // Most programs begin with all of it written, and with copies in several places.
    copy_from(buffers_.back(), {0, bytes});
    for (std::size_t i = random_.below(3); i > 0; --i) {
      read_device(buffers_.back(), any_range(random_, bytes), field_.any_device());
    }
  }

  void step() {
    if (buffers_.empty()) return;
    const std::size_t number = random_.below(buffers_.size());
    Unified& one = buffers_[number];
    const Range range = any_range(random_, one.model.size());
    const Byte value = any_byte(random_);
    const StreamRef stream = field_.any_stream();
    const auto say = [&](const char* what) {
      program_.say("b{} [{}, {}) {} {:#04x} on {}", number, range.begin, range.end(), what, value,
                   stream.name());
    };
    if (one.model.size() == 0) return resize(one);
    switch (random_.below(20)) {
      case 0:
      case 1:
        say("read host");
        return read_host(one, range);
      case 2:
      case 3:
        say("read device");
        return read_device(one, range, field_.any_device());
      case 4:
        say("discard host");
        return write_host(one, range, value, Access::discard);
      case 5:
        say("rw host");
        return write_host(one, range, value, Access::read_write);
      case 6:
      case 7:
        say("discard device");
        return write_device(one, range, value, Access::discard, stream);
      case 8:
        say("rw device");
        return write_device(one, range, value, Access::read_write, stream);
      case 9:
      case 10:
        say("store");
        return store(one, range.begin, value);
      case 11:
        say("fill");
        return fill(one, range, value, random_.one_in(2) ? stream : StreamRef());
      case 12:
        say("copy from");
        return copy_from(one, range);
      case 13:
        say("copy to");
        return copy_to(one, range);
      case 14:
        say("drop");
        return drop(one);
      case 15:
        say("resize");
        return resize(one);
      case 16:
        say("prefetch");
        return prefetch(one, range, stream);
      case 17:
        say("clone");
        return clone(one, stream);
      case 18:
        say("launch");
        return launch(one, range, stream);
      default:
        if (random_.one_in(3)) {
          program_.say("drop b{}", number);
          buffers_.erase(buffers_.begin() + static_cast<std::ptrdiff_t>(number));
        } else if (random_.one_in(3)) {
          field_.replace_stream();
        } else {
          say("load");
          load(one, range.begin);
        }
    }
  }

  /// What was read, or a failure that may be.
  void see(Unified& one, Range range, const Byte* seen, const char* where) {
    one.model.see(range, seen, where);
  }
  void expect_reason(Unified& one, Range range, const Failure& failure, const char* what) {
    field_.expect_reason(failure, what, one.model.may_fail(range));
    if (!field_.may_fail()) return;
    one.model.hurt(range);
  }

  void read_host(Unified& one, Range range) {
    if (!one.model.may_be_written(range)) return;
    const UnifiedView<Byte> view = one.buffer.slice(range.begin, range.count);
    if (random_.one_in(4)) {
      Result<PendingRead<Byte>> pending = view.try_read_host_async();
      if (!pending) return expect_reason(one, range, pending.failure(), "reading on the host");
      const Result<HostLease<const Byte>> lease = pending->try_get();
      if (!lease) return expect_reason(one, range, lease.failure(), "waiting for a read");
      see(one, range, lease->data(), "on the host");
      return;
    }
    const Result<HostLease<const Byte>> lease = view.try_read_host();
    if (!lease) {
      require(field_.has_faults() || !one.is_all_on_host(range) || !one.model.is_written(range),
              "bytes that the host's copy has cannot be read there: {}", lease.failure().text());
      return expect_reason(one, range, lease.failure(), "reading on the host");
    }
    see(one, range, lease->data(), "on the host");
    one.set_on_host(range, true);
  }

  void read_device(Unified& one, Range range, const Device& device) {
    if (!one.model.may_be_written(range)) return;
    const StreamRef stream = field_.any_stream_of(device);
    std::vector<Byte> seen(range.count, destination_canary);
    {
      const Result<DeviceLease<const Byte>> lease =
          one.buffer.slice(range.begin, range.count).try_read_device(stream);
      if (!lease) return expect_reason(one, range, lease.failure(), "reading on a device");
      const Result<void> copied = stream.try_copy(seen.data(), lease->data(), range.count);
      if (!copied) return field_.expect_reason(copied.failure(), "copying from a device");
    }
    if (const Result<void> done = stream.try_synchronize(); !done) {
      field_.expect_reason(done.failure(), "waiting for a copy");
      field_.keep(std::move(seen));
      return;
    }
    see(one, range, seen.data(), device.info().is_host ? "on the host device" : "on a device");
  }

  void write_host(Unified& one, Range range, Byte value, Access access) {
    if (access == Access::read_write && !one.model.is_written(range)) access = Access::discard;
    UnifiedView<Byte> view = one.buffer.slice(range.begin, range.count);
    Result<HostLease<Byte>> lease =
        access == Access::discard ? view.try_discard_host() : view.try_rw_host();
    if (!lease) return expect_reason(one, range, lease.failure(), "opening a host lease");
    if (access == Access::read_write) see(one, range, lease->data(), "in a host lease");
    std::ranges::fill(*lease, value);
    one.model.write(range, value);
    one.set_on_host(range, true);
  }

  void write_device(Unified& one, Range range, Byte value, Access access, StreamRef stream) {
    if (access == Access::read_write && !one.model.is_written(range)) access = Access::discard;
    UnifiedView<Byte> view = one.buffer.slice(range.begin, range.count);
    Result<DeviceLease<Byte>> lease =
        access == Access::discard ? view.try_discard_device(stream) : view.try_rw_device(stream);
    if (!lease) return expect_reason(one, range, lease.failure(), "opening a device lease");
    one.set_on_host(range, false);
    const Result<void> filled = stream.try_fill(lease->data(), lease->size(), value);
    if (filled) {
      one.model.write(range, value);
      return;
    }
    field_.expect_reason(filled.failure(), "filling");
    if (access == Access::discard) {
      lease->abandon();
      one.model.forget(range);
    } else {
      one.model.hurt(range);
    }
  }

  void store(Unified& one, std::size_t index, Byte value) {
    const bool is_new = !one.model.may_be_written({index, 1});
    if (const Result<void> stored = one.buffer.try_store_host(index, value); !stored) {
      expect_reason(one, {index, 1}, stored.failure(), "storing");
      one.model.may_write(index, value);
      return;
    }
    one.model.write(index, value);
    if (is_new) one.set_on_host({index, 1}, true);
  }
  void load(Unified& one, std::size_t index) {
    if (!one.model.may_be_written({index, 1})) return;
    const Result<Byte> loaded = one.buffer.try_load_host(index);
    if (!loaded) return expect_reason(one, {index, 1}, loaded.failure(), "loading");
    see(one, {index, 1}, &*loaded, "in a load");
  }

  void fill(Unified& one, Range range, Byte value, StreamRef stream) {
    UnifiedView<Byte> view = one.buffer.slice(range.begin, range.count);
    one.set_on_host(range, false);
    if (const Result<void> filled = view.try_fill(value, stream); !filled) {
      expect_reason(one, range, filled.failure(), "filling");
      one.model.may_write(range, value);
      return;
    }
    one.model.write(range, value);
  }

  void copy_from(Unified& one, Range range) {
    std::vector<Byte> source(range.count);
    std::ranges::generate(source, [&] { return any_byte(random_); });
    UnifiedView<Byte> view = one.buffer.slice(range.begin, range.count);
    if (const Result<void> copied = view.try_copy_from(source); !copied) {
      expect_reason(one, range, copied.failure(), "copying to the buffer");
      one.model.may_write(range, source.data());
      one.set_on_host(range, false);
    } else {
      one.model.write(range, source.data());
      one.set_on_host(range, true);
    }
    // The call has returned: what becomes of the memory is the caller's affair.
    std::ranges::fill(source, source_garbage);
    field_.keep(std::move(source));
  }
  void copy_to(Unified& one, Range range) {
    if (!one.model.may_be_written(range)) return;
    std::vector<Byte> seen(range.count, destination_canary);
    const Result<void> copied = one.buffer.slice(range.begin, range.count).try_copy_to(seen);
    if (!copied) {
      expect_reason(one, range, copied.failure(), "copying from the buffer");
      field_.abandon(std::move(seen));
      return;
    }
    see(one, range, seen.data(), "in a copy");
  }

  void drop(Unified& one) {
    const Range all{0, one.model.size()};
    if (random_.one_in(3)) {
      one.set_on_host(all, false);
      if (const Result<void> gone = one.buffer.try_drop_host(); !gone) {
        expect_reason(one, all, gone.failure(), "dropping the host's copy");
      }
    } else if (const Result<void> gone = one.buffer.try_drop_device(field_.any_device()); !gone) {
      expect_reason(one, all, gone.failure(), "dropping a device's copy");
    }
  }

  void resize(Unified& one) {
    const std::size_t bytes = random_.below(max_bytes + 1);
    const StreamRef stream = random_.one_in(2) ? field_.any_stream() : StreamRef();
    const bool keeps = !random_.one_in(4);
    program_.say("  to {} {} on {}", bytes, keeps ? "keep" : "discard",
                 stream.id() ? stream.name() : "no stream");
    const Result<void> resized =
        keeps ? one.buffer.try_resize_keep(bytes, stream) : one.buffer.try_resize_discard(bytes);
    const std::size_t expected = resized ? bytes : one.model.size();
    require(one.buffer.size() == expected,
            "the buffer has {} bytes after a resize, and should have {}", one.buffer.size(),
            expected);
    if (!resized) return expect_reason(one, {0, one.model.size()}, resized.failure(), "resizing");
    if (!keeps) one.model = ByteModel(0);
    one.model.resize(bytes);
    if (!keeps) one.is_on_host.clear();
    one.is_on_host.resize(bytes);
  }

  void prefetch(Unified& one, Range range, StreamRef stream) {
    if (!one.model.may_be_written(range)) return;
    const UnifiedView<Byte> view = one.buffer.slice(range.begin, range.count);
    const Result<void> done =
        random_.one_in(3) ? view.try_prefetch_host() : view.try_prefetch(stream);
    if (!done) expect_reason(one, range, done.failure(), "prefetching");
  }

  void clone(Unified& one, StreamRef stream) {
    const Range all{0, one.model.size()};
    if (!one.model.may_be_written(all)) return;
    Result<UnifiedBuffer<Byte>> made = one.buffer.try_clone(stream);
    if (!made) return expect_reason(one, all, made.failure(), "cloning");
    Unified copy{*std::move(made), one.model, std::vector<bool>(one.model.size())};
    if (random_.one_in(2) && buffers_.size() < 4) {
      buffers_.push_back(std::move(copy));
    } else {
      copy_to(copy, all);
    }
  }

  void launch(Unified& one, Range range, StreamRef stream) {
    const Kernel* const kernel = field_.copy_kernel(stream.device());
    if (kernel == nullptr) return;
    Unified& source = random_.any_of(buffers_);
    if (source.model.size() < range.count) return;
    const Range from{random_.below(source.model.size() - range.count + 1), range.count};
    const bool overlaps = &source == &one && from.begin < range.end() && range.begin < from.end();
    if (overlaps || !source.model.is_written(from)) return;
    UnifiedView<Byte> to = one.buffer.slice(range.begin, range.count);
    const Result<Mark> launched = kernel->try_launch(
        stream, elements(range.count), in(source.buffer.slice(from.begin, from.count)), out(to));
    if (!launched) {
      field_.expect_reason(launched.failure(), "launching",
                           source.model.may_fail(from) || one.model.may_fail(range));
      if (field_.may_fail()) one.model.hurt(range);
      return;
    }
    one.model.copy(range, source.model, from.begin);
    one.set_on_host(range, false);
  }

  const Program& program_;
  Random random_;
  Field field_;
  std::vector<Unified> buffers_;
};

}  // namespace

void run_unified(const Program& program) { UnifiedProgram(program).run(); }

}  // namespace tern::soak
