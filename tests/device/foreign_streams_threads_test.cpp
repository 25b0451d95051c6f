// Random programs of several threads on streams of other code: the threads create, borrow, capture
// and destroy driver streams while blocks of a small pool are in flight. The fake driver reuses
// handles at once and checks the order of the uses of memory.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "support/cuda_bench.hpp"
#include "support/thorough.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

using cuda::code;
using cuda::CudaBench;
using cuda::CUstream;

NativeStream native_stream(CUstream stream) { return {reinterpret_cast<std::uintptr_t>(stream)}; }

/// What the threads of a program share.
struct Stage {
  explicit Stage(bool has_budget) {
    const auto pool =
        std::make_shared<PoolResource>(device, PoolOptions{.limit_bytes = std::size_t{4} << 20});
    memory = pool;
    if (has_budget) {
      memory = std::make_shared<BudgetResource>(
          pool, Budget::make("all", BudgetLimit::bytes(std::size_t{2} << 20)));
    }
    for (CUstream& stream : shared) stream = bench.foreign_stream();
  }
  ~Stage() {
    for (const Passed& one : passed) {
      const Result<void> waited = Device::try_wait(one.mark);
      EXPECT_TRUE(waited || bench.is_lost) << cuda::why(waited);
      const Result<void> freed = memory->try_deallocate(one.block, StreamRef());
      EXPECT_TRUE(freed || bench.is_lost) << cuda::why(freed);
    }
    memory.reset();
    device = Device();
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  CudaBench bench;
  Device device{bench.open(0).value()};
  ResourceHandle memory;

  /// A block whose last use is before the mark.
  struct Passed {
    Block block;
    Mark mark;
  };
  std::mutex mutex;
  std::vector<Passed> passed;  // guarded by mutex
  /// Streams that all threads borrow. A thread that destroys one has the lock alone.
  std::array<CUstream, 3> shared = {};
  std::array<std::shared_mutex, 3> alive;
};

/// One thread of a program. Every call may fail, because the driver may have faults.
class Actor {
 public:
  Actor(Stage& stage, unsigned seed) : stage_(stage), random_(seed) {}

  void run(int steps) {
    const CudaBench::Elsewhere here(stage_.bench);
    for (int step = 0; step < steps && !is_over(); ++step) act();
    while (!own_.empty() && !is_over()) end(own_.size() - 1);
  }

  /// Set when the device is lost. Null if it is not going to be.
  std::atomic<bool>* is_lost = nullptr;

 private:
  struct Own {
    CUstream handle;
    std::vector<Stream> loans;
    std::vector<Block> blocks;
  };

  [[nodiscard]] bool is_over() const { return is_lost != nullptr && is_lost->load(); }
  [[nodiscard]] std::size_t below(std::size_t count) { return random_() % count; }
  [[nodiscard]] CUstream make_stream() {
    CUstream made = nullptr;
    const cuda::CUresult result =
        stage_.bench.cu.cuStreamCreateWithPriority(&made, cuda::CU_STREAM_NON_BLOCKING, 0);
    EXPECT_TRUE(result == cuda::CUDA_SUCCESS || is_lost != nullptr);
    return made;
  }
  void destroy(CUstream stream) {
    const cuda::CUresult result = stage_.bench.cu.cuStreamDestroy(stream);
    EXPECT_TRUE(result == cuda::CUDA_SUCCESS || is_lost != nullptr);
  }
  [[nodiscard]] Result<Stream> borrow(CUstream stream) const {
    return Stream::try_borrow(stage_.device, native_stream(stream));
  }
  void use(CUstream stream, const Block& block) {
    const Result<void> filled =
        stage_.bench.device().fill({native_stream(stream)}, block.address, block.bytes, Pattern{});
    EXPECT_TRUE(filled || is_lost != nullptr) << cuda::why(filled);
    if (!filled && is_lost != nullptr) *is_lost = true;
  }
  [[nodiscard]] Result<Block> allocate(StreamRef stream) {
    return stage_.memory->try_allocate({.bytes = std::size_t{4096} << below(6), .stream = stream});
  }
  void pass(const Block& block, Mark mark) {
    const std::lock_guard lock(stage_.mutex);
    stage_.passed.push_back({block, mark});
  }
  [[nodiscard]] std::optional<Stage::Passed> take_passed() {
    const std::lock_guard lock(stage_.mutex);
    if (stage_.passed.empty()) return {};
    std::swap(stage_.passed[below(stage_.passed.size())], stage_.passed.back());
    const Stage::Passed one = stage_.passed.back();
    stage_.passed.pop_back();
    return one;
  }
  /// Frees a block on the stream, or leaves it to others.
  void free(const Block& block, StreamRef stream) {
    if (stage_.memory->try_deallocate(block, stream)) return;
    for (;;) {
      if (const Result<Mark> mark = stream.try_mark()) return pass(block, *mark);
      if (is_over()) return;
    }
  }

  void act() {
    if (own_.empty() || (own_.size() < 5 && below(25) == 0)) {
      if (const CUstream made = make_stream()) own_.push_back({made, {}, {}});
      return;
    }
    const std::size_t index = below(own_.size());
    Own& own = own_[index];
    switch (below(16)) {
      case 0:
        return end(index);
      case 1:
        return capture(own);
      case 2:
        return static_cast<void>(stage_.device.try_synchronize());
      case 3:
        return act_on_shared();
      case 4:
        return replace_shared();
      case 5:
        own.loans.clear();
        return;
      case 6: {
        if (Result<Stream> loan = borrow(own.handle)) own.loans.push_back(std::move(*loan));
        return;
      }
      case 7:
        return take_over(own);
      case 8:
        return ask();
      case 9:
      case 10:
      case 11: {
        const Result<Stream> loan = borrow(own.handle);
        if (!loan) return;
        const Result<Block> block = allocate(*loan);
        if (!block) return;
        use(own.handle, *block);
        own.blocks.push_back(*block);
        return;
      }
      default: {
        if (own.blocks.empty()) return;
        const Result<Stream> loan = borrow(own.handle);
        if (!loan) return;
        const Block block = own.blocks.back();
        own.blocks.pop_back();
        if (below(4) == 0) {
          const Result<Mark> mark = loan->try_mark();
          if (mark) return pass(block, *mark);
        }
        free(block, *loan);
      }
    }
  }

  /// The stream gets a block that another stream has used.
  void take_over(Own& own) {
    const std::optional<Stage::Passed> taken = take_passed();
    if (!taken) return;
    const Result<Stream> loan = borrow(own.handle);
    if (!loan || !loan->try_wait(taken->mark)) return pass(taken->block, taken->mark);
    use(own.handle, taken->block);
    free(taken->block, *loan);
  }

  void ask() {
    const std::optional<Stage::Passed> taken = take_passed();
    if (!taken) return;
    bool is_done = false;
    if (below(2) == 0) {
      is_done = bool(Device::try_wait(taken->mark));
    } else {
      const Result<bool> answer = Device::try_is_done(taken->mark);
      is_done = answer && *answer;
    }
    if (!is_done || !stage_.memory->try_deallocate(taken->block, StreamRef())) {
      pass(taken->block, taken->mark);
    }
  }

  void act_on_shared() {
    const std::size_t which = below(stage_.shared.size());
    const std::shared_lock lock(stage_.alive[which]);
    const CUstream handle = stage_.shared[which];
    const Result<Stream> loan = borrow(handle);
    if (!loan) return;
    const Result<Block> block = allocate(*loan);
    if (!block) return;
    use(handle, *block);
    free(*block, *loan);
  }

  void replace_shared() {
    if (below(8) != 0) return;
    const std::size_t which = below(stage_.shared.size());
    const std::lock_guard lock(stage_.alive[which]);
    destroy(stage_.shared[which]);
    stage_.shared[which] = make_stream();
  }

  void capture(Own& own) {
    stage_.bench.fake.begin_capture(own.handle, cuda::CU_STREAM_CAPTURE_MODE_RELAXED);
    const Result<Stream> loan = borrow(own.handle);
    EXPECT_FALSE(loan && own.loans.empty());
    stage_.bench.fake.end_capture(own.handle);
  }

  /// Destroys the stream. Its blocks are freed first, or are left to others.
  void end(std::size_t index) {
    Own& own = own_[index];
    for (const Block& block : own.blocks) {
      Result<Stream> loan = borrow(own.handle);
      while (!loan && !is_over()) loan = borrow(own.handle);
      if (loan) free(block, *loan);
    }
    own.loans.clear();
    destroy(own.handle);
    std::swap(own, own_.back());
    own_.pop_back();
  }

  Stage& stage_;
  std::mt19937 random_;
  std::vector<Own> own_;
};

void run_threads(Stage& stage, unsigned seed, int steps, std::atomic<bool>* is_lost = nullptr) {
  std::vector<test::Thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&stage, seed, steps, is_lost, i] {
      Actor actor(stage, seed * 4 + i);
      actor.is_lost = is_lost;
      actor.run(steps);
    });
  }
}

const int programs = test::in_full() ? 200 : test::is_sanitized ? 4 : 8;

TEST(ForeignStreamsThreads, ComeAndGoWithMemoryInFlight) {
  for (int program = 0; program < programs; ++program) {
    SCOPED_TRACE(program);
    Stage stage(program % 2 == 1);
    run_threads(stage, static_cast<unsigned>(program), 400);
  }
}

TEST(ForeignStreamsThreads, SurviveFaultsOfTheDriver) {
  constexpr std::array faults = {"cuStreamGetId",       "cuEventRecord",      "cuStreamIsCapturing",
                                 "cuEventQuery",        "cuEventSynchronize", "cuEventCreate",
                                 "cuStreamSynchronize", "cuStreamWaitEvent",  "cuCtxSynchronize"};
  for (int program = 0; program < programs; ++program) {
    SCOPED_TRACE(program);
    Stage stage(program % 2 == 1);
    test::Thread driver([&](const std::stop_token& stop) {
      std::mt19937 random(static_cast<unsigned>(program));
      while (!stop.stop_requested()) {
        for (unsigned i = 0; i < 1 + random() % 3; ++i) {
          stage.bench.fake.fail_calls_from(faults[random() % faults.size()], 1,
                                           cuda::CUDA_ERROR_UNKNOWN);
        }
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
        stage.bench.fake.clear_failures();
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
      }
      stage.bench.fake.clear_failures();
    });
    run_threads(stage, static_cast<unsigned>(program), 400);
  }
}

TEST(ForeignStreamsThreads, SurviveTheLossOfTheDevice) {
  for (int program = 0; program < programs; ++program) {
    SCOPED_TRACE(program);
    Stage stage(program % 2 == 1);
    stage.bench.is_lost = true;
    std::atomic<bool> is_lost = false;
    sim::set_faults(stage.bench.fake.device(0),
                    "fill#" + std::to_string(1 + program * 97 % 800) + "=lost");
    run_threads(stage, static_cast<unsigned>(program), 100'000, &is_lost);
  }
}

}  // namespace
}  // namespace tern
