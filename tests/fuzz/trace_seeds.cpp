// Writes the initial traces for fuzzing to a folder.

#include <filesystem>
#include <fstream>
#include <string>

#include "support/sample_traces.hpp"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const tern::test::TraceBytes& trace : tern::test::sample_traces()) {
    std::ofstream file(folder / ("seed-" + std::to_string(number++)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(trace.data()),
               static_cast<std::streamsize>(trace.size()));
    if (!file) return 1;
  }
  return 0;
}
