// Translates a portable kernel to the language of a device's compiler: OpenCL C, CUDA C++, or C++
// for the host.
//
// The translation of an OpenCL or a CUDA kernel has one entry, entry_name(), and that of a
// reduction a second one, combine_entry_name(). Arguments have the order of the parameters. An
// array is two arguments: the address of its first element and its number of elements, a 64-bit
// unsigned integer. A value is one; a boolean is a byte, 0 or 1.
//
// Elements. The launch has at least as many threads, in one dimension, as the first array has
// elements. Other threads do nothing.
//
// Reductions. A launch has blocks of reduction_lanes threads, and block b reduces the
// reduction_block_elements elements from b * reduction_block_elements on: thread t combines every
// reduction_lanes-th of them in order, starting with `identity`, and then the values of the
// threads are combined in a tree. So every device computes the same bits. The address of the
// results, one for each block, is the last argument. The second entry reduces values in the same
// way: its arguments are the address of the values, their number, and the address of the results.
//
// The host. An entry is a function `extern "C" void entry(const HostCall*)`, which runs some blocks
// of a launch in the calling thread. Several threads may call it for different blocks at the same
// time. The compiler vectorises over the threads of a block, or over elements.
//
// Rounding. Translations fuse no multiplication with an addition, except in fma(). OpenCL C is told
// so in the text; the options of the other compilers must be --fmad=false and -ffp-contract=off.
//
// A `#line` directive before each statement makes compilers report lines of the user's text, in a
// file of the name "kernel NAME".

#pragma once

#include <cstdint>
#include <string>

#include "language/dialect.hpp"
#include "language/syntax.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern::language {

/// What the entry of a translation to C++ is called with. The text declares the same structure.
struct HostCall {
  std::uint64_t grid[3];      // blocks of the launch
  std::uint64_t block[3];     // threads of a block
  std::uint64_t first_block;  // in linear order, x fastest
  std::uint64_t block_count;  // blocks to run
  void* const* values;        // the address of each argument
};
using HostEntry = void (*)(const HostCall*);

/// The translation. The program is what the parser returned without an error. Throws
/// std::bad_alloc.
[[nodiscard]] std::string emit(const Program& program, Dialect dialect);

/// The name of the kernel with a suffix: the name alone may be that of a built-in function, such as
/// `dot` in OpenCL C.
[[nodiscard]] std::string entry_name(const Program& program);
[[nodiscard]] TERN_EXPORT std::string combine_entry_name(const Program& program);

}  // namespace tern::language
