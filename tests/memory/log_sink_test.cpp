#include <gtest/gtest.h>

#include <fstream>

#include "support/file_limit.hpp"
#include "support/temporary_folder.hpp"
#include "tern/memory/logging_resource.hpp"

namespace tern {
namespace {

LogRecord record_of(std::uint64_t order) {
  LogRecord record;
  record.order = order;
  return record;
}

TEST(RingSink, KeepsTheLatestInOrder) {
  RingSink ring(3);
  EXPECT_TRUE(ring.records().empty());
  for (const std::uint64_t order : {1u, 2u, 4u, 3u, 5u}) EXPECT_TRUE(ring.write(record_of(order)));
  const std::vector<LogRecord> kept = ring.records();
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0].order, 3u);
  EXPECT_EQ(kept[1].order, 4u);
  EXPECT_EQ(kept[2].order, 5u);
  EXPECT_EQ(ring.written(), 5u);
  EXPECT_THROW(RingSink(0), InvalidArgument);
}

TEST(LogRecord, IsOneLineOfFields) {
  LogRecord record = record_of(7);
  record.time_ns = 1000;
  record.thread = 2;
  record.action = LogAction::free;
  record.device = DeviceId{3};
  record.address = reinterpret_cast<const void*>(std::uintptr_t{0x1000});
  record.bytes = 64;
  record.tag = "two\twords\n";
  record.generation = Generation(1, 1);
  record.site = {"a.cpp", "f", 42};
  EXPECT_EQ(record.text(),
            "7\t1000\t2\tfree\t3\t0x0\t0x1000\t64\ttwo words \t0x10000001\ta.cpp:42\tok\t");
  record.failure = ErrorCode::out_of_memory;
  EXPECT_NE(record.text().find("\tout_of_memory\t"), std::string::npos);
  EXPECT_EQ(name(LogAction::allocate), "allocate");
  EXPECT_EQ(name(LogAction::trim), "trim");
}

TEST(FileSink, AppendsALinePerRecord) {
  const std::string path = testing::TempDir() + "tern_file_sink_test.log";
  std::remove(path.c_str());
  for (const std::uint64_t order : {1u, 2u}) {
    const LogSinkHandle file = make_file_sink(path);  // a second one goes on where the first ended
    EXPECT_TRUE(file->write(record_of(order)));
  }
  std::ifstream in(path);
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  EXPECT_EQ(line, record_of(1).text());
  ASSERT_TRUE(std::getline(in, line));
  EXPECT_EQ(line, record_of(2).text());
  EXPECT_FALSE(std::getline(in, line));
  std::remove(path.c_str());
}

TEST(FileSink, SaysWhatItCannotWrite) {
  EXPECT_THROW(static_cast<void>(make_file_sink("/no/such/folder/log")), FileError);
  EXPECT_FALSE(make_file_sink("/dev/full")->write(record_of(1)));
}

TEST(FileSink, SaysThatItMayNotGrowAndDoesNotEndTheProcess) {
  const test::TemporaryFolder folder;
  const LogSinkHandle sink = make_file_sink(folder / "log");
  EXPECT_TRUE(sink->write(record_of(1)));
  {
    const test::FileLimit limit(1);
    EXPECT_FALSE(sink->write(record_of(2)));
  }
  EXPECT_TRUE(sink->write(record_of(3)));
}

TEST(CallbackSink, CallsItsFunction) {
  std::uint64_t seen = 0;
  const LogSinkHandle sink =
      make_callback_sink([&](const LogRecord& record) { seen = record.order; });
  EXPECT_TRUE(sink->write(record_of(9)));
  EXPECT_EQ(seen, 9u);
  EXPECT_THROW(static_cast<void>(make_callback_sink(nullptr)), InvalidArgument);
}

}  // namespace
}  // namespace tern
