// The allocations and frees of a recording, as a trace that can be replayed.
//
// A recording may have several devices, and page-locked or managed memory beside device memory. A
// replay uses the allocations of one device in one kind of memory. Every stream of the recording
// becomes a stream of the trace, up to max_streams; further streams share them. Stream 0, the host,
// becomes a stream too.
//
// A recording may be damaged or made to harm its reader. Frees of unknown blocks, double frees and
// frees that are missing are counted, and the trace is always sound: a block is allocated once and
// freed at most once, after its allocation. Memory is in proportion to the recording.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/allocation_trace.hpp"
#include "tern/core/result.hpp"
#include "trace/memory_trace.hpp"

namespace tern::tools {

struct RecordedAllocations {
  /// A simulated device and CUDA have a few thousand streams at most.
  static constexpr std::uint32_t max_streams = 128;

  /// A device of the recording, or a kind of its memory, that is not replayed.
  struct Other {
    std::string name;
    std::uint64_t blocks = 0, peak_bytes = 0;
  };

  /// The device that is replayed, or a kind of its memory, such as "cuda:0" or "page-locked memory
  /// of cuda:0".
  std::string name;
  /// Blocks request the bytes that the program requested.
  bench::AllocationTrace trace;
  /// For each block the index of an event of the recording, with its tag and line: the allocation
  /// or, for a block that was allocated before the recording, the free.
  std::vector<std::uint32_t> block_events;
  std::uint64_t streams = 0;           // of the recording
  std::uint64_t earlier_blocks = 0;    // allocated before the recording; each pass begins with them
  std::uint64_t double_frees = 0;      // left out
  std::uint64_t missing_frees = 0;     // the block ends when its address is allocated again
  std::uint64_t refused_requests = 0;  // by the resources of the recording; left out
  std::vector<Other> others;           // the one with the highest peak first

  /// Sentences about everything above that differs from the recording.
  [[nodiscard]] std::vector<std::string> notes() const;
};

/// Selects the allocations in the memory with this name, such as "cuda:0" or "page-locked memory of
/// cuda:0". An empty name selects the device memory with the highest peak. Fails with
/// invalid_argument if the recording has no allocations with this name or none at all, and if more
/// bytes are live at once than fit into 64 bits.
[[nodiscard]] Result<RecordedAllocations> try_allocations_of(const trace::MemoryTrace& trace,
                                                             std::string_view name = {});

/// Returns a generated trace, as if a program had been recorded: "training", "kv_cache", "tables"
/// or "checkerboard". Fails with invalid_argument for another name.
[[nodiscard]] Result<RecordedAllocations> try_sample_allocations(std::string_view name);

}  // namespace tern::tools
