#include "bench/instruction_count.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <vector>

namespace tern::bench {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool is_instrumented = true;
#elif defined(__has_feature)
constexpr bool is_instrumented =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool is_instrumented = false;
#endif

class InstructionCounts : public testing::Test {
 protected:
  InstructionCount counted(const std::function<void()>& function) {
    const InstructionCount count = count_instructions(function);
    refusal_ = count.refusal;
    return count;
  }
  void SetUp() override {
    if (is_instrumented) GTEST_SKIP() << "what a sanitizer adds would be counted too";
    if (const InstructionCount probe = count_instructions([] {}); !probe.refusal.empty()) {
      GTEST_SKIP() << probe.refusal;
    }
  }
  void TearDown() override { EXPECT_EQ(refusal_, ""); }

  std::atomic<std::uint64_t> value_ = 1;

 private:
  std::string refusal_;
};

TEST_F(InstructionCounts, SeeNoAtomicsInLoadsStoresAndArithmetic) {
  volatile std::uint64_t sum = 0;
  const InstructionCount count = counted([&] {
    sum = sum + value_.load(std::memory_order_acquire);
    value_.store(sum, std::memory_order_release);
  });
  EXPECT_EQ(count.atomics, 0u);
  EXPECT_GT(count.instructions, 3u);
  EXPECT_EQ(value_, 1u) << "the function has run once";
}

TEST_F(InstructionCounts, SeeEveryKindOfAtomic) {
  std::uint64_t expected = 6;
  const InstructionCount count = counted([&] {
    value_.fetch_add(1);                          // 2
    value_.fetch_or(4);                           // 6
    value_.compare_exchange_strong(expected, 7);  // 7
    expected = value_.exchange(9);                // 9
  });
  EXPECT_EQ(count.atomics, 4u);
  EXPECT_EQ(expected, 7u);
  EXPECT_EQ(value_, 9u);
}

TEST_F(InstructionCounts, GrowByOneForEveryRoundOfALoop) {
  const auto rounds = [&](int count) {
    return counted([&, count] {
             for (int i = 0; i < count; ++i) value_.fetch_add(1);
           })
        .atomics;
  };
  EXPECT_EQ(rounds(10), 10u);
  EXPECT_EQ(rounds(100), 100u);
  EXPECT_EQ(value_, 111u);
}

TEST_F(InstructionCounts, AreTheSameForTheSame) {
  std::vector<int> numbers(100);
  const auto fill = [&] { numbers.assign(100, 3); };
  fill();
  const InstructionCount first = counted(fill), second = counted(fill);
  EXPECT_EQ(first.instructions, second.instructions);
}

#if defined(__aarch64__)

bool is_atomic(std::uint32_t word) {
  std::array<unsigned char, 16> code = {};
  std::memcpy(code.data(), &word, sizeof(word));
  return is_atomic_instruction(code.data());
}

TEST(AtomicInstructions, AreToldFromTheirNeighbours) {
  EXPECT_TRUE(is_atomic(0xf8e10002));   // ldaddal x1, x2, [x0]
  EXPECT_TRUE(is_atomic(0xf821001f));   // stadd x1, [x0]
  EXPECT_TRUE(is_atomic(0x38e18002));   // swpalb w1, w2, [x0]
  EXPECT_TRUE(is_atomic(0x88e1fc02));   // casal w1, w2, [x0]
  EXPECT_TRUE(is_atomic(0x4860fc02));   // caspal x0, x1, x2, x3, [x0]
  EXPECT_FALSE(is_atomic(0xc8dffc01));  // ldar x1, [x0]
  EXPECT_FALSE(is_atomic(0xc89ffc01));  // stlr x1, [x0]
  EXPECT_FALSE(is_atomic(0xf8bfc001));  // ldapr x1, [x0]
  EXPECT_FALSE(is_atomic(0xf8616801));  // ldr x1, [x0, x1]
  EXPECT_FALSE(is_atomic(0xf9400001));  // ldr x1, [x0]
  EXPECT_FALSE(is_atomic(0xc85ffc01));  // ldaxr x1, [x0]
}

#elif defined(__x86_64__)

bool is_atomic(std::initializer_list<unsigned char> bytes) {
  std::array<unsigned char, 16> code = {};
  std::copy(bytes.begin(), bytes.end(), code.begin());
  return is_atomic_instruction(code.data());
}

TEST(AtomicInstructions, AreToldFromTheirNeighbours) {
  EXPECT_TRUE(is_atomic({0xf0, 0x48, 0x0f, 0xc1, 0x07}));  // lock xadd [rdi], rax
  EXPECT_TRUE(is_atomic({0xf0, 0x0f, 0xb1, 0x0f}));        // lock cmpxchg [rdi], ecx
  EXPECT_TRUE(is_atomic({0x48, 0x87, 0x07}));              // xchg [rdi], rax
  EXPECT_TRUE(is_atomic({0x86, 0x07}));                    // xchg [rdi], al
  EXPECT_FALSE(is_atomic({0x48, 0x87, 0xc8}));             // xchg rax, rcx
  EXPECT_FALSE(is_atomic({0x66, 0x90}));                   // nop
  EXPECT_FALSE(is_atomic({0x48, 0x89, 0x07}));             // mov [rdi], rax
  EXPECT_FALSE(is_atomic({0x48, 0x0f, 0xc1, 0xc8}));       // xadd rax, rcx
}

#endif

}  // namespace
}  // namespace tern::bench
