// A portable kernel that was translated to C++, compiled and loaded, for tests of the translation.

#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "language/emit.hpp"
#include "language/host_compiler.hpp"
#include "language/parser.hpp"

namespace tern::test {

/// The arguments of a launch, in the form of the translation: each argument is an 8-byte slot, and
/// the call has the addresses of the slots.
class HostArguments {
 public:
  template <class... Arguments>
  explicit HostArguments(Arguments&... arguments) {
    (add(arguments), ...);
  }
  [[nodiscard]] std::vector<void*> addresses() {
    std::vector<void*> all;
    for (std::uint64_t& slot : slots_) all.push_back(&slot);
    return all;
  }
  void add_array(const void* address, std::uint64_t elements) {
    add_bytes(&address, sizeof address);
    add_bytes(&elements, sizeof elements);
  }
  void add_bytes(const void* value, std::size_t bytes) {
    std::memcpy(&slots_.emplace_back(), value, bytes);
  }

 private:
  template <class T>
  void add(std::vector<T>& array) {
    add_array(array.data(), array.size());
  }
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_pointer_v<T>
  void add(T& value) { add_bytes(&value, sizeof value); }

  std::vector<std::uint64_t> slots_;
};

class HostKernel {
 public:
  /// Fails the test with the compiler's message if the text is not correct.
  explicit HostKernel(std::string_view text, std::string_view entry = {})
      : HostKernel(language::try_parse(text, entry).value()) {}
  explicit HostKernel(const language::Program& program) {
    const language::CodeCache no_cache("", 0);
    const std::string text = emit(program, language::Dialect::cpp);
    Result<language::HostCode> code = language::try_host_code(program.name, text, no_cache);
    if (!code) ADD_FAILURE() << code.failure().text() << "\n" << text;
    if (code) code_ = *code;
    main_ = find(language::entry_name(program));
    combine_ = find(language::combine_entry_name(program));
  }

  using Size = std::array<std::uint64_t, 3>;
  /// Runs all blocks.
  template <class... Arguments>
  void run(Size grid, Size block, Arguments&... arguments) const {
    HostArguments slots(arguments...);
    call(main_, grid, block, slots, 0, grid[0] * grid[1] * grid[2]);
  }
  template <class... Arguments>
  void run_blocks(std::uint64_t first, std::uint64_t count, Size grid, Size block,
                  Arguments&... arguments) const {
    HostArguments slots(arguments...);
    call(main_, grid, block, slots, first, count);
  }
  template <class... Arguments>
  void combine(std::uint64_t blocks, Arguments&... arguments) const {
    HostArguments slots(arguments...);
    call(combine_, {blocks, 1, 1}, {language::reduction_lanes, 1, 1}, slots, 0, blocks);
  }

 private:
  [[nodiscard]] language::HostEntry find(const std::string& name) const {
    return reinterpret_cast<language::HostEntry>(code_.find(name.c_str()));
  }
  static void call(language::HostEntry entry, Size grid, Size block, HostArguments& slots,
                   std::uint64_t first, std::uint64_t count) {
    ASSERT_NE(entry, nullptr);
    const std::vector<void*> addresses = slots.addresses();
    const language::HostCall made = {{grid[0], grid[1], grid[2]},
                                     {block[0], block[1], block[2]},
                                     first,
                                     count,
                                     addresses.data()};
    entry(&made);
  }

  language::HostCode code_;
  language::HostEntry main_ = nullptr, combine_ = nullptr;
};

}  // namespace tern::test
