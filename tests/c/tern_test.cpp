// The C API, as a plug-in of another library calls it.

#include "tern/c/tern.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/forked_child.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/c/handle.hpp"
#include "tern/core/bytes.hpp"
#include "tern/detail/memory/wrapping_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/tracking_resource.hpp"

extern "C" {
void tern_torch_begin_pool(int ordinal, std::pair<unsigned long long, unsigned long long> id,
                           std::function<bool(void*)> filter);
void tern_torch_end_pool(int ordinal, std::pair<unsigned long long, unsigned long long> id);
void tern_torch_release_pool(int ordinal, std::pair<unsigned long long, unsigned long long> id);
}

namespace tern {
namespace {

bool says(std::string_view text) {
  return std::string_view(tern_last_error()).find(text) != std::string_view::npos;
}

/// Runs on each device that the C API should behave the same on.
class CApiTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_EQ(tern_open_device(GetParam(), &device), TERN_OK) << tern_last_error();
    ASSERT_EQ(tern_make_pool(device, nullptr, &pool), TERN_OK) << tern_last_error();
  }
  void TearDown() override {
    for (tern_library library = 0; library <= TERN_OTHER; ++library) {
      tern_set_plugin(library, 0, nullptr);
    }
    if (pool != nullptr) {
      EXPECT_EQ(statistics(pool).live_bytes, 0u);
    }
    tern_release_resource(pool);
    tern_release_device(device);
  }
  static tern_statistics statistics(const tern_resource* resource) {
    tern_statistics made = {};
    made.struct_bytes = sizeof made;
    EXPECT_EQ(tern_get_statistics(resource, &made), TERN_OK);
    return made;
  }
  static void* allocate(tern_resource* from, std::size_t bytes, void* stream = nullptr) {
    void* address = nullptr;
    EXPECT_EQ(tern_allocate(from, bytes, 0, stream, &address), TERN_OK) << tern_last_error();
    return address;
  }
  tern_resource* limited(const char* name, std::size_t bytes, const tern_budget* parent = nullptr,
                         tern_budget** budget = nullptr) {
    tern_budget* made = nullptr;
    EXPECT_EQ(tern_make_budget(name, bytes, parent, &made), TERN_OK);
    tern_resource* resource = nullptr;
    EXPECT_EQ(tern_make_budget_resource(pool, made, &resource), TERN_OK) << tern_last_error();
    if (budget == nullptr) {
      tern_release_budget(made);
    } else {
      *budget = made;
    }
    return resource;
  }

  tern_device* device = nullptr;
  tern_resource* pool = nullptr;
};

TEST_P(CApiTest, AllocatesAndFrees) {
  void* const address = allocate(pool, 1000);
  ASSERT_NE(address, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 256, 0u);
  EXPECT_EQ(statistics(pool).live_blocks, 1u);
  EXPECT_EQ(tern_free(address, nullptr), TERN_OK);
  EXPECT_EQ(tern_free(address, nullptr), TERN_NOT_LIVE);
  EXPECT_TRUE(says("no live memory begins at 0x")) << tern_last_error();
  EXPECT_EQ(tern_free(nullptr, nullptr), TERN_OK);
  EXPECT_EQ(tern_free_in_order(allocate(pool, 77)), TERN_OK);
  EXPECT_EQ(allocate(pool, 0), nullptr);
}

TEST_P(CApiTest, ChecksItsArguments) {
  void* address = nullptr;
  tern_resource* made = nullptr;
  EXPECT_EQ(tern_open_device(nullptr, &device), TERN_INVALID_ARGUMENT);
  EXPECT_EQ(tern_open_device("sim", nullptr), TERN_INVALID_ARGUMENT);
  tern_device* none = nullptr;
  EXPECT_EQ(tern_open_device("no such device", &none), TERN_INVALID_DEVICE);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(tern_allocate(nullptr, 1, 0, nullptr, &address), TERN_INVALID_ARGUMENT);
  EXPECT_EQ(tern_allocate(pool, 1, 0, nullptr, nullptr), TERN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("address is null")) << tern_last_error();
  EXPECT_EQ(tern_last_status(), TERN_INVALID_ARGUMENT);
  EXPECT_EQ(tern_allocate(pool, 1, 3, nullptr, &address), TERN_INVALID_ARGUMENT);
  EXPECT_EQ(tern_allocate(pool, SIZE_MAX, 0, nullptr, &address), TERN_INVALID_ARGUMENT);
  tern_pool_options options = {};
  EXPECT_EQ(tern_make_pool(device, &options, &made), TERN_INVALID_ARGUMENT) << "no struct_bytes";
  options.struct_bytes = sizeof options;
  options.kind = 9;
  EXPECT_EQ(tern_make_pool(device, &options, &made), TERN_INVALID_ARGUMENT);
  EXPECT_EQ(tern_make_pool(nullptr, nullptr, &made), TERN_INVALID_ARGUMENT);
  EXPECT_EQ(tern_make_budget("", 5, nullptr, nullptr), TERN_INVALID_ARGUMENT);
  tern_budget* budget = nullptr;
  EXPECT_EQ(tern_make_budget("", 5, nullptr, &budget), TERN_INVALID_ARGUMENT);
  EXPECT_EQ(tern_make_budget_resource(pool, nullptr, &made), TERN_INVALID_ARGUMENT);
  EXPECT_EQ(tern_set_plugin(TERN_TORCH, -1, pool), TERN_INVALID_DEVICE);
  EXPECT_EQ(tern_set_plugin(TERN_TORCH, 64, pool), TERN_INVALID_DEVICE);
  EXPECT_EQ(tern_set_plugin(17, 0, pool), TERN_INVALID_ARGUMENT);
  EXPECT_EQ(tern_get_plugin(TERN_CUPY, 5, &made), TERN_INVALID_DEVICE);
  EXPECT_TRUE(says("library 'cupy' has no resource for CUDA device 5")) << tern_last_error();
  EXPECT_EQ(tern_snapshot(device, nullptr, 3, nullptr), TERN_INVALID_ARGUMENT);
  tern_statistics wrong = {};
  EXPECT_EQ(tern_get_statistics(pool, &wrong), TERN_INVALID_ARGUMENT);
  EXPECT_EQ(tern_reset_peak(pool), TERN_UNSUPPORTED);
  EXPECT_EQ(tern_record_use(&address, nullptr), TERN_NOT_LIVE);
  EXPECT_EQ(tern_begin_arena(0, {UINT64_MAX, UINT64_MAX}, nullptr, nullptr), TERN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("is reserved for rehearsals")) << tern_last_error();
  tern_release_device(nullptr);
  tern_release_budget(nullptr);
}

TEST_P(CApiTest, WritesOnlyTheFieldsThatTheCallerKnows) {
  struct {
    tern_statistics known;
    std::uint64_t canary;
  } older = {{}, 42};
  // A caller that was compiled with a structure of two fields.
  older.known.struct_bytes = 2 * sizeof(std::size_t);
  older.known.live_blocks = 99;
  void* const address = allocate(pool, 1000);
  EXPECT_EQ(tern_get_statistics(pool, &older.known), TERN_OK);
  EXPECT_GE(older.known.live_bytes, 1000u);
  EXPECT_EQ(older.known.live_blocks, 99u);
  // A caller that knows a later structure.
  older.known.struct_bytes = sizeof older;
  EXPECT_EQ(tern_get_statistics(pool, &older.known), TERN_OK);
  EXPECT_EQ(older.known.live_blocks, 1u);
  EXPECT_EQ(older.canary, 42u);
  EXPECT_EQ(tern_free(address, nullptr), TERN_OK);
}

TEST_P(CApiTest, NamesStatusesAndVersions) {
  EXPECT_EQ(tern_abi_version(), TERN_ABI_VERSION);
  EXPECT_STREQ(tern_status_name(TERN_OK), "TERN_OK");
  EXPECT_STREQ(tern_status_name(TERN_FAILED), "TERN_FAILED");
  EXPECT_STREQ(tern_status_name(99), "unknown status");
  EXPECT_GE(std::string_view(tern_version()).size(), 5u);
}

TEST_P(CApiTest, FindsBlocksAndTheirTags) {
  EXPECT_EQ(tern_set_tag(pool, "weights"), TERN_OK);
  void* const address = allocate(pool, 5000);
  tern_block block = {};
  block.struct_bytes = sizeof block;
  EXPECT_EQ(tern_find_block(address, &block), TERN_OK);
  EXPECT_EQ(block.address, address);
  EXPECT_GE(block.bytes, 5000u);
  EXPECT_STREQ(block.tag, "weights");
  EXPECT_EQ(std::string_view(block.device), open_device(GetParam()).spec());
  std::array<tern_block, 64> all = {};
  std::size_t count = 0;
  EXPECT_EQ(tern_snapshot(device, all.data(), all.size(), &count), TERN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("struct_bytes of blocks is 0")) << tern_last_error();
  all[0].struct_bytes = sizeof all[0];
  EXPECT_EQ(tern_snapshot(device, all.data(), all.size(), &count), TERN_OK);
  ASSERT_GE(count, 1u);
  bool is_found = false;
  for (std::size_t i = 0; i < std::min(count, all.size()); ++i) {
    is_found |= all[i].address == address && std::string_view(all[i].tag) == "weights";
  }
  EXPECT_TRUE(is_found);
  EXPECT_EQ(tern_free(address, nullptr), TERN_OK);
  EXPECT_EQ(tern_find_block(address, &block), TERN_NOT_LIVE);
}

TEST_P(CApiTest, SnapshotsHaveTheCallersSizeOfABlock) {
  struct Older {
    std::size_t struct_bytes;
    void* address;
  };
  struct Newer {
    tern_block known;
    std::size_t unknown;
  };
  void* const address = allocate(pool, 5000);
  const auto count_blocks = [&](auto* blocks, std::size_t capacity) {
    blocks->struct_bytes = sizeof *blocks;
    std::size_t count = 0;
    EXPECT_EQ(tern_snapshot(device, reinterpret_cast<tern_block*>(blocks), capacity, &count),
              TERN_OK);
    return std::min(count, capacity);
  };
  std::array<Older, 64> older = {};
  std::size_t matches = 0;
  for (std::size_t i = 0, n = count_blocks(older.data(), 64); i < n; ++i) {
    EXPECT_EQ(older[i].struct_bytes, sizeof(Older));
    matches += older[i].address == address ? 1U : 0U;
  }
  EXPECT_EQ(matches, 1u);
  std::vector<Newer> newer(64, Newer{{}, 77});
  newer[0].known.struct_bytes = sizeof(Newer);
  std::size_t count = 0;
  EXPECT_EQ(tern_snapshot(device, &newer[0].known, 64, &count), TERN_OK);
  matches = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(count, 64); ++i) {
    EXPECT_EQ(newer[i].unknown, 77u) << "a field that the library does not know";
    matches += newer[i].known.address == address ? 1U : 0U;
  }
  EXPECT_EQ(matches, 1u);
  EXPECT_EQ(tern_free(address, nullptr), TERN_OK);
}

TEST_P(CApiTest, TagsEndWithAZero) {
  tern_block block = {};
  block.struct_bytes = sizeof block;
  void* const untagged = allocate(pool, 5000);
  EXPECT_EQ(tern_find_block(untagged, &block), TERN_OK);
  EXPECT_STREQ(block.tag, "");
  // Names of many lengths, so that some are followed by other memory of the host.
  std::string name;
  for (int i = 0; i < 24; ++i) {
    name += static_cast<char>('a' + i);
    EXPECT_EQ(tern_set_tag(pool, name.c_str()), TERN_OK);
    void* const address = allocate(pool, 5000);
    EXPECT_EQ(tern_find_block(address, &block), TERN_OK);
    EXPECT_EQ(std::string_view(block.tag), name);
    EXPECT_EQ(tern_free(address, nullptr), TERN_OK);
  }
  EXPECT_EQ(tern_free(untagged, nullptr), TERN_OK);
}

TEST_P(CApiTest, BudgetsOfLibrariesShareOneLimit) {
  tern_budget* all = nullptr;
  ASSERT_EQ(tern_make_budget("process", 8 * mib, nullptr, &all), TERN_OK);
  tern_budget* of_torch = nullptr;
  tern_resource* const torch = limited("torch", 6 * mib, all, &of_torch);
  tern_resource* const cupy = limited("cupy", 6 * mib, all);
  ASSERT_EQ(tern_set_plugin(TERN_TORCH, 0, torch), TERN_OK);
  ASSERT_EQ(tern_set_plugin(TERN_CUPY, 0, cupy), TERN_OK);
  void* const first = tern_torch_malloc(5 * mib, 0, nullptr);
  ASSERT_NE(first, nullptr) << tern_last_error();
  EXPECT_EQ(tern_torch_malloc(2 * mib, 0, nullptr), nullptr);
  EXPECT_TRUE(says("torch")) << tern_last_error();
  EXPECT_EQ(tern_cupy_malloc(nullptr, 5 * mib, 0), nullptr) << "the parent is full";
  EXPECT_TRUE(says("process")) << tern_last_error();
  EXPECT_TRUE(says("In use: torch 5.0 MiB.")) << tern_last_error();
  void* const second = tern_cupy_malloc(nullptr, 3 * mib, 0);
  EXPECT_NE(second, nullptr) << "the others go on";
  tern_budget_statistics now = {};
  now.struct_bytes = sizeof now;
  EXPECT_EQ(tern_get_budget_statistics(all, &now), TERN_OK);
  EXPECT_EQ(now.used_bytes, 8 * mib);
  EXPECT_EQ(now.limit_bytes, 8 * mib);
  EXPECT_EQ(statistics(torch).live_bytes, 5 * mib);
  tern_torch_set_fraction(0.5, 0);
  EXPECT_EQ(tern_get_budget_statistics(of_torch, &now), TERN_OK);
  EXPECT_GT(now.limit_bytes, 6 * mib);
  tern_torch_free(first, 5 * mib, 0, nullptr);
  tern_cupy_free(nullptr, second, 0);
  EXPECT_EQ(tern_reset_peak(torch), TERN_OK);
  EXPECT_EQ(tern_synchronize(device), TERN_OK);
  tern_torch_empty_cache();
  EXPECT_EQ(statistics(torch).live_bytes, 0u);
  tern_release_resource(torch);
  tern_release_resource(cupy);
  tern_release_budget(of_torch);
  tern_release_budget(all);
}

TEST_P(CApiTest, MemoryOutlivesTheHandles) {
  tern_resource* const brief = limited("brief", 8 * mib);
  void* const address = allocate(brief, 1000);
  tern_release_resource(brief);
  EXPECT_EQ(tern_free(address, nullptr), TERN_OK);
}

TEST_P(CApiTest, APlugInCanBeReplacedWhileOthersAllocate) {
  ASSERT_EQ(tern_set_plugin(TERN_OTHER, 0, pool), TERN_OK);
  std::atomic<bool> stop = false;
  std::vector<test::Thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        void* address = nullptr;
        ASSERT_EQ(tern_plugin_allocate(TERN_OTHER, 0, 1000, nullptr, &address), TERN_OK)
            << tern_last_error();
        ASSERT_EQ(tern_free_in_order(address), TERN_OK);
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    tern_resource* const next = limited("next", 64 * mib);
    EXPECT_EQ(tern_set_plugin(TERN_OTHER, 0, next), TERN_OK);
    tern_release_resource(next);
  }
  stop = true;
  threads.clear();
  tern_resource* now = nullptr;
  ASSERT_EQ(tern_get_plugin(TERN_OTHER, 0, &now), TERN_OK);
  EXPECT_EQ(resource_of(now)->name(), std::string_view("budget(pool)"));
  tern_release_resource(now);
}

/// Requests wait until the test lets them go on.
class HeldResource final : public WrappingResource {
 public:
  explicit HeldResource(ResourceHandle upstream) : WrappingResource("held", std::move(upstream)) {}
  Result<Block> try_allocate(const Request& request) noexcept override {
    has_begun.release();
    may_go_on.acquire();
    return WrappingResource::try_allocate(request);
  }
  std::binary_semaphore has_begun{0}, may_go_on{0};
};

TEST_P(CApiTest, APlugInCanBeRemovedOnlyWhenNobodyAllocatesFromIt) {
  const auto held = std::make_shared<HeldResource>(resource_of(pool));
  tern_resource* const handle = make_c_handle(held);
  ASSERT_EQ(tern_set_plugin(TERN_OTHER, 0, handle), TERN_OK);
  void* address = nullptr;
  test::Thread allocates(
      [&] { EXPECT_EQ(tern_plugin_allocate(TERN_OTHER, 0, 1000, nullptr, &address), TERN_OK); });
  held->has_begun.acquire();
  std::binary_semaphore removed{0};
  test::Thread removes([&] {
    EXPECT_EQ(tern_set_plugin(TERN_OTHER, 0, nullptr), TERN_OK);
    removed.release();
  });
  const bool is_removed_early = removed.try_acquire_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(is_removed_early);
  held->may_go_on.release();
  if (!is_removed_early) removed.acquire();
  allocates.join();
  removes.join();
  EXPECT_EQ(tern_free_in_order(address), TERN_OK);
  tern_release_resource(handle);
}

TEST_P(CApiTest, AnArenaServesTheStreamsThatItsFilterAccepts) {
  constexpr tern_arena_id id = {3, 4};
  EXPECT_EQ(tern_begin_arena(0, id, nullptr, nullptr), TERN_INVALID_DEVICE) << "no plug-in";
  tern_resource* const torch = limited("torch", 64 * mib);
  ASSERT_EQ(tern_set_plugin(TERN_TORCH, 0, torch), TERN_OK);
  EXPECT_EQ(tern_end_arena(0, id), TERN_INVALID_ARGUMENT);
  EXPECT_EQ(tern_release_arena(0, id), TERN_INVALID_ARGUMENT);
  int accepts = 0;
  const tern_stream_filter filter = [](void* context, void*) {
    return *static_cast<int*>(context);
  };
  ASSERT_EQ(tern_reserve_arena(0, 4 * mib), TERN_OK);
  ASSERT_EQ(tern_begin_arena(0, id, filter, &accepts), TERN_OK) << tern_last_error();
  std::size_t held = 0, needed = 0;
  EXPECT_EQ(tern_get_arena(0, id, &held, &needed), TERN_OK);
  EXPECT_EQ(held, 4 * mib);
  void* const outside = tern_torch_malloc(1 * mib, 0, nullptr);
  EXPECT_EQ(statistics(torch).live_bytes, 5 * mib);
  accepts = 1;
  void* const inside = tern_torch_malloc(1 * mib, 0, nullptr);
  EXPECT_EQ(statistics(torch).live_bytes, 5 * mib) << "from the chunk of the arena";
  tern_torch_free(inside, 0, 0, nullptr);
  void* const again = tern_torch_malloc(1 * mib, 0, nullptr);
  EXPECT_EQ(again, inside);
  EXPECT_EQ(tern_get_arena(0, id, nullptr, &needed), TERN_OK);
  EXPECT_EQ(needed, 1 * mib);
  ASSERT_EQ(tern_end_arena(0, id), TERN_OK);
  void* const later = tern_torch_malloc(1 * mib, 0, nullptr);
  EXPECT_EQ(statistics(torch).live_bytes, 6 * mib);
  // The graph ends while its output is live.
  ASSERT_EQ(tern_release_arena(0, id), TERN_OK);
  EXPECT_EQ(statistics(torch).live_bytes, 6 * mib);
  tern_torch_record_stream(again, nullptr);
  tern_torch_free(again, 0, 0, nullptr);
  EXPECT_EQ(statistics(torch).live_bytes, 2 * mib) << "the chunk is back";
  tern_torch_free(outside, 0, 0, nullptr);
  tern_torch_free(later, 0, 0, nullptr);
  tern_release_resource(torch);
}

TEST_P(CApiTest, ARehearsalReturnsTheExactSizeOfAnArena) {
  ASSERT_EQ(tern_set_plugin(TERN_TORCH, 0, pool), TERN_OK);
  const auto step = [] {
    void* const a = tern_torch_malloc(10'000, 0, nullptr);
    void* const b = tern_torch_malloc(3 * mib, 0, nullptr);
    tern_torch_free(a, 0, 0, nullptr);
    void* const c = tern_torch_malloc(9'000, 0, nullptr);
    tern_torch_free(b, 0, 0, nullptr);
    tern_torch_free(c, 0, 0, nullptr);
  };
  ASSERT_EQ(tern_begin_rehearsal(0), TERN_OK) << tern_last_error();
  step();
  std::size_t rehearsed = 0;
  ASSERT_EQ(tern_end_rehearsal(0, &rehearsed), TERN_OK);
  EXPECT_EQ(rehearsed, 10'240 + 3 * mib);
  EXPECT_EQ(tern_end_rehearsal(0, &rehearsed), TERN_INVALID_ARGUMENT);
  ASSERT_EQ(tern_reserve_arena(0, rehearsed), TERN_OK);
  ASSERT_EQ(tern_begin_arena(0, {1, 1}, nullptr, nullptr), TERN_OK);
  step();
  std::size_t held = 0, needed = 0;
  ASSERT_EQ(tern_get_arena(0, {1, 1}, &held, &needed), TERN_OK);
  EXPECT_EQ(held, rehearsed);
  EXPECT_EQ(needed, rehearsed);
  ASSERT_EQ(tern_end_arena(0, {1, 1}), TERN_OK);
  ASSERT_EQ(tern_release_arena(0, {1, 1}), TERN_OK);
}

/// Memory of the default stream, which is NULL, is not free for other streams.
TEST_P(CApiTest, AnArenaKeepsTheMemoryOfTheDefaultStreamApart) {
  ASSERT_EQ(tern_set_plugin(TERN_TORCH, 0, pool), TERN_OK);
  ASSERT_EQ(tern_begin_arena(0, {5, 5}, nullptr, nullptr), TERN_OK);
  int other_stream = 0;
  void* const first = tern_torch_malloc(1000, 0, nullptr);
  EXPECT_EQ(tern_free(first, nullptr), TERN_OK);
  void* const second = tern_torch_malloc(1000, 0, &other_stream);
  EXPECT_NE(second, first);
  void* const again = tern_torch_malloc(1000, 0, nullptr);
  EXPECT_EQ(again, first);
  // What several streams have used in a capture is not used again.
  EXPECT_EQ(tern_record_use(again, &other_stream), TERN_OK);
  tern_torch_free(again, 1000, 0, nullptr);
  void* const third = tern_torch_malloc(1000, 0, nullptr);
  EXPECT_NE(third, again);
  tern_torch_free(second, 1000, 0, nullptr);
  tern_torch_free(third, 1000, 0, nullptr);
  EXPECT_EQ(tern_end_arena(0, {5, 5}), TERN_OK);
  EXPECT_EQ(tern_release_arena(0, {5, 5}), TERN_OK);
}

TEST_P(CApiTest, AFilterMayCallTheCApi) {
  ASSERT_EQ(tern_set_plugin(TERN_TORCH, 0, pool), TERN_OK);
  const tern_stream_filter filter = [](void*, void*) {
    std::size_t held = 0;
    return int{tern_get_arena(0, {6, 6}, &held, nullptr) == TERN_OK};
  };
  ASSERT_EQ(tern_begin_arena(0, {6, 6}, filter, nullptr), TERN_OK);
  void* const address = tern_torch_malloc(1000, 0, nullptr);
  EXPECT_NE(address, nullptr);
  tern_torch_free(address, 1000, 0, nullptr);
  EXPECT_EQ(tern_end_arena(0, {6, 6}), TERN_OK);
  EXPECT_EQ(tern_release_arena(0, {6, 6}), TERN_OK);
}

TEST_P(CApiTest, TheFunctionsOfPyTorchKeepItsRules) {
  ASSERT_EQ(tern_set_plugin(TERN_TORCH, 0, pool), TERN_OK);
  try {
    static_cast<void>(tern_torch_malloc_or_throw(std::size_t{1} << 45, 0, nullptr));
    ADD_FAILURE() << "it fits";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(std::string_view(error.what()).find("CUDA out of memory. "), 0u) << error.what();
  }
  EXPECT_EQ(tern_torch_malloc(100, 3, nullptr), nullptr) << "a device without a resource";
  std::vector<void*> asked;
  tern_torch_begin_pool(0, {0, 7}, [&](void* stream) {
    asked.push_back(stream);
    return true;
  });
  void* const address = tern_torch_malloc_or_throw(1000, 0, nullptr);
  EXPECT_EQ(asked.size(), 1u);
  std::size_t bytes = 0;
  EXPECT_EQ(tern_torch_base(address, &bytes), address);
  EXPECT_EQ(bytes, 1024u);
  tern_torch_end_pool(0, {0, 7});
  tern_torch_free(address, 1000, 0, nullptr);
  tern_torch_release_pool(0, {0, 7});
  EXPECT_THROW(tern_torch_begin_pool(9, {0, 7}, nullptr), std::runtime_error);
}

TEST_P(CApiTest, AFractionLimitsTheBudgetOrThePoolBelowWrappers) {
  const ResourceHandle shared = resource_of(pool);
  tern_resource* const wrapped =
      make_c_handle(std::make_shared<TrackingResource>(std::make_shared<FaultResource>(shared)));
  ASSERT_EQ(tern_set_plugin(TERN_TORCH, 0, wrapped), TERN_OK);
  EXPECT_EQ(tern_torch_set_fraction(1e-9, 0), TERN_OK);
  EXPECT_EQ(tern_torch_malloc(1 << 20, 0, nullptr), nullptr);
  EXPECT_EQ(tern_torch_set_fraction(1, 0), TERN_OK);
  tern_release_resource(wrapped);

  tern_resource* const direct =
      make_c_handle(std::make_shared<DirectResource>(open_device(GetParam())));
  ASSERT_EQ(tern_set_plugin(TERN_TORCH, 0, direct), TERN_OK);
  EXPECT_EQ(tern_torch_set_fraction(0.5, 0), TERN_UNSUPPORTED);
  EXPECT_TRUE(says("has no limit that can be set")) << tern_last_error();
  tern_release_resource(direct);
}

TEST_P(CApiTest, MessagesBelongToTheirThread) {
  EXPECT_EQ(tern_free(&device, nullptr), TERN_NOT_LIVE);
  const std::string mine = tern_last_error();
  test::Thread([] {
    EXPECT_STREQ(tern_last_error(), "");
    EXPECT_EQ(tern_synchronize(nullptr), TERN_INVALID_ARGUMENT);
  }).join();
  EXPECT_EQ(tern_last_error(), mine);
}

TEST_P(CApiTest, AForkedChildGetsAnError) {
  if (!test::children_can_allocate) GTEST_SKIP() << "the sanitizer's allocator is not usable here";
  if (GetParam() == std::string_view("host")) GTEST_SKIP() << "a child may use memory of the host";
  void* const address = allocate(pool, 1000);
  EXPECT_EQ(test::in_a_forked_child([&] {
              void* more = nullptr;
              return tern_allocate(pool, 1000, 0, nullptr, &more) == TERN_AFTER_FORK &&
                     tern_record_use(address, nullptr) == TERN_AFTER_FORK &&
                     tern_free(address, nullptr) == TERN_OK;
            }),
            0);
  EXPECT_EQ(tern_free(address, nullptr), TERN_OK);
}

INSTANTIATE_TEST_SUITE_P(EveryDevice, CApiTest,
                         testing::Values("host", "sim?report=quiet", "cuda:0?driver=sim"),
                         [](const auto& one) {
                           const std::string_view spec = one.param;
                           return std::string(spec.substr(0, spec.find_first_of(":?")));
                         });

// --- Streams of other code

class CApiStreamsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(tern_open_device("cuda:0?driver=sim", &device), TERN_OK) << tern_last_error();
    ASSERT_EQ(tern_make_pool(device, nullptr, &pool), TERN_OK) << tern_last_error();
  }
  void TearDown() override {
    tern_synchronize(device);
    EXPECT_EQ(resource_of(pool)->statistics().live_bytes, 0u);
    tern_release_resource(pool);
    tern_release_device(device);
  }
  static void* handle_of(const Stream& stream) {
    return reinterpret_cast<void*>(stream.try_native().value().value);
  }

  tern_device* device = nullptr;
  tern_resource* pool = nullptr;
};

TEST_F(CApiStreamsTest, DefaultStreamsHaveSmallHandles) {
  for (const std::uintptr_t handle : {0u, 1u, 2u}) {
    void* address = nullptr;
    ASSERT_EQ(tern_allocate(pool, 1000, 0, reinterpret_cast<void*>(handle), &address), TERN_OK)
        << tern_last_error();
    EXPECT_EQ(tern_free(address, reinterpret_cast<void*>(handle)), TERN_OK) << tern_last_error();
  }
}

TEST_F(CApiStreamsTest, AHandleThatIsNoStreamFailsAndChangesNothing) {
  void* address = nullptr;
  EXPECT_NE(tern_allocate(pool, 1000, 0, &address, &address), TERN_OK);
  ASSERT_EQ(tern_allocate(pool, 1000, 0, nullptr, &address), TERN_OK);
  EXPECT_NE(tern_free(address, &address), TERN_OK);
  EXPECT_EQ(tern_free(address, nullptr), TERN_OK);
}

TEST_F(CApiStreamsTest, AStreamMayEndBeforeTheFree) {
  const Device opened = open_device("cuda:0?driver=sim");
  std::vector<void*> addresses;
  for (int i = 0; i < 30; ++i) {
    const Stream brief(opened);
    void* address = nullptr;
    ASSERT_EQ(tern_allocate(pool, 100'000, 0, handle_of(brief), &address), TERN_OK)
        << tern_last_error();
    brief.fill(static_cast<std::byte*>(address), 100'000, std::byte{1});
    addresses.push_back(address);
  }
  for (void* const address : addresses) EXPECT_EQ(tern_free_in_order(address), TERN_OK);
}

TEST_F(CApiStreamsTest, ManyThreadsEachWithItsOwnStream) {
  const Device opened = open_device("cuda:0?driver=sim");
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const Stream own(opened);
      std::mt19937_64 random(static_cast<std::uint64_t>(i));
      std::vector<void*> live;
      for (int round = 0; round < (test::is_sanitized ? 200 : 1000); ++round) {
        void* address = nullptr;
        ASSERT_EQ(tern_allocate(pool, 1 + random() % 50'000, 0, handle_of(own), &address), TERN_OK)
            << tern_last_error();
        live.push_back(address);
        if (live.size() > 8) {
          std::swap(live[random() % live.size()], live.back());
          ASSERT_EQ(random() % 2 == 0 ? tern_free(live.back(), handle_of(own))
                                      : tern_free_in_order(live.back()),
                    TERN_OK)
              << tern_last_error();
          live.pop_back();
        }
      }
      for (void* const address : live) EXPECT_EQ(tern_free_in_order(address), TERN_OK);
    });
  }
}

}  // namespace
}  // namespace tern
