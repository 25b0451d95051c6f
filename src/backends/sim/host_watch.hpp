// A HostWatch finds host memory that is changed or freed while queued work still uses it.
//
// Only pageable memory is watched: a vector that a program passed to a copy. What a copy reads is
// hashed when it is submitted, and must be the same until the host knows that the copy is over.
// What a copy writes is filled with `in_flight_byte` when it is submitted, must be that until the
// copy runs, and what the copy wrote from then on. So a host that reads too early reads that byte
// everywhere, and one that writes too early is found. AddressSanitizer and Valgrind are told of
// memory that is filled, and report the access itself.
//
// Memory is left alone where other queued work may read it, and is not compared once other work may
// have written it: that order is the checker's to judge. After a host function has run nothing is
// compared that was submitted before it, because such a function may touch any memory. Confined.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/detail/trace/record.hpp"

namespace tern::sim {

/// What the host reads from memory that a queued copy has yet to write.
inline constexpr std::byte in_flight_byte{0xCD};

class HostWatch {
 public:
  /// So many bytes of each range are watched, from its first.
  static constexpr std::size_t max_watched_bytes = std::size_t{64} << 20;
  /// With more operations than these nothing is compared, because looking takes too long.
  static constexpr std::size_t max_operations = 4096;

  /// Who uses the memory.
  struct Operation {
    std::uint32_t device = 0;
    ActorId actor = 0;
    std::uint64_t sequence = 0;
    CallSite site = {};
    std::vector<Touch> touches = {};  // for the report
  };
  struct Range {
    const void* address = nullptr;
    std::size_t bytes = 0;
    bool is_written = false;
  };
  enum class Change : std::uint8_t { changed, freed };
  struct Finding {
    Operation operation;
    bool is_written = false;  // by the operation
    Change change = Change::changed;
    bool has_run = false;
  };
  /// A copy is watched; of other work it is only known which memory it touches.
  enum class Kind : std::uint8_t { copy, other };
  /// May queued work read any memory, as a host function may?
  enum class Queued : std::uint8_t { known_ranges, anything };

  HostWatch() = default;
  ~HostWatch();
  HostWatch(const HostWatch&) = delete;
  HostWatch& operator=(const HostWatch&) = delete;

  /// The operation is submitted. Returns its number, never 0.
  std::uint64_t submitted(Operation operation, std::span<const Range> ranges, Kind kind,
                          Queued queued, std::vector<Finding>& found);
  /// It is about to run. False: not all of its memory may be touched.
  [[nodiscard]] bool runs(std::uint64_t number, std::vector<Finding>& found);
  /// It has run.
  void has_run(std::uint64_t number);
  /// A host function has run.
  void forget_contents();
  /// The work of the device will never run: memory that was filled has its old bytes again.
  void lost(std::uint32_t device);
  /// The host has learned that some operations are over: those of which `knows` says so.
  using Knows = std::function<bool(ActorId actor, std::uint64_t sequence)>;
  void host_learned(const Knows& knows, std::vector<Finding>& found);

  [[nodiscard]] bool is_empty() const noexcept { return entries_.empty(); }

 private:
  enum class Check : std::uint8_t { none, same, filled };
  struct Part {
    std::byte* first = nullptr;
    std::size_t bytes = 0;
    bool is_written = false;
    Check check = Check::none;
    bool ends_with_run = false;  // other work writes it later
    std::uint64_t fingerprint = 0;
    std::vector<std::byte> old = {};  // what was there before it was filled
    std::size_t closed_bytes = 0;     // to whoever runs under AddressSanitizer or Valgrind
  };
  struct Entry {
    std::uint64_t number = 0;
    Operation operation;
    Kind kind = Kind::copy;
    bool has_run = false;
    std::vector<Part> parts = {};
  };

  [[nodiscard]] static bool overlap(const Part& a, const Part& b) noexcept;
  [[nodiscard]] Entry* find(std::uint64_t number) noexcept;
  /// Reports a part that is not what it was, once.
  static bool compare(Entry& entry, Part& part, std::vector<Finding>& found);
  /// Ends what other work must not be compared with any more. True: some that has not run shares
  /// memory with the part, and one of the two writes it.
  [[nodiscard]] bool meet(const Part& part, std::vector<Finding>& found);
  static void watch(Part& part);
  /// Of a filled part, until the operation runs.
  static void close(Part& part);
  static void open(Part& part);
  void drop_idle();

  std::list<Entry> entries_;  // oldest first
  std::uint64_t last_number_ = 0;
};

}  // namespace tern::sim
