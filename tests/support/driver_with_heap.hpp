// Wraps a driver table so that calls of the driver can always allocate, even while HeapExhausted
// makes allocations fail. Then only allocations of the code under test fail.

#pragma once

#include <cstddef>
#include <limits>

#include "backends/cuda/driver_table.hpp"
#include "support/allocation_counter.hpp"

namespace tern::cuda {

template <class Function, DriverEntry entry>
struct CallWithHeap;

template <class... Arguments, DriverEntry entry>
struct CallWithHeap<CUresult(Arguments...), entry> {
  static inline CUresult (*real)(Arguments...) = nullptr;

  static CUresult call(Arguments... arguments) {
    const test::HeapExhausted enough(std::numeric_limits<std::size_t>::max());
    return real(arguments...);
  }
  static auto* wrap(CUresult (*function)(Arguments...)) {
    real = function;
    return function == nullptr ? nullptr : &call;
  }
};

/// Only one wrapped table can be in use.
inline DriverTable with_heap(DriverTable table) {
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) \
  table.slot = CallWithHeap<slot##_type, DriverEntry::slot>::wrap(table.slot);
  TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
  return table;
}

}  // namespace tern::cuda
