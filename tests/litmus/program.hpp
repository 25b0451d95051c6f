// A litmus program: a few steps on a few streams, and the allowed outcomes.
//
// Programs are read from programs.md, so the documentation is what runs. README.md explains the
// notation. A program names the words that are read at the end, the values that they may have, and
// whether the program is free of races. Reading a program that contradicts itself fails with the
// line. A plain value: all names are resolved to indices.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tern::test::litmus {

/// Where a location is. A `block` is allocated and freed by steps of the program. A `slab` is an
/// allocation of its own, which a pool may announce. A `local` is a variable of the host that no
/// device knows.
enum class Home : std::uint8_t { device, pinned, pageable, managed, block, slab, local };

struct Location {
  std::string name;
  Home home = Home::device;
  std::size_t words = 1;
  std::uint32_t initial = 0;
};

/// Some of the 32-bit words of a location.
struct Words {
  std::size_t location = 0;
  std::size_t first = 0;
  std::size_t count = 0;
};

struct StreamName {
  std::string name;
  bool is_blocking = false;
  bool is_default = false;
};

enum class Verb : std::uint8_t {
  fill,          // to = value, as a pattern of width_bytes
  copy,          // to = from
  copy_2d,       // rows of to = rows of from
  kernel_store,  // to = value
  kernel_move,   // to = from
  kernel_add,    // to += value
  call_store,    // to = value, by a host function
  call_move,     // to = from, by a host function
  call_add,      // to += value, by a host function
  record,        // records an event
  wait,          // waits for an event or a mark
  mark,          // takes a mark
  next_mark,     // takes the next mark
  allocate,      // allocates to, in stream order or by the host
  release,       // frees to
  give,          // a pool's note that `to` is handed out
  take,          // a pool's note that `to` is returned
  prefetch,      // to the device, or to the host if value is 1
  host_store,    // to = value by the host
  host_move,     // to = from by the host, if `guard` is not 0
  sync_stream,   // the host waits for a stream
  sync_event,    // the host waits for an event
  sync_mark,     // the host waits for a mark
  sync_all,      // the host waits for the device
  query_stream,  // to = whether the stream is done
  query_event,   // to = whether the event is done
  query_mark,    // to = whether the mark is done
  destroy_stream,
  destroy_event,
};

struct Step {
  Verb verb = Verb::fill;
  /// The stream of the work, or the stream that the host queries or waits for. Empty for other host
  /// steps.
  std::optional<std::size_t> stream = {};
  Words to = {}, from = {};
  std::optional<std::size_t> guard = {};
  std::uint32_t value = 0;
  std::size_t width_bytes = 4;
  std::size_t event = 0, mark = 0;
  bool waits_for_mark = false;
  /// For a 2-D copy, in words.
  std::size_t row_words = 0, rows = 0, to_pitch = 0, from_pitch = 0;
  /// A wait that adds no order: the program behaves the same without it.
  bool is_spare = false;
  std::string text = {};
};

/// The values of the words that are read at the end, in order. In a pattern, an empty value matches
/// anything.
using Outcome = std::vector<std::uint32_t>;
using OutcomePattern = std::vector<std::optional<std::uint32_t>>;

[[nodiscard]] bool matches(const OutcomePattern& pattern, const Outcome& outcome);
/// Returns a text such as "1 0". Words above 255 are hexadecimal, and `*` matches anything.
[[nodiscard]] std::string text_of(const Outcome& outcome);
[[nodiscard]] std::string text_of(const OutcomePattern& pattern);

struct Program {
  std::string name;
  std::string says;
  std::vector<Location> locations;
  std::vector<StreamName> streams;
  std::vector<std::string> events, marks;
  std::vector<Step> steps;
  std::vector<Words> seen;
  bool is_race_free = false;
  /// Not for hardware: the program uses memory that may not be mapped, and a fault would lose the
  /// device.
  bool is_sim_only = false;
  /// The first finding of the checker. Empty if there is none, or if the race is inside host
  /// functions, which the checker cannot see.
  std::string finding;
  std::vector<OutcomePattern> allowed;
  /// Outcomes that are allowed, but never occur on a simulated device.
  std::vector<OutcomePattern> beyond_sim;
  std::vector<OutcomePattern> forbidden;

  [[nodiscard]] bool has(Verb verb) const;
  [[nodiscard]] bool uses(Home home) const;
  [[nodiscard]] bool uses_kernels() const;
};

/// Returns whether the host queries if something is done. The outcome then also depends on the
/// answer.
[[nodiscard]] bool asks(const Program& program);
/// Returns whether the step only makes a stream or the host wait.
[[nodiscard]] bool is_order(const Step& step);
/// Returns whether the step makes the host wait, on any device. No stream may be stalled then.
[[nodiscard]] bool may_block(const Program& program, const Step& step);

/// Returns the programs of a page, in order. Throws std::runtime_error with the line.
[[nodiscard]] std::vector<Program> parse_programs(std::string_view page);
/// Returns the programs of programs.md.
[[nodiscard]] const std::vector<Program>& all_programs();

}  // namespace tern::test::litmus
