// The full text of a report for every code.

#include "trace/order_report.hpp"

#include <gtest/gtest.h>

#include <string>

#include "support/checked_program.hpp"

namespace tern::test {
namespace {

constexpr std::uint64_t kibi = 1024;

constexpr CallSite site(const char* file, const char* function, std::uint32_t line) {
  return {file, function, line};
}

class OrderReportTest : public testing::Test {
 protected:
  OrderReportTest() {
    p.checker.set_context("sim:0  seed 0x1c9f  schedule lazy", "TERN_SIM_SEED=0x1c9f ctest -R x");
  }
  void reads(const Found& found, const std::string& text) {
    ASSERT_TRUE(found);
    EXPECT_EQ(found->text(), text);
  }
  /// A slab whose pieces a pool gives out.
  void make_slab() {
    p.at(site("src/pool.cpp", "grow", 12), "pool").host_allocate(device(0, 1024 * kibi));
  }

  CheckedProgram p;
  const ActorId a = p.stream("A");
  const ActorId b = p.stream("B");
  const ActorId c = p.stream("C");
};

TEST_F(OrderReportTest, S101MissingWait) {
  p.at(site("src/agg.cpp", "open", 9), "agg.buf").host_allocate(device(0x40000, 64 * kibi));
  p.at(site("src/agg.cpp", "aggregate", 41))
      .kernel(a, {{TouchKind::write, device(0x40000, 64 * kibi)}}, "fill");
  p.wait(b, 99);
  reads(p.at(site("src/sort.cpp", "radix_pass", 88))
            .kernel(b, {{TouchKind::read, device(0x41000, 4 * kibi)}}, "sort"),
        R"(TERN-S101 missing-wait                          sim:0  seed 0x1c9f  schedule lazy  step 7
  what    [0x41000, +4 KiB) is read by stream B while stream A may still write it
  now     B@2   kernel "sort" reads [0x41000, +4 KiB)  src/sort.cpp:88 in radix_pass
  before  A@1   kernel "fill" writes [0x40000, +64 KiB)  src/agg.cpp:41 in aggregate
  block   generation 1, 64 KiB by H0@1  tag "agg.buf"  src/agg.cpp:9 in open
  order   B knows A up to 0, needs 1; B@1 waited for an event that was never recorded; no other stream knows it
  fix     let B wait for A@1
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S101AgainstAReader) {
  p.host_allocate(device(0, 64));
  p.host_write(device(0, 64));
  p.at(site("src/agg.cpp", "aggregate", 41)).copy(a, device(0, 64), host(0x2000, 64));
  reads(p.at(site("src/agg.cpp", "clear", 50)).fill(b, device(0, 64)),
        R"(TERN-S101 missing-wait                          sim:0  seed 0x1c9f  schedule lazy  step 7
  what    [0x0, +64 B) is written by stream B while stream A may still read it
  now     B@1   fill [0x0, +64 B)  src/agg.cpp:50 in clear
  before  A@1   copy [0x0, +64 B) to [host+0x2000, +64 B)  src/agg.cpp:41 in aggregate
  block   generation 1, 64 B by H0@1
  order   B knows A up to 0, needs 1; no other stream knows it
  fix     let B wait for A@1
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S102FreeWhileInUse) {
  p.at(site("src/agg.cpp", "aggregate", 38), "agg.buf").allocate(a, device(0x40000, 64 * kibi));
  p.join(a, b);
  p.at(site("src/agg.cpp", "aggregate", 41))
      .kernel(b, {{TouchKind::write, device(0x40000, 64 * kibi)}}, "fill");
  reads(
      p.at(site("src/agg.cpp", "aggregate", 57), "agg.buf").release(a, device(0x40000, 64 * kibi)),
      R"(TERN-S102 free-while-in-use                     sim:0  seed 0x1c9f  schedule lazy  step 8
  what    [0x40000, +64 KiB) is freed on stream A while stream B may still write it
  now     A@3   deallocate  tag "agg.buf"  src/agg.cpp:57 in aggregate
  before  B@2   kernel "fill" writes [0x40000, +64 KiB)  src/agg.cpp:41 in aggregate
  block   generation 1, 64 KiB on A@1  tag "agg.buf"  src/agg.cpp:38 in aggregate
  order   A knows B up to 0, needs 2; no other stream knows it
  fix     let A wait for B@2
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S102ByTheHost) {
  p.at(site("src/agg.cpp", "open", 9), "agg.buf").host_allocate(device(0x40000, 64 * kibi));
  p.at(site("src/agg.cpp", "aggregate", 41))
      .kernel(b, {{TouchKind::write, device(0x40000, 64 * kibi)}}, "fill");
  reads(p.at(site("src/agg.cpp", "close", 60), "agg.buf").host_release(device(0x40000, 64 * kibi)),
        R"(TERN-S102 free-while-in-use                     sim:0  seed 0x1c9f  schedule lazy  step 6
  what    [0x40000, +64 KiB) is freed by H0 while stream B may still write it
  now     H0@2  deallocate  tag "agg.buf"  src/agg.cpp:60 in close
  before  B@1   kernel "fill" writes [0x40000, +64 KiB)  src/agg.cpp:41 in aggregate
  block   generation 1, 64 KiB by H0@1  tag "agg.buf"  src/agg.cpp:9 in open
  order   H0 knows B up to 0, needs 1; no other stream knows it
  fix     wait for B@1, the kernel "fill" there, before the deallocation
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S102OfASlabWithAPieceOut) {
  make_slab();
  p.at(site("src/agg.cpp", "aggregate", 38), "agg.buf").give(a, device(0x40000, 64 * kibi));
  p.host_wait(a);
  reads(p.at(site("src/pool.cpp", "trim", 70), "pool").host_release(device(0, 1024 * kibi)),
        R"(TERN-S102 free-while-in-use                     sim:0  seed 0x1c9f  schedule lazy  step 7
  what    [0x40000, +64 KiB) is freed by H0 while stream A may still use it
  now     H0@2  deallocate  tag "pool"  src/pool.cpp:70 in trim
  before  A@1   allocate 64 KiB  tag "agg.buf"  src/agg.cpp:38 in aggregate
  block   generation 1, 64 KiB on A@1  tag "agg.buf"  src/agg.cpp:38 in aggregate
  fix     deallocate [0x40000, +64 KiB) before H0@2
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S103ReuseBeforeReady) {
  make_slab();
  for (int i = 0; i < 2; ++i) {
    p.at(site("src/agg.cpp", "aggregate", 38), "agg.buf").give(a, device(0x40000, 64 * kibi));
    p.at(site("src/agg.cpp", "aggregate", 41))
        .kernel(a, {{TouchKind::write, device(0x40000, 64 * kibi)}}, "fill");
    p.at(site("src/agg.cpp", "aggregate", 57), "agg.buf").take_back(a, device(0x40000, 64 * kibi));
  }
  p.join(a, b);
  reads(
      p.at(site("src/sort.cpp", "radix_pass", 88), "sort.tmp").give(c, device(0x40000, 64 * kibi)),
      R"(TERN-S103 reuse-before-ready                    sim:0  seed 0x1c9f  schedule lazy  step 13
  what    [0x40000, +64 KiB) was allocated to stream C while stream A may still write it
  now     C@1   allocate 64 KiB  tag "sort.tmp"  src/sort.cpp:88 in radix_pass
  before  A@6   deallocate  tag "agg.buf"  src/agg.cpp:57 in aggregate
          A@5   kernel "fill" writes [0x40000, +64 KiB)  src/agg.cpp:41 in aggregate
  block   generation 2, 64 KiB on A@4  tag "agg.buf"  src/agg.cpp:38 in aggregate
  order   C knows A up to 0, needs 6; B knows it since B@1 and recorded nothing after that
  fix     record an event on B after B@1 and let C wait for it, or let C wait for A@6
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S103WhereAnotherStreamHasRecordedWhatIsNeeded) {
  make_slab();
  p.at({}).give(a, device(0, 256));
  p.take_back(a, device(0, 256));
  p.join(a, b);
  p.record(b, 5);
  reads(
      p.give(c, device(0, 256)),
      R"(TERN-S103 reuse-before-ready                    sim:0  seed 0x1c9f  schedule lazy  step 10
  what    [0x0, +256 B) was allocated to stream C while stream A may still use it
  now     C@1   allocate 256 B
  before  A@2   deallocate
          A@1   allocate 256 B
  block   generation 1, 256 B on A@1
  order   C knows A up to 0, needs 2; B knows it since B@1 and recorded an event at B@2
  fix     let C wait for the event recorded at B@2, or let C wait for A@2
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, CountsARecordThatBroughtTheKnowledgeItself) {
  const ActorId h1 = p.thread("H1");
  p.at({}).host_allocate(device(0, 64));
  p.release_edge(1);
  p.by(h1).acquire_edge(1);
  p.by(0).write(a, device(0, 64));
  p.host_wait(a);
  p.record(b, 5);
  const Found found = p.by(h1).write(c, device(0, 64));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->order,
            "C knows A up to 0, needs 1; B knows it since B@1 and recorded an event at B@1");
}

TEST_F(OrderReportTest, S104UseBeforeAlloc) {
  p.at(site("src/load.cpp", "load_chunk", 40), "chunk").allocate(a, device(0x20000, 8 * kibi));
  reads(p.at(site("src/load.cpp", "load_chunk", 44))
            .copy(b, host(0x0, 8 * kibi), device(0x20000, 8 * kibi)),
        R"(TERN-S104 use-before-alloc                      sim:0  seed 0x1c9f  schedule lazy  step 5
  what    [0x20000, +8 KiB) is written by stream B, which may come before its allocation on stream A
  now     B@1   copy [host+0x0, +8 KiB) to [0x20000, +8 KiB)  src/load.cpp:44 in load_chunk
  before  A@1   allocate 8 KiB  tag "chunk"  src/load.cpp:40 in load_chunk
  block   generation 1, 8 KiB on A@1  tag "chunk"  src/load.cpp:40 in load_chunk
  order   B knows A up to 0, needs 1; no other stream knows it
  fix     let B wait for A@1
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S105HostReadBeforeSync) {
  p.host_allocate(device(0x8000, 4 * kibi));
  p.host_write(device(0x8000, 4 * kibi));
  p.at(site("src/stats.cpp", "open", 21), "stats.host").host_allocate(host(0x2000, 4 * kibi));
  p.at(site("src/stats.cpp", "fetch_totals", 66))
      .copy(a, device(0x8000, 4 * kibi), host(0x2000, 4 * kibi));
  reads(p.at(site("src/stats.cpp", "print_totals", 73)).host_read(host(0x2000, 64)),
        R"(TERN-S105 host-read-before-sync                 sim:0  seed 0x1c9f  schedule lazy  step 8
  what    [host+0x2000, +64 B) is read by H0 while stream A may still write it
  now     H0@4  host read 64 B  src/stats.cpp:73 in print_totals
  before  A@1   copy [0x8000, +4 KiB) to [host+0x2000, +4 KiB)  src/stats.cpp:66 in fetch_totals
  block   generation 1, 4 KiB of host memory by H0@3  tag "stats.host"  src/stats.cpp:21 in open
  order   H0 knows A up to 0, needs 1; no other stream knows it
  fix     wait for A@1, the copy there, before the read
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S106HostWriteBeforeSync) {
  p.host_allocate(device(0x8000, 4 * kibi));
  p.at(site("src/stats.cpp", "open", 21), "stats.host").host_allocate(host(0x2000, 4 * kibi));
  p.host_write(host(0x2000, 4 * kibi));
  p.at(site("src/stats.cpp", "send", 66)).copy(a, host(0x2000, 4 * kibi), device(0x8000, 4 * kibi));
  p.join(a, b);
  reads(
      p.at(site("src/stats.cpp", "refill", 80)).host_write(host(0x2000, 64)),
      R"(TERN-S106 host-write-before-sync                sim:0  seed 0x1c9f  schedule lazy  step 10
  what    [host+0x2000, +64 B) is written by H0 while stream A may still read it
  now     H0@4  host write 64 B  src/stats.cpp:80 in refill
  before  A@1   copy [host+0x2000, +4 KiB) to [0x8000, +4 KiB)  src/stats.cpp:66 in send
  block   generation 1, 4 KiB of host memory by H0@2  tag "stats.host"  src/stats.cpp:21 in open
  order   H0 knows A up to 0, needs 1; B knows it since B@1
  fix     wait for B@1, or wait for A@1, the copy there, before the write
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S105BetweenHostThreads) {
  const ActorId h1 = p.thread("H1");
  p.at(site("src/a.cpp", "f", 1)).host_write(host(0, 64));
  reads(p.at(site("src/b.cpp", "g", 2)).by(h1).host_touch(TouchKind::read_write, host(0, 64)),
        R"(TERN-S105 host-read-before-sync                 sim:0  seed 0x1c9f  schedule lazy  step 6
  what    [host+0x0, +64 B) is read and written by H1 while H0 may still write it
  now     H1@1  host read and write 64 B  src/b.cpp:2 in g
  before  H0@1  host write 64 B  src/a.cpp:1 in f
  order   H1 knows H0 up to 0, needs 1
  fix     let H0 release after H0@1 and H1 acquire before H1@1
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S201UseAfterFree) {
  p.at(site("src/model.cpp", "open_layer", 95), "weights").allocate(a, device(0x10000, 1 * kibi));
  p.at(site("src/model.cpp", "open_layer", 96))
      .copy(a, host(0, 1 * kibi), device(0x10000, 1 * kibi));
  p.at(site("src/model.cpp", "close_layer", 112), "weights").release(a, device(0x10000, 1 * kibi));
  reads(p.at(site("src/scale.cpp", "scale", 30))
            .kernel(a, {{TouchKind::read, device(0x10000, 1 * kibi)}}, "scale"),
        R"(TERN-S201 use-after-free                        sim:0  seed 0x1c9f  schedule lazy  step 7
  what    [0x10000, +1 KiB) is read by stream A after it was freed
  now     A@4   kernel "scale" reads [0x10000, +1 KiB)  src/scale.cpp:30 in scale
  before  A@3   deallocate  tag "weights"  src/model.cpp:112 in close_layer
          A@2   copy [host+0x0, +1 KiB) to [0x10000, +1 KiB)  src/model.cpp:96 in open_layer
  block   generation 1, 1 KiB on A@1  tag "weights"  src/model.cpp:95 in open_layer
  order   A@3 comes before A@4 on the same stream; no wait fixes this
  fix     deallocate after A@4, or keep the owner of "weights" until the launch is submitted
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S201OnAnotherStream) {
  p.at(site("src/model.cpp", "open_layer", 95)).allocate(a, device(0x10000, 1 * kibi));
  p.at(site("src/model.cpp", "close_layer", 112)).release(a, device(0x10000, 1 * kibi));
  reads(p.at(site("src/scale.cpp", "scale", 30)).copy(b, host(0, 8), device(0x10000, 8)),
        R"(TERN-S201 use-after-free                        sim:0  seed 0x1c9f  schedule lazy  step 6
  what    [0x10000, +8 B) is written by stream B after it was freed
  now     B@1   copy [host+0x0, +8 B) to [0x10000, +8 B)  src/scale.cpp:30 in scale
  before  A@2   deallocate  src/model.cpp:112 in close_layer
          A@1   allocate 1 KiB  src/model.cpp:95 in open_layer
  block   generation 1, 1 KiB on A@1  src/model.cpp:95 in open_layer
  order   A@2 and B@1 are unordered, and no wait fixes this
  fix     deallocate after B@1, or keep the owner of the block until the copy is submitted
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S201ThroughAStaleHandle) {
  p.at(site("src/model.cpp", "open_layer", 95), "weights")
      .allocate(a, device(0x10000, 1 * kibi), 41);
  p.at(site("src/model.cpp", "close_layer", 112), "weights")
      .release(a, device(0x10000, 1 * kibi), 41);
  p.at(site("src/sort.cpp", "radix_pass", 88), "sort.tmp")
      .allocate(a, device(0x10000, 1 * kibi), 42);
  reads(p.at(site("src/scale.cpp", "scale", 30))
            .kernel(a, {{TouchKind::read_write, device(0x10000, 8), 41}}, "scale"),
        R"(TERN-S201 use-after-free                        sim:0  seed 0x1c9f  schedule lazy  step 7
  what    [0x10000, +8 B) is read and written by stream A after it was freed and reused
  now     A@4   kernel "scale" reads and writes [0x10000, +8 B)  src/scale.cpp:30 in scale
  before  A@3   allocate 1 KiB  tag "sort.tmp"  src/sort.cpp:88 in radix_pass
  block   generation 2, 1 KiB on A@3  tag "sort.tmp"  src/sort.cpp:88 in radix_pass
  order   A@3 comes before A@4 on the same stream; no wait fixes this
  fix     keep the owner of the earlier block until the launch is submitted
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S202DoubleFree) {
  p.at(site("src/model.cpp", "open_layer", 95), "weights").allocate(a, device(0x10000, 1 * kibi));
  p.at(site("src/model.cpp", "close_layer", 112), "weights").release(a, device(0x10000, 1 * kibi));
  reads(p.at(site("src/model.cpp", "~Model", 140), "weights").release(b, device(0x10000, 1 * kibi)),
        R"(TERN-S202 double-free                           sim:0  seed 0x1c9f  schedule lazy  step 6
  what    [0x10000, +1 KiB) is freed on stream B after it was freed
  now     B@1   deallocate  tag "weights"  src/model.cpp:140 in ~Model
  before  A@2   deallocate  tag "weights"  src/model.cpp:112 in close_layer
          A@1   allocate 1 KiB  tag "weights"  src/model.cpp:95 in open_layer
  block   generation 1, 1 KiB on A@1  tag "weights"  src/model.cpp:95 in open_layer
  order   A@2 and B@1 are unordered, and no wait fixes this
  fix     deallocate each block once, by the handle that owns it
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S203WrongRangeFree) {
  p.at(site("src/model.cpp", "open_layer", 95), "weights").allocate(a, device(0x10000, 1 * kibi));
  reads(
      p.at(site("src/model.cpp", "close_layer", 112), "weights").release(a, device(0x10000, 1000)),
      R"(TERN-S203 wrong-range-free                      sim:0  seed 0x1c9f  schedule lazy  step 5
  what    [0x10000, +1000 B) is freed on stream A but is not an allocated block
  now     A@2   deallocate  tag "weights"  src/model.cpp:112 in close_layer
  block   generation 1, 1 KiB on A@1  tag "weights"  src/model.cpp:95 in open_layer
  fix     deallocate [0x10000, +1 KiB), the whole block
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S204LiveBlockReissued) {
  make_slab();
  p.at(site("src/agg.cpp", "aggregate", 38), "agg.buf").give(a, device(0x40000, 64 * kibi));
  reads(
      p.at(site("src/sort.cpp", "radix_pass", 88), "sort.tmp").give(c, device(0x48000, 64 * kibi)),
      R"(TERN-S204 live-block-reissued                   sim:0  seed 0x1c9f  schedule lazy  step 6
  what    [0x48000, +32 KiB) was allocated to stream C while stream A still owns it
  now     C@1   allocate 64 KiB  tag "sort.tmp"  src/sort.cpp:88 in radix_pass
  before  A@1   allocate 64 KiB  tag "agg.buf"  src/agg.cpp:38 in aggregate
  block   generation 1, 64 KiB on A@1  tag "agg.buf"  src/agg.cpp:38 in aggregate
  fix     remove a block from every free list when it is allocated
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S206Leak) {
  p.at(site("src/load.cpp", "load_chunk", 40), "chunk").allocate(a, device(0x20000, 8 * kibi));
  reads(p.shutdown(),
        R"(TERN-S206 leak                                  sim:0  seed 0x1c9f  schedule lazy  step 5
  what    [0x20000, +8 KiB) was never freed
  block   generation 1, 8 KiB on A@1  tag "chunk"  src/load.cpp:40 in load_chunk
  fix     deallocate it before the device is shut down
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S301UninitialisedRead) {
  p.at(site("src/load.cpp", "load_chunk", 40), "chunk").allocate(a, device(0x20000, 8 * kibi));
  p.at(site("src/load.cpp", "load_chunk", 44))
      .kernel(a, {{TouchKind::write, device(0x20000, 4 * kibi)}}, "load");
  p.join(a, b);
  reads(p.at(site("src/sum.cpp", "reduce", 19))
            .kernel(b, {{TouchKind::read, device(0x20000, 8 * kibi)}}, "sum"),
        R"(TERN-S301 uninitialised-read                    sim:0  seed 0x1c9f  schedule lazy  step 8
  what    [0x21000, +4 KiB) is read by stream B; nothing has written it since its allocation
  now     B@2   kernel "sum" reads [0x20000, +8 KiB)  src/sum.cpp:19 in reduce
  before  A@2   kernel "load" writes [0x20000, +4 KiB)  src/load.cpp:44 in load_chunk
  block   generation 1, 8 KiB on A@1  tag "chunk"  src/load.cpp:40 in load_chunk
  order   B knows A up to 3; the order is right, the contents are missing
  fix     write [0x1000, +4 KiB) of "chunk" before B@2, or declare that "sum" reads less
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S301ByACopyToMemoryNobodyWatches) {
  p.at({}).allocate(a, device(0x20000, 8 * kibi));
  reads(p.at(site("src/sum.cpp", "fetch", 19))
            .copy(a, device(0x20000, 8 * kibi), host(0x100, 8 * kibi)),
        R"(TERN-S301 uninitialised-read                    sim:0  seed 0x1c9f  schedule lazy  step 5
  what    [0x20000, +8 KiB) is read by stream A; nothing has written it since its allocation
  now     A@2   copy [0x20000, +8 KiB) to [host+0x100, +8 KiB)  src/sum.cpp:19 in fetch
  block   generation 1, 8 KiB on A@1
  order   the order is right, the contents are missing
  fix     write [0x20000, +8 KiB) before A@2, or copy less
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S302OutOfBounds) {
  make_slab();
  p.at(site("src/agg.cpp", "aggregate", 38), "agg.buf").give(a, device(0x40000, 64 * kibi));
  reads(p.at(site("src/agg.cpp", "aggregate", 41))
            .kernel(a, {{TouchKind::write, device(0x40000, 65 * kibi)}}, "fill"),
        R"(TERN-S302 out-of-bounds                         sim:0  seed 0x1c9f  schedule lazy  step 6
  what    [0x50000, +1 KiB) is written by stream A but belongs to no block
  now     A@2   kernel "fill" writes [0x40000, +65 KiB)  src/agg.cpp:41 in aggregate
  block   generation 1, 64 KiB on A@1  tag "agg.buf"  src/agg.cpp:38 in aggregate
  fix     end at 0x50000, where the block ends, or allocate 1 KiB more
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, S302InTheMiddleOfNowhere) {
  reads(p.at(site("src/agg.cpp", "aggregate", 41))
            .kernel(a, {{TouchKind::write, device(0x40000, 3)}}, "fill"),
        R"(TERN-S302 out-of-bounds                         sim:0  seed 0x1c9f  schedule lazy  step 4
  what    [0x40000, +3 B) is written by stream A but belongs to no block
  now     A@1   kernel "fill" writes [0x40000, +3 B)  src/agg.cpp:41 in aggregate
  fix     stay inside an allocated block
  replay  TERN_SIM_SEED=0x1c9f ctest -R x
)");
}

TEST_F(OrderReportTest, GivesTheSameAsJson) {
  p.at({}).host_allocate(device(0, 64));
  p.write(a, device(0, 64));
  const Found found = p.read(b, device(0, 64));
  ASSERT_TRUE(found);
  EXPECT_EQ(
      found->json(),
      R"-({"code": "TERN-S101", "title": "missing-wait", )-"
      R"-("context": "sim:0  seed 0x1c9f  schedule lazy", "step": 6, "space": 1, "offset": 0, )-"
      R"-("bytes": 64, )-"
      R"-("what": "[0x0, +64 B) is read by stream B while stream A may still write it", )-"
      R"-("now": "B@1   kernel \"k\" reads [0x0, +64 B)", )-"
      R"-("before": ["A@1   kernel \"k\" writes [0x0, +64 B)"], )-"
      R"-("block": "generation 1, 64 B by H0@1", )-"
      R"-("order": "B knows A up to 0, needs 1; no other stream knows it", )-"
      R"-("fix": "let B wait for A@1", "replay": "TERN_SIM_SEED=0x1c9f ctest -R x"})-");
}

TEST_F(OrderReportTest, NamesActorsByNumberWhereNobodyNamedThem) {
  const ActorId unnamed = p.stream();
  const ActorId thread = p.thread();
  const Found found = p.at({}).write(unnamed, device(0, 1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->what, "[0x0, +1 B) is written by stream S4 but belongs to no block");
  EXPECT_EQ(found->now, "S4@1  kernel \"k\" writes [0x0, +1 B)");
  const Found by_host = p.by(thread).host_write(device(0, 1));
  ASSERT_TRUE(by_host);
  EXPECT_EQ(by_host->now, "H5@1  host write 1 B");
}

}  // namespace
}  // namespace tern::test
