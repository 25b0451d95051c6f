// A server: one stream per request, memory from the default pool, unified buffers, exports and a
// budget, beside a long-lived stream. The device and its pools live as long as the process, so
// leaks of requests accumulate.

#include <malloc.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "soak/byte_model.hpp"
#include "soak/driver.hpp"
#include "soak/heap_growth.hpp"
#include "support/thorough.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/interop/dlpack.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern::soak {
namespace {

constexpr std::size_t requests_per_program = 500;
/// Requests that write and do not read: the short ones of a server.
constexpr std::size_t writes_per_program = 10'000, writes_per_simulated_program = 500;
/// A request has at most 20 KiB, and there is one at a time. A pool looks for what streams have
/// passed before it asks the driver for more: pages of 2 MiB, or else a segment of 64 MiB.
constexpr std::size_t max_held_bytes_of_pages = std::size_t{16} << 20;
constexpr std::size_t max_held_bytes_of_segments = std::size_t{64} << 20;

/// Streams that a program makes one after the other while the host waits for none. On a simulated
/// device these are more than it can have at once.
constexpr std::size_t streams_without_answers = 100, simulated_streams_without_answers = 5000;

class Server {
 public:
  explicit Server(Device device)
      : device_(std::move(device)),
        stream_(device_),
        budget_(Budget::make("requests", BudgetLimit::bytes(std::size_t{8} << 20))),
        pool_(std::make_shared<BudgetResource>(std::make_shared<PoolResource>(device_), budget_)) {
    // A pool keeps a cache of about 12 KiB for each stream that existed at the same time, for
    // streams that are made later. How many exist at the same time depends on how busy the machine
    // is, so all of them are made now: they would look like growth.
    std::vector<Stream> streams;
    for (std::size_t i = 0; i < streams_without_answers; ++i) {
      const Stream& stream = streams.emplace_back(device_);
      Array<Byte>::uninitialized(pool_, 16, {.stream = stream}).fill(Byte{1}, stream);
      Array<Byte>::uninitialized(default_resource(device_), 16, {.stream = stream})
          .fill(Byte{1}, stream);
    }
    device_.synchronize();
  }

  static Server& of(const std::string& spec) {
    static std::map<std::string, std::unique_ptr<Server>> all;
    std::unique_ptr<Server>& one = all[spec];
    if (one == nullptr) {
      one = std::make_unique<Server>(
          spec == "sim" ? sim::open({.seed = 7, .mode = sim::Mode::collect}) : open_device(spec));
    }
    return *one;
  }

  void run(const Program& program) {
    Random random(program.seed);
    const bool is_simulated = device_.info().backend == "sim";
    if (program.seed % 3 == 0) {
      const std::size_t count = is_simulated ? writes_per_simulated_program : writes_per_program;
      program.say("{} requests that write", count);
      for (std::size_t i = 0; i < count; ++i) serve_write(random, program.seed / 3);
    } else {
      // Few waits for the device, or none, in a program.
      waits_one_in_ = program.seed % 3 == 1 ? 8 : requests_per_program;
      program.say("{} requests", requests_per_program);
      for (std::size_t i = 0; i < requests_per_program; ++i) serve(random);
      if (program.seed % 3 == 2) serve_without_answers();
    }
    consumers_.clear();
    device_.synchronize();
    check_pools(program);
    check_heap();
    if (is_simulated) {
      for (const Finding& found : sim::findings(device_)) {
        throw Mismatch("the checker reports a correct program: " + found.text());
      }
    }
  }

 private:
  /// A tensor that somebody else has, with what he should find in it.
  struct Consumer {
    abi::DLManagedTensorVersioned* tensor = nullptr;
    explicit Consumer(abi::DLManagedTensorVersioned* of) noexcept : tensor(of) {}
    Consumer(Consumer&& other) noexcept : tensor(std::exchange(other.tensor, nullptr)) {}
    Consumer& operator=(Consumer&& other) noexcept {
      std::swap(tensor, other.tensor);
      return *this;
    }
    ~Consumer() {
      if (tensor != nullptr) tensor->deleter(tensor);
    }
  };

  /// One buffer on the long-lived stream, one on the request's own.
  void serve_write(Random& random, std::uint64_t flavour) {
    const bool works = (flavour & 1) != 0, stays = (flavour & 2) != 0;
    const auto write = [&](UnifiedBuffer<int>& buffer, StreamRef stream) {
      buffer.fill(1);
      const DeviceLease<int> lease = buffer.rw_device(stream);
      if (works) stream.fill(lease.data(), lease.size(), 2);
    };
    UnifiedBuffer<int> large(Shape{100 + random.below(300)}, {.device = device_});
    write(large, stream_);
    const Stream stream(device_);
    UnifiedBuffer<int> small(Shape{10}, {.device = device_});
    write(small, stream);
    if (!stays) {
      large = {};
      small = {};
    }
    device_.synchronize();
  }

  void serve_without_answers() {
    const std::size_t count = device_.info().backend == "sim" ? simulated_streams_without_answers
                                                              : streams_without_answers;
    for (std::size_t i = 0; i < count; ++i) {
      const Stream stream(device_);
      Array<Byte>::uninitialized(pool_, 16, {.stream = stream}).fill(Byte{1}, stream);
    }
  }

  void serve(Random& random) {
    const Stream stream(device_);
    const Byte value = any_byte(random);
    // What the long-lived stream and the request's own write, in memory of the default pool.
    UnifiedBuffer<int> shared(Shape{100 + random.below(300)}, {.device = device_});
    shared.fill(value);
    {
      const DeviceLease<int> lease = shared.rw_device(stream_);
      stream_.fill(lease.data(), lease.size(), value + 1);
    }
    UnifiedBuffer<int> small(Shape{10}, {.device = device_});
    {
      const DeviceLease<int> lease = small.discard_device(stream);
      stream.fill(lease.data(), lease.size(), value + 2);
    }
    // From the server's own pool, within the budget.
    Array<Byte> array =
        Array<Byte>::uninitialized(pool_, 1 + random.below(8000), {.stream = stream});
    array.fill(value, stream);
    if (random.one_in(4)) array.resize(1 + random.below(8000), stream);
    array.fill(value, stream);
    if (random.one_in(2)) export_to_consumer(array.buffer(), stream);
    if (random.one_in(2)) array.slice(0, array.size() / 2).fill(value, stream_);
    if (random.one_in(waits_one_in_)) device_.synchronize();
    expect(shared.to_vector(), value + 1);
    expect(small.to_vector(), value + 2);
    expect(array.to_vector(), value);
  }

  void export_to_consumer(const Buffer& buffer, StreamRef stream) {
    Result<abi::DLManagedTensorVersioned*> made = try_export_dlpack(buffer, {.stream = stream});
    if (!made) {
      require(made.failure().code() == ErrorCode::dlpack_rejected, "an export fails: {}",
              made.failure().text());
      return;
    }
    consumers_.emplace_back(*made);
    while (consumers_.size() > 4) consumers_.pop_front();
  }

  template <class T>
  static void expect(const std::vector<T>& seen, int value) {
    for (std::size_t i = 0; i < seen.size(); ++i) {
      require(seen[i] == static_cast<T>(value), "element {} of {} is {}, and should be {}", i,
              seen.size(), seen[i], value);
    }
  }

  /// Nothing is live now, and every stream was waited for.
  void check_pools(const Program& program) {
    static_cast<void>(reclaim_deferred());
    const ResourceHandle memory = default_resource(device_);
    if (auto* const pool = dynamic_cast<PoolResource*>(memory.get())) {
      const PoolStatistics now = pool->pool_statistics();
      program.say("default pool: {} live, {} in flight, {} cached, {} held", now.live_bytes,
                  now.in_flight_bytes, now.cached_bytes, now.held_bytes);
      require(now.live_bytes == 0, "{} bytes of the default pool are live after the requests",
              now.live_bytes);
      require(
          now.held_bytes <= (device_.can(Capability::virtual_memory) ? max_held_bytes_of_pages
                                                                     : max_held_bytes_of_segments),
          "the default pool holds {} bytes, {} of them in flight, and every stream was waited "
          "for",
          now.held_bytes, now.in_flight_bytes);
      // Seldom, because nobody has to poll.
      if (program.seed % 16 == 15) {
        pool->poll();
        require(pool->pool_statistics().in_flight_bytes == 0,
                "{} bytes stay in flight after every stream was waited for",
                pool->pool_statistics().in_flight_bytes);
      }
    }
    budget_->drain();
    require(budget_->charged_bytes() == 0, "{} bytes stay charged after the requests",
            budget_->charged_bytes());
  }

  /// The heap of a server that has been warm for a while does not grow.
  void check_heap() {
    if constexpr (test::is_sanitized) return;
    const std::optional<HeapGrowth::Grown> grown = growth_.note(mallinfo2().uordblks);
    if (!grown) return;
    throw Mismatch(fmt::format("the heap grew from {} to {} bytes in {} requests",
                               grown->from_bytes, grown->to_bytes, grown->requests));
  }

  const Device device_;
  Stream stream_;  // lives as long as the server
  const BudgetHandle budget_;
  const ResourceHandle pool_;
  std::size_t waits_one_in_ = 8;
  std::deque<Consumer> consumers_;
  HeapGrowth growth_{requests_per_program};
};

}  // namespace

void run_server(const Program& program) { Server::of(program.device).run(program); }

}  // namespace tern::soak
