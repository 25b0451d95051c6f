// A Pickle is the data of a Python pickle: numbers, texts, lists, tuples and dicts.
//
//   const Result<Pickle> pickle = Pickle::try_read(bytes);
//   for (const Pickle::Index item : pickle->items(pickle->root())) ...
//
// The reader knows protocols 2 to 5. It constructs no objects: an opcode that would make one fails,
// and the failure names the opcode. A pickle may be damaged or made to harm its reader: every
// length and index is checked, nothing is recursive, and reading needs memory in proportion to the
// number of bytes. Values may refer to one value several times, or to themselves, so a caller that
// visits them must bound the number of visits.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tern/core/result.hpp"

namespace tern::tools {

class Pickle {
 public:
  /// Identifies a value.
  using Index = std::uint32_t;
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    huge_integer,  // needs more than 64 bits; its value is not kept
    real,
    text,
    bytes,
    list,
    tuple,
    dict
  };

  /// Keeps views of the bytes, which must live longer than the pickle. Fails with bad_format; the
  /// sentence has a field `path`, which the caller adds.
  [[nodiscard]] static Result<Pickle> try_read(std::string_view bytes);

  /// Returns whether the bytes begin like a pickle of a protocol that try_read() knows.
  [[nodiscard]] static bool is_pickle(std::string_view bytes) noexcept;

  [[nodiscard]] Index root() const noexcept { return root_; }
  [[nodiscard]] Kind kind(Index value) const noexcept { return nodes_[value].kind; }
  /// Returns the contents of a text or of bytes; of other values, nothing.
  [[nodiscard]] std::string_view text(Index value) const noexcept;
  /// Returns an integer that is not negative and fits; of other values, nothing.
  [[nodiscard]] std::optional<std::uint64_t> number(Index value) const noexcept;
  /// Returns the members of a list or tuple. Those of a dict are key, value, key, value; of equal
  /// keys, the last counts. Of other values, nothing.
  [[nodiscard]] std::span<const Index> items(Index value) const noexcept;

 private:
  friend class PickleReader;

  struct Node {
    Kind kind = Kind::none;
    bool is_negative = false;
    std::uint32_t length = 0;  // text, bytes
    std::uint64_t value = 0;   // of a number; offset of a text; index into contents_
  };

  std::string_view bytes_;
  std::vector<Node> nodes_;
  std::vector<std::vector<Index>> contents_;
  Index root_ = 0;
};

}  // namespace tern::tools
