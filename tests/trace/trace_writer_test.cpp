#include "trace/trace_writer.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "support/sample_traces.hpp"
#include "tern/trace/trace_check.hpp"
#include "trace/trace_format.hpp"

namespace tern::test {
namespace {

struct TempFile {
  std::string path = testing::TempDir() + "tern-trace-" + std::to_string(getpid()) + "-" +
                     testing::UnitTest::GetInstance()->current_test_info()->name();
  TempFile() { std::filesystem::remove(path); }
  ~TempFile() { std::filesystem::remove(path); }
  [[nodiscard]] std::uint64_t size() const { return std::filesystem::file_size(path); }
};

struct ReadBack {
  std::uint64_t records = 0;
  std::vector<std::uint64_t> gaps;
  bool is_complete = false;
};

ReadBack read_back(Result<TraceReader> reader) {
  ReadBack back;
  TraceRecord record;
  while (*reader->try_next(record)) {
    ++back.records;
    if (record.kind == RecordKind::lost_records) back.gaps.push_back(record.sequence);
  }
  back.is_complete = reader->is_complete();
  return back;
}
ReadBack read_back(const TraceWriter& writer) {
  return read_back(TraceReader::try_read_bytes(writer.bytes()));
}

TEST(TraceWriter, WritesTheSameBytesToAFileAndToMemory) {
  const TempFile file;
  const RandomTrace trace(1, 2000);
  TraceWriter to_file = TraceWriter::open(file.path, {"c", "r"});
  TraceWriter to_memory = TraceWriter::to_memory({"c", "r"});
  for (const TraceRecord& record : trace.records()) {
    to_file.write(record);
    to_memory.write(record);
  }
  EXPECT_TRUE(to_file.close());
  EXPECT_TRUE(to_memory.close());
  EXPECT_EQ(to_file.record_count(), trace.records().size());
  std::ifstream in(file.path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  EXPECT_EQ(bytes, std::string(reinterpret_cast<const char*>(to_memory.bytes().data()),
                               to_memory.bytes().size()));
}

TEST(TraceWriter, WritesInChunksSoThatAProcessThatDiesLeavesAReadablePrefix) {
  const TempFile file;
  const RandomTrace trace(2, 3000);
  TraceWriter writer = TraceWriter::open(file.path, {});
  for (const TraceRecord& record : trace.records()) writer.write(record);
  const ReadBack early = read_back(TraceReader::try_open(file.path));
  EXPECT_GT(early.records, 1500u);
  EXPECT_LT(early.records, 3000u);
  EXPECT_FALSE(early.is_complete);
  EXPECT_TRUE(writer.flush());
  EXPECT_EQ(read_back(TraceReader::try_open(file.path)).records, 3000u);
  EXPECT_TRUE(writer.close());
  EXPECT_TRUE(read_back(TraceReader::try_open(file.path)).is_complete);
}

TEST(TraceWriter, EndsItsTraceWhenItIsDestroyedOrReplaced) {
  const TempFile file;
  { const TraceWriter writer = TraceWriter::open(file.path, {}); }
  EXPECT_TRUE(read_back(TraceReader::try_open(file.path)).is_complete);
  TraceWriter writer = TraceWriter::open(file.path, {});
  writer = TraceWriter::to_memory({});
  EXPECT_TRUE(read_back(TraceReader::try_open(file.path)).is_complete);
}

TEST(TraceWriter, EmptiesAnOlderTraceButNotOneThatIsBeingWritten) {
  const TempFile file;
  std::ofstream(file.path) << std::string(100'000, 'x');
  TraceWriter first = TraceWriter::open(file.path, {});
  first.write({});
  EXPECT_TRUE(first.flush());
  EXPECT_LT(file.size(), 1000u);
  const Result<TraceWriter> second = TraceWriter::try_open(file.path, {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.failure().code(), ErrorCode::capacity);
  EXPECT_NE(second.failure().text().find("Use another file"), std::string::npos);
  EXPECT_TRUE(first.close());
  EXPECT_EQ(read_back(TraceReader::try_open(file.path)).records, 1u);
  EXPECT_TRUE(TraceWriter::try_open(file.path, {}));
}

TEST(TraceWriter, SaysWhyAFileCannotBeOpened) {
  const Result<TraceWriter> writer = TraceWriter::try_open("/nowhere/at/all.trace", {});
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.failure().code(), ErrorCode::file);
  EXPECT_EQ(writer.failure().text(),
            "file '/nowhere/at/all.trace': open failed: No such file or directory.");
}

TEST(TraceWriter, RemembersAFullDiskAndCountsWhatIsLost) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "there is no /dev/full";
  EXPECT_FALSE(TraceWriter::try_open("/dev/full", {})) << "the header does not fit";

  const TempFile file;
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{100'000, 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    TraceWriter writer = TraceWriter::open(file.path, {});
    const RandomTrace trace(3, 20'000);
    for (const TraceRecord& record : trace.records()) writer.write(record);
    const Result<void> closed = writer.close();
    const bool check_invariants = !closed && closed.failure().code() == ErrorCode::file &&
                                  !writer.status() && !writer.flush() &&
                                  writer.lost_count() > 1000 &&
                                  closed.failure().number("lost") == writer.lost_count();
    _exit(check_invariants ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(file.size(), 100'000u);
  const ReadBack back = read_back(TraceReader::try_open(file.path));
  EXPECT_GT(back.records, 1000u);
  EXPECT_FALSE(back.is_complete);
}

TEST(TraceWriter, EndsWithAGapAtItsLimit) {
  const RandomTrace trace(4, 2000);
  TraceWriter writer = TraceWriter::to_memory({.limit_bytes = 10'000});
  for (const TraceRecord& record : trace.records()) writer.write(record);
  const Result<void> closed = writer.close();
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.failure().code(), ErrorCode::capacity);
  EXPECT_LE(writer.bytes().size(), 10'000u);
  EXPECT_GT(writer.bytes().size(), 9'000u);
  const ReadBack back = read_back(writer);
  EXPECT_TRUE(back.is_complete);
  ASSERT_EQ(back.gaps.size(), 1u);
  EXPECT_EQ(back.gaps[0], writer.lost_count());
  EXPECT_EQ(back.records - 1 + back.gaps[0], 2000u);
  EXPECT_EQ(back.records, writer.record_count());
}

TEST(TraceWriter, StaysBelowAnyLimit) {
  for (std::uint64_t limit = 500; limit < 2500; limit += 7) {
    TraceWriter writer = TraceWriter::to_memory({.limit_bytes = limit});
    for (int i = 0; i < 500; ++i) writer.write({.sequence = ~std::uint64_t{0}});
    EXPECT_FALSE(writer.close());
    EXPECT_LE(writer.bytes().size(), limit);
    EXPECT_TRUE(read_back(writer).is_complete);
  }
}

TEST(TraceWriter, SaysWhereARecordIsMissing) {
  const std::vector<Touch> many(trace_format::max_touches + 1);
  TraceWriter writer = TraceWriter::to_memory({});
  writer.write({});
  writer.write({.touches = many});
  writer.write({.touches = many});
  writer.write({.touches = std::span(many).first(trace_format::max_touches)});
  EXPECT_FALSE(writer.close());
  EXPECT_EQ(writer.lost_count(), 2u);
  const ReadBack back = read_back(writer);
  EXPECT_EQ(back.records, 3u);
  EXPECT_EQ(back.gaps, (std::vector<std::uint64_t>{2}));
}

TEST(TraceWriter, TakesNothingAfterItsEnd) {
  TraceWriter writer = TraceWriter::to_memory({});
  EXPECT_TRUE(writer.close());
  const std::size_t bytes = writer.bytes().size();
  writer.write({});
  EXPECT_EQ(writer.lost_count(), 1u);
  EXPECT_FALSE(writer.close());
  EXPECT_FALSE(writer.flush());
  EXPECT_EQ(writer.bytes().size(), bytes);
}

TEST(TraceWriter, CutsLongStringsAtACharacterAndKeepsZerosOut) {
  std::string name(trace_format::max_string_bytes - 1, 'x');
  name += "\u00e9 and more";
  TraceWriter writer = TraceWriter::to_memory({.context = name});
  writer.write({.name = name});
  writer.write({.name = name});
  writer.write({.name = std::string_view("a\0b", 3)});
  EXPECT_TRUE(writer.close());
  Result<TraceReader> reader = TraceReader::try_read_bytes(writer.bytes());
  TraceRecord record;
  ASSERT_TRUE(*reader->try_next(record));
  EXPECT_EQ(record.name, name.substr(0, trace_format::max_string_bytes - 1));
  EXPECT_EQ(reader->context(), record.name);
  ASSERT_TRUE(*reader->try_next(record));
  ASSERT_TRUE(*reader->try_next(record));
  EXPECT_EQ(record.name, "a?b");
  EXPECT_LT(writer.bytes().size(), 3 * trace_format::max_string_bytes);
}

TEST(TraceWriter, DoesNothingInAForkedChild) {
  const TempFile file;
  TraceWriter writer = TraceWriter::open(file.path, {});
  writer.write({});
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < 5000; ++i) writer.write({});
    static_cast<void>(writer.flush());
    static_cast<void>(writer.close());
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  writer.write({});
  EXPECT_TRUE(writer.close());
  const ReadBack back = read_back(TraceReader::try_open(file.path));
  EXPECT_EQ(back.records, 2u);
  EXPECT_TRUE(back.is_complete);
}

}  // namespace
}  // namespace tern::test
