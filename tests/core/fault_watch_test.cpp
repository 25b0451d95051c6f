#include "core/fault_watch.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace tern {
namespace {

class FaultWatch : public testing::Test {
 protected:
  FaultWatch() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  static void forget_handlers() { signal(SIGSEGV, SIG_DFL); }
  static char* closed_page() {
    return static_cast<char*>(mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  static void touch(const char* address) {
    static_cast<void>(*const_cast<const volatile char*>(address));
  }
  /// Says what it was told, and lets nobody go on.
  static bool tell(const Fault& fault) noexcept {
    static_cast<void>(!write(STDERR_FILENO, fault.name, std::strlen(fault.name)));
    static_cast<void>(!write(STDERR_FILENO, fault.site.file, std::strlen(fault.site.file)));
    if (fault.offset == 5) static_cast<void>(!write(STDERR_FILENO, " at 5", 5));
    return false;
  }
  static bool open_page(const Fault& fault) noexcept {
    auto* const first = static_cast<char*>(fault.address) - fault.offset;
    return mprotect(first, page, PROT_READ | PROT_WRITE) == 0;
  }

  static constexpr std::size_t page = 65536;
};

const testing::KilledBySignal by_fault(SIGSEGV);

TEST_F(FaultWatch, ExplainsAFaultAndLetsTheProcessDieOfIt) {
  EXPECT_EXIT(
      {
        forget_handlers();
        char* const first = closed_page();
        watch_faults(first, page, "name ", tell);
        set_fault_site(first, {"file", "", 3});
        touch(first + 5);
      },
      by_fault, "name file at 5");
}

TEST_F(FaultWatch, LetsAnAccessGoOnThatIsPossibleNow) {
  EXPECT_EXIT(
      {
        forget_handlers();
        char* const first = closed_page();
        watch_faults(first, page, "name", open_page);
        first[7] = 1;
        _exit(first[7] == 1 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(FaultWatch, ExplainsNothingThatWasForgotten) {
  EXPECT_EXIT(
      {
        forget_handlers();
        char* const first = closed_page();
        char* const second = closed_page();
        watch_faults(first, page, "first", tell);
        watch_faults(second, page, "second", tell);
        forget_faults(first);
        touch(first);
      },
      by_fault, "^$");
}

TEST_F(FaultWatch, CutsANameThatIsTooLong) {
  EXPECT_EXIT(
      {
        forget_handlers();
        char* const first = closed_page();
        watch_faults(first, page, std::string(100, 'x'), tell);
        touch(first);
      },
      by_fault, "^x{31}$");
}

}  // namespace
}  // namespace tern
