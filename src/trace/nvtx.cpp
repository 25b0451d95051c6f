#include "trace/nvtx.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace tern::trace {
namespace {

// The interface between a program and the library of a profiler, as NVTX 3 defines it.
using Function = void (*)();
using PushRange = int (*)(const char* message);
using PopRange = int (*)();
using GetTable = const void* (*)(std::uint32_t id);
using Initialize = int (*)(GetTable get_table);

constexpr std::uint32_t id_of_callbacks = 1, id_of_version = 3;
constexpr std::uint32_t nvtx_version = 3;
constexpr int core_module = 1, modules = 7;
constexpr std::size_t push_range_place = 9, pop_range_place = 11;
/// The number of functions of each module, counting number 0, which no function has.
constexpr std::array<unsigned, modules> module_sizes = {0, 16, 9, 15, 7, 16, 7};
constexpr std::size_t max_module_size = 16;

/// Where the profiler writes its functions. All but two are never called, and share one place.
struct Places {
  Function push_range = nullptr, pop_range = nullptr, never_called = nullptr;
  /// Pointers to places, as the profiler wants them. Ends with a null pointer.
  std::array<Function*, max_module_size + 1> core = {}, other = {};

  Places() noexcept {
    for (std::size_t i = 1; i < max_module_size; ++i) core[i] = other[i] = &never_called;
    core[push_range_place] = &push_range;
    core[pop_range_place] = &pop_range;
  }
};

Places& places() noexcept {
  static Places all;
  return all;
}

int get_module_functions(int module, Function*** table, unsigned* size) noexcept {
  if (module < core_module || module >= modules) return 0;
  if (size != nullptr) *size = module_sizes[static_cast<std::size_t>(module)];
  if (table != nullptr) {
    *table = module == core_module ? places().core.data() : places().other.data();
  }
  return 1;
}

void set_profiler_version(std::uint32_t /*version*/) noexcept {}

struct CallbacksTable {
  std::size_t bytes = sizeof(CallbacksTable);
  int (*get_functions)(int, Function***, unsigned*) noexcept = &get_module_functions;
};
struct VersionTable {
  std::size_t bytes = sizeof(VersionTable);
  std::uint32_t version = nvtx_version;
  std::uint32_t reserved = 0;
  void (*set_version)(std::uint32_t) noexcept = &set_profiler_version;
};

const void* get_table(std::uint32_t id) noexcept {
  static const CallbacksTable callbacks;
  static const VersionTable version;
  if (id == id_of_callbacks) return &callbacks;
  return id == id_of_version ? &version : nullptr;
}

/// The functions of the profiler, or null pointers.
struct Profiler {
  PushRange push = nullptr;
  PopRange pop = nullptr;
};

Profiler find_profiler() noexcept {
  constexpr const char* entry = "InitializeInjectionNvtx2";
  void* initialize = dlsym(RTLD_DEFAULT, entry);
  if (initialize == nullptr) {
    const char* const path = std::getenv("NVTX_INJECTION64_PATH");
    void* const library = path != nullptr ? dlopen(path, RTLD_LAZY | RTLD_LOCAL) : nullptr;
    if (library != nullptr) initialize = dlsym(library, entry);
  }
  if (initialize == nullptr || reinterpret_cast<Initialize>(initialize)(&get_table) == 0) return {};
  const Places& given = places();
  // A profiler that takes only one of them would show ranges without an end.
  if (given.push_range == nullptr || given.pop_range == nullptr) return {};
  return {reinterpret_cast<PushRange>(given.push_range),
          reinterpret_cast<PopRange>(given.pop_range)};
}

const Profiler& profiler() noexcept {
  static const Profiler found = find_profiler();
  return found;
}

}  // namespace

void push_profiler_range(const char* name) noexcept {
  if (profiler().push != nullptr) profiler().push(name);
}

void pop_profiler_range() noexcept {
  if (profiler().pop != nullptr) profiler().pop();
}

void TagRange::begin(Tag tag) noexcept {
  if (profiler().push == nullptr) return;
  // The profiler needs a null-terminated string, and a tag name is not null-terminated.
  std::array<char, Tag::max_name_bytes + 1> name = {};
  const std::string_view text = tag.name();
  std::copy(text.begin(), text.end(), name.begin());
  push_profiler_range(name.data());
  is_open_ = true;
}

}  // namespace tern::trace
