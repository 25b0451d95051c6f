#include "buffer/sure_wait.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "device/device_state.hpp"
#include "tern/device/device.hpp"

namespace tern {
namespace {

using std::chrono::microseconds;

/// Longest pause between two queries; pauses start at 1 us and double.
constexpr microseconds longest_pause = microseconds(100);

/// After this many violations the wait gives up: a simulated device reports a wait that can never
/// end.
constexpr int max_findings = 16;

/// Returns the result if the work is over, or nothing if that is not known yet. Counts violations.
std::optional<Result<void>> ask(StreamRef stream, Mark mark, int& findings,
                                CallSite site) noexcept {
  const auto is_lost = [](const Failure& why) { return why.code() == ErrorCode::device_lost; };
  const Result<bool> is_done = Device::try_is_done(mark);
  if (is_done && *is_done) return Result<void>();
  if (!is_done && is_lost(is_done.failure())) return Result<void>(is_done.failure());
  // Querying a mark needs an event; a stream can be queried without one.
  const Result<bool> is_idle = stream.try_is_idle();
  if (is_idle && *is_idle) return Result<void>();
  if (!is_idle && is_lost(is_idle.failure())) return Result<void>(is_idle.failure());
  Result<void> waited = DeviceState::wait_for_stream(stream, site);
  if (waited || is_lost(waited.failure())) return waited;
  if (waited.failure().code() == ErrorCode::violation && ++findings == max_findings) return waited;
  return std::nullopt;
}

}  // namespace

Result<void> try_wait_surely(StreamRef stream, Mark mark, CallSite site) noexcept {
  const Result<void> first = Device::try_wait(mark, site);
  if (first || first.failure().code() == ErrorCode::device_lost) return first;
  int findings = 0;
  for (microseconds pause(1);; pause = std::min(2 * pause, longest_pause)) {
    if (const std::optional<Result<void>> answer = ask(stream, mark, findings, site)) {
      if (!*answer) return *answer;
      // The copy is complete. A violation is reported nevertheless.
      return first.failure().code() == ErrorCode::violation ? first : Result<void>();
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace tern
