// Parses the rules of a fault plan, and decides which calls they make fail (next()). World::begin()
// in world.cpp applies the fault.

#include "backends/sim/fault_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>

namespace tern::sim {
namespace {

/// The name of a class, and the kinds it accepts, separated by spaces.
struct ClassRow {
  std::string_view name;
  std::string_view kinds;
};
constexpr ClassRow classes[] = {
#define TERN_FAULT_CLASS(name, kinds) {#name, kinds},
    TERN_FOR_EACH_FAULT_CLASS(TERN_FAULT_CLASS)
#undef TERN_FAULT_CLASS
};
static_assert(std::size(classes) == fault_classes);

constexpr std::string_view kinds[] = {
#define TERN_FAULT_KIND(name) #name,
    TERN_FOR_EACH_FAULT_KIND(TERN_FAULT_KIND)
#undef TERN_FAULT_KIND
};
static_assert(std::size(kinds) == fault_kinds);

/// Reserved for files. No primitive reads a file, so a rule with them would have no effect.
constexpr std::string_view file_class = "file", short_kind = "short";

Failure refuse(std::string_view rule, std::string_view why) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "'{value}' is not a rule of a fault plan: {why}. Write a rule such as "
                 "allocate#3=oom, copy#2+=fail, launch%2=fault or query~0.01=not_ready.")
      .with("name", "faults")
      .with("why", why)
      .with("value", rule);
}

bool parse_number(std::string_view text, std::uint64_t& number) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

/// Parses "0.01" as 10,000 millionths: at most six decimals and at most 1.
std::optional<std::uint64_t> parse_millionths(std::string_view text) noexcept {
  constexpr std::uint64_t million = 1'000'000;
  if (text == "1" || text == "1.0") return million;
  if (!text.starts_with("0.") || text.size() < 3 || text.size() > 8) return std::nullopt;
  std::uint64_t value = 0;
  if (!parse_number(text.substr(2), value)) return std::nullopt;
  for (std::size_t digits = text.size() - 2; digits < 6; ++digits) value *= 10;
  return value;
}

/// Returns a text such as "copy accepts fail, fault, lost and slow".
std::string what_it_takes(FaultClass fault_class) {
  std::string list;
  for (std::size_t i = 0; i < fault_kinds; ++i) {
    if (!takes(fault_class, static_cast<FaultKind>(i))) continue;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", kinds[i]);
  }
  list.replace(list.rfind(','), 1, " and");
  return fmt::format("{} accepts {}", name(fault_class), list);
}

}  // namespace

std::string_view name(FaultClass fault_class) noexcept {
  return classes[static_cast<std::size_t>(fault_class)].name;
}

std::string_view name(FaultKind kind) noexcept { return kinds[static_cast<std::size_t>(kind)]; }

bool takes(FaultClass fault_class, FaultKind kind) noexcept {
  std::string_view rest = classes[static_cast<std::size_t>(fault_class)].kinds;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, end) == name(kind)) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

std::optional<FaultClass> FaultPlan::class_of(std::string_view text) noexcept {
  if (text == "free") return FaultClass::release;
  const auto* found = std::ranges::find(classes, text, &ClassRow::name);
  if (found == std::end(classes)) return std::nullopt;
  return static_cast<FaultClass>(found - std::begin(classes));
}

Result<void> FaultPlan::try_read_selector(std::string_view text, Rule& rule) {
  const std::size_t selector = text.find_first_of("#%~");
  std::string_view number = text.substr(selector + 1, text.find('=') - selector - 1);
  if (text[selector] == '~') {
    const std::optional<std::uint64_t> rate = parse_millionths(number);
    if (!rate) return refuse(text, "a rate is a fraction such as 0.01");
    rule.selector = Rule::Selector::rate;
    rule.number = *rate;
    return {};
  }
  rule.selector = text[selector] == '%' ? Rule::Selector::every : Rule::Selector::nth;
  if (rule.selector == Rule::Selector::nth && number.ends_with('+')) {
    rule.selector = Rule::Selector::from;
    number.remove_suffix(1);
  }
  if (!parse_number(number, rule.number) || rule.number == 0) {
    return refuse(text, "calls are counted from 1");
  }
  return {};
}

Result<FaultPlan::Rule> FaultPlan::try_parse_rule(std::string_view text) {
  const std::size_t selector = text.find_first_of("#%~");
  const std::size_t equals = text.find('=');
  if (selector == text.npos || equals == text.npos || equals < selector) {
    return refuse(text, "a rule has a class, a selector and a kind");
  }
  Rule rule;
  const std::string_view class_text = text.substr(0, selector);
  const std::string_view kind_text = text.substr(equals + 1);
  if (class_text == file_class) return refuse(text, "no device call reads a file");
  const std::optional<FaultClass> fault_class = class_of(class_text);
  if (!fault_class) return refuse(text, "the class of calls is unknown");
  rule.fault_class = *fault_class;

  if (kind_text == short_kind)
    return refuse(text, "only file reads can be short, and no device call reads a file");
  const auto* kind = std::ranges::find(kinds, kind_text);
  if (kind == std::end(kinds)) return refuse(text, "the kind of fault is unknown");
  rule.kind = static_cast<FaultKind>(kind - std::begin(kinds));
  if (!takes(rule.fault_class, rule.kind)) {
    return refuse(text, what_it_takes(rule.fault_class));
  }
  if (Result<void> read = try_read_selector(text, rule); !read) return read.failure();
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
