// A HostWatch finds host memory that the program changes or frees while queued work still uses it.
//
// Only pageable memory is watched, such as a vector that a program passed to a copy:
// - The source of a copy is hashed at submission. The hash must stay the same until the host knows
//   that the copy is complete.
// - The destination of a copy is filled with `in_flight_byte` at submission. It must keep these
//   bytes until the copy runs, and then the bytes that the copy wrote. A host that reads too early
//   reads in_flight_byte, and a host that writes too early is reported. Under AddressSanitizer or
//   Valgrind, the filled memory is also poisoned, so the tool reports the access itself.
//
// The ranges of work that has not run are spans in flight (core/spans_in_flight), so that no other
// device poisons memory that this work reads.
//
// Memory that other queued work may read is not filled, and memory that other work may have written
// is not compared; the checker judges the order of such work. After a host function has run,
// nothing that was submitted before it is compared, because a host function may access any memory.
// Not thread-safe: the caller holds the lock of the simulation.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <vector>

#include "core/spans_in_flight.hpp"
#include "tern/core/call_site.hpp"
#include "tern/detail/trace/record.hpp"

namespace tern::sim {

/// The fill byte of memory that a queued copy has yet to write.
inline constexpr std::byte in_flight_byte{0xCD};

class HostWatch {
 public:
  /// Maximum number of bytes that are watched in each range, from its first byte on.
  static constexpr std::size_t max_watched_bytes = std::size_t{64} << 20;
  /// With more pending operations nothing is compared, because comparing takes too long.
  static constexpr std::size_t max_operations = 4096;

  /// The operation that uses the memory.
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
  /// Copies are watched. Other work only contributes the ranges that it uses.
  enum class Kind : std::uint8_t { copy, other };
  /// Whether queued work may read any memory, as a host function may.
  enum class Queued : std::uint8_t { known_ranges, anything };

  HostWatch() = default;
  ~HostWatch();
  HostWatch(const HostWatch&) = delete;
  HostWatch& operator=(const HostWatch&) = delete;

  /// Call when an operation is submitted. Returns its number, which is never 0.
  std::uint64_t submitted(Operation operation, std::span<const Range> ranges, Kind kind,
                          Queued queued, std::vector<Finding>& found);
  /// Call before the operation runs. Returns false if some of its memory must not be accessed.
  [[nodiscard]] bool runs(std::uint64_t number, std::vector<Finding>& found);
  /// Call after the operation has run.
  void has_run(std::uint64_t number);
  /// Call after a host function has run.
  void forget_contents();
  /// Call when a device is lost. Restores the bytes of filled memory, because its work never runs.
  void lost(std::uint32_t device);
  /// Call after the host has waited. `knows` returns whether the host knows that an operation is
  /// complete.
  using Knows = std::function<bool(ActorId actor, std::uint64_t sequence)>;
  void host_learned(const Knows& knows, std::vector<Finding>& found);
  /// Compares everything that is still watched, for the end of the process.
  void inspect(std::vector<Finding>& found);

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
    std::vector<std::byte> old = {};  // the bytes before the fill
    std::size_t poisoned_bytes = 0;   // under AddressSanitizer or Valgrind
  };
  struct Entry {
    std::uint64_t number = 0;
    Operation operation;
    Kind kind = Kind::copy;
    bool has_run = false;
    std::vector<Part> parts = {};
    SpansNumber spans = 0;
  };

  [[nodiscard]] static bool overlap(const Part& a, const Part& b) noexcept;
  [[nodiscard]] Entry* find(std::uint64_t number) noexcept;
  /// Reports a part whose bytes have changed, once. Returns true if they are unchanged.
  static bool compare(Entry& entry, Part& part, std::vector<Finding>& found);
  /// Stops comparing memory that the part overlaps. Returns true if an operation that has not run
  /// shares memory with the part and one of the two writes it.
  [[nodiscard]] bool resolve_overlaps(const Part& part, std::vector<Finding>& found);
  static void watch(Part& part);
  /// Poisons a filled part until the operation runs.
  static void poison(Part& part);
  static void unpoison(Part& part);
  /// Tells the devices that poison memory themselves which memory the operation uses.
  [[nodiscard]] SpansNumber submit_spans(const Operation& operation,
                                         std::span<const Range> ranges) const;
  void drop_idle();

  std::list<Entry> entries_;  // oldest first
  std::uint64_t last_number_ = 0;
};

}  // namespace tern::sim
