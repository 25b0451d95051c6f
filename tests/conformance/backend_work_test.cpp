// Host functions, kernels and prefetches.

#include "support/ladder.hpp"

namespace tern::test {
namespace {

class Works : public Ladder {};
TERN_CLIMB(Works);

TEST_P(Works, ByCallingTheHostOnceInOrder) {
  int calls = 0;
  const auto count = [](void* context) { ++*static_cast<int*>(context); };
  if (!can(Capability::host_functions)) {
    expect_unsupported(stream.try_call(count, &calls), Capability::host_functions, device);
    return;
  }
  stream.call(count, &calls);
  stream.synchronize();
  EXPECT_EQ(calls, 1);
  expect_refused(stream.try_call(nullptr, &calls), ErrorCode::invalid_argument);
}

/// A kernel that adds: two addresses, a count, and a context.
void add(const KernelCall& call) {
  const int* in = call.argument<int*>(0);
  int* out = call.argument<int*>(1);
  const auto count = call.argument<std::uint32_t>(2);
  for (std::uint32_t i = 0; i < count; ++i) {
    out[i] = in[i] + *static_cast<int*>(call.context) + static_cast<int>(call.size.grid[0]);
  }
}

class WorksWithKernels : public Works {
 protected:
  void SetUp() override {
    const KernelSource source{.entry = "add", .body = add, .context = &context};
    Result<NativeKernel> loaded = device.try_load_kernel(source);
    if (!can(Capability::kernels)) {
      expect_unsupported(loaded, Capability::kernels, device);
      GTEST_SKIP() << "has no kernels";
    }
    if (!loaded) {
      expect_refused(loaded, ErrorCode::unsupported);
      GTEST_SKIP() << "does not run C++ functions";
    }
    kernel = *loaded;
  }
  void TearDown() override { device.unload_kernel(kernel); }

  int context = 100;
  NativeKernel kernel;
};
TERN_CLIMB(WorksWithKernels);

TEST_P(WorksWithKernels, WhoseArgumentsAreCopiedBeforeTheLaunchReturns) {
  const Block in(device, 40), out(device, 40);
  Bytes ones(40, std::byte{0});
  for (std::size_t i = 0; i < 10; ++i) ones[4 * i] = std::byte{1};
  write(in.get(), ones);
  Gate gate;
  gate.hold(stream);
  {
    void* from = in.get();
    void* to = out.get();
    std::uint32_t count = 10;
    std::vector<KernelArgument> arguments = {{&from, sizeof from, in.get(), 40, Access::read},
                                             {&to, sizeof to, out.get(), 40, Access::discard},
                                             {&count, sizeof count, nullptr, 0, Access::read}};
    stream.launch(kernel, {.grid = {7, 1, 1}}, arguments);
    from = to = nullptr;
    count = 0;
    arguments.clear();
  }
  gate.open();
  const Bytes result = read(out.get(), 40);
  for (std::size_t i = 0; i < 10; ++i) {
    int value = 0;
    std::memcpy(&value, result.data() + 4 * i, 4);
    EXPECT_EQ(value, 1 + 100 + 7);
  }
}

TEST_P(WorksWithKernels, ThatDoNothingOnAnEmptyGridOrBlock) {
  for (const LaunchSize& size : {LaunchSize{.grid = {0, 1, 1}}, LaunchSize{.grid = {1, 0, 1}},
                                 LaunchSize{.grid = {1, 1, 0}}, LaunchSize{.block = {1, 0, 1}}}) {
    EXPECT_TRUE(stream.try_launch(kernel, size, {}));  // would read arguments that are not there
  }
  stream.synchronize();
}

TEST_P(WorksWithKernels, ButNotWithArgumentsThatHaveNoValue) {
  const KernelArgument nothing{nullptr, 8, nullptr, 0, Access::read};
  expect_refused(stream.try_launch(kernel, {}, std::span(&nothing, 1)),
                 ErrorCode::invalid_argument);
  int value = 0;
  const KernelArgument endless{&value, max_request_bytes + 1, nullptr, 0, Access::read};
  expect_refused(stream.try_launch(kernel, {}, std::span(&endless, 1)), ErrorCode::size_overflow);
}

TEST_P(WorksWithKernels, ButNotWithoutOne) {
  expect_refused(stream.try_launch({}, {}, {}), ErrorCode::invalid_argument);
  device.unload_kernel({});
  const Result<NativeKernel> nothing = device.try_load_kernel({.entry = "nothing"});
  if (device.info().backend == "sim") {
    // There a kernel without code is a stand-in that writes what depends on all it reads.
    ASSERT_TRUE(nothing);
    device.unload_kernel(*nothing);
  } else {
    expect_refused(nothing, ErrorCode::unsupported);
  }
}

TEST_P(WorksWithKernels, ButNotWithOneThatWasUnloaded) {
  const NativeKernel loaded =
      device.try_load_kernel({.entry = "nothing", .body = [](const KernelCall&) {}}).value();
  EXPECT_TRUE(stream.try_launch(loaded, {}, {}));
  device.unload_kernel(loaded);
  device.unload_kernel(loaded);
  expect_refused(stream.try_launch(loaded, {}, {}), ErrorCode::use_after_free);
  expect_refused(stream.try_launch(NativeKernel{999'999}, {}, {}), ErrorCode::use_after_free);
}

TEST_P(WorksWithKernels, ButNotWithMoreThanFitsByValue) {
  const NativeKernel loaded =
      device.try_load_kernel({.entry = "nothing", .body = [](const KernelCall&) {}}).value();
  const Bytes large(40 * kib);
  const KernelArgument two[] = {{.value = large.data(), .value_bytes = large.size()},
                                {.value = large.data(), .value_bytes = large.size()}};
  expect_refused(stream.try_launch(loaded, {}, two), ErrorCode::invalid_argument);
  EXPECT_TRUE(stream.try_launch(loaded, {}, std::span(two).first(1)));
  stream.synchronize();
  device.unload_kernel(loaded);
}

TEST_P(Works, ByBringingManagedMemoryWhereItIsWanted) {
  if (!can(Capability::managed_memory)) GTEST_SKIP() << "has no managed memory";
  const Block block(device, 3 * mib, MemoryKind::managed);
  write(block.get(), sample(3 * mib));
  const Result<void> brought = stream.try_prefetch(block.get(), 3 * mib, device.place());
  if (!can(Capability::prefetch)) {
    expect_unsupported(brought, Capability::prefetch, device);
    return;
  }
  EXPECT_TRUE(brought);
  EXPECT_TRUE(stream.try_prefetch(block.get() + 5000, 100, Place::host()));
  EXPECT_TRUE(stream.try_prefetch(nullptr, 0, Place::host()));
  EXPECT_TRUE(read(block.get(), 3 * mib) == sample(3 * mib));

  Bytes foreign(64);
  expect_refused(stream.try_prefetch(nullptr, 64, Place::host()), ErrorCode::invalid_argument);
  expect_refused(stream.try_prefetch(foreign.data(), 64, Place::host()),
                 ErrorCode::invalid_argument);
  expect_refused(stream.try_prefetch(block.get(), 3 * mib + 1, Place::host()),
                 ErrorCode::invalid_argument);
  expect_refused(stream.try_prefetch(block.get(), 64, Place::device(DeviceId{0xFFFFFF})),
                 ErrorCode::invalid_device);
  expect_refused(stream.try_prefetch(block.get(), 64, Place::file()), ErrorCode::invalid_device);
  expect_refused(stream.try_prefetch(block.get(), max_request_bytes + 1, Place::host()),
                 ErrorCode::size_overflow);
}

TEST_P(Works, WithManyPrefetchesAtOnce) {
  const PrefetchRange nothing[] = {{nullptr, 0, Place::host()}};
  if (!can(Capability::prefetch)) {
    expect_unsupported(stream.try_prefetch_batch(nothing), Capability::prefetch, device);
    return;
  }
  const Block block(device, 4 * mib, MemoryKind::managed);
  write(block.get(), sample(4 * mib));
  const auto part = [&](std::size_t index, Place place) {
    return PrefetchRange{block.get() + index * mib, 1 * mib, place};
  };
  const PrefetchRange all[] = {part(0, device.place()), nothing[0], part(1, device.place()),
                               part(2, Place::host()), part(3, device.place())};
  // The default stream takes them too, one by one if it must.
  for (const StreamRef on : {StreamRef(stream), device.default_stream()}) {
    EXPECT_TRUE(on.try_prefetch_batch(all));
    on.synchronize();
  }
  if (can(Capability::advice)) {
    const auto last = [&](std::size_t index) {
      return device.try_managed_info(block.get() + index * mib, 1 * mib).value().last_prefetch;
    };
    EXPECT_EQ(last(0), device.place());
    EXPECT_EQ(last(1), device.place());
    EXPECT_EQ(last(2), Place::host());
    EXPECT_EQ(last(3), device.place());
  }
  EXPECT_TRUE(read(block.get(), 4 * mib) == sample(4 * mib));
  EXPECT_TRUE(stream.try_prefetch_batch(nothing));
  EXPECT_TRUE(stream.try_prefetch_batch({}));

  // What can be seen at once is refused before the first is on its way; the rest names its place.
  Bytes foreign(64);
  PrefetchRange wrong[] = {part(0, Place::host()), nothing[0], {foreign.data(), 64, Place::host()}};
  const Result<void> stopped = stream.try_prefetch_batch(wrong);
  expect_refused(stopped, ErrorCode::invalid_argument);
  EXPECT_EQ(stopped.failure().number("index"), 2u);
  EXPECT_EQ(stopped.failure().number("submitted"), 2u);
  wrong[2].destination = Place::device(DeviceId{0xFFFFFF});
  const Result<void> nowhere = stream.try_prefetch_batch(wrong);
  expect_refused(nowhere, ErrorCode::invalid_device);
  EXPECT_EQ(nowhere.failure().number("index"), 2u);
  EXPECT_EQ(nowhere.failure().number("submitted"), 0u);
  stream.synchronize();
}

TEST_P(Works, WithBytesThatNobodyNeedsAnyMore) {
  if (!can(Capability::discard)) {
    expect_unsupported(stream.try_discard(nullptr, 0), Capability::discard, device);
    return;
  }
  const Block block(device, 3 * mib, MemoryKind::managed);
  write(block.get(), sample(3 * mib));
  EXPECT_TRUE(stream.try_discard(nullptr, 0));
  EXPECT_TRUE(stream.try_discard(block.get() + 1 * mib, 1 * mib));
  EXPECT_TRUE(stream.try_discard(block.get() + 2 * mib, 1 * mib, device.place()));
  // They are written before they are read again, and their neighbours are what they were.
  const Bytes others = sample(2 * mib, 2);
  write(block.get() + 1 * mib, others);
  EXPECT_TRUE(read(block.get() + 1 * mib, 2 * mib) == others);
  Bytes first = sample(3 * mib);
  first.resize(1 * mib);
  EXPECT_TRUE(read(block.get(), 1 * mib) == first);

  Bytes foreign(64);
  expect_refused(stream.try_discard(foreign.data(), 64), ErrorCode::invalid_argument);
  expect_refused(stream.try_discard(nullptr, 64), ErrorCode::invalid_argument);
  expect_refused(stream.try_discard(block.get(), 64, Place::device(DeviceId{0xFFFFFF})),
                 ErrorCode::invalid_device);
}

TEST_P(Works, WithAdviceOnlyIfItTakesAny) {
  const Result<void> advised =
      device.try_advise(nullptr, 0, Advice::set_read_mostly, Place::host());
  if (can(Capability::advice)) {
    EXPECT_TRUE(advised);
    EXPECT_TRUE(device.try_managed_info(nullptr, 0));
  } else {
    expect_unsupported(advised, Capability::advice, device);
    expect_unsupported(device.try_managed_info(nullptr, 0), Capability::advice, device);
  }
}

TEST_P(Works, WithAdviceThatCanBeAskedForAndTakenBack) {
  if (!can(Capability::advice)) GTEST_SKIP() << "takes no advice";
  const Block block(device, 3 * mib, MemoryKind::managed);
  write(block.get(), sample(3 * mib));
  const auto info = [&](std::size_t bytes) {
    return device.try_managed_info(block.get(), bytes).value();
  };
  EXPECT_FALSE(info(3 * mib).is_read_mostly);
  EXPECT_FALSE(info(3 * mib).preferred);
  const auto advise = [&](Advice advice, Place place) {
    return device.try_advise(block.get(), 2 * mib, advice, place);
  };
  ASSERT_TRUE(advise(Advice::set_read_mostly, Place::host()));
  ASSERT_TRUE(advise(Advice::set_preferred_location, device.place()));
  ASSERT_TRUE(advise(Advice::set_accessed_by, device.place()));
  EXPECT_TRUE(info(2 * mib).is_read_mostly);
  EXPECT_TRUE(info(2 * mib).is_accessed_by(device.place()));
  EXPECT_EQ(info(2 * mib).preferred, device.place());
  EXPECT_FALSE(info(3 * mib).is_read_mostly);
  EXPECT_FALSE(info(3 * mib).is_accessed_by(device.place()));
  EXPECT_FALSE(info(3 * mib).preferred);
  ASSERT_TRUE(advise(Advice::unset_read_mostly, Place::host()));
  ASSERT_TRUE(advise(Advice::unset_preferred_location, Place::host()));
  ASSERT_TRUE(advise(Advice::unset_accessed_by, device.place()));
  EXPECT_FALSE(info(2 * mib).is_read_mostly);
  EXPECT_FALSE(info(2 * mib).is_accessed_by(device.place()));
  EXPECT_FALSE(info(2 * mib).preferred);
  EXPECT_TRUE(read(block.get(), 3 * mib) == sample(3 * mib));

  Bytes foreign(64);
  expect_refused(device.try_advise(foreign.data(), 64, Advice::set_read_mostly, Place::host()),
                 ErrorCode::invalid_argument);
  expect_refused(device.try_managed_info(block.get(), 3 * mib + 1), ErrorCode::invalid_argument);
  expect_refused(advise(Advice::set_preferred_location, Place::device(DeviceId{0xFFFFFF})),
                 ErrorCode::invalid_device);
}

}  // namespace
}  // namespace tern::test
