// What ranks tell each other, without MPI: headers, digests, errors, and transfers in steps.

#include "tern/detail/interop/mpi_wire.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tern/core/dtype.hpp"
#include "tern/core/error.hpp"
#include "tern/core/shape.hpp"
#include "tern/detail/interop/mpi_steps.hpp"

namespace tern::mpi::detail {
namespace {

TEST(MpiWire, WritesTheHeadersThatPythonWrites) {
  // pack() of _mpi_wire.py wrote this text, and hashlib the digest.
  const std::string header = pack(describe(DType::f32, Shape{2, 3}, 24));
  EXPECT_EQ(header, R"(TERNMPI1{"bytes": 24, "dtype": "float32", "shape": [2, 3]})");
  EXPECT_EQ(digest_of(header), 70635842336162640);
  EXPECT_EQ(digest_of(std::string(200, 'x')), 47886764680020355);
  EXPECT_EQ(pack(Json::Object{{"b", "\xC3\xA9\xF0\x9F\x98\x80\n\"\x01"}, {"a", Json::List()}}),
            R"(TERNMPI1{"a": [], "b": "\u00e9\ud83d\ude00\n\"\u0001"})");
}

TEST(MpiWire, ReadsWhatItHasWritten) {
  const Json fields = Json::Object{
      {"list", Json::List{1, -2, true, false, Json(), "text"}},
      {"object", Json::Object{{"name", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\\/\b\f\n\r\t\""}}},
      {"largest", std::int64_t{INT64_MAX}}};
  EXPECT_EQ(unpack(pack(fields), 1), fields);
}

TEST(MpiWire, RefusesADamagedHeaderWhereverItIsCut) {
  const std::string whole = pack(Json::Object{{"a", Json::List{1, "\xC3\xA9"}}, {"b", true}});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(static_cast<void>(unpack(whole.substr(0, length), 1)), BadFormat) << length;
  }
  for (const char* const text :
       {"TERNMPI2{}", "TERNMPI1{} ,", "TERNMPI1{\"a\": 1.5}", "TERNMPI1{\"a\" 1}", "TERNMPI1[1 2]",
        "TERNMPI1\"\\x\"", "TERNMPI1\"\\u12g4\"", "TERNMPI1{\"a\": 99999999999999999999}"}) {
    EXPECT_THROW(static_cast<void>(unpack(text, 1)), BadFormat) << text;
  }
  const std::string deep(1000, '[');
  EXPECT_THROW(static_cast<void>(unpack("TERNMPI1" + deep, 1)), BadFormat);
  EXPECT_THROW(static_cast<void>(member<bool>(unpack("TERNMPI1{\"a\": 1}", 1), "a", 1)), BadFormat);
}

TEST(MpiWire, ComparesDtypesBeforeSizesBeforeShapes) {
  const Json here = describe(DType::f32, Shape{2, 3}, 24);
  EXPECT_TRUE(compare(here, here).is_equal);
  EXPECT_EQ(compare(here, describe(DType::i32, Shape{9}, 36)).code, ErrorCode::type_mismatch);
  EXPECT_EQ(compare(here, describe(DType::f32, Shape{9}, 36)).code, ErrorCode::size_mismatch);
  const Mismatch shape = compare(here, describe(DType::f32, Shape{6}, 24));
  EXPECT_FALSE(shape.is_equal);
  EXPECT_EQ(shape.code, ErrorCode::shape_mismatch);
}

TEST(MpiWire, AnErrorOfAnyCodeArrivesWithItsNumbersAndText) {
  for (const ErrorCode code : {
#define TERN_CODE(code, name, base) ErrorCode::code,
           TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE
       }) {
    const Failure failure =
        Failure(code, "it needs {requested}.").with_bytes("requested", 4096).with("name", "x");
    const Failure there = failure_of(fields_of(failure), "rank {rank} could not send: {text}", 3);
    EXPECT_EQ(there.code(), code);
    EXPECT_EQ(there.number("requested"), 4096u);
    EXPECT_EQ(there.text(), "rank 3 could not send: it needs 4.0 KiB.");
  }
  EXPECT_EQ(class_of(ErrorCode::sync_failed), "SyncError");
  EXPECT_EQ(class_of(ErrorCode::out_of_budget), "OutOfBudgetError");
  const Json unknown = Json::Object{{"class", "SomeError"}, {"text", "no"}};
  EXPECT_EQ(failure_of(unknown, "{text}", 1).code(), ErrorCode::sync_failed);
}

// --- Steps

struct Log {
  std::vector<std::string> lines;
  bool is_open = false;
};

Steps<int> inner(Log& log) {
  log.lines.emplace_back("inner waits");
  until open([&log] { return log.is_open; });
  co_await open;
  co_return 7;
}

Steps<> outer(Log& log) {
  const int found = co_await inner(log);
  log.lines.push_back("outer has " + std::to_string(found));
}

TEST(MpiSteps, ATransferGoesOnWhenItsInnermostStepCan) {
  Log log;
  Transfer transfer(outer(log), "a test");
  EXPECT_FALSE(transfer.advance());
  EXPECT_FALSE(transfer.advance());
  log.is_open = true;
  EXPECT_TRUE(transfer.advance());
  transfer.steps.take();
  EXPECT_EQ(log.lines, (std::vector<std::string>{"inner waits", "outer has 7"}));
}

Steps<> failing(bool& has_ended, int polls) {
  struct End {
    bool& flag;
    ~End() { flag = true; }
  } end{has_ended};
  until never([polls]() mutable -> bool {
    if (polls-- > 0) return false;
    throw std::runtime_error("planted");
  });
  co_await never;
}

TEST(MpiSteps, AnErrorOfAWaitIsThrownInTheCoroutine) {
  for (const int polls : {0, 1, 3}) {
    bool has_ended = false;
    Transfer transfer(failing(has_ended, polls), "a test");
    while (!transfer.advance()) {
    }
    EXPECT_TRUE(has_ended);
    EXPECT_THROW(transfer.steps.take(), std::runtime_error);
  }
}

TEST(MpiSteps, ATransferThatIsDroppedEndsItsLocalVariables) {
  bool has_ended = false;
  {
    Transfer transfer(failing(has_ended, 100), "a test");
    EXPECT_FALSE(transfer.advance());
  }
  EXPECT_TRUE(has_ended);
}

TEST(MpiSteps, CollectivesRunOneAfterTheOther) {
  Log first, second;
  Progress progress;
  progress.add(std::make_shared<Transfer>(outer(first), "first"), true);
  progress.add(std::make_shared<Transfer>(outer(second), "second"), true);
  second.is_open = true;
  progress.advance();
  EXPECT_TRUE(second.lines.empty());
  EXPECT_EQ(progress.count(), 2u);
  first.is_open = true;
  progress.advance();
  EXPECT_EQ(progress.count(), 0u);
}

TEST(MpiSteps, PartsRunSideBySideAndAllOfThemEndBeforeAnErrorIsThrown) {
  Log log;
  bool has_ended = false;
  std::vector<std::unique_ptr<Transfer>> parts;
  parts.push_back(std::make_unique<Transfer>(outer(log), "waits"));
  parts.push_back(std::make_unique<Transfer>(failing(has_ended, 0), "fails"));
  Transfer all(together(std::move(parts)), "both");
  EXPECT_FALSE(all.advance());
  EXPECT_TRUE(has_ended);
  log.is_open = true;
  EXPECT_TRUE(all.advance());
  EXPECT_EQ(log.lines.back(), "outer has 7");
  EXPECT_THROW(all.steps.take(), std::runtime_error);
}

}  // namespace
}  // namespace tern::mpi::detail
