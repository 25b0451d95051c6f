// The fixture of the OpenCL tests: the OpenCL of this machine, called through a table in which a
// test can make any call fail, and which counts objects that were created and not released.
//
// There is one such table, so the counts and the planned failures apply to the whole process.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "backends/opencl/opencl_context.hpp"
#include "backends/opencl/opencl_opener.hpp"
#include "backends/opencl/opencl_table.hpp"
#include "tern/detail/core/config.hpp"

namespace tern::test {

/// The number of live handles of one type, or of live memory blocks.
template <class Handle>
inline std::atomic<int> live_handles = 0;

/// One entry of the table: how often it was called, and which calls fail with which code.
struct PlannedFault {
  const char* name;
  std::atomic<int> calls = 0;
  std::atomic<int> fail_at = 0;  // number of the first call that fails, from 1; 0: none
  std::atomic<int> times = 1;    // number of calls that fail
  std::atomic<opencl::cl_int> code = 0;

  [[nodiscard]] bool hits() noexcept {
    const int call = ++calls;
    return fail_at > 0 && call >= fail_at && call < fail_at + times;
  }
};

namespace opencl_faults {

inline const opencl::Table* real = nullptr;

template <auto member, class Function>
struct Wrapped;

template <auto member, class Returned, class... Arguments>
struct Wrapped<member, Returned (*)(Arguments...)> {
  inline static PlannedFault fault = {};

  static Returned call(Arguments... arguments) noexcept {
    const std::tuple<Arguments...> all(arguments...);
    const auto last = std::get<sizeof...(Arguments) - 1>(all);
    using First = std::tuple_element_t<0, std::tuple<Arguments...>>;
    using Last = std::remove_const_t<decltype(last)>;
    const std::string_view name = fault.name;
    const bool is_hit = fault.hits();
    if constexpr (std::is_void_v<Returned>) {  // clSVMFree, which cannot fail
      (real->*member)(arguments...);
      --live_handles<void*>;
    } else if constexpr (std::is_pointer_v<Returned>) {
      if (is_hit) {
        if constexpr (std::is_same_v<Last, opencl::cl_int*>) *last = fault.code;
        return nullptr;
      }
      const Returned made = (real->*member)(arguments...);
      if (made != nullptr) ++live_handles<Returned>;
      return made;
    } else if (name.starts_with("clRelease")) {
      // The handle is released even if the call returns an error.
      const opencl::cl_int code = (real->*member)(arguments...);
      --live_handles<First>;
      return is_hit ? fault.code.load() : code;
    } else {
      if (is_hit) return fault.code;
      const opencl::cl_int code = (real->*member)(arguments...);
      if constexpr (std::is_same_v<Last, opencl::cl_event*>) {
        if (code == opencl::result::success && last != nullptr) ++live_handles<opencl::cl_event>;
      }
      return code;
    }
  }
};

inline std::vector<PlannedFault*> all() {
  std::vector<PlannedFault*> faults;
#define TERN_OPENCL_ENTRY(returned, entry, parameters)                                      \
  faults.push_back(&Wrapped<&opencl::Table::entry, decltype(opencl::Table::entry)>::fault); \
  faults.back()->name = #entry;
  TERN_FOR_EACH_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
  TERN_FOR_EACH_LATER_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
#undef TERN_OPENCL_ENTRY
  return faults;
}

inline opencl::Table table() {
  opencl::Table wrapped;
#define TERN_OPENCL_ENTRY(returned, entry, parameters) \
  wrapped.entry = &Wrapped<&opencl::Table::entry, decltype(opencl::Table::entry)>::call;
  TERN_FOR_EACH_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
  TERN_FOR_EACH_LATER_OPENCL_ENTRY(TERN_OPENCL_ENTRY)
#undef TERN_OPENCL_ENTRY
  return wrapped;
}

}  // namespace opencl_faults

/// Skips the test if there is no OpenCL device, unless TERN_REQUIRE demands one.
class OpenClTest : public testing::Test {
 protected:
  void SetUp() override {
    const opencl::Found* found = opencl::find_opencl();
    ASSERT_NE(found, nullptr);
    if (found->devices.usable.empty()) {
      const std::vector<std::string>& required = config().require;
      ASSERT_TRUE(std::ranges::find(required, "opencl") == required.end())
          << found->devices.absence;
      GTEST_SKIP() << found->devices.absence;
    }
    opencl_faults::real = &found->table;
    faults = opencl_faults::all();
    clear_faults();
    facts = found->devices.usable.front();
  }
  /// Every test must release all objects, whatever has failed.
  void TearDown() override {
    context.reset();
    clear_faults();
    EXPECT_EQ(live_handles<opencl::cl_event>, 0);
    EXPECT_EQ(live_handles<opencl::cl_kernel>, 0);
    EXPECT_EQ(live_handles<opencl::cl_program>, 0);
    EXPECT_EQ(live_handles<opencl::cl_command_queue>, 0);
    EXPECT_EQ(live_handles<opencl::cl_context>, 0);
    EXPECT_EQ(live_handles<void*>, 0);
  }

  static const opencl::Table& table() {
    static const opencl::Table wrapped = opencl_faults::table();
    return wrapped;
  }

  void clear_faults() {
    for (PlannedFault* fault : faults) fault->fail_at = fault->calls = 0;
  }
  /// Makes a call of the entry fail: the next one, or the one after `after` further calls. With
  /// `times`, the following calls fail too.
  void fail(std::string_view entry, opencl::cl_int code, int after = 0, int times = 1) {
    PlannedFault& fault = fault_of(entry);
    fault.times = times;
    fault.code = code;
    fault.calls = 0;
    fault.fail_at = after + 1;
  }
  /// Returns the number of calls since the last call of fail().
  int calls_of(std::string_view entry) { return fault_of(entry).calls; }

  void open_context() { context = opencl::Context::open(table(), facts, "opencl:0").value(); }

  PlannedFault& fault_of(std::string_view entry) {
    return **std::ranges::find(
        faults, entry, [](const PlannedFault* fault) { return std::string_view(fault->name); });
  }

  std::vector<PlannedFault*> faults;
  opencl::DeviceFacts facts;
  std::shared_ptr<opencl::Context> context;
};

}  // namespace tern::test
