// Tables of the guide: each row is compared with what the library does.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
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
#include "tern/coherence/unified_buffer.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/pressure_resource.hpp"

namespace tern::test {
namespace {

using Row = std::vector<std::string>;

/// The rows of the table whose header begins like this.
std::vector<Row> table(const std::string& page, const std::string& header) {
  std::ifstream file(std::string(TERN_GUIDE_FOLDER) + "/" + page);
  std::vector<Row> rows;
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(header)) {
      is_inside = true;
      std::getline(file, line);
      continue;
    }
    if (!is_inside) continue;
    if (!line.starts_with("|")) break;
    Row& row = rows.emplace_back();
    const std::regex cell(R"(\|\s*([^|]*?)\s*(?=\|))");
    for (std::sregex_iterator at(line.begin(), line.end(), cell), end; at != end; ++at) {
      row.push_back((*at)[1]);
    }
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
    ASSERT_EQ(row.size(), 2u);
    const std::vector<std::string> names = errors_in(row[is_first_cell ? 0 : 1]);
    EXPECT_FALSE(names.empty()) << row[0];
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
      table("kernels.md", "| error | reason |"), true,
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

// --- What a request at the limit of a budget does

constexpr std::size_t limit_bytes = 1024;

BudgetHandle full_soon(Overflow overflow) {
  return Budget::make("full", BudgetLimit::bytes(limit_bytes), {.overflow = overflow});
}

/// Whether a request waits for memory that another stream has freed and not yet passed.
bool waits_for_frees(Overflow overflow) {
  const Device lazy = sim::open({.policy = sim::Policy::lazy});
  const Stream stream(lazy), other(lazy);
  BudgetResource resource(std::make_shared<PoolResource>(lazy), full_soon(overflow));
  const Block freed = resource.allocate({.bytes = limit_bytes, .stream = other});
  other.fill(static_cast<std::byte*>(freed.address), limit_bytes, std::byte{1});
  resource.deallocate(freed, other);
  const Result<Block> block = resource.try_allocate({.bytes = limit_bytes, .stream = stream});
  if (block) resource.deallocate(*block, stream);
  return bool(block);
}

/// The policy that handlers read, if they run.
std::optional<Overflow> reach_of_handlers(const Device& device, Overflow overflow) {
  PressureResource resource(std::make_shared<BudgetResource>(std::make_shared<PoolResource>(device),
                                                             full_soon(overflow)));
  std::optional<Overflow> reach;
  resource.add_handler([&](const Pressure& pressure) -> std::size_t {
    reach = pressure.reach;
    return 0;
  });
  const Block block = resource.allocate({.bytes = limit_bytes});
  EXPECT_FALSE(resource.try_allocate({.bytes = limit_bytes}));
  resource.deallocate(block, {});
  return reach;
}

enum class CopyState { stale, clean, dirty };

/// Whether a copy in that state makes room for another. Its bytes are kept in any case.
bool is_evicted(const Device& device, Overflow overflow, CopyState state) {
  const Stream stream(device);
  const ResourceHandle resource =
      std::make_shared<BudgetResource>(std::make_shared<PoolResource>(device), full_soon(overflow));
  const UnifiedOptions options{.device = device, .resources = {resource}};
  const Shape shape{limit_bytes / sizeof(int)};
  UnifiedBuffer<int> kept(shape, options), next(shape, options);
  {
    const DeviceLease<int> lease = kept.discard_device(stream);
    stream.fill(lease.data(), lease.size(), 7);
  }
  if (state == CopyState::stale) std::ranges::fill(kept.discard_host(), 7);
  if (state == CopyState::clean) static_cast<void>(kept.read_host());
  stream.synchronize();
  const bool is_made = bool(next.try_discard_device(stream));
  EXPECT_EQ(kept.has_copy(device.place()), !is_made);
  next = {};
  EXPECT_EQ(kept.to_vector(), std::vector<int>(shape.element_count(), 7));
  return is_made;
}

TEST_F(GuideTables, OverflowOfBudgets) {
  std::vector<Row> seen;
  for (const Overflow overflow :
       {Overflow::fail, Overflow::wait, Overflow::evict, Overflow::spill}) {
    const bool is_default = BudgetOptions().overflow == overflow;
    const std::optional<Overflow> reach = reach_of_handlers(device, overflow);
    const bool stale = is_evicted(device, overflow, CopyState::stale);
    const bool clean = is_evicted(device, overflow, CopyState::clean);
    const bool dirty = is_evicted(device, overflow, CopyState::dirty);
    EXPECT_EQ(stale, clean) << name(overflow);
    seen.push_back({"`" + std::string(name(overflow)) + "`" + (is_default ? " (default)" : ""),
                    waits_for_frees(overflow) ? "yes" : "no",
                    !reach ? "no"
                    : *reach == Overflow::spill
                        ? "yes; a handler may also write data elsewhere and then drop it"
                        : "yes; a handler may only drop data that can be fetched again",
                    dirty   ? "all copies; dirty ones are written back first"
                    : clean ? "stale and clean copies"
                            : "none"});
  }
  EXPECT_EQ(table("budgets.md", "| `Overflow` |"), seen);
}

/// A buffer in a state of the table.
UnifiedBuffer<int> buffer_in(const std::string& state, const Device& device, StreamRef stream) {
  UnifiedBuffer<int> made(Shape{100}, {.device = device});
  const auto write_host = [&] { std::ranges::fill(made.discard_host(), 1); };
  const auto write_device = [&] {
    const DeviceLease<int> lease = made.discard_device(stream);
    stream.fill(lease.data(), lease.size(), 2);
  };
  if (state == "DEVICE_ONLY" || state == "HOST_DIRTY") write_device();
  if (state != "UNINITIALIZED" && state != "DEVICE_ONLY") write_host();
  if (state == "DEVICE_DIRTY") write_device();
  if (state == "SYNCHRONIZED") static_cast<void>(made.read_device(stream));
  EXPECT_EQ(name(made.state()), state);
  return made;
}

TEST_F(GuideTables, StatesOfUnifiedBuffers) {
  using Action = std::function<void(UnifiedBuffer<int>&)>;
  // Both kinds of writes change the state in one way.
  const std::vector<std::vector<Action>> actions = {
      {[](auto& one) { static_cast<void>(one.read_host()); }},
      {[](auto& one) { static_cast<void>(one.discard_host()); },
       [](auto& one) { static_cast<void>(one.rw_host()); }},
      {[&](auto& one) { static_cast<void>(one.read_device(stream)); }},
      {[&](auto& one) { static_cast<void>(one.discard_device(stream)); },
       [&](auto& one) { static_cast<void>(one.rw_device(stream)); }},
      {[](auto& one) { one.drop_host(); }},
      {[](auto& one) { one.drop_device(); }}};
  std::vector<Row> seen;
  for (const std::string state : {"UNINITIALIZED", "HOST_ONLY", "DEVICE_ONLY", "SYNCHRONIZED",
                                  "HOST_DIRTY", "DEVICE_DIRTY"}) {
    Row& row = seen.emplace_back(Row{"`" + state + "`"});
    for (const std::vector<Action>& ways : actions) {
      std::set<std::string> ends;
      for (const Action& action : ways) {
        UnifiedBuffer<int> buffer = buffer_in(state, device, stream);
        const std::string thrown = thrown_by([&] { action(buffer); });
        const std::string after(name(buffer.state()));
        ends.insert(thrown == "NeverWritten" ? "throws"
                    : thrown != "nothing"    ? thrown
                    : after == state         ? "same"
                                             : "`" + after + "`");
      }
      row.push_back(ends.size() == 1 ? *ends.begin() : "depends on the kind of write");
    }
  }
  EXPECT_EQ(table("unified.md", "| state | host reads"), seen);
}

}  // namespace
}  // namespace tern::test
