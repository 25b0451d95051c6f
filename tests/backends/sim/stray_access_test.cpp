#include "backends/sim/stray_access.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "support/few_addresses.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

/// The statements run in a process of their own, started anew, so that no device is open there.
/// Most begin by taking out the handler of a sanitizer, which would end the process in its own way.
class StrayAccessTest : public testing::Test {
 protected:
  StrayAccessTest() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  static void forget_handlers() { signal(SIGSEGV, SIG_DFL); }
  static std::unique_ptr<AliasMemory> make() {
    return AliasMemory::try_make(2 * mib, 2 * mib, 7).value();
  }
  static void touch(const void* address) {
    static_cast<void>(*static_cast<const volatile char*>(address));
  }
  static void touch(const AliasMemory& memory, std::uint64_t offset) {
    touch(memory.address_of(offset));
  }
};

const testing::KilledBySignal by_fault(SIGSEGV);

TEST_F(StrayAccessTest, EndsTheProcessWithAReport) {
  EXPECT_EXIT(
      {
        forget_handlers();
        const auto memory = make();
        watch_reservation(*memory, "sim:0");
        touch(*memory, 0x1234);
      },
      by_fault,
      "TERN-S304 stray-host-access +sim:0\n"
      "  what    the host accessed \\[0x1234\\] of sim:0, which only the device can access\n"
      "  fix     copy");
}

TEST_F(StrayAccessTest, IsReportedForMemoryOfADeviceAndForAddressesWithoutMemory) {
  EXPECT_EXIT(
      {
        forget_handlers();
        const Device device = open({.memory_bytes = 4 * mib});
        auto* block = static_cast<char*>(device.allocate(MemoryKind::device, 1000));
        block[10] = 1;
      },
      by_fault, "TERN-S304.*sim:0");
  EXPECT_EXIT(
      {
        forget_handlers();
        const auto memory = make();
        watch_reservation(*memory, "sim:0");
        touch(*memory, 4 * mib - 1);
      },
      by_fault, "0x3fffff. of sim:0");
}

TEST_F(StrayAccessTest, TellsDevicesApart) {
  EXPECT_EXIT(
      {
        forget_handlers();
        const auto first = make();
        const auto second = make();
        watch_reservation(*first, "sim:0");
        watch_reservation(*second, "sim:1");
        forget_reservation(*first);
        touch(*second, 0x10);
      },
      by_fault, "0x10. of sim:1");
}

TEST_F(StrayAccessTest, IsFoundHoweverManyDevicesAreOpen) {
  if (test::has_few_addresses) GTEST_SKIP() << "the sanitizer leaves too few addresses";
  EXPECT_EXIT(
      {
        forget_handlers();
        std::vector<std::unique_ptr<AliasMemory>> memories;
        for (std::uint32_t i = 0; i < 300; ++i) {
          memories.push_back(make());
          watch_reservation(*memories.back(), "sim:" + std::to_string(i));
        }
        for (std::uint32_t i = 0; i < 299; ++i) forget_reservation(*memories[i]);
        touch(*memories[299], 0x20);
      },
      by_fault, "0x20. of sim:299");
}

TEST_F(StrayAccessTest, LeavesOtherFaultsToWhoeverHandledThem) {
  EXPECT_EXIT(
      {
        signal(SIGSEGV, [](int) { _exit(3); });
        const auto memory = make();
        watch_reservation(*memory, "sim:0");
        touch(memory->alias_of(2 * mib));  // of no reservation
      },
      testing::ExitedWithCode(3), "^$");
  EXPECT_EXIT(
      {
        forget_handlers();
        const auto memory = make();
        watch_reservation(*memory, "sim:0");
        touch(memory->alias_of(2 * mib));
      },
      by_fault, "^$");
}

TEST_F(StrayAccessTest, IsPassedOnToTheHandlerBefore) {
  EXPECT_EXIT(
      {
        struct sigaction before = {};
        before.sa_flags = SA_SIGINFO;
        before.sa_sigaction = [](int, siginfo_t* info, void*) {
          _exit(info->si_addr != nullptr ? 3 : 4);
        };
        sigaction(SIGSEGV, &before, nullptr);
        const auto memory = make();
        watch_reservation(*memory, "sim:0");
        touch(*memory, 0x30);
      },
      testing::ExitedWithCode(3), "TERN-S304.*sim:0");
}

TEST_F(StrayAccessTest, DiesOfASignalThatWasSentAsItWouldHave) {
  EXPECT_EXIT(
      {
        forget_handlers();
        const auto memory = make();
        watch_reservation(*memory, "sim:0");
        kill(getpid(), SIGSEGV);
        _exit(5);
      },
      by_fault, "^$");
}

void (*handler())(int) {
  struct sigaction current = {};
  sigaction(SIGSEGV, nullptr, &current);
  return current.sa_handler;
}

TEST_F(StrayAccessTest, IsWatchedForOnlyWhileADeviceIsOpen) {
  EXPECT_EXIT(
      {
        forget_handlers();
        const auto first = make();
        const auto second = make();
        watch_reservation(*first, "sim:0");
        watch_reservation(*second, "sim:1");
        forget_reservation(*first);
        const bool is_ours = handler() != SIG_DFL;
        forget_reservation(*second);
        _exit(is_ours && handler() == SIG_DFL ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

struct sigaction ours = {};

TEST_F(StrayAccessTest, LeavesAHandlerThatCameLaterInPlace) {
  EXPECT_EXIT(
      {
        forget_handlers();
        auto memory = make();
        watch_reservation(*memory, "sim:0");
        struct sigaction later = {};
        later.sa_flags = SA_SIGINFO;
        later.sa_sigaction = [](int number, siginfo_t* info, void* context) {
          static_cast<void>(!write(STDERR_FILENO, "later ", 6));
          ours.sa_sigaction(number, info, context);
        };
        sigaction(SIGSEGV, &later, &ours);
        forget_reservation(*memory);
        if (handler() == SIG_DFL) _exit(1);
        // Opened again, ours must not call theirs, which calls ours.
        watch_reservation(*memory, "sim:2");
        touch(*memory, 0x40);
      },
      by_fault, "^later TERN-S304.*sim:2");
}

}  // namespace
}  // namespace tern::sim
