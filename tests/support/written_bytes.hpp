// Returns the bytes that a writer of a format produces.

#pragma once

#include <string>
#include <string_view>

#include "tools/formats/output.hpp"

namespace tern::test {

class OutputBytes final : public tools::Output {
 public:
  void write(std::string_view more) override { bytes += more; }
  std::string bytes;
};

template <class Write>
std::string written_bytes(Write write) {
  OutputBytes out;
  write(out);
  return std::move(out.bytes);
}

}  // namespace tern::test
