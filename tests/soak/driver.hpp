// What all drivers of random programs share. A program is a function of a seed and a device. It
// throws Mismatch if the library does something that the model of the program does not allow.

#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tern/core/result.hpp"
#include "tern/device/device.hpp"

namespace tern::soak {

/// The library behaved differently from the model.
class Mismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Arguments>
void require(bool holds, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  if (!holds) throw Mismatch(fmt::format(text, std::forward<Arguments>(arguments)...));
}

/// SplitMix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  std::uint64_t bits() noexcept {
    std::uint64_t mixed = state_ += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
  }
  [[nodiscard]] std::size_t below(std::size_t bound) noexcept { return bits() % bound; }
  [[nodiscard]] bool one_in(std::size_t count) noexcept { return below(count) == 0; }
  template <class Container>
  [[nodiscard]] auto& any_of(Container& container) noexcept {
    return container[below(container.size())];
  }

 private:
  std::uint64_t state_;
};

struct Program {
  std::uint64_t seed = 0;
  /// `sim`, `host`, `opencl:0`, `cuda:0`, ... With `sim`, each program has its own new device.
  std::string device = "sim";
  /// Print each step, to analyze a program that failed.
  bool is_verbose = false;

  template <class... Arguments>
  void say(fmt::format_string<Arguments...> text, Arguments&&... arguments) const {
    if (is_verbose) fmt::print("  {}\n", fmt::format(text, std::forward<Arguments>(arguments)...));
  }
};

struct Driver {
  const char* name;
  const char* what;
  void (*run)(const Program& program);
};

void run_buffers(const Program& program);
void run_unified(const Program& program);
void run_checker(const Program& program);
void run_exchange(const Program& program);
void run_threads(const Program& program);
void run_server(const Program& program);
void run_pausing(const Program& program);

}  // namespace tern::soak
