#include "backends/sim/fault_plan.hpp"

#include <charconv>
#include <utility>

namespace tern::sim {
namespace {

constexpr std::pair<std::string_view, FaultClass> class_names[] = {
#define TERN_FAULT_CLASS(name) {#name, FaultClass::name},
    TERN_FOR_EACH_FAULT_CLASS(TERN_FAULT_CLASS)
#undef TERN_FAULT_CLASS
};
static_assert(std::size(class_names) == fault_classes);

constexpr std::pair<std::string_view, FaultKind> kind_names[] = {
    {"oom", FaultKind::oom},       {"fragmented", FaultKind::fragmented},
    {"fail", FaultKind::fail},     {"fault", FaultKind::fault},
    {"lost", FaultKind::lost},     {"not_ready", FaultKind::not_ready},
    {"refuse", FaultKind::refuse},
};

Failure refuse(std::string_view rule, const char* why) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "'{value}' is no rule of a fault plan: {why}. Write it like allocate#3=oom, "
                 "copy#2+=fail, launch%2=fault or query~0.01=not_ready.")
      .with("name", "faults")
      .with("why", why)
      .with("value", rule);
}

bool parse_number(std::string_view text, std::uint64_t& number) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

/// "0.01" as 10,000 millionths; at most six decimals, and not above 1.
std::optional<std::uint64_t> parse_millionths(std::string_view text) noexcept {
  constexpr std::uint64_t million = 1'000'000;
  if (text == "1" || text == "1.0") return million;
  if (!text.starts_with("0.") || text.size() < 3 || text.size() > 8) return std::nullopt;
  std::uint64_t value = 0;
  if (!parse_number(text.substr(2), value)) return std::nullopt;
  for (std::size_t digits = text.size() - 2; digits < 6; ++digits) value *= 10;
  return value;
}

}  // namespace

std::optional<FaultClass> FaultPlan::class_of(std::string_view name) noexcept {
  for (const auto& [known, value] : class_names) {
    if (known == name) return value;
  }
  return std::nullopt;
}

Result<FaultPlan::Rule> FaultPlan::try_parse_rule(std::string_view text) {
  const std::size_t selector = text.find_first_of("#%~");
  const std::size_t equals = text.find('=');
  if (selector == text.npos || equals == text.npos || equals < selector) {
    return refuse(text, "it needs a class, a selector and a kind");
  }
  Rule rule;
  const std::optional<FaultClass> fault_class = class_of(text.substr(0, selector));
  if (!fault_class) return refuse(text, "there is no such class of calls");
  rule.fault_class = *fault_class;

  const std::string_view kind = text.substr(equals + 1);
  const auto* found = std::begin(kind_names);
  while (found != std::end(kind_names) && found->first != kind) ++found;
  if (found == std::end(kind_names)) return refuse(text, "there is no such kind of fault");
  rule.kind = found->second;

  std::string_view number = text.substr(selector + 1, equals - selector - 1);
  if (text[selector] == '~') {
    const std::optional<std::uint64_t> rate = parse_millionths(number);
    if (!rate) return refuse(text, "a rate is a fraction such as 0.01");
    rule.selector = Rule::Selector::rate;
    rule.number = *rate;
    return rule;
  }
  rule.selector = text[selector] == '%' ? Rule::Selector::every : Rule::Selector::nth;
  if (rule.selector == Rule::Selector::nth && number.ends_with('+')) {
    rule.selector = Rule::Selector::from;
    number.remove_suffix(1);
  }
  if (!parse_number(number, rule.number) || rule.number == 0) {
    return refuse(text, "calls are counted from 1");
  }
  return rule;
}

Result<FaultPlan> FaultPlan::try_parse(std::string_view text, std::uint64_t seed) {
  FaultPlan plan(seed);
  bool has_more = !text.empty();
  while (has_more) {
    const std::size_t comma = text.find(',');
    std::string_view part = text.substr(0, comma);
    has_more = comma != text.npos;
    if (has_more) text.remove_prefix(comma + 1);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    const Result<Rule> rule = try_parse_rule(part);
    if (!rule) return rule.failure();
    plan.rules_.push_back(*rule);
  }
  return plan;
}

std::optional<FaultKind> FaultPlan::next(FaultClass fault_class) noexcept {
  const std::uint64_t call = ++calls_[static_cast<std::size_t>(fault_class)];
  for (const Rule& rule : rules_) {
    if (rule.fault_class != fault_class) continue;
    const bool fires = rule.selector == Rule::Selector::nth    ? call == rule.number
                       : rule.selector == Rule::Selector::from ? call >= rule.number
                       : rule.selector == Rule::Selector::every
                           ? call % rule.number == 0
                           : random_.below(1'000'000) < rule.number;
    if (fires) return rule.kind;
  }
  return std::nullopt;
}

}  // namespace tern::sim
