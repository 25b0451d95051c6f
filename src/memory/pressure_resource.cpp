#include "tern/memory/pressure_resource.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <string_view>
#include <utility>

#include "tern/memory/budget_resource.hpp"

namespace tern {
namespace {

/// True while this thread runs a handler. Requests of a handler run no handlers, which would
/// recurse.
thread_local bool is_helping = false;

bool is_shortage(ErrorCode code) noexcept {
  return code == ErrorCode::out_of_memory || code == ErrorCode::out_of_budget;
}

using ShortText = std::array<char, 80>;

/// Renders the failure. Text that does not fit is cut at a space and replaced by " ...".
void render_short(const Failure& failure, ShortText& text) noexcept {
  constexpr std::string_view more = " ...";
  if (failure.render(text.data(), text.size()) + 1 < text.size()) return;
  const std::string_view head(text.data(), text.size() - 1 - more.size());
  const std::size_t space = head.rfind(' ');
  const std::size_t end = space == head.npos ? head.size() : space;
  *std::copy(more.begin(), more.end(), text.begin() + end) = '\0';
}

}  // namespace

PressureResource::PressureResource(ResourceHandle upstream)
    : WrappingResource("pressure", std::move(upstream)),
      budget_reach_(overflow_of(this->upstream().get())),
      handlers_(std::make_shared<const Handlers>()) {}

std::uint64_t PressureResource::add_handler(PressureHandler handler) {
  if (!handler) {
    raise(Failure(ErrorCode::invalid_argument, "a pressure handler needs a function to call.")
              .with("name", "handler"));
  }
  const std::lock_guard lock(mutex_);
  auto more = std::make_shared<Handlers>(*handlers_);
  more->push_back({last_number_ + 1, std::move(handler)});
  handlers_ = std::move(more);
  return ++last_number_;
}

bool PressureResource::remove_handler(std::uint64_t number) {
  std::shared_ptr<const Handlers> old;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  auto fewer = std::make_shared<Handlers>(*handlers_);
  if (std::erase_if(*fewer, [&](const Numbered& one) { return one.number == number; }) == 0) {
    return false;
  }
  old = std::exchange(handlers_, std::move(fewer));
  return true;
}

std::shared_ptr<const PressureResource::Handlers> PressureResource::handlers() const noexcept {
  const std::lock_guard lock(mutex_);
  return handlers_;
}

Result<Block> PressureResource::try_allocate(const Request& request) noexcept {
  counters().note_request();
  if (request.bytes == 0) return Block{};
  Result<Block> block = upstream()->try_allocate(request);
  if (!block && is_shortage(block.failure().code()) && !is_helping &&
      reach_for(block.failure()) != Overflow::fail) {
    // A copy, because `block` is assigned while the failure is read.
    const Failure first = block.failure();
    block = try_under_pressure(request, first);
  }
  if (block) {
    counters().note_allocation(block->bytes);
    // Retried only after a success: under pressure, failed frees are step 1 and their bytes are
    // counted.
    retry_before_allocation();
  } else {
    counters().note_refusal();
  }
  return block;
}

Overflow PressureResource::reach_for(const Failure& refusal) const noexcept {
  return refusal.code() == ErrorCode::out_of_budget ? budget_reach_ : Overflow::spill;
}

// Runs the rounds that the header describes. `block` always holds the result of the latest attempt.
Result<Block> PressureResource::try_under_pressure(const Request& request,
                                                   const Failure& first) noexcept {
  pressed_.fetch_add(1);
  Pressure pressure{good_size(request), device().id(), request.tag};
  const std::shared_ptr<const Handlers> theirs = handlers();
  // During the rounds, requests must not wait; waiting is the last step.
  Request asked = request;
  asked.wait = Wait::never;
  Result<Block> block = first;
  std::size_t freed = 0;
  std::uint64_t rounds = 0;

  const auto helps = [&](std::size_t bytes) {
    if (bytes == 0) return false;
    freed += bytes;
    block = upstream()->try_allocate(asked);
    return block || !is_shortage(block.failure().code());
  };
  const auto call = [&](const PressureHandler& handler) noexcept {
    std::size_t bytes = 0;
    is_helping = true;
    try {
      bytes = handler(pressure);
    } catch (...) {
      thrown_.fetch_add(1);
    }
    is_helping = false;
    return bytes;
  };
  const auto retry_frees = [&] {
    const std::size_t before = statistics().failed_free_bytes;
    retry_failed_frees();
    upstream()->retry_failed_frees();
    const std::size_t after = statistics().failed_free_bytes;
    return before > after ? before - after : 0;
  };
  const auto round = [&] {
    if (helps(retry_frees()) || helps(upstream()->trim(0))) return true;
    for (const Numbered& one : *theirs) {
      // The cause may change from retry to retry: first the budget is full, then the device.
      pressure.reach = reach_for(block.failure());
      if (pressure.reach < Overflow::evict) return false;
      if (helps(call(one.handler))) return true;
    }
    return false;
  };
  bool is_over = false;
  while (!is_over && rounds < max_rounds) {
    const std::size_t before = freed;
    ++rounds;
    is_over = round() || freed == before;
  }
  if (!block && is_shortage(block.failure().code()) && request.wait == Wait::forever &&
      device().try_synchronize()) {
    // After the wait, memory that streams were using may be free, and failed frees may succeed.
    freed += retry_frees() + upstream()->trim(0);
    block = upstream()->try_allocate(request);
  }
  if (block) {
    rescued_.fetch_add(1);
    return block;
  }
  const Failure& last = block.failure();
  if (!is_shortage(last.code())) return block;
  // The texts of a failure share limited space, so each error gets a part of it.
  ShortText first_text = {}, last_text = {};
  render_short(first, first_text);
  render_short(last, last_text);
  const char* const text =
      std::string_view(first_text.data()) == last_text.data()
          ? "{requested} with tag '{tag}' could not be allocated, although the pressure handlers "
            "freed {freed} (rounds: {rounds}). Before and after: {last_error} Free something, add "
            "a handler, or ask for less."
          : "{requested} with tag '{tag}' could not be allocated, although the pressure handlers "
            "freed {freed} (rounds: {rounds}). Before: {first_error} After: {last_error} Free "
            "something, add a handler, or ask for less.";
  return Failure(last.code(), text, request.site)
      .with_bytes("requested", request.bytes)
      .with("rounds", rounds)
      .with_bytes("freed", freed)
      .with("first_error", first_text.data())
      .with("last_error", last_text.data())
      .with("tag", request.tag.name());
}

}  // namespace tern
