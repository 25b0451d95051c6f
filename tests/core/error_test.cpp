// The codes, their sentences and their exceptions. The Failure itself is in failure_test.cpp.

#include "tern/core/error.hpp"

#include <gtest/gtest.h>

#include <cctype>
#include <cstring>
#include <set>
#include <typeinfo>
#include <vector>

#include "support/allocation_counter.hpp"
#include "tern/core/result.hpp"

namespace tern {
namespace {

constexpr ErrorCode codes[] = {
#define TERN_CODE(code, name, base) ErrorCode::code,
    TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE
};

/// The fields each code promises. A switch, so that the compiler asks for those of a new code.
std::vector<const char*> documented_fields(ErrorCode code) {
  switch (code) {
    case ErrorCode::size_overflow:
      return {"what"};
    case ErrorCode::invalid_argument:
      return {"name", "value", "why"};
    case ErrorCode::invalid_view:
      return {"offset", "size", "extent"};
    case ErrorCode::misaligned:
      return {"address", "required"};
    case ErrorCode::size_mismatch:
      return {"expected", "actual"};
    case ErrorCode::shape_mismatch:
      return {"expected", "actual"};
    case ErrorCode::type_mismatch:
      return {"expected", "actual"};
    case ErrorCode::not_allocated:
      return {"id"};
    case ErrorCode::never_written:
      return {"id", "range"};
    case ErrorCode::not_host_accessible:
      return {"kind"};
    case ErrorCode::read_only:
      return {"what"};
    case ErrorCode::out_of_memory:
      return {"requested", "free", "total"};
    case ErrorCode::out_of_budget:
      return {"layer", "current", "requested", "required", "remaining",
              "limit", "peak",    "tag",       "overflow"};
    case ErrorCode::use_after_free:
      return {"generation"};
    case ErrorCode::out_of_bounds:
      return {"generation"};
    case ErrorCode::stream_misuse:
      return {"stream", "why"};
    case ErrorCode::untracked_buffer:
      return {"kind"};
    case ErrorCode::download_refused:
      return {"bytes", "limit"};
    case ErrorCode::device_mismatch:
      return {"a", "b"};
    case ErrorCode::invalid_device:
      return {"spec"};
    case ErrorCode::unsupported:
      return {"what"};
    case ErrorCode::sync_failed:
      return {"direction", "cause"};
    case ErrorCode::coherence_conflict:
      return {"range", "places"};
    case ErrorCode::access_conflict:
      return {"range", "a", "b"};
    case ErrorCode::dlpack_rejected:
      return {"reason"};
    case ErrorCode::arrow_rejected:
      return {"reason", "field"};
    case ErrorCode::capacity:
      return {"max"};
    case ErrorCode::timeout:
      return {"target", "current"};
    case ErrorCode::not_found:
      return {"id"};
    case ErrorCode::after_fork:
      return {"pid"};
    case ErrorCode::after_shutdown:
      return {"what"};
    case ErrorCode::device_lost:
      return {"device", "code", "name", "call"};
    case ErrorCode::peer_lost:
      return {"pid"};
    case ErrorCode::file:
      return {"path", "call", "os_code", "why"};
    case ErrorCode::bad_format:
      return {"what", "field", "offset", "value", "bound"};
    case ErrorCode::violation:
      return {"finding"};
    case ErrorCode::driver:
      return {"code", "name", "call"};
  }
  return {};
}

Failure with_documented_fields(ErrorCode code) {
  Failure failure(code);
  for (const char* field : documented_fields(code)) failure.with(field, 7);
  return failure;
}

TEST(ErrorCode, HasAnEnumeratorsNameOfItsOwn) {
  std::set<std::string_view> names;
  for (const ErrorCode code : codes) names.insert(name(code));
  EXPECT_EQ(names.size(), std::size(codes));
  EXPECT_EQ(name(ErrorCode::size_overflow), "size_overflow");
  EXPECT_EQ(name(ErrorCode::driver), "driver");
  EXPECT_EQ(name(static_cast<ErrorCode>(255)), "unknown");
}

TEST(ErrorCode, HasASentenceThatReadsLikeOne) {
  std::set<std::string> sentences;
  for (const ErrorCode code : codes) {
    const std::string text = with_documented_fields(code).text();
    const auto first = static_cast<unsigned char>(text.front());
    EXPECT_TRUE(std::islower(first) || first == '\'' || first == '7') << text;
    EXPECT_TRUE(text.ends_with('.')) << text;
    EXPECT_GE(text.size(), 16u) << text;
    EXPECT_EQ(text.find_first_of("{}\n\t"), text.npos) << text;
    EXPECT_EQ(text.find("  "), text.npos) << text;
    EXPECT_EQ(text.find(".."), text.npos) << text;
    EXPECT_EQ(text.find("rror:"), text.npos) << text;
    sentences.insert(text);
  }
  EXPECT_EQ(sentences.size(), std::size(codes)) << "two codes share a sentence";
}

TEST(ErrorCode, HasASentenceThatAsksOnlyForItsDocumentedFields) {
  for (const ErrorCode code : codes) {
    const std::string text = with_documented_fields(code).text();
    EXPECT_EQ(text.find('?'), text.npos) << name(code) << ": " << text;
    EXPECT_NE(text.find('7'), text.npos) << name(code) << " shows none of its fields: " << text;
  }
}

TEST(ErrorCode, ReadsAsAnUnknownErrorIfItIsNoneOfOurs) {
  const Failure failure(static_cast<ErrorCode>(255));
  EXPECT_EQ(failure.text(), "an unknown error.");
  EXPECT_THROW(raise(failure), DriverError);
}

std::string site_of(const Failure& failure) {
  if (!failure.site().is_known()) return "";
  return std::string(failure.site().file) + ":" + std::to_string(failure.site().line) + ": ";
}

template <class Exception, class Standard>
void expect_caught_in_every_way(ErrorCode code) {
  // A second std::exception among the bases would make a handler for it skip the exception.
  static_assert(std::is_convertible_v<Exception*, std::exception*>);
  static_assert(std::is_convertible_v<Exception*, Error*>);
  static_assert(std::is_base_of_v<std::bad_alloc, Exception> +
                    std::is_base_of_v<std::invalid_argument, Exception> +
                    std::is_base_of_v<std::runtime_error, Exception> ==
                1);
  SCOPED_TRACE(name(code));
  const Failure failure = with_documented_fields(code);
  EXPECT_THROW(raise(failure), Exception);
  EXPECT_THROW(raise(failure), Standard);
  EXPECT_THROW(raise(failure), Error);
  try {
    raise(failure);
  } catch (const std::exception& caught) {
    EXPECT_EQ(typeid(caught), typeid(Exception));
    EXPECT_EQ(caught.what(), site_of(failure) + failure.text());
    const Error& error = dynamic_cast<const Error&>(caught);
    EXPECT_EQ(error.text(), failure.text());
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.failure().field_count(), failure.field_count());
    EXPECT_EQ(error.failure().site().line, failure.site().line);
  }
}

TEST(Error, IsCaughtAsItselfAsItsClassAsItsStandardBaseAndAsAnException) {
#define TERN_CODE(code, name, base) expect_caught_in_every_way<name, base>(ErrorCode::code);
  TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE
}

TEST(Error, IsAnInvalidArgumentWhereThePythonClassIsAValueTypeIndexOrOverflowError) {
  const std::set<ErrorCode> wrong_arguments = {
      ErrorCode::size_overflow, ErrorCode::invalid_argument, ErrorCode::invalid_view,
      ErrorCode::misaligned,    ErrorCode::size_mismatch,    ErrorCode::shape_mismatch,
      ErrorCode::type_mismatch, ErrorCode::never_written,    ErrorCode::read_only,
      ErrorCode::out_of_bounds, ErrorCode::device_mismatch,  ErrorCode::invalid_device};
  const std::set<ErrorCode> no_memory = {ErrorCode::out_of_memory, ErrorCode::out_of_budget};
  for (const ErrorCode code : codes) {
    SCOPED_TRACE(name(code));
    if (wrong_arguments.contains(code)) {
      EXPECT_THROW(raise(Failure(code)), std::invalid_argument);
    } else if (no_memory.contains(code)) {
      EXPECT_THROW(raise(Failure(code)), std::bad_alloc);
    } else {
      EXPECT_THROW(raise(Failure(code)), std::runtime_error);
    }
  }
}

TEST(Error, IsOutOfMemoryWhenItIsOutOfBudgetAndNotTheOtherWayRound) {
  EXPECT_THROW(raise(Failure(ErrorCode::out_of_budget)), OutOfMemory);
  EXPECT_THROW(raise(Failure(ErrorCode::out_of_budget)), std::bad_alloc);
  static_assert(std::is_base_of_v<OutOfMemory, OutOfBudget>);
  static_assert(!std::is_base_of_v<OutOfBudget, OutOfMemory>);
}

TEST(Error, CopiesWithoutThrowingAndKeepsItsText) {
#define TERN_CODE(code, name, base) static_assert(std::is_nothrow_copy_constructible_v<name>);
  TERN_FOR_EACH_ERROR_CODE(TERN_CODE)
#undef TERN_CODE
  const OutOfMemory original(with_documented_fields(ErrorCode::out_of_memory));
  const OutOfMemory copy = original;
  EXPECT_STREQ(copy.what(), original.what());
  EXPECT_EQ(copy.failure().number("free"), 7u);
}

TEST(Error, CutsASentenceThatIsLongerThanItsText) {
  static const std::string long_sentence(2 * Error::max_text_bytes, 'a');
  const InvalidArgument error(Failure(ErrorCode::invalid_argument, long_sentence.c_str()));
  EXPECT_EQ(std::strlen(error.text()), Error::max_text_bytes - 1);
  EXPECT_STREQ(error.what(), error.text());
}

TEST(Error, PutsTheLineOfTheCallBeforeTheSentenceInWhatAndNotInText) {
  const Failure failure(ErrorCode::capacity, "all are in use.", {"src/app.cpp", "main", 17});
  const CapacityReached error(failure);
  EXPECT_STREQ(error.what(), "src/app.cpp:17: all are in use.");
  EXPECT_STREQ(error.text(), "all are in use.");
  EXPECT_EQ(failure.text(), "all are in use.");

  const CapacityReached copy = error;
  EXPECT_STREQ(copy.what(), "src/app.cpp:17: all are in use.");
  EXPECT_STREQ(copy.text(), "all are in use.");

  const CapacityReached nowhere(Failure(ErrorCode::capacity, "all are in use."));
  EXPECT_STREQ(nowhere.what(), "all are in use.");
}

TEST(Error, KeepsTheEndOfALongPathAndTheWholeSentence) {
  static const std::string sentence(Error::max_text_bytes - 1, 's');
  for (const char* filler : {"p", "\xc3\xa9", "\xe2\x82\xac"}) {
    for (std::size_t more = 0; more < 4; ++more) {
      std::string folder(more, '/');
      while (folder.size() < 2 * Error::max_site_bytes) folder += filler;
      const std::string path = folder + "/app.cpp";
      const InvalidArgument error(Failure(ErrorCode::invalid_argument, sentence.c_str(),
                                          {path.c_str(), "main", 0xffffffffu}));
      const std::string what = error.what();
      EXPECT_EQ(what.substr(0, 3), "...");
      EXPECT_NE(what.find("/app.cpp:4294967295: sss"), what.npos) << what;
      EXPECT_EQ(error.text(), sentence);
      EXPECT_NE(static_cast<unsigned char>(what[3]) & 0xc0, 0x80) << "a character was cut";
      EXPECT_LE(what.size(), Error::max_site_bytes + sentence.size());
    }
  }
}

TEST(ErrorDeathTest, IsNamedAsTheProgramWritesItIfNobodyCatchesIt) {
  const auto uncaught = []() noexcept {
    raise(Failure(ErrorCode::out_of_memory, "nothing is left.", CallSite::here()));
  };
  EXPECT_DEATH(uncaught(), "'tern::OutOfMemory'(.|\n)*error_test.cpp:[0-9]+: nothing is left");
}

TEST(Error, IsRaisedWhenTheHeapIsExhausted) {
  std::size_t caught = 0;
  for (const ErrorCode code : codes) {
    const Failure failure = with_documented_fields(code);
    const test::HeapExhausted nothing_left;
    try {
      raise(failure);
    } catch (const Error& error) {
      if (error.code() == code && error.text()[0] != '\0') ++caught;
    } catch (...) {
    }
  }
  EXPECT_EQ(caught, std::size(codes));
}

}  // namespace
}  // namespace tern
