#include "backends/cuda/cuda_peers.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "support/cuda_bench.hpp"

namespace tern::cuda {
namespace {

TEST(CudaPeers, LetsKernelsUseMemoryOfAPeer) {
  PeerBench bench(true);
  void* const there = bench.memory(16);
  bench.write(there, std::vector<std::byte>(16));
  EXPECT_TRUE(bench.device(1).enable_peer_access(bench.device()).value());
  EXPECT_TRUE(bench.device(1).enable_peer_access(bench.device()).value());
  EXPECT_EQ(why(bench.add_one(1, there)), "");
  EXPECT_EQ(bench.read(there, 1)[0], std::byte{1});
  // And its pages, mapped before or after.
  EXPECT_TRUE(bench.device().enable_peer_access(bench.device(1)).value());
  void* const base = bench.device().reserve(sim::page_bytes).value();
  const NativePages pages = bench.device().create_pages(sim::page_bytes).value();
  ASSERT_EQ(why(bench.device().map(base, pages)), "");
  ASSERT_EQ(why(bench.device().set_access(base, sim::page_bytes, PageAccess::read_write)), "");
  bench.write(base, std::vector<std::byte>(16));
  EXPECT_EQ(why(bench.add_one(1, base)), "");
  EXPECT_EQ(bench.read(base, 1)[0], std::byte{1});
}

TEST(CudaPeers, SaysThatADeviceIsNoPeer) {
  PeerBench bench(false);
  const Result<bool> enabled = bench.device(1).enable_peer_access(bench.device());
  ASSERT_EQ(why(enabled), "");
  EXPECT_FALSE(*enabled);
  EXPECT_EQ(bench.fake.calls("cuCtxEnablePeerAccess"), 0u);
  // Its own memory a device can always use, however often it was opened.
  const auto again = bench.open(1);
  ASSERT_EQ(why(again), "");
  EXPECT_TRUE(bench.device(1).enable_peer_access(**again).value());
}

TEST(CudaPeers, NamesTheCallThatAPeerWasNotLetInBy) {
  PeerBench bench(true);
  for (const char* call : {"cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess"}) {
    bench.fake.fail_call(call, 1, CUDA_ERROR_UNKNOWN);
    const Result<bool> refused = bench.device(1).enable_peer_access(bench.device());
    ASSERT_EQ(code(refused), "driver");
    EXPECT_EQ(refused.failure().string("call"), call);
  }
}

TEST(CudaPeers, AreAskedForLetInAndKeptOutAgain) {
  PeerBench bench(true);
  Backend& here = bench.device(1);
  Backend& there = bench.device();
  void* const values = bench.memory(16);
  bench.write(values, std::vector<std::byte>(16));
  EXPECT_EQ(here.peer_access(there).value(), PeerAccess::disabled);
  EXPECT_EQ(why(here.disable_peer_access(there)), "");
  EXPECT_EQ(bench.fake.calls("cuCtxDisablePeerAccess"), 0u);

  EXPECT_TRUE(here.enable_peer_access(there).value());
  EXPECT_EQ(here.peer_access(there).value(), PeerAccess::enabled);
  EXPECT_EQ(there.peer_access(here).value(), PeerAccess::disabled) << "access goes one way";
  EXPECT_EQ(why(bench.add_one(1, values)), "");

  EXPECT_EQ(why(here.disable_peer_access(there)), "");
  EXPECT_EQ(here.peer_access(there).value(), PeerAccess::disabled);
  bench.is_lost = true;  // the simulation reports it, too
  EXPECT_EQ(code(bench.add_one(1, values)), "driver");
  EXPECT_EQ(bench.fake.calls("cuCtxDisablePeerAccess"), 1u);
}

TEST(CudaPeers, CannotBeAskedForWhereThereAreNoneOrKeptFromTheirOwnMemory) {
  PeerBench bench(false);
  EXPECT_EQ(bench.device(1).peer_access(bench.device()).value(), PeerAccess::unavailable);
  const auto again = bench.open(1);
  ASSERT_EQ(why(again), "");
  EXPECT_EQ(bench.device(1).peer_access(**again).value(), PeerAccess::enabled);
  EXPECT_EQ(why(bench.device(1).disable_peer_access(**again)), "");
  EXPECT_EQ(bench.device(1).peer_access(**again).value(), PeerAccess::enabled);
}

TEST(CudaPeers, KeepWhatSomebodyElseEnabled) {
  PeerBench bench(true);
  const DriverTable& cu = bench.cu;
  const auto contexts = [&](int device) {
    CUcontext context = nullptr;
    EXPECT_EQ(cu.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    return context;
  };
  ASSERT_EQ(cu.cuCtxPushCurrent(contexts(1)), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuCtxEnablePeerAccess(contexts(0), 0), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  void* const values = bench.memory(16);
  bench.write(values, std::vector<std::byte>(16));
  EXPECT_TRUE(bench.device(1).enable_peer_access(bench.device()).value());
  EXPECT_EQ(why(bench.device(1).disable_peer_access(bench.device())), "");
  EXPECT_EQ(bench.fake.calls("cuCtxDisablePeerAccess"), 0u);
  EXPECT_EQ(why(bench.add_one(1, values)), "");
}

TEST(CudaPeers, StayLetInIfTheyCannotBeKeptOut) {
  PeerBench bench(true);
  Backend& here = bench.device(1);
  Backend& there = bench.device();
  void* const base = there.reserve(2 * sim::page_bytes).value();
  std::vector<NativePages> pages;
  for (std::size_t i = 0; i < 2; ++i) {
    pages.push_back(there.create_pages(sim::page_bytes).value());
    void* const address = static_cast<std::byte*>(base) + i * sim::page_bytes;
    ASSERT_EQ(why(there.map(address, pages[i])), "");
  }
  ASSERT_EQ(why(there.set_access(base, 2 * sim::page_bytes, PageAccess::read_write)), "");
  bench.write(base, std::vector<std::byte>(16));
  EXPECT_TRUE(here.enable_peer_access(there).value());
  for (const auto& [call, nth] : {std::pair{"cuMemSetAccess", 1}, std::pair{"cuMemSetAccess", 2},
                                  std::pair{"cuCtxDisablePeerAccess", 1}}) {
    SCOPED_TRACE(std::string(call) + " " + std::to_string(nth));
    bench.fake.clear_failures();
    bench.fake.fail_call(call, static_cast<std::uint64_t>(nth), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(code(here.disable_peer_access(there)), "driver");
    EXPECT_EQ(here.peer_access(there).value(), PeerAccess::enabled);
    EXPECT_EQ(why(bench.add_one(1, base)), "");
  }
  EXPECT_EQ(why(here.disable_peer_access(there)), "");
  bench.is_lost = true;  // what is mapped and not to be used ends the device of the kernel
  EXPECT_EQ(code(bench.add_one(1, base)), "device_lost");
  EXPECT_EQ(bench.read(base, 1)[0], std::byte{3}) << "the owner keeps its access";
}

}  // namespace
}  // namespace tern::cuda
