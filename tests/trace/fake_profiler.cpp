// A library as profilers with NVTX have them: it writes the ranges of a program to a file.

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

using Function = void (*)();
struct CallbacksTable {
  std::size_t bytes;
  int (*get_functions)(int module, Function*** table, unsigned* size);
};

std::FILE* log_file = nullptr;

int push_range(const char* name) {
  std::fprintf(log_file, "push %s\n", name);
  return std::fflush(log_file);
}
int pop_range() {
  std::fputs("pop\n", log_file);
  return std::fflush(log_file);
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(const void* (*get_table)(std::uint32_t id)) {
  log_file = std::fopen(std::getenv("FAKE_PROFILER_LOG"), "w");
  if (log_file == nullptr || std::getenv("FAKE_PROFILER_REFUSES") != nullptr) return 0;
  const auto* callbacks = static_cast<const CallbacksTable*>(get_table(1));
  if (callbacks == nullptr || callbacks->bytes < sizeof(CallbacksTable)) return 0;
  Function** table = nullptr;
  unsigned size = 0;
  if (callbacks->get_functions(1, &table, &size) == 0 || size < 16) return 0;
  // A profiler writes to every place that it has a function for.
  for (unsigned i = 1; i < size; ++i) *table[i] = reinterpret_cast<Function>(&pop_range);
  *table[9] = reinterpret_cast<Function>(&push_range);
  *table[11] = reinterpret_cast<Function>(&pop_range);
  return 1;
}
