// A litmus program: a few steps on a few streams, and the outcomes that may come of them.
//
// It is read from programs.md, where README.md explains the notation, so what people read is what
// runs. A program says which words are looked at when everything is done, which values they may
// then have, and whether it is free of races; reading one that contradicts itself fails with the
// line. A plain value: all names are resolved to indices.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tern::test::litmus {

/// Where a location lives. A `block` comes with an allocate step and goes with a release; a `slab`
/// is an allocation of its own, which a pool may announce; a `local` is a variable of the host that
/// no device knows.
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
  call_store,    // the same by a host function
  call_move,     //
  call_add,      //
  record,        // an event
  wait,          // for an event or a mark
  mark,          // is taken
  next_mark,     // is named
  allocate,      // to, in stream order or by the host
  release,       //
  give,          // a pool's note that `to` is handed out
  take,          // and taken back
  prefetch,      // to the device, or to the host if value is 1
  host_store,    // to = value by the host
  host_move,     // to = from by the host, if `guard` is not 0
  sync_stream,   // the host waits
  sync_event,    //
  sync_mark,     //
  sync_all,      //
  query_stream,  // to = is it done?
  query_event,   //
  query_mark,    //
  destroy_stream,
  destroy_event,
};

struct Step {
  Verb verb = Verb::fill;
  /// The stream it is submitted to, or that the host asks about; none for other host steps.
  std::optional<std::size_t> stream = {};
  Words to = {}, from = {};
  std::optional<std::size_t> guard = {};
  std::uint32_t value = 0;
  std::size_t width_bytes = 4;
  std::size_t event = 0, mark = 0;
  bool waits_for_mark = false;
  /// Of a copy in rows, in words.
  std::size_t row_words = 0, rows = 0, to_pitch = 0, from_pitch = 0;
  /// A wait that orders nothing which was not ordered before: leaving it out changes nothing.
  bool is_spare = false;
  std::string text = {};
};

/// Values of the words looked at, in order. A pattern may leave one open.
using Outcome = std::vector<std::uint32_t>;
using OutcomePattern = std::vector<std::optional<std::uint32_t>>;

[[nodiscard]] bool matches(const OutcomePattern& pattern, const Outcome& outcome);
/// "1 0", with words above 255 in hexadecimal and `*` where anything may stand.
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
  /// Not for hardware: it uses memory that may not be mapped, and a fault would end the device.
  bool is_sim_only = false;
  /// What the checker reports first; empty for a race it cannot see, inside host functions.
  std::string finding;
  std::vector<OutcomePattern> allowed;
  /// Allowed too, but never shown by a simulated device.
  std::vector<OutcomePattern> beyond_sim;
  std::vector<OutcomePattern> forbidden;

  [[nodiscard]] bool has(Verb verb) const;
  [[nodiscard]] bool uses(Home home) const;
  [[nodiscard]] bool uses_kernels() const;
};

/// Does the host ask whether something is done? Then the outcome depends on the answer too.
[[nodiscard]] bool asks(const Program& program);
/// Does the step make a stream or the host wait, and nothing else?
[[nodiscard]] bool is_order(const Step& step);
/// Does the step make the host wait, or might it on some device, so that no stream may be held?
[[nodiscard]] bool may_block(const Program& program, const Step& step);

/// The programs of a page, in order. Throws std::runtime_error that names the line.
[[nodiscard]] std::vector<Program> parse_programs(std::string_view page);
/// Those of programs.md.
[[nodiscard]] const std::vector<Program>& all_programs();

}  // namespace tern::test::litmus
