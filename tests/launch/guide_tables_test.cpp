// The tables of errors in the guide: each row is provoked.

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/file.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/launch/kernel.hpp"

namespace tern::test {
namespace {

struct Row {
  std::string first, second;
};

/// The rows of the table whose header has these words.
std::vector<Row> table(const std::string& page, const std::string& header) {
  std::ifstream file(std::string(TERN_GUIDE_FOLDER) + "/" + page);
  std::vector<Row> rows;
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line == header) {
      is_inside = true;
      std::getline(file, line);
      continue;
    }
    if (!is_inside) continue;
    std::smatch cells;
    if (!std::regex_match(line, cells, std::regex(R"(\|\s*(.*?)\s*\|\s*(.*?)\s*\|)"))) break;
    rows.push_back({cells[1], cells[2]});
  }
  return rows;
}

/// The names in backquotes that begin with a capital letter: classes of errors.
std::vector<std::string> errors_in(const std::string& cell) {
  std::vector<std::string> names;
  const std::regex name("`([A-Z][A-Za-z]+)`");
  for (std::sregex_iterator at(cell.begin(), cell.end(), name), end; at != end; ++at) {
    names.push_back((*at)[1]);
  }
  return names;
}

/// What is thrown, by the name of its class in the guide.
std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const DeviceMismatch&) {
    return "DeviceMismatch";
  } catch (const ReadOnly&) {
    return "ReadOnly";
  } catch (const NeverWritten&) {
    return "NeverWritten";
  } catch (const NotAllocated&) {
    return "NotAllocated";
  } catch (const ShapeMismatch&) {
    return "ShapeMismatch";
  } catch (const SizeMismatch&) {
    return "SizeMismatch";
  } catch (const TypeMismatch&) {
    return "TypeMismatch";
  } catch (const Misaligned&) {
    return "Misaligned";
  } catch (const CapacityReached&) {
    return "CapacityReached";
  } catch (const Unsupported&) {
    return "Unsupported";
  } catch (const StreamMisuse&) {
    return "StreamMisuse";
  } catch (const InvalidArgument&) {
    return "InvalidArgument";
  } catch (const FileError&) {
    return "FileError";
  } catch (const Error& error) {
    return error.failure().text();
  }
  return "nothing";
}

/// Ways to a row of the table, by its error.
using Provocations = std::multimap<std::string, std::function<void()>>;

/// Every error of the table has a provocation, and every provocation its error.
void expect_all(const std::vector<Row>& rows, bool is_first_cell, const Provocations& all) {
  ASSERT_FALSE(rows.empty()) << "the table was not found";
  std::set<std::string> listed;
  for (const Row& row : rows) {
    const std::vector<std::string> names = errors_in(is_first_cell ? row.first : row.second);
    EXPECT_FALSE(names.empty()) << row.first;
    listed.insert(names.begin(), names.end());
  }
  for (const std::string& name : listed) {
    EXPECT_NE(all.count(name), 0u) << "nothing provokes " << name;
  }
  for (const auto& [name, call] : all) {
    EXPECT_EQ(listed.count(name), 1u) << name << " is not in the table";
    EXPECT_EQ(thrown_by(call), name);
  }
}

void copy_ints(View<const int>, View<int>, int) {}

class GuideTables : public testing::Test {
 protected:
  [[nodiscard]] std::string file_of(std::size_t bytes) {
    std::string path = folder / "some.bin";
    std::ofstream(path) << std::string(bytes, 'x');
    return path;
  }

  TemporaryFolder folder;
  Device device = sim::open({}), other = sim::open({});
  Stream stream{device}, foreign{other};
  Kernel kernel = Kernel::from_function(device, "copy_ints", copy_ints);
  Array<int> x = Array<int>::from(device, std::vector<int>(4, 1)), y = x;
};

TEST_F(GuideTables, RefusalsOfLaunches) {
  const std::string path = file_of(16);
  Buffer file = open_file(path, {.dtype = DType::i32});
  Buffer written(device, {4}, DType::i32), unwritten(device, {4}, DType::i32);
  written.fill(1, stream);
  Buffer lent = borrow(device, x.buffer().try_device_ptr(stream, Access::read).value(), {4},
                       DType::i32, {.read_only = true});
  Array<int> moved_from = Array<int>::from(device, std::vector<int>(4, 1));
  const Array<int> moved = std::move(moved_from);
  Stream ended(device);
  const StreamRef gone = ended;
  ended = Stream(device);
  std::vector<LaunchArgument> many(65, in(x));
  Buffer bytes(device, {32}, DType::byte);
  bytes.try_copy_from(std::vector<std::byte>(32).data(), 32).value();
  const auto launch = [this](auto&&... arguments) {
    kernel.launch(stream, elements(1), arguments...);
  };
  expect_all(
      table("kernels.md", "| code | why |"), true,
      {
          {"DeviceMismatch", [&] { kernel.launch(foreign, elements(1), in(x), out(y), 1); }},
          {"DeviceMismatch",
           [&] {
             Buffer elsewhere(other, {4}, DType::i32);
             launch(in(x), out(elsewhere), 1);
           }},
          {"ReadOnly", [&] { launch(in(x), out(file), 1); }},
          {"ReadOnly", [&] { launch(in(x), out(lent), 1); }},
          {"NeverWritten", [&] { launch(in(unwritten), out(y), 1); }},
          {"NotAllocated", [&] { launch(in(Buffer()), out(y), 1); }},
          {"NotAllocated", [&] { launch(in(moved_from), out(y), 1); }},
          {"NotAllocated", [&] { launch(in(Array<int>()), out(y), 1); }},
          {"ShapeMismatch", [&] { launch(in(x), out(y)); }},
          {"ShapeMismatch", [&] { launch(in(x), out(y), 1, 1); }},
          {"TypeMismatch", [&] { launch(in(x), out(y), 1.0); }},
          {"TypeMismatch", [&] { launch(in(written.as(DType::f32)), out(y), 1); }},
          {"SizeMismatch", [&] { launch(in(bytes.byte_view(0, 7)), out(y), 1); }},
          {"Misaligned", [&] { launch(in(bytes.byte_view(1, 8)), out(y), 1); }},
          {"CapacityReached", [&] { kernel.try_launch_with({stream}, elements(1), many).value(); }},
          {"Unsupported", [&] { launch(in(file), out(y), 1); }},
          {"StreamMisuse", [&] { kernel.launch(gone, elements(1), in(x), out(y), 1); }},
          {"InvalidArgument", [&] { Kernel().launch(stream, elements(1), in(x), out(y), 1); }},
      });
}

TEST_F(GuideTables, WhatCanGoWrongWithFiles) {
  const std::string path = file_of(16), short_path = path + ".short";
  std::ofstream(short_path) << "1234567";
  Buffer file = open_file(path, {.dtype = DType::i32});
  expect_all(table("files.md", "| cause | error |"), false,
             {
                 {"FileError", [&] { static_cast<void>(open_file(path + ".missing", {})); }},
                 {"FileError", [&] { static_cast<void>(open_file(folder / "", {})); }},
                 {"FileError", [&] { static_cast<void>(open_file(path, {.bytes = 17})); }},
                 {"SizeMismatch",
                  [&] { static_cast<void>(open_file(short_path, {.dtype = DType::i32})); }},
                 {"ReadOnly", [&] { static_cast<void>(file.rw_host<int>()); }},
                 {"ReadOnly", [&] { static_cast<void>(file.discard_host<int>()); }},
                 {"ReadOnly", [&] { file.fill(1, stream); }},
                 {"ReadOnly", [&] { copy(file, x.buffer(), stream); }},
                 {"Unsupported", [&] { kernel.launch(stream, elements(1), in(file), out(y), 1); }},
             });
}

}  // namespace
}  // namespace tern::test
