// An Output takes the bytes that a writer of a format produces, one after another.

#pragma once

#include <string_view>

namespace tern::tools {

class Output {
 public:
  Output() = default;
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  virtual ~Output() = default;

  virtual void write(std::string_view bytes) = 0;
};

}  // namespace tern::tools
