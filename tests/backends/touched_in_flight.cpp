// Accesses host memory that a queued copy or a pool still uses, on the device of the given spec.
// Cases whose names end with "ok" are correct and must produce no report.

#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <tern/backends/catalog.hpp>
#include <tern/backends/sim.hpp>
#include <tern/buffer/array.hpp>
#include <tern/memory/pool_resource.hpp>
#include <vector>

namespace {

constexpr std::size_t count = 200'000;

/// A stream that has work to do for a while.
struct Bench {
  explicit Bench(const char* spec)
      : device(tern::open_device(spec)),
        stream(device, {.name = "work"}),
        array(tern::Array<int>::uninitialized(device, count)),
        ballast(tern::Array<int>::uninitialized(device, 8'000'000)) {
    array.fill(7, stream);
    stream.synchronize();
  }
  void keep_busy() {
    for (int i = 0; i < 20; ++i) ballast.fill(i, stream);
  }

  tern::Device device;
  tern::Stream stream;
  tern::Array<int> array, ballast;
};

volatile int sink = 0;

int use(int value) {
  sink = value;
  return 0;
}

// --- Mistakes

int read_destination(Bench& on) {
  std::vector<int> values(count);
  on.keep_busy();
  on.array.copy_to(values, on.stream);
  return use(values[count / 2]);
}
int write_destination(Bench& on) {
  std::vector<int> values(count);
  on.keep_busy();
  on.array.copy_to(values, on.stream);
  values[count / 2] = 1;
  on.stream.synchronize();
  return 0;
}
int free_source(Bench& on) {
  std::vector<int> values(count, 1);
  on.keep_busy();
  on.array.copy_from(values, on.stream);
  std::vector<int>().swap(values);
  on.stream.synchronize();
  return 0;
}
int free_destination(Bench& on) {
  std::vector<int> values(count);
  on.keep_busy();
  on.array.copy_to(values, on.stream);
  std::vector<int>().swap(values);
  on.stream.synchronize();
  return 0;
}
/// Of a pool that keeps the memory.
int read_freed(Bench& on, const tern::PoolOptions& options) {
  tern::PoolResource pool(on.device, options);
  const tern::Block block = pool.allocate({.bytes = 4096});
  const int* const values = static_cast<const int*>(block.address);
  pool.deallocate(block, {});
  return use(values[100]);
}
int read_freed_block(Bench& on) { return read_freed(on, {}); }
int read_freed_pinned(Bench& on) { return read_freed(on, {.kind = tern::MemoryKind::pinned}); }
int read_freed_in_order(Bench& on) {
  tern::PoolResource pool(on.device, {});
  const tern::Block block = pool.allocate({.bytes = 4096, .stream = on.stream});
  const int* const values = static_cast<const int*>(block.address);
  on.stream.synchronize();
  pool.deallocate(block, on.stream);
  return use(values[100]);
}

// --- Programs in order

int read_source_ok(Bench& on) {
  const std::vector<int> values(count, 3);
  on.keep_busy();
  on.array.copy_from(values, on.stream);
  const int sum = std::accumulate(values.begin(), values.end(), 0);
  on.stream.synchronize();
  return use(sum);
}
int wait_ok(Bench& on) {
  std::vector<int> values(count);
  for (int i = 0; i < 50; ++i) {
    on.array.fill(i, on.stream);
    const tern::Mark copied = on.array.copy_to(values, on.stream);
    if (i % 3 == 0) {
      tern::Device::wait(copied);
    } else if (i % 3 == 1) {
      on.stream.synchronize();
    } else {
      while (!tern::Device::is_done(copied)) {
      }
    }
    for (int& value : values) {
      if (value != i) return 1;
      value = -1;
    }
  }
  return 0;
}
int chain_ok(Bench& on) {
  std::vector<int> values(count);
  auto other = tern::Array<int>::uninitialized(on.device, count);
  on.keep_busy();
  on.array.copy_to(values, on.stream);
  other.copy_from(values, on.stream);
  other.fill(8, on.stream);
  other.copy_to(values, on.stream);
  on.array.copy_from(values, on.stream);
  on.stream.synchronize();
  for (const int value : values) {
    if (value != 8) return 1;
  }
  return 0;
}
int function_ok(Bench& on) {
  if (!on.device.can(tern::Capability::host_functions)) return 0;
  std::vector<int> values(count, 1);
  const auto touch = [](void* context) {
    for (int& value : *static_cast<std::vector<int>*>(context)) ++value;
  };
  on.keep_busy();
  on.stream.call(touch, &values);  // before the copy
  on.array.copy_to(values, on.stream);
  on.stream.call(touch, &values);  // behind it
  on.array.copy_from(values, on.stream);
  on.stream.synchronize();
  return values[count - 1] == 8 ? 0 : 1;
}
int streams_ok(Bench& on) {
  const tern::Stream next(on.device, {.name = "next"});
  std::vector<int> values(count, 1);
  auto other = tern::Array<int>::uninitialized(on.device, count);
  on.keep_busy();
  const tern::Mark copied = on.array.copy_to(values, on.stream);
  next.wait(copied);
  other.copy_from(values, next);
  next.synchronize();
  std::vector<int> last(count);
  other.copy_to(last);
  return last[count - 1] == 7 ? 0 : 1;
}
int reuse_ok(Bench& on) {
  for (const tern::MemoryKind kind : {tern::MemoryKind::device, tern::MemoryKind::pinned}) {
    if (kind == tern::MemoryKind::pinned && !on.device.can(tern::Capability::pinned_memory)) break;
    tern::PoolResource pool(on.device, {.kind = kind});
    const bool is_usable = pool.traits().is_host_accessible;
    for (int i = 0; i < 300; ++i) {
      const std::size_t bytes = std::size_t{256} << (i % 12);
      const bool has_stream = i % 3 != 0;
      const tern::StreamRef stream = has_stream ? tern::StreamRef(on.stream) : tern::StreamRef();
      const tern::Block block = pool.allocate({.bytes = bytes, .stream = stream});
      if (has_stream) on.stream.fill(static_cast<char*>(block.address), bytes, 'x');
      if (has_stream && i % 2 == 0) on.stream.synchronize();
      if (is_usable && (!has_stream || i % 2 == 0))
        static_cast<char*>(block.address)[bytes - 1] = 1;
      pool.deallocate(block, stream);
      if (i % 50 == 0) pool.trim(0);
    }
  }
  return 0;
}
int lose_ok(Bench& on) {
  std::vector<int> values(count, 5);
  if (on.device.info().backend != "sim") return 0;
  on.keep_busy();
  on.array.copy_to(values, on.stream);
  tern::sim::set_faults(on.device, "sync#1=lost");
  static_cast<void>(on.stream.try_synchronize());
  return values[count / 2] == 5 ? 0 : 1;
}

const std::map<std::string, int (*)(Bench&)> programs = {
    {"read_destination", read_destination},
    {"write_destination", write_destination},
    {"free_source", free_source},
    {"free_destination", free_destination},
    {"read_freed_block", read_freed_block},
    {"read_freed_pinned", read_freed_pinned},
    {"read_freed_in_order", read_freed_in_order},
    {"read_source_ok", read_source_ok},
    {"wait_ok", wait_ok},
    {"chain_ok", chain_ok},
    {"function_ok", function_ok},
    {"streams_ok", streams_ok},
    {"reuse_ok", reuse_ok},
    {"lose_ok", lose_ok},
};

}  // namespace

int main(int, char** argv) {
  Bench on(argv[2]);
  return programs.at(argv[1])(on);
}
