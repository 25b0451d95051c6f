// The contents of a file decide how it is read.

#include "tools/formats/any_trace.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "support/random_memory_trace.hpp"
#include "support/temporary_folder.hpp"
#include "support/written_bytes.hpp"
#include "tools/formats/memory_trace_writer.hpp"
#include "tools/formats/pytorch_snapshot.hpp"
#include "tools/formats/rmm_log.hpp"

namespace tern::tools {
namespace {

TEST(AnyTrace, IsReadWhateverItsName) {
  const test::TemporaryFolder folder;
  const trace::MemoryTrace trace = test::RandomMemoryTrace(3, 400).trace();
  const std::string path = folder / "file.csv";
  std::size_t requests = 0;
  for (const trace::MemoryEvent& one : trace.events) {
    requests += one.kind == trace::EventKind::allocate;
  }
  const auto check = [&](auto write) {
    std::ofstream(path, std::ios::binary) << test::written_bytes(write);
    const Result<trace::MemoryTrace> back = try_read_any(path);
    ASSERT_TRUE(back) << back.failure().text();
    std::size_t read = 0;
    for (const trace::MemoryEvent& one : back->events) {
      read += one.kind == trace::EventKind::allocate;
    }
    EXPECT_GE(read, requests);
    EXPECT_LE(read, requests + 5);
  };
  check([&](Output& out) { write_memory_trace(trace, out); });
  check([&](Output& out) { write_pytorch_snapshot(trace, out); });
  check([&](Output& out) { write_rmm_log(trace, out); });
}

TEST(AnyTrace, OtherFilesAreFailures) {
  const test::TemporaryFolder folder;
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"", "is not a memory trace. Tern reads its own recordings"},
      {"hello", "is not a memory trace. Tern reads its own recordings"},
      {"\x80\x01 old", "is not a memory trace. Tern reads its own recordings"},
      {"PK\x03\x04 data.pkl", "it is a zip archive"},
      {"\xABTERNMT\n", "is not a memory trace: it is shorter"},
      {"\x80\x04N.", "is a pickle, but not a PyTorch memory snapshot"},
      {"\x80\x04(c__builtin__\neval\n.", "contains the pickle opcode GLOBAL at byte 3"}};
  for (const auto& [bytes, sentence] : cases) {
    const std::string path = folder / "file";
    std::ofstream(path, std::ios::binary) << bytes;
    const Result<trace::MemoryTrace> trace = try_read_any(path);
    ASSERT_FALSE(trace) << bytes;
    const std::string text = trace.failure().text();
    EXPECT_NE(text.find(sentence), text.npos) << text;
    EXPECT_NE(text.find("'" + path + "'"), text.npos) << text;
  }
  for (const std::string& path : {folder / "none", folder / "", std::string("/dev/zero")}) {
    const Result<trace::MemoryTrace> trace = try_read_any(path);
    ASSERT_FALSE(trace);
    EXPECT_EQ(trace.failure().code(), ErrorCode::file) << trace.failure().text();
  }
}

}  // namespace
}  // namespace tern::tools
