// `tern tour`: a walk through the library on a device of this machine. Every step does what it says
// and checks the outcome, so the tour is also the shortest test that an installation works.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/file.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/buffer/transfer_audit.hpp"
#include "tern/coherence/managed_buffer.hpp"
#include "tern/coherence/prefetch_plan.hpp"
#include "tern/coherence/pressure.hpp"
#include "tern/coherence/spill_file.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/interop/arrow.hpp"
#include "tern/launch/kernel.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tools/commands.hpp"
#include "tools/terminal.hpp"

namespace tern::tools {
namespace {

TERN_ELEMENT_KERNEL(tour_square, (in<float> from, out<float> to), { to = from * from; })

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

class Tour {
 public:
  explicit Tour(Device device) : device_(std::move(device)) {}

  int walk() {
    show_device();
    run_asynchronously();
    order_two_streams();
    remap_pages();
    share_a_buffer();
    unify_host_and_device();
    oversubscribe();
    load_a_file();
    adopt_memory();
    declare_launches();
    keep_data_on_the_device();
    plan_ahead();
    hand_over_a_table();
    // What others held is free when the device was waited for.
    reclaim_exported();
    find_a_missing_wait();
    fail_well();
    // What the buffers' memory came from goes back too: a trace of the tour ends with nothing live.
    static_cast<void>(shutdown_default_resource(device_));
    fmt::print("\n{}\n",
               failures_ == 0 ? green("All checks passed.") : red("A check failed; see above."));
    fmt::print(
        "Next: `tern info` for the machine, `tern bench` for speed, docs/guide for the rest.\n");
    return failures_ == 0 ? 0 : 1;
  }

 private:
  void title(std::string_view text) {
    fmt::print("\n{}\n", bold(fmt::format("{}. {}", ++step_, text)));
  }
  void say(const std::string& text) { fmt::print("   {}\n", text); }
  void check(bool is_right, std::string_view claim) {
    fmt::print("   {} {}\n", is_right ? green("ok") : red("WRONG"), claim);
    if (!is_right) ++failures_;
  }

  void show_device() {
    title("A device");
    for (const BackendListing& backend : list_backends()) {
      if (!backend.is_available) say(dim(backend.reason));
    }
    const DeviceInfo& info = device_.info();
    say(fmt::format("Opened '{}': {}, {} processors, {} of memory.", info.spec, info.name,
                    info.processors, format_bytes(info.total_bytes)));
  }

  void run_asynchronously() {
    title("Asynchronous work");
    constexpr std::size_t bytes = 64 * mib;
    constexpr std::size_t count = bytes / sizeof(float);
    const Stream stream(device_, {.name = "tour"});
    auto* memory = static_cast<float*>(device_.allocate(MemoryKind::device, bytes));
    std::vector<float> result(count);

    const Clock::time_point start = Clock::now();
    stream.fill(memory, count, 1.5f);
    stream.copy(result.data(), memory, bytes);
    const Mark mark = stream.mark();
    const double submitted_us = microseconds_since(start);
    Device::wait(mark);
    const double done_us = microseconds_since(start);
    device_.release(memory);

    say(fmt::format("A fill and a copy of {} were submitted in {:.0f} us and done after {:.0f} us.",
                    format_bytes(bytes), submitted_us, done_us));
    check(std::ranges::all_of(result, [](float x) { return x == 1.5f; }),
          fmt::format("all {} floats are correct", count));
  }

  void order_two_streams() {
    title("Order between streams");
    constexpr std::size_t count = 1'000'000;
    const Stream producer(device_, {.name = "producer"});
    const Stream consumer(device_, {.name = "consumer"});
    auto* data = static_cast<int*>(device_.allocate(MemoryKind::device, count * sizeof(int)));
    std::vector<int> seen(count);

    bool is_right = true;
    for (int round = 1; round <= 50; ++round) {
      producer.fill(data, count, round);
      consumer.wait(producer.mark());
      consumer.copy(seen.data(), data, count * sizeof(int));
      producer.wait(consumer.mark());  // the next fill must not overtake this copy
      consumer.synchronize();
      is_right = is_right && std::ranges::all_of(seen, [&](int x) { return x == round; });
    }
    device_.release(data);
    say("A mark is two integers: an event is recorded only when another stream has to wait.");
    check(is_right, "50 hand-overs between two streams, no stale byte");
  }

  void remap_pages() {
    if (!device_.can(Capability::virtual_memory)) return;
    title("Remapping pages");
    const std::size_t page = device_.info().page_bytes;
    const StreamRef stream = device_.default_stream();
    auto* range = static_cast<std::byte*>(device_.try_reserve(2 * page).value());
    const NativePages pages = device_.try_create_pages(page).value();
    std::byte value{};

    device_.try_map(range, pages).value();
    device_.try_set_access(range, page, PageAccess::read_write).value();
    stream.fill(range, page, std::byte{42});
    stream.synchronize();
    device_.try_unmap(range, page).value();
    device_.try_map(range + page, pages).value();
    device_.try_set_access(range + page, page, PageAccess::read_write).value();
    stream.copy(&value, range + page + page / 2, 1);
    stream.synchronize();

    device_.try_unmap(range + page, page).value();
    device_.try_release_pages(pages).value();
    device_.try_unreserve(range, 2 * page).value();
    say(fmt::format("{} were written at one address and mapped at another.", format_bytes(page)));
    check(value == std::byte{42}, "the bytes moved with the pages");
  }

  void share_a_buffer() {
    title("A buffer, its views, and automatic stream order");
    const Stream producer(device_, {.name = "producer"});
    const Stream consumer(device_, {.name = "consumer"});
    Buffer grid(device_, {1000, 1000}, DType::f32, {.tag = "grid"});
    const bool was_lazy = !grid.is_allocated();
    grid.fill(1.0f, producer);
    Buffer row = grid.slice(5000, 1000);
    row.fill(2.0f, consumer);  // no wait is written here, and none is missing
    const std::vector<float> values = grid.to_vector<float>();
    say(fmt::format("{}: memory was allocated at the first use.", grid.text()));
    check(was_lazy && values[4999] == 1 && values[5000] == 2 && values[6000] == 1,
          "another stream wrote one row, after the first stream");
    const Result<Buffer> beyond = grid.try_slice(999'999, 2);
    if (!beyond) say(beyond.failure().text());
    check(!beyond, "a view cannot exceed its parent");
  }

  void unify_host_and_device() {
    title("One array on host and device");
    const Stream stream(device_);
    UnifiedBuffer<int> values(Shape{1000}, {.device = device_, .tag = "tour"});
    std::ranges::fill(values.discard_host(), 1);
    {
      const DeviceLease<int> lease = values.slice(0, 10).rw_device(stream);
      stream.fill(lease.data(), lease.size(), 2);
    }
    const int changed = values.slice(0, 10).read_host()[9];
    const UnifiedStatistics stats = values.statistics();
    const std::uint64_t logical = stats.moved().bytes + stats.elided.bytes;
    say(fmt::format("Ten of a thousand elements were copied to the device and back: {} bytes{}.",
                    logical, stats.moved().bytes == 0 ? ", of shared memory" : ""));
    say(fmt::format("The buffer is now {}, and its first part is {}.", name(values.state()),
                    name(values.state(0, 10))));
    check(changed == 2 && logical == 80,
          "the host has the bytes that the device wrote, and no other bytes were copied");
  }

  void oversubscribe() {
    title("More data than memory");
    constexpr std::size_t count = 64 * 1024, tiles = 16;
    constexpr std::size_t bytes = tiles * count * sizeof(int);
    const Stream stream(device_);
    const BudgetHandle budget = Budget::make("tour", BudgetLimit::bytes(bytes / 4));
    const bool is_shared = device_.info().is_host || device_.can(Capability::host_access);
    // One copy for host and device can only go to disk.
    const SpillHandle file =
        is_shared ? SpillFile::open({.directory = std::filesystem::temp_directory_path().string(),
                                     .limit_bytes = 2 * bytes})
                  : SpillHandle();
    const UnifiedOptions options{
        .device = device_,
        .tag = "tile",
        .pinned = Pinned::never,
        .resources = {std::make_shared<BudgetResource>(default_resource(device_), budget)},
        .spill = file};
    const PressureStatistics before = pressure_totals();
    bool is_right = true;
    {
      std::vector<UnifiedBuffer<int>> all;
      for (int round = 0; round < 2; ++round) {
        for (std::size_t i = 0; i < tiles; ++i) {
          if (round == 0) all.emplace_back(Shape{count}, options);
          // All of it, and then all but the first element, which has to come along.
          const auto first = static_cast<std::size_t>(round);
          const DeviceLease<int> lease = all[i].rw_device(stream);
          stream.fill(lease.data() + first, count - first, static_cast<int>(i) + round);
        }
      }
      for (std::size_t i = 0; i < tiles; ++i) {
        std::vector<int> expected(count, static_cast<int>(i) + 1);
        expected[0] = static_cast<int>(i);
        is_right = is_right && all[i].to_vector() == expected;
      }
    }
    const PressureStatistics after = pressure_totals();
    say(
        fmt::format("{} were processed in a budget of {}: {} copies were evicted, {} were written "
                    "back, {} spilled to disk.",
                    format_bytes(bytes), format_bytes(bytes / 4),
                    after.evicted().copies - before.evicted().copies,
                    format_bytes(after.written_back_bytes - before.written_back_bytes),
                    format_bytes(after.spilled_bytes - before.spilled_bytes)));
    check(is_right && budget->peak_bytes() <= bytes / 4,
          "every element has its value, and the budget was never exceeded");
  }

  void load_a_file() {
    title("A file as a buffer");
    std::FILE* const file = std::tmpfile();
    if (file == nullptr) return say("A temporary file could not be created.");
    const std::string path = fmt::format("/proc/self/fd/{}", fileno(file));
    std::vector<int> numbers(10'000);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::fwrite(numbers.data(), sizeof(int), numbers.size(), file);
    std::fflush(file);
    const Stream stream(device_);
    const Buffer source = open_file(path, {.dtype = DType::i32});
    const Buffer loaded(device_, source.shape(), source.dtype());
    copy(loaded, source, stream);
    check(loaded.to_vector<int>() == numbers, "every number is on the device");
    const Result<Buffer> more = try_open_file(path, {.bytes = 50'000});
    if (!more) say(more.failure().text());
    check(!more, "a range beyond the end of a file is an error");
    std::fclose(file);
  }

  void adopt_memory() {
    title("Foreign memory");
    int released = 0;
    {
      auto* const theirs = static_cast<int*>(device_.allocate(MemoryKind::device, 4096));
      Buffer adopted =
          adopt(device_, theirs, Shape{1024}, DType::i32, {.on_release = [this, theirs, &released] {
                  device_.release(theirs);
                  ++released;
                }});
      adopted.fill(7, device_.default_stream());
      check(adopted.slice(1023, 1).item<int>() == 7,
            "borrowed memory is used like any other buffer");
      adopted.synchronize();
    }
    static_cast<void>(reclaim_deferred());
    check(released == 1, "the owner was called once, after the last use");
  }

  void declare_launches() {
    title("Kernels that are written once, and declare their uses");
    Result<Kernel> loaded = Kernel::try_from_text(device_, tour_square);
    // CUDA devices need NVRTC to compile the text; the simulated device interprets it.
    if (!loaded) say(loaded.failure().text());
    const Device device = loaded ? device_ : sim::open({.seed = 7});
    const Kernel square = loaded ? *loaded : Kernel::from_text(device, tour_square);
    const Stream load(device, {.name = "load"}), compute(device, {.name = "compute"});
    auto x = Array<float>::uninitialized(device, 1000);
    auto y = Array<float>::uninitialized(device, 1000);
    x.fill(3.0f, load);
    square.launch(compute, elements(), x, y);
    square.launch(load, elements(), y, x);
    check(x.to_vector()[999] == 81, "two streams alternated, and each waited for the other");
    auto unwritten = Array<float>::uninitialized(device, 1000);
    const Result<Mark> refused = square.try_launch(compute, elements(), unwritten, y);
    if (!refused) say(refused.failure().text());
    check(!refused, "a launch that would read unwritten memory is an error");
  }

  void keep_data_on_the_device() {
    title("Data that stays on the device");
    const TransferCounts before = transfer_counts("tour.rows");
    auto rows = Array<int>::zeros(device_, 100'000, {.tag = "tour.rows"});
    rows.fill(7, device_.default_stream());
    const TransferGate gate;
    check(rows.slice(5, 1).buffer().item<int>() == 7, "inside a gate, the host may read a scalar");
    const bool is_on_host = device_.info().is_host;
    std::vector<int> all(rows.size());
    const Result<void> refused = rows.try_copy_to(all);
    if (!refused) say(refused.failure().text());
    check(bool(refused) == is_on_host,
          is_on_host ? "memory of the host may be read too" : "the host may not copy data");
    const CopyCount moved = (transfer_counts("tour.rows") - before).device_to_host();
    check(moved.bytes == (is_on_host ? 0 : 4),
          fmt::format("the audit counted {} bytes to the host", moved.bytes));
  }

  void plan_ahead() {
    if (!device_.can(Capability::managed_memory)) return;
    title("Managed memory with prefetch");
    const Stream stream(device_, {.name = "plan"});
    ManagedBuffer<int> numbers(device_, {1 << 20}, {.tag = "numbers"});
    { std::ranges::fill(numbers.discard_host(), 1); }
    PrefetchPlan plan;
    plan.add(numbers.slice(0, 1 << 19), device_.place());
    plan.add(numbers.slice(1 << 19, 1 << 19), device_.place());
    const PrefetchPlan::Report report = plan.execute(stream);
    say(fmt::format("A plan of {} entries, {} after joining neighbours: {} sent, {} skipped.",
                    plan.size(), plan.merged().size(), format_bytes(report.bytes), report.skipped));
    {
      const auto lease = numbers.rw_device(stream);
      stream.fill(lease.data(), lease.size() / 2, 2);
    }
    const auto seen = numbers.read_host();
    check(seen[0] == 2 && seen[(1 << 20) - 1] == 1,
          "host and device used one pointer in the right order");
    const Result<void> beyond =
        plan.try_add(numbers.buffer(), device_.place(), HintRange{4 * mib, 1});
    if (!beyond) say(beyond.failure().text());
    check(!beyond && plan.size() == 2, "a plan rejects an invalid entry");
  }

  void hand_over_a_table() {
    title("A table for other libraries");
    const std::vector<std::int32_t> numbers = {3, 1, 4, 1, 5};
    const std::vector<std::string_view> words = {"tern", "", "arctic", "skua", "gull"};
    const Table table = Table::make(
        Schema({{"number", TypeKind::i32, false}, {"word", TypeKind::utf8}}),
        {Column::from<std::int32_t>(device_, numbers), Column::from_strings(device_, words)});
    ArrowDeviceArray array;
    ArrowSchema schema;
    const Result<void> given = try_export_arrow(table, &array);
    if (!given) {
      say(given.failure().text());
      return;
    }
    try_export_arrow_schema(table.schema(), &schema).value();
    say(fmt::format("Arrow calls this memory device ({}, {}), {} rows of {} columns.",
                    array.device_type, array.device_id, array.array.length,
                    array.array.n_children));
    const Table back = import_arrow(device_, &array, &schema);
    check(back.column("word")->parts().values == table.column("word")->parts().values,
          "the import returned the exported memory");
  }

  void find_a_missing_wait() {
    title("A missing wait, found without a GPU");
    const Device simulated =
        sim::open({.seed = 7, .policy = sim::Policy::lazy, .print_findings = false});
    const Stream produce(simulated, {.name = "produce"});
    const Stream consume(simulated, {.name = "consume"});
    const AllocateOptions column_options{.tag = "column"};
    auto* column = static_cast<int*>(simulated.allocate(MemoryKind::device, 4096, column_options));
    std::vector<int> result(1024);
    produce.fill(column, result.size(), 1);
    const Result<void> refused = consume.try_copy(result.data(), column, 4096);
    for (const Finding& finding : sim::findings(simulated)) fmt::print("{}", finding.text());
    consume.wait(produce.mark());
    const bool is_accepted = bool(consume.try_copy(result.data(), column, 4096));
    simulated.synchronize();
    check(!refused && is_accepted, "an error without the wait, no error with it");
  }

  void fail_well() {
    title("Errors that help");
    const Result<void*> too_much = device_.try_allocate(MemoryKind::device, std::size_t{1} << 50);
    if (!too_much) say(too_much.failure().text());
    const Result<void*> crooked = device_.try_allocate(MemoryKind::device, 64, {.alignment = 3});
    if (!crooked) say(crooked.failure().text());
    const Result<Device> unknown = try_open_device("abacus:0");
    if (!unknown) say(unknown.failure().text());
    check(!too_much && !crooked && !unknown, "three impossible requests, three error messages");
  }

  Device device_;
  int step_ = 0;
  int failures_ = 0;
};

}  // namespace

int run_tour(const TourOptions& options) {
  fmt::print("{}\n", bold("A tour of Tern"));
  return Tour(options.device.empty() ? open_best_device() : open_device(options.device)).walk();
}

}  // namespace tern::tools
