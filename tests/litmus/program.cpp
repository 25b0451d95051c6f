#include "litmus/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace tern::test::litmus {
namespace {

constexpr std::size_t max_words = 64;

using Tokens = std::vector<std::string>;

Tokens split(std::string_view line) {
  std::istringstream in{std::string(line)};
  Tokens tokens;
  for (std::string token; in >> token;) tokens.push_back(token);
  return tokens;
}

template <class T>
std::optional<std::size_t> find_name(const std::vector<T>& list, std::string_view name) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (list[i] == name) return i;
    } else {
      if (list[i].name == name) return i;
    }
  }
  return std::nullopt;
}

std::optional<Home> home_named(std::string_view word) {
  constexpr std::string_view names[] = {"device", "pinned", "pageable", "managed",
                                        "block",  "slab",   "local"};
  for (std::size_t i = 0; i < std::size(names); ++i) {
    if (names[i] == word) return static_cast<Home>(i);
  }
  return std::nullopt;
}

bool is_host_readable(Home home) {
  return home == Home::pinned || home == Home::pageable || home == Home::managed ||
         home == Home::local;
}
bool is_device_side(Home home) {
  return home == Home::device || home == Home::managed || home == Home::block || home == Home::slab;
}

/// Reads the lines of one program. Each complaint is the rest of a sentence about it.
class Reader {
 public:
  explicit Reader(Program& program) : program_(program) {}

  void line(const std::string& text) {
    Tokens tokens = split(text.substr(0, text.find('#')));
    if (tokens.empty()) return;
    if (!declares(tokens) && !judges(tokens)) step(std::move(tokens));
  }

  /// What no single line can tell.
  void finish() {
    require(has_verdict_, "says neither 'race-free' nor 'racy'");
    require(!program_.steps.empty() && !program_.seen.empty(), "has no steps, or sees nothing");
    require(!program_.allowed.empty(), "allows no outcome");
    const auto count = [&](Verb verb) {
      return std::ranges::count(program_.steps, verb, &Step::verb);
    };
    require(count(Verb::allocate) == count(Verb::release), "does not release what it allocates");
    std::set<std::string> outcomes;
    for (const auto* list : {&program_.allowed, &program_.beyond_sim, &program_.forbidden}) {
      for (const OutcomePattern& pattern : *list) {
        require(outcomes.insert(text_of(pattern)).second, "names an outcome twice");
      }
    }
    require(!program_.is_race_free || asks(program_) ||
                (program_.allowed.size() == 1 && program_.beyond_sim.empty()),
            "is free of races and asks nothing, so it has one outcome");
  }

 private:
  static void require(bool holds, const std::string& complaint) {
    if (!holds) throw std::runtime_error(complaint);
  }

  static std::uint32_t number(const std::string& text) {
    try {
      std::size_t used = 0;
      const unsigned long value = std::stoul(text, &used, 0);
      require(used == text.size() && value <= 0xFFFFFFFFul, fmt::format("'{}' is no word", text));
      return static_cast<std::uint32_t>(value);
    } catch (const std::logic_error&) {
      throw std::runtime_error(fmt::format("'{}' is no number", text));
    }
  }

  bool declares(const Tokens& tokens) {
    const std::optional<Home> home = home_named(tokens[0]);
    const bool events = tokens[0] == "event", marks = tokens[0] == "mark";
    const bool blocking = tokens[0] == "blocking";
    if (!home && !events && !marks && !blocking) return false;
    require(program_.steps.empty(), "declares something after the first step");
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      if (home) {
        location(*home, tokens[i]);
      } else if (blocking) {
        program_.streams.push_back({tokens[i], true, false});
      } else {
        (events ? program_.events : program_.marks).push_back(tokens[i]);
      }
    }
    return true;
  }

  void location(Home home, const std::string& token) {
    Location made;
    made.home = home;
    const std::size_t equals = token.find('=');
    std::string name = token.substr(0, equals);
    if (equals != std::string::npos) made.initial = number(token.substr(equals + 1));
    if (const std::size_t bracket = name.find('['); bracket != std::string::npos) {
      made.words = number(name.substr(bracket + 1, name.size() - bracket - 2));
      name.resize(bracket);
    }
    require(made.words > 0 && made.words <= max_words, "has a location of no size");
    require(home != Home::block || equals == std::string::npos, "gives a block a value too early");
    require(!find_name(program_.locations, name), fmt::format("declares '{}' twice", name));
    made.name = name;
    program_.locations.push_back(made);
  }

  bool judges(const Tokens& tokens) {
    if (tokens[0] == "race-free" || tokens[0] == "racy") {
      has_verdict_ = true;
      program_.is_race_free = tokens[0] == "race-free";
      require(program_.is_race_free == (tokens.size() == 1), "'racy' takes a code, or 'unseen'");
      if (!program_.is_race_free && tokens[1] != "unseen") program_.finding = tokens[1];
      return true;
    }
    if (tokens[0] == "sim-only") {
      program_.is_sim_only = true;
      return true;
    }
    if (tokens[0] == "sees") {
      for (std::size_t i = 1; i < tokens.size(); ++i) {
        program_.seen.push_back(words(tokens[i]));
        const Home where = home(program_.seen.back());
        require(where != Home::block && where != Home::slab, "sees memory that may be gone");
      }
      return true;
    }
    std::vector<OutcomePattern>* list = tokens[0] == "allowed"      ? &program_.allowed
                                        : tokens[0] == "beyond-sim" ? &program_.beyond_sim
                                        : tokens[0] == "forbidden"  ? &program_.forbidden
                                                                    : nullptr;
    if (list == nullptr) return false;
    OutcomePattern pattern;
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      pattern.push_back(tokens[i] == "*" ? std::nullopt : std::optional(number(tokens[i])));
    }
    std::size_t count = 0;
    for (const Words& seen : program_.seen) count += seen.count;
    require(pattern.size() == count, fmt::format("sees {} words", count));
    list->push_back(pattern);
    return true;
  }

  [[nodiscard]] Home home(const Words& words) const {
    return program_.locations[words.location].home;
  }

  /// "x", "x[2]" or "x[2:4]".
  Words words(const std::string& token) const {
    const std::size_t bracket = token.find('[');
    const std::optional<std::size_t> found =
        find_name(program_.locations, token.substr(0, bracket));
    require(found.has_value(), fmt::format("there is no location '{}'", token));
    Words result{*found, 0, program_.locations[*found].words};
    if (bracket != std::string::npos) {
      const std::string inside = token.substr(bracket + 1, token.size() - bracket - 2);
      const std::size_t colon = inside.find(':');
      result.first = number(inside.substr(0, colon));
      const std::size_t end =
          colon == std::string::npos ? result.first + 1 : number(inside.substr(colon + 1));
      require(result.first < end && end <= result.count,
              fmt::format("'{}' is outside its location", token));
      result.count = end - result.first;
    }
    return result;
  }

  /// A location and, behind a slash, the words between its rows.
  Words pitched(const std::string& token, std::size_t& pitch) const {
    const std::size_t slash = token.find('/');
    require(slash != std::string::npos, "a copy in rows needs pitches");
    pitch = number(token.substr(slash + 1));
    return words(token.substr(0, slash));
  }

  std::size_t stream(const std::string& token) {
    if (const auto found = find_name(program_.streams, token)) return *found;
    const bool is_default = token == "default";
    require(is_default || (token.size() == 1 && std::isupper(token[0]) != 0),
            fmt::format("'{}' is no stream: they are A to Z, or 'default'", token));
    program_.streams.push_back({token, false, is_default});
    return program_.streams.size() - 1;
  }

  std::size_t event(const std::string& token) const {
    const auto found = find_name(program_.events, token);
    require(found.has_value(), fmt::format("there is no event '{}'", token));
    return *found;
  }
  std::size_t mark(const std::string& token) const {
    const auto found = find_name(program_.marks, token);
    require(found.has_value(), fmt::format("there is no mark '{}'", token));
    return *found;
  }

  void step(Tokens tokens) {
    Step made;
    for (const std::string& token : tokens) made.text += (made.text.empty() ? "" : " ") + token;
    if (tokens.back() == "(spare)") {
      made.is_spare = true;
      tokens.pop_back();
    }
    require(tokens.size() >= 3, "a step has an actor, a verb and something to do it to");
    if (tokens[0] == "host") {
      host_step(made, tokens);
    } else {
      made.stream = stream(tokens[0]);
      stream_step(made, tokens);
    }
    require(!made.is_spare || is_order(made), "only what makes somebody wait can be spare");
    program_.steps.push_back(made);
  }

  void stream_step(Step& made, const Tokens& tokens) {
    const std::string& verb = tokens[1];
    if (verb == "fill") {
      made.to = words(tokens[2]);
      made.value = number(tokens.at(3));
      if (tokens.size() > 4) {
        require(tokens[4] == "width", "a fill takes a value and a width");
        made.width_bytes = number(tokens.at(5));
      }
    } else if (verb == "copy") {
      made.verb = Verb::copy;
      made.from = words(tokens[2]);
      require(tokens.at(3) == "->", "a copy goes from -> to");
      made.to = words(tokens.at(4));
      require(made.from.count == made.to.count, "a copy's sides differ in size");
    } else if (verb == "copy2d") {
      made.verb = Verb::copy_2d;
      made.from = pitched(tokens[2], made.from_pitch);
      made.to = pitched(tokens.at(4), made.to_pitch);
      made.row_words = number(tokens.at(6));
      made.rows = number(tokens.at(8));
      require(tokens[3] == "->" && tokens[5] == "width" && tokens[7] == "height",
              "a copy in rows is: copy2d a/2 -> b/3 width 1 height 2");
    } else if (verb == "kernel" || verb == "call") {
      assignment(made, tokens, verb == "kernel" ? Verb::kernel_store : Verb::call_store);
    } else if (verb == "record") {
      made.verb = Verb::record;
      made.event = event(tokens[2]);
    } else if (verb == "wait") {
      made.verb = Verb::wait;
      made.waits_for_mark = find_name(program_.marks, tokens[2]).has_value();
      (made.waits_for_mark ? made.mark : made.event) =
          made.waits_for_mark ? mark(tokens[2]) : event(tokens[2]);
    } else if (verb == "mark" || verb == "next_mark") {
      made.verb = verb == "mark" ? Verb::mark : Verb::next_mark;
      made.mark = mark(tokens[2]);
    } else if (verb == "allocate" || verb == "release") {
      made.verb = verb == "allocate" ? Verb::allocate : Verb::release;
      made.to = words(tokens[2]);
      require(home(made.to) == Home::block, "only blocks are allocated and released");
    } else if (verb == "give" || verb == "take") {
      made.verb = verb == "give" ? Verb::give : Verb::take;
      made.to = words(tokens[2]);
      require(home(made.to) == Home::slab, "a pool gives and takes parts of a slab");
    } else if (verb == "prefetch") {
      made.verb = Verb::prefetch;
      made.to = words(tokens[2]);
      made.value = tokens.at(3) == "host" ? 1 : 0;
      require(home(made.to) == Home::managed, "only managed memory is prefetched");
    } else {
      throw std::runtime_error(fmt::format("'{}' is no verb of a stream", verb));
    }
  }

  /// "x = 1", "x = y" or "x += 1" behind a verb. The verbs that move and add follow that of
  /// storing.
  void assignment(Step& made, const Tokens& tokens, Verb store) {
    const auto after = [store](unsigned steps) {
      return static_cast<Verb>(static_cast<unsigned>(store) + steps);
    };
    made.to = words(tokens[2]);
    const bool is_sum = tokens.at(3) == "+=";
    require(is_sum || tokens[3] == "=", "an assignment is x = 1, x = y or x += 1");
    const std::string& right = tokens.at(4);
    if (std::isdigit(right[0]) != 0) {
      made.verb = is_sum ? after(2) : store;
      made.value = number(right);
    } else {
      require(!is_sum, "only a number can be added");
      made.verb = after(1);
      made.from = words(right);
    }
    const bool by_kernel = store == Verb::kernel_store;
    for (const Words* side : {&made.to, made.verb == after(1) ? &made.from : &made.to}) {
      require(side->count == 1, "an assignment is of one word");
      require(by_kernel ? is_device_side(home(*side)) : is_host_readable(home(*side)),
              "a kernel uses memory of the device, a host function that of the host");
    }
  }

  void host_step(Step& made, const Tokens& tokens) {
    const std::string& verb = tokens[1];
    const std::string& what = tokens[2];
    const bool is_event = find_name(program_.events, what).has_value();
    const bool is_mark = find_name(program_.marks, what).has_value();
    if (verb == "sync") {
      made.verb = is_event        ? Verb::sync_event
                  : is_mark       ? Verb::sync_mark
                  : what == "all" ? Verb::sync_all
                                  : Verb::sync_stream;
    } else if (verb == "query") {
      made.verb = is_event ? Verb::query_event : is_mark ? Verb::query_mark : Verb::query_stream;
      require(tokens.size() == 5 && tokens[3] == "->", "a query goes -> to a local");
      made.to = words(tokens[4]);
      require(home(made.to) == Home::local, "the answer to a query is a local");
    } else if (verb == "destroy") {
      made.verb = is_event ? Verb::destroy_event : Verb::destroy_stream;
    } else if (verb == "allocate" || verb == "release") {
      made.verb = verb == "allocate" ? Verb::allocate : Verb::release;
      made.to = words(what);
      require(home(made.to) == Home::block, "only blocks are allocated and released");
      return;
    } else {
      host_assignment(made, tokens);
      return;
    }
    if (is_event) made.event = event(what);
    if (is_mark) made.mark = mark(what);
    if (!is_event && !is_mark && what != "all") made.stream = stream(what);
  }

  /// "p = 1", "p = q", "p = q if z".
  void host_assignment(Step& made, const Tokens& tokens) const {
    made.to = words(tokens[1]);
    require(tokens[2] == "=" && tokens.size() >= 4, "the host can sync, query, destroy, or x = y");
    if (std::isdigit(tokens[3][0]) != 0) {
      made.verb = Verb::host_store;
      made.value = number(tokens[3]);
    } else {
      made.verb = Verb::host_move;
      made.from = words(tokens[3]);
    }
    if (tokens.size() > 4) {
      require(tokens.size() == 6 && tokens[4] == "if", "a guard is: if q");
      made.guard = words(tokens[5]).location;
    }
    for (const Words* side : {&made.to, made.verb == Verb::host_move ? &made.from : &made.to}) {
      require(side->count == 1 && is_host_readable(home(*side)),
              "the host uses one word of its own memory");
    }
  }

  Program& program_;
  bool has_verdict_ = false;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(fmt::format("'{}' cannot be read", path));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

bool matches(const OutcomePattern& pattern, const Outcome& outcome) {
  return std::equal(pattern.begin(), pattern.end(), outcome.begin(), outcome.end(),
                    [](const std::optional<std::uint32_t>& expected, std::uint32_t value) {
                      return !expected || *expected == value;
                    });
}

std::string text_of(const OutcomePattern& pattern) {
  std::string text;
  for (const std::optional<std::uint32_t>& word : pattern) {
    if (!text.empty()) text += ' ';
    text += !word ? "*" : *word < 256 ? fmt::format("{}", *word) : fmt::format("{:#x}", *word);
  }
  return text;
}

std::string text_of(const Outcome& outcome) {
  return text_of(OutcomePattern(outcome.begin(), outcome.end()));
}

bool Program::has(Verb verb) const {
  return std::ranges::any_of(steps, [verb](const Step& step) { return step.verb == verb; });
}

bool Program::uses(Home home) const {
  return std::ranges::any_of(locations, [home](const Location& at) { return at.home == home; });
}

bool Program::uses_kernels() const {
  return has(Verb::kernel_store) || has(Verb::kernel_move) || has(Verb::kernel_add);
}

bool asks(const Program& program) {
  return program.has(Verb::query_stream) || program.has(Verb::query_event) ||
         program.has(Verb::query_mark);
}

bool is_order(const Step& step) {
  return step.verb == Verb::wait || step.verb == Verb::sync_stream ||
         step.verb == Verb::sync_event || step.verb == Verb::sync_mark ||
         step.verb == Verb::sync_all;
}

bool may_block(const Program& program, const Step& step) {
  const auto is_pageable = [&](const Words& words) {
    return words.count > 0 && program.locations[words.location].home == Home::pageable;
  };
  switch (step.verb) {
    case Verb::sync_stream:
    case Verb::sync_event:
    case Verb::sync_mark:
    case Verb::sync_all:
    case Verb::destroy_stream:
      return true;
    case Verb::allocate:
    case Verb::release:
      return !step.stream;
    case Verb::copy:
    case Verb::copy_2d:
      return is_pageable(step.to) || is_pageable(step.from);
    default:
      return false;
  }
}

std::vector<Program> parse_programs(std::string_view page) {
  std::vector<Program> programs;
  std::set<std::string> names;
  std::istringstream in{std::string(page)};
  std::string line, title, says;
  std::optional<Reader> reader;
  std::size_t number = 0;
  const auto refuse = [&](const std::string& complaint) {
    throw std::runtime_error(fmt::format("line {}, program '{}': {}", number, title, complaint));
  };
  while (std::getline(in, line)) {
    ++number;
    try {
      if (reader && line == "```") {
        reader->finish();
        reader.reset();
      } else if (reader) {
        reader->line(line);
      } else if (line == "```litmus") {
        if (title.empty() || says.empty()) refuse("has no name, or says nothing");
        if (!names.insert(title).second) refuse("has the name of another");
        Program& made = programs.emplace_back();
        made.name = title;
        made.says = says;
        reader.emplace(made);
      } else if (line.starts_with("### ")) {
        title = line.substr(4);
        says.clear();
      } else if (!line.empty() && !line.starts_with("#")) {
        says += (says.empty() ? "" : " ") + line;
      }
    } catch (const std::out_of_range&) {
      refuse("the line ends too early");
    } catch (const std::runtime_error& error) {
      if (std::string_view(error.what()).starts_with("line ")) throw;
      refuse(error.what());
    }
  }
  if (reader) refuse("its block has no end");
  return programs;
}

const std::vector<Program>& all_programs() {
  static const std::vector<Program> programs =
      parse_programs(read_file(TERN_LITMUS_FOLDER "/programs.md"));
  return programs;
}

}  // namespace tern::test::litmus
