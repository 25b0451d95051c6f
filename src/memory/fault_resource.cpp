#include "tern/memory/fault_resource.hpp"

#include <deque>
#include <utility>

#include "memory/block_table.hpp"

namespace tern {

/// The rules with their counters. A call in progress keeps the plan it started with.
struct FaultResource::Plan {
  struct Counted {
    explicit Counted(const FaultRule& one) : rule(one) {}
    FaultRule rule;
    std::atomic<std::uint64_t> fitting = 0;
  };
  std::deque<Counted> rules;  // a deque, because atomics cannot be moved
};

namespace {

/// splitmix64: the draw depends only on the seed and the number of the call, not on the thread.
std::uint64_t draw(std::uint64_t seed, std::uint64_t number) noexcept {
  std::uint64_t x = seed + number * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

bool is_chosen(const FaultRule& rule, std::uint64_t number) noexcept {
  if (rule.nth == 0 && rule.every == 0 && rule.rate == 0) return true;
  if (rule.nth != 0 && number == rule.nth) return true;
  if (rule.every != 0 && number % rule.every == 0) return true;
  // The upper 53 bits fit a double exactly and give a value in [0, 1), so a rate of 1 always hits.
  const double share = static_cast<double>(draw(rule.seed, number) >> 11) * 0x1.0p-53;
  return share < rule.rate;
}

[[noreturn]] void refuse_rule(std::size_t index, const char* sentence) {
  raise(Failure(ErrorCode::invalid_argument, sentence)
            .with("name", "rules")
            .with("rule", std::uint64_t{index + 1}));
}

}  // namespace

FaultResource::FaultResource(ResourceHandle upstream, std::vector<FaultRule> rules)
    : WrappingResource("fault", std::move(upstream)), plan_(checked_plan(std::move(rules))) {}

std::shared_ptr<FaultResource::Plan> FaultResource::checked_plan(std::vector<FaultRule> rules) {
  auto plan = std::make_shared<Plan>();
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const FaultRule& rule = rules[i];
    if (!(rule.rate >= 0 && rule.rate <= 1)) {
      refuse_rule(i, "the rate of fault rule {rule} is not between 0 and 1.");
    }
    if (rule.min_bytes > rule.max_bytes) {
      refuse_rule(i, "fault rule {rule} matches no size: its min_bytes is above its max_bytes.");
    }
    // If a completed free reported a failure, the caller would free the block twice.
    if (rule.for_frees && rule.after_upstream) {
      refuse_rule(i, "fault rule {rule} fails a free after the free. Let the rule fail it before.");
    }
    plan->rules.emplace_back(rule);
  }
  return plan;
}

void FaultResource::set_rules(std::vector<FaultRule> rules) {
  std::shared_ptr<Plan> plan = checked_plan(std::move(rules));
  const std::lock_guard lock(mutex_);
  plan_.swap(plan);
}

std::optional<FaultResource::Hit> FaultResource::hit(bool is_free, std::size_t bytes,
                                                     Tag tag) noexcept {
  std::shared_ptr<Plan> plan;
  {
    const std::lock_guard lock(mutex_);
    plan = plan_;
  }
  std::optional<Hit> first;
  std::uint64_t place = 0;
  for (Plan::Counted& one : plan->rules) {
    ++place;
    const FaultRule& rule = one.rule;
    const bool fits = rule.for_frees == is_free && (!rule.tag || *rule.tag == tag) &&
                      bytes >= rule.min_bytes && bytes <= rule.max_bytes;
    if (!fits) continue;
    // All rules count the call, even after one has hit, so that one rule does not shift another.
    const std::uint64_t number = one.fitting.fetch_add(1) + 1;
    if (first || !is_chosen(rule, number)) continue;
    const ErrorCode usual = is_free ? ErrorCode::driver : ErrorCode::out_of_memory;
    first = Hit{rule.after_upstream, rule.code.value_or(usual), place, number};
  }
  return first;
}

Result<Block> FaultResource::try_allocate(const Request& request) noexcept {
  if (request.bytes == 0) return WrappingResource::try_allocate(request);
  std::optional<Hit> fault = hit(false, request.bytes, request.tag);
  std::uint64_t left = fail_next_.load();
  while (left != 0 && !fail_next_.compare_exchange_weak(left, left - 1)) {
  }
  if (left != 0) fault = Hit{.number = left};
  if (!fault) return WrappingResource::try_allocate(request);

  counters().note_request();
  if (fault->after_upstream) {
    const Result<Block> block = upstream()->try_allocate(request);
    // If the upstream fails by itself, return its failure.
    if (!block) {
      counters().note_refusal();
      return block;
    }
    // If the free fails, the upstream counts and retries it.
    upstream()->deallocate(*block, request.stream, request.site);
  }
  counters().note_refusal();
  failed_requests_.fetch_add(1);
  return Failure(fault->code,
                 "fault rule {rule} rejected an allocation of {requested} with tag '{tag}' at its "
                 "call {number}. Remove the rule to allow it.",
                 request.site)
      .with_bytes("requested", request.bytes)
      .with("rule", fault->rule)
      .with("number", fault->number)
      .with("tag", request.tag.name());
}

Result<void> FaultResource::try_deallocate(const Block& block, StreamRef stream,
                                           const CallSite& site) noexcept {
  if (!block) return {};
  // Count and fail only frees that could succeed. The upstream rejects mistakes.
  const Result<BlockFacts> facts = try_find_block(block.generation);
  if (!facts || facts->address != block.address || facts->bytes != block.bytes ||
      facts->device != block.device || state_of(block.generation) != BlockState::live) {
    return WrappingResource::try_deallocate(block, stream, site);
  }
  const std::optional<Hit> fault = hit(true, block.bytes, facts->tag);
  if (!fault) return WrappingResource::try_deallocate(block, stream, site);
  refused_frees_.fetch_add(1);
  return Failure(fault->code,
                 "fault rule {rule} made the free of {bytes} with tag '{tag}' fail at its call "
                 "{number}. Remove the rule to allow it.",
                 site)
      .with_bytes("bytes", block.bytes)
      .with("rule", fault->rule)
      .with("number", fault->number)
      .with("tag", facts->tag.name());
}

}  // namespace tern
