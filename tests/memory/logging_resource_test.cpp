#include "tern/memory/logging_resource.hpp"

#include <gtest/gtest.h>

#include <map>

#include "support/allocation_counter.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"

namespace tern {
namespace {

class LoggingResourceTest : public testing::Test {
 protected:
  [[nodiscard]] LogRecord last() const { return ring->records().back(); }

  Device device = sim::open({});
  Stream stream{device, {.name = "A"}};
  std::shared_ptr<FaultResource> upstream =
      std::make_shared<FaultResource>(std::make_shared<DirectResource>(device));
  std::shared_ptr<RingSink> ring = std::make_shared<RingSink>(10'000);
  LoggingResource resource{upstream, ring};
};

TEST_F(LoggingResourceTest, RecordsAllocationsAndFrees) {
  const CallSite asked = CallSite::here();
  const Block block =
      resource.allocate({.bytes = 1000, .stream = stream, .tag = "weights", .site = asked});
  const LogRecord first = last();
  EXPECT_EQ(first.action, LogAction::allocate);
  EXPECT_EQ(first.device, device.id());
  EXPECT_EQ(first.stream, stream.id());
  EXPECT_EQ(first.address, block.address);
  EXPECT_EQ(first.bytes, 1000u);
  EXPECT_EQ(first.tag, Tag("weights"));
  EXPECT_EQ(first.generation, block.generation);
  EXPECT_EQ(first.site.line, asked.line);
  EXPECT_GT(first.thread, 0u);
  EXPECT_GT(first.time_ns, 0u);
  EXPECT_FALSE(first.failure);
  EXPECT_EQ(first.message(), "");

  const CallSite freed = CallSite::here();
  resource.deallocate(block, stream, freed);
  const LogRecord second = last();
  EXPECT_EQ(second.action, LogAction::free);
  EXPECT_EQ(second.tag, Tag("weights"));
  EXPECT_EQ(second.generation, block.generation);
  EXPECT_EQ(second.bytes, 1000u);
  EXPECT_EQ(second.stream, stream.id());
  EXPECT_EQ(second.site.line, freed.line);
  EXPECT_EQ(second.thread, first.thread);
  EXPECT_GE(second.time_ns, first.time_ns);
  EXPECT_GT(second.order, first.order);
  EXPECT_EQ(ring->written(), 2u);

  EXPECT_EQ(resource.trim(0), 0u);
  EXPECT_EQ(last().action, LogAction::trim);
}

TEST_F(LoggingResourceTest, RecordsFailuresWithWhatWasAskedFor) {
  upstream->fail_next();
  const Result<Block> refused = resource.try_allocate({.bytes = 512, .tag = "weights"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(last().failure, ErrorCode::out_of_memory);
  EXPECT_EQ(last().bytes, 512u);
  EXPECT_EQ(last().address, nullptr);
  EXPECT_EQ(last().message(), refused.failure().text());

  const Block block = resource.allocate({.bytes = 64});
  upstream->set_rules({{.for_frees = true, .nth = 1}});
  EXPECT_FALSE(resource.try_deallocate(block, {}));
  EXPECT_EQ(last().action, LogAction::free);
  EXPECT_EQ(last().failure, ErrorCode::driver);
  EXPECT_EQ(last().bytes, 64u);
  EXPECT_TRUE(resource.try_deallocate(block, {}));
  EXPECT_FALSE(resource.try_deallocate(block, {}));
  EXPECT_EQ(last().failure, ErrorCode::use_after_free);
  EXPECT_EQ(ring->written(), 5u);
}

/// Refuses with a message of the caller's choice.
class Speaker final : public Resource {
 public:
  explicit Speaker(Device device) : device_(std::move(device)) {}
  const char* name() const noexcept override { return "speaker"; }
  const Device& device() const noexcept override { return device_; }
  ResourceTraits traits() const noexcept override { return {}; }
  Statistics statistics() const noexcept override { return {}; }
  std::size_t good_size(const Request& request) const noexcept override { return request.bytes; }
  Result<Block> try_allocate(const Request&) noexcept override {
    return Failure(ErrorCode::driver, sentence);
  }
  Result<void> try_deallocate(const Block&, StreamRef, const CallSite&) noexcept override {
    return {};
  }
  const char* sentence = "";

 private:
  Device device_;
};

TEST_F(LoggingResourceTest, CutsMessagesBetweenTwoCharacters) {
  auto speaker = std::make_shared<Speaker>(device);
  LoggingResource logged(speaker, ring);
  for (std::size_t ascii = 252; ascii <= 258; ++ascii) {
    std::string text(ascii, 'a');
    for (int i = 0; i < 4; ++i) text += "\u20AC";  // three bytes each
    speaker->sentence = text.c_str();
    EXPECT_FALSE(logged.try_allocate({.bytes = 1}));
    const std::size_t whole = ascii + (ascii < 256 ? (256 - ascii) / 3 * 3 : 0);
    EXPECT_EQ(last().message(), text.substr(0, std::min<std::size_t>(whole, 256))) << ascii;
  }
  const std::string exact(256, 'b');
  speaker->sentence = exact.c_str();
  EXPECT_FALSE(logged.try_allocate({.bytes = 1}));
  EXPECT_EQ(last().message(), exact);
}

TEST_F(LoggingResourceTest, SurvivesASinkThatThrows) {
  auto throwing = make_callback_sink([](const LogRecord&) { throw 1; });
  LoggingResource logged(upstream, throwing);
  const Result<Block> block = logged.try_allocate({.bytes = 64});
  ASSERT_TRUE(block);
  EXPECT_EQ(logged.dropped_records(), 1u);
  EXPECT_TRUE(logged.try_deallocate(*block, {}));
  EXPECT_EQ(logged.dropped_records(), 2u);
  upstream->fail_next();
  EXPECT_EQ(logged.try_allocate({.bytes = 64}).failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(logged.dropped_records(), 3u);
  EXPECT_EQ(resource.dropped_records(), 0u);
}

TEST_F(LoggingResourceTest, SurvivesASinkThatFails) {
  LoggingResource logged(upstream, make_file_sink("/dev/full"));
  const Result<Block> block = logged.try_allocate({.bytes = 64});
  ASSERT_TRUE(block);
  EXPECT_TRUE(logged.try_deallocate(*block, {}));
  EXPECT_EQ(logged.dropped_records(), 2u);
}

TEST_F(LoggingResourceTest, SurvivesASinkThatAllocates) {
  LoggingResource* self = nullptr;
  int records = 0;
  auto greedy = make_callback_sink([&](const LogRecord&) {
    ++records;
    self->deallocate(self->allocate({.bytes = 64}), {});
  });
  LoggingResource logged(upstream, greedy);
  self = &logged;
  logged.deallocate(logged.allocate({.bytes = 64}), {});
  EXPECT_EQ(records, 2);
  EXPECT_EQ(logged.dropped_records(), 4u);
  EXPECT_EQ(logged.statistics().live_bytes, 0u);
}

TEST_F(LoggingResourceTest, NumbersTheCallsOfEightThreads) {
  std::vector<test::Thread> workers;
  for (int t = 0; t < 8; ++t) {
    workers.emplace_back([&] {
      for (int i = 0; i < 500; ++i) resource.deallocate(resource.allocate({.bytes = 64}), {});
    });
  }
  for (test::Thread& worker : workers) worker.join();
  const std::vector<LogRecord> all = ring->records();
  ASSERT_EQ(all.size(), 8000u);
  EXPECT_EQ(resource.dropped_records(), 0u);
  std::map<const void*, Generation> live;
  std::map<std::uint32_t, int> by_thread;
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(i == 0 || all[i].order > all[i - 1].order);
    ++by_thread[all[i].thread];
    // Read in order, the log is a history: nothing is given twice, and frees are of what is live.
    if (all[i].action == LogAction::allocate) {
      ASSERT_TRUE(live.emplace(all[i].address, all[i].generation).second);
    } else {
      const auto found = live.find(all[i].address);
      ASSERT_TRUE(found != live.end() && found->second == all[i].generation);
      live.erase(found);
    }
  }
  EXPECT_EQ(by_thread.size(), 8u);
  for (const auto& [thread, count] : by_thread) EXPECT_EQ(count, 1000) << thread;
}

/// Lets somebody else have memory before its free returns.
class Hasty final : public Resource {
 public:
  explicit Hasty(ResourceHandle other) : other_(std::move(other)) {}
  const char* name() const noexcept override { return "hasty"; }
  const Device& device() const noexcept override { return other_->device(); }
  ResourceTraits traits() const noexcept override { return {}; }
  Statistics statistics() const noexcept override { return {}; }
  std::size_t good_size(const Request& request) const noexcept override { return request.bytes; }
  Result<Block> try_allocate(const Request&) noexcept override { return Block{}; }
  Result<void> try_deallocate(const Block&, StreamRef, const CallSite&) noexcept override {
    return other_->try_deallocate(other_->allocate({.bytes = 64}), {});
  }

 private:
  const ResourceHandle other_;
};

TEST_F(LoggingResourceTest, NumbersAFreeBeforeOthersCanHaveTheMemory) {
  LoggingResource hasty(std::make_shared<Hasty>(std::make_shared<LoggingResource>(upstream, ring)),
                        ring);
  EXPECT_TRUE(hasty.try_deallocate({&stream, 7, device.id(), Generation(99'999, 1)}, {}));
  ASSERT_EQ(ring->records().size(), 3u);
  EXPECT_EQ(ring->records()[0].bytes, 7u);
}

TEST_F(LoggingResourceTest, UsesNoHeapOfItsOwn) {
  auto speaker = std::make_shared<Speaker>(device);
  speaker->sentence = "nothing is left.";
  LoggingResource logged(speaker, ring);
  const Block block{&stream, 8, device.id(), Generation(99'999, 1)};
  // The first of all calls makes tables that live as long as the process.
  static_cast<void>(logged.try_allocate({.bytes = 64}));
  static_cast<void>(logged.try_deallocate(block, {}));
  const test::AllocationCounter counter;
  static_cast<void>(logged.try_allocate({.bytes = 64}));
  static_cast<void>(logged.try_deallocate(block, {}));
  EXPECT_EQ(counter.count(), 0u);
  EXPECT_EQ(ring->written(), 4u);
}

TEST_F(LoggingResourceTest, NeedsASink) {
  EXPECT_THROW(LoggingResource(upstream, nullptr), InvalidArgument);
}

}  // namespace
}  // namespace tern
