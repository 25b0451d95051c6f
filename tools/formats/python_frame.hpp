// A PythonFrame is one line of a stack that PyTorch recorded. Its rank says how useful the line is
// to somebody who asks where memory was allocated: the smallest rank wins, and of equal ranks the
// innermost frame.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace tern::tools {

struct PythonFrame {
  enum class Rank : std::uint8_t {
    program,   // Python code of the program and of the libraries that it uses
    torch,     // Python code of PyTorch, or code that its compiler generated
    native,    // C++
    machinery  // the allocator and the interpreter, which are in every stack
  };

  PythonFrame() = default;
  PythonFrame(std::string_view its_file, std::string_view its_name, std::uint64_t its_line) noexcept
      : file(its_file),
        name(its_name),
        line(static_cast<std::uint32_t>(std::min<std::uint64_t>(its_line, UINT32_MAX))),
        rank(rank_of(its_file, its_name)) {}

  /// The file, or the function if the file is not known.
  [[nodiscard]] std::string_view place() const noexcept {
    return file.empty() || file == "??" ? name : file;
  }

  std::string_view file, name;
  std::uint32_t line = 0;
  Rank rank = Rank::machinery;

 private:
  static Rank rank_of(std::string_view file, std::string_view name) noexcept {
    const auto has = [](std::string_view text, std::string_view part) {
      return text.find(part) != text.npos;
    };
    // Code that was typed, and cells of notebooks, have names such as <stdin>.
    if (file.ends_with(".py") || file.starts_with('<')) {
      const bool is_torch = has(file, "/site-packages/torch/") ||
                            has(file, "/dist-packages/torch/") || has(file, "/pytorch/torch/") ||
                            has(file, "/torchinductor_") || file.starts_with("<frozen ") ||
                            file.starts_with("<eval_with_key>");
      return is_torch ? Rank::torch : Rank::program;
    }
    for (const std::string_view part :
         {"unwind::", "CapturedTraceback::", "gather_with_cpp", "CachingAllocator", "PyEval_",
          "PyObject_", "PyFunction_", "_PyObject", "__libc_start", "_start",
          "at::_ops::", "c10::Dispatcher", "c10::impl::"}) {
      if (has(name, part)) return Rank::machinery;
    }
    return name.empty() && (file.empty() || file == "??") ? Rank::machinery : Rank::native;
  }
};

}  // namespace tern::tools
