// A PickleWriter writes numbers, texts, lists and dicts as a pickle of protocol 2, which Python and
// PyTorch's viewer in the browser read.
//
//   PickleWriter pickle(out);
//   pickle.begin_dict();
//   pickle.text("sizes");
//   pickle.begin_list();
//   for (const std::uint64_t size : sizes) pickle.number(size);
//   pickle.end();
//   pickle.end();
//   pickle.finish();
//
// A text is written once; further uses refer to it. A caller can do the same with a list or dict:
// keep() and repeat().

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tools/formats/output.hpp"

namespace tern::tools {

class PickleWriter {
 public:
  explicit PickleWriter(Output& out);

  void begin_list();
  /// Keys and values alternate until end().
  void begin_dict();
  /// Ends the innermost list or dict.
  void end();
  void finish();

  void number(std::uint64_t value);
  void boolean(bool value);
  void text(std::string_view value);
  /// Writes two numbers as a tuple.
  void pair(std::uint64_t first, std::uint64_t second);

  /// Returns a number for the list or dict that ended last. repeat() writes a reference to it.
  [[nodiscard]] std::uint32_t keep();
  void repeat(std::uint32_t kept);

 private:
  struct Open {
    bool is_dict = false;
    std::uint64_t count = 0;  // members so far; a key and its value are two
  };

  /// Every value is a member of the innermost list or dict.
  void begin_member();
  void put(char opcode) { out_.write(std::string_view(&opcode, 1)); }
  void put(std::uint64_t value, std::size_t bytes);
  std::uint32_t put_memo();
  void put_reference(std::uint32_t kept);

  Output& out_;
  std::vector<Open> open_;
  /// Finds a text without a copy of it.
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> texts_;
  std::uint32_t memo_count_ = 0;
};

}  // namespace tern::tools
