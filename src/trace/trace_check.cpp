#include "tern/trace/trace_check.hpp"

#include <algorithm>
#include <bitset>

#include "trace/order_checker.hpp"

namespace tern {
namespace {

constexpr std::size_t max_leaks = 1000;
constexpr std::uint64_t records_between_checks = 16;
// Texts of findings count as work, because a malicious trace could otherwise produce output that is
// far larger than the trace.
constexpr std::uint64_t steps_per_byte_said = 64;
constexpr std::uint64_t records_between_reports = 65'536;

/// Returns `most + per_byte * bytes`, saturated at 64 bits.
std::uint64_t limit(std::uint64_t most, std::uint64_t per_byte, std::uint64_t bytes) noexcept {
  std::uint64_t extra = 0;
  if (__builtin_mul_overflow(per_byte, bytes, &extra)) return ~std::uint64_t{0};
  return most > ~std::uint64_t{0} - extra ? ~std::uint64_t{0} : most + extra;
}

/// Compares the cost of the checker with the budget. Counting the memory of the checker is slow, so
/// the meter counts only when the memory may have grown by half of the limit. Upper bounds for the
/// growth: a record adds one clock, a touch splits two sets of reads with one read per actor, and a
/// step adds one read.
class Meter {
 public:
  explicit Meter(const CheckBudget& budget) noexcept : budget_(budget) {}

  void add(const TraceRecord& record, std::uint64_t actors) noexcept {
    growth_ += actors * (16 + 72 * record.touches.size());
  }
  void add_text(const Finding& finding) noexcept {
    std::uint64_t bytes = finding.context.size() + finding.what.size() + finding.now.size() +
                          finding.block.size() + finding.order.size() + finding.fix.size() +
                          finding.replay.size();
    for (const std::string& before : finding.before) bytes += before.size();
    text_ += 4096 + steps_per_byte_said * bytes;
  }

  [[nodiscard]] std::optional<Failure> overrun(const OrderChecker& checker, std::uint64_t bytes) {
    const std::uint64_t steps = limit(budget_.steps, budget_.steps_per_byte, bytes);
    const std::uint64_t done = checker.work() + text_;
    if (done > steps) return refuse("steps", done, steps, bytes);
    const std::uint64_t most = limit(budget_.history_bytes, budget_.history_bytes_per_byte, bytes);
    growth_ += 24 * (done - done_before_);
    done_before_ = done;
    if (growth_ < most / 2) return std::nullopt;
    growth_ = 0;
    const std::uint64_t kept = checker.history_bytes();
    if (kept > most / 2) return refuse("bytes of history", kept, most / 2, bytes);
    return std::nullopt;
  }

 private:
  static Failure refuse(const char* what, std::uint64_t value, std::uint64_t most,
                        std::uint64_t bytes) noexcept {
    return Failure(ErrorCode::capacity,
                   "the trace is too costly to check: {value} {what} after {offset} bytes, and the "
                   "limit is {max}. Check a shorter trace, or lift the limit if you trust it.")
        .with("what", what)
        .with("value", value)
        .with("offset", bytes)
        .with("max", most);
  }

  const CheckBudget budget_;
  std::uint64_t growth_ = 0;
  std::uint64_t text_ = 0;
  std::uint64_t done_before_ = 0;
};

}  // namespace

CheckSummary check_trace(TraceReader& reader, const std::function<void(const Finding&)>& on_finding,
                         const CheckBudget& budget,
                         const std::function<void(std::uint64_t, std::uint64_t)>& on_progress) {
  CheckSummary summary;
  OrderChecker checker;
  checker.set_context(reader.context(), reader.replay());
  std::bitset<max_actors> actors;
  std::uint64_t actor_numbers = 1;
  Meter meter(budget);
  const auto report = [&](const Finding& finding) {
    ++summary.findings;
    meter.add_text(finding);
    on_finding(finding);
  };
  for (TraceRecord record;;) {
    const Result<bool> more = reader.try_next(record);
    for (Finding& finding : reader.take_findings()) {
      finding.context = reader.context();
      finding.replay = reader.replay();
      report(finding);
    }
    if (!more) summary.failure = more.failure();
    if (!more || !*more) break;
    ++summary.records;
    actors.set(record.actor);
    actors.set(record.host);
    actor_numbers = std::max<std::uint64_t>(actor_numbers, std::max(record.actor, record.host) + 1);
    const std::optional<Finding> finding = checker.check(record, OrderChecker::OnFinding::apply);
    if (record.kind == RecordKind::shutdown) {
      if (finding) {
        for (const Finding& leak : checker.leaks(max_leaks, OrderChecker::PoolMemory::is_kept)) {
          report(leak);
        }
      }
    } else if (finding) {
      report(*finding);
    }
    if (record.kind == RecordKind::lost_records) {
      summary.lost += std::min(record.sequence, ~summary.lost);
    }
    meter.add(record, actor_numbers);
    if (summary.records % records_between_checks == 0 || record.touches.size() > 64) {
      summary.failure = meter.overrun(checker, reader.bytes_read());
      if (summary.failure) break;
    }
    if (on_progress && summary.records % records_between_reports == 0) {
      on_progress(reader.bytes_read(), summary.records);
    }
  }
  summary.bytes = reader.bytes_read();
  summary.actors = actors.count();
  summary.gaps = checker.gaps();
  summary.tags_left_out = reader.tags_left_out();
  summary.is_complete = !summary.failure && reader.is_complete();
  return summary;
}

}  // namespace tern
