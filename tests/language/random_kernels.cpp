#include "language/random_kernels.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <type_traits>
#include <utility>

namespace tern::test {
namespace {

using language::Form;
using language::Intent;
using language::Scalar;
using Kind = language::Mistake::Kind;

constexpr const char* type_texts[] = {"bool",     "int8_t", "uint8_t",  "int16_t",
                                      "uint16_t", "int",    "unsigned", "int64_t",
                                      "size_t",   "float",  "double"};
std::string text_of(Scalar type) { return type_texts[static_cast<std::size_t>(type)]; }
Scalar type_of(const Value& value) { return static_cast<Scalar>(value.index()); }
bool is_real(Scalar type) { return type >= Scalar::f32; }

template <std::size_t... i>
Value zero_of(std::size_t type, std::index_sequence<i...>) {
  Value value;
  static_cast<void>(((i == type ? (value.emplace<i>(), true) : false) || ...));
  return value;
}
Value zero_of(Scalar type) {
  return zero_of(static_cast<std::size_t>(type),
                 std::make_index_sequence<std::variant_size_v<Value>>());
}

Value converted(const Value& from, Scalar type) {
  Value to = zero_of(type);
  std::visit([](auto a, auto& b) { b = static_cast<std::remove_reference_t<decltype(b)>>(a); },
             from, to);
  return to;
}
/// The type in which C++ computes with two operands: the compiler knows.
Scalar common_type(Scalar a, Scalar b) {
  return std::visit([](auto x, auto y) { return type_of(Value(decltype(x + y)())); }, zero_of(a),
                    zero_of(b));
}

std::uint64_t integer_of(const Value& value) {
  return std::get<std::uint64_t>(converted(value, Scalar::u64));
}
bool truth(const Value& value) { return std::get<bool>(converted(value, Scalar::boolean)); }

/// `a op b` for two values of one type that is at least int. Integers wrap.
template <class T>
Value computed(const std::string& op, T a, T b) {
  if (op == "<") return a < b;
  if (op == "<=") return a <= b;
  if (op == ">") return a > b;
  if (op == ">=") return a >= b;
  if (op == "==") return a == b;
  if (op == "!=") return a != b;
  if constexpr (std::is_floating_point_v<T>) {
    if (op == "+") return a + b;
    if (op == "-") return a - b;
    if (op == "*") return a * b;
    return a / b;
  } else {
    using U = std::make_unsigned_t<T>;
    const U x = static_cast<U>(a), y = static_cast<U>(b);
    if (op == "+") return static_cast<T>(x + y);
    if (op == "-") return static_cast<T>(x - y);
    if (op == "*") return static_cast<T>(x * y);
    if (op == "&") return static_cast<T>(x & y);
    if (op == "|") return static_cast<T>(x | y);
    if (op == "^") return static_cast<T>(x ^ y);
    if (op == "<<") return static_cast<T>(x << y);
    if (op == ">>") return static_cast<T>(a >> b);
    return op == "/" ? static_cast<T>(a / b) : static_cast<T>(a % b);
  }
}
Value computed(const std::string& op, const Value& a, const Value& b) {
  const bool is_shift = op == "<<" || op == ">>";
  const Scalar type =
      is_shift ? common_type(type_of(a), type_of(a)) : common_type(type_of(a), type_of(b));
  return std::visit(
      [&](auto x) -> Value {
        using T = decltype(x);
        if constexpr (sizeof(T) < 4) {
          return Value();
        } else {
          return computed<T>(op, x, std::get<T>(converted(b, type)));
        }
      },
      converted(a, type));
}

/// What a statement or an expression refers to while it is evaluated.
struct State {
  std::uint64_t index = 0, thread = 0, block = 0, block_size = 0, grid_size = 0;
  std::vector<Value> locals;
  std::vector<RandomArgument>* arguments = nullptr;
  std::vector<std::vector<Value>> shared;
  Value a, b;  // of a reduction
};

struct Expression {
  std::string text;
  Scalar type = Scalar::i32;
  std::function<Value(State&)> value;
};

enum class After { next, break_, continue_, return_ };
using Action = std::function<After(State&)>;

After run(const std::vector<Action>& actions, State& state) {
  for (const Action& action : actions) {
    const After after = action(state);
    if (after != After::next) return after;
  }
  return After::next;
}

class Maker {
 public:
  Maker(std::uint64_t seed, PlantedMistake* planted) : random_(seed), planted_(planted) {
    kernel_.seed = seed;
  }

  RandomKernel make() {
    const std::uint64_t dice = below(10);
    if (planted_ != nullptr) {
      dice < 5 ? thread_kernel() : block_kernel();
    } else if (dice < 4) {
      thread_kernel();
    } else if (dice < 7) {
      block_kernel();
    } else if (dice < 9) {
      element_kernel();
    } else {
      reduction();
    }
    kernel_.text = text_;
    return std::move(kernel_);
  }

 private:
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  bool chance(std::uint64_t one_in) { return below(one_in) == 0; }
  template <class T>
  const T& one_of(const std::vector<T>& list) {
    return list[below(list.size())];
  }
  Scalar any_type() { return static_cast<Scalar>(below(11)); }
  Scalar integer_type() { return static_cast<Scalar>(1 + below(8)); }
  Scalar real_type() { return chance(2) ? Scalar::f32 : Scalar::f64; }

  Value random_value(Scalar type) {
    Value value = zero_of(type);
    const bool is_small = !chance(4);
    std::visit(
        [&](auto& of) {
          using T = std::remove_reference_t<decltype(of)>;
          if constexpr (std::is_floating_point_v<T>) {
            of = static_cast<T>(static_cast<int>(below(2000)) - 1000) / T{16};
            if (!is_small) of *= static_cast<T>(1e20);
          } else if constexpr (std::is_same_v<T, bool>) {
            of = chance(2);
          } else {
            of = static_cast<T>(is_small ? below(20) - 5 : random_());
          }
        },
        value);
    return value;
  }

  // The text. Each line is one statement, so a line tells where a mistake is.

  std::uint32_t line(const std::string& of) {
    text_ += std::string(2 * depth_, ' ') + of + '\n';
    return ++lines_;
  }

  // Arguments.

  std::size_t add(const std::string& prefix, Scalar type, Intent intent, std::size_t elements) {
    RandomArgument argument{prefix + std::to_string(kernel_.arguments.size()), type, intent, {}};
    for (std::size_t i = 0; i < elements; ++i) argument.values.push_back(random_value(type));
    kernel_.arguments.push_back(std::move(argument));
    return kernel_.arguments.size() - 1;
  }
  const RandomArgument& argument(std::size_t i) const { return kernel_.arguments[i]; }
  std::string parameters() const {
    constexpr const char* intents[] = {"", "in", "out", "inout", "part"};
    std::string list;
    for (const RandomArgument& one : kernel_.arguments) {
      const std::string type = text_of(one.type);
      const std::string intent = intents[static_cast<std::size_t>(one.intent)];
      list += (list.empty() ? "" : ", ") + (intent.empty() ? type : intent + "<" + type + ">") +
              " " + one.name;
    }
    return list;
  }
  void add_inputs(std::size_t elements) {
    for (std::uint64_t i = 1 + below(3); i > 0; --i) {
      const std::size_t length = elements != 0 ? elements : 1 + below(40);
      inputs_.push_back(add("x", any_type(), Intent::in, length));
    }
    for (std::uint64_t i = below(3); i > 0; --i)
      values_.push_back(add("a", any_type(), Intent::value, 1));
  }
  void add_outputs(std::size_t elements) {
    for (std::uint64_t i = 1 + below(2); i > 0; --i) {
      outputs_.push_back(add("y", any_type(), Intent::out, elements));
    }
    if (chance(2)) outputs_.push_back(add("z", any_type(), Intent::inout, elements));
    if (chance(3)) outputs_.push_back(add("p", any_type(), Intent::part, elements));
  }

  // Expressions.

  Expression constant(const Value& value) {
    const Scalar type = type_of(value);
    std::string text;
    if (type == Scalar::boolean) {
      text = truth(value) ? "true" : "false";
    } else if (is_real(type)) {
      const double number = std::get<double>(converted(value, Scalar::f64));
      text = std::to_string(std::fabs(number)) + (type == Scalar::f32 ? "f" : "");
    } else {
      text = std::to_string(integer_of(value)) + (type == Scalar::u32 ? "u" : "");
    }
    return {text, type, [value](State&) { return value; }};
  }
  Expression small_constant() {
    switch (below(4)) {
      case 0:
        return constant(static_cast<float>(below(64)) / 8);
      case 1:
        return constant(static_cast<double>(below(64)) / 4);
      case 2:
        return constant(static_cast<std::uint32_t>(below(100)));
      default:
        return constant(static_cast<std::int32_t>(below(100)));
    }
  }

  Expression local(std::size_t slot) const {
    return {names_[slot], types_[slot], [slot](State& s) { return s.locals[slot]; }};
  }
  Expression own_index() const {
    return {own_, Scalar::u64, [](State& s) { return Value(s.index); }};
  }
  /// An element of an array at an index that is in range for every value of the expression.
  Expression any_element(std::size_t array, int depth) {
    const RandomArgument& of = argument(array);
    if (form_ == Form::element) {
      return {of.name, of.type,
              [array](State& s) { return (*s.arguments)[array].values[s.index]; }};
    }
    const Expression at = integer(depth);
    const std::string text = of.name + "[size_t(" + at.text + ") % size(" + of.name + ")]";
    return {text, of.type, [array, at](State& s) {
              const std::vector<Value>& values = (*s.arguments)[array].values;
              return values[integer_of(at.value(s)) % values.size()];
            }};
  }
  Expression any_shared(std::size_t tile, int depth) {
    const Expression at = integer(depth);
    return {
        tile_names_[tile] + "[size_t(" + at.text + ") % " + std::to_string(tile_elements_) + "]",
        tile_types_[tile], [tile, at, n = tile_elements_](State& s) {
          return s.shared[tile][integer_of(at.value(s)) % n];
        }};
  }

  Expression leaf() {
    std::vector<std::function<Expression()>> choices{[&] { return small_constant(); }};
    if (!names_.empty()) choices.push_back([&] { return local(below(names_.size())); });
    if (!inputs_.empty()) {
      choices.push_back([&] { return any_element(one_of(inputs_), 0); });
    }
    if (!values_.empty()) {
      choices.push_back([&] {
        const std::size_t i = one_of(values_);
        return Expression{argument(i).name, argument(i).type,
                          [i](State& s) { return (*s.arguments)[i].values[0]; }};
      });
    }
    if (!readable_.empty()) {
      choices.push_back([&] { return any_shared(one_of(readable_), 0); });
    }
    if (form_ == Form::thread || form_ == Form::block) {
      choices.push_back([&] {
        return Expression{"block.x", Scalar::u64, [](State& s) { return Value(s.block); }};
      });
      choices.push_back([&] {
        return Expression{"grid_size.x", Scalar::u64, [](State& s) { return Value(s.grid_size); }};
      });
      if (has_thread_) {
        choices.push_back([&] {
          return Expression{"thread.x", Scalar::u64, [](State& s) { return Value(s.thread); }};
        });
      }
    }
    return one_of(choices)();
  }

  static Expression cast(const Expression& e, Scalar type) {
    return {text_of(type) + "(" + e.text + ")", type,
            [e, type](State& s) { return converted(e.value(s), type); }};
  }
  static Expression joined(const Expression& a, const std::string& op, const Expression& b) {
    Scalar type =
        op == "<<" || op == ">>" ? common_type(a.type, a.type) : common_type(a.type, b.type);
    if (op[0] == '=' || op[0] == '!' || op == "<" || op == ">" || op == "<=" || op == ">=") {
      type = Scalar::boolean;
    }
    return {"(" + a.text + " " + op + " " + b.text + ")", type,
            [a, op, b](State& s) { return computed(op, a.value(s), b.value(s)); }};
  }
  static Expression selected(const Expression& c, const Expression& a, const Expression& b) {
    const Scalar type = common_type(a.type, b.type);
    return {"(" + c.text + " ? " + a.text + " : " + b.text + ")", type, [c, a, b, type](State& s) {
              return converted(truth(c.value(s)) ? a.value(s) : b.value(s), type);
            }};
  }

  Expression condition(int depth) {
    if (depth > 0 && chance(3)) {
      const Expression a = condition(depth - 1), b = condition(depth - 1);
      const bool is_and = chance(2);
      return {"(" + a.text + (is_and ? " && " : " || ") + b.text + ")", Scalar::boolean,
              [a, b, is_and](State& s) -> Value {
                return is_and ? truth(a.value(s)) && truth(b.value(s))
                              : truth(a.value(s)) || truth(b.value(s));
              }};
    }
    if (chance(5)) {
      const Expression a = any(depth - 1);
      return {"!" + a.text, Scalar::boolean, [a](State& s) -> Value { return !truth(a.value(s)); }};
    }
    const std::vector<std::string> operators{"<", "<=", ">", ">=", "==", "!="};
    return joined(any(depth - 1), one_of(operators), any(depth - 1));
  }

  /// An integer type, but no boolean.
  Expression integer(int depth) {
    if (depth <= 0) {
      const Expression e = leaf();
      if (is_real(e.type)) return clamped(e);
      return e.type == Scalar::boolean ? cast(e, Scalar::i32) : e;
    }
    switch (below(9)) {
      case 0:
        return cast(integer(depth - 1), integer_type());
      case 1:
        return clamped(real(depth - 1));
      case 2:
        return selected(condition(depth - 1), integer(depth - 1), integer(depth - 1));
      case 3: {
        // Positive: the remainder is at least -6.
        const Expression divisor =
            joined(joined(integer(depth - 1), "%", constant(std::int32_t{7})), "+",
                   constant(std::int32_t{9}));
        return joined(integer(depth - 1), chance(2) ? "/" : "%", divisor);
      }
      case 4: {
        const Expression count = joined(integer(depth - 1), "&", constant(std::int32_t{15}));
        return joined(integer(depth - 1), chance(2) ? "<<" : ">>", count);
      }
      case 5: {
        const Expression a = integer(depth - 1);
        const Scalar type = common_type(a.type, a.type);
        if (chance(2)) {
          return {"(-" + a.text + ")", type,
                  [a, type](State& s) { return computed("-", zero_of(type), a.value(s)); }};
        }
        return {"(~" + a.text + ")", type, [a, type](State& s) {
                  return computed("^", converted(Value(std::int32_t{-1}), type), a.value(s));
                }};
      }
      case 6:
        return extreme(integer(depth - 1), integer(depth - 1));
      default: {
        const std::vector<std::string> operators{"+", "-", "*", "&", "|", "^"};
        return joined(integer(depth - 1), one_of(operators), integer(depth - 1));
      }
    }
  }
  static Expression clamped(const Expression& e) {
    // A NaN is not less than anything, so it selects the constant.
    return {"(" + e.text + " > -100 && " + e.text + " < 100 ? int(" + e.text + ") : 7)",
            Scalar::i32, [e](State& s) {
              const Value value = e.value(s);
              const double real = std::get<double>(converted(value, Scalar::f64));
              return Value(real > -100 && real < 100 ? static_cast<std::int32_t>(real) : 7);
            }};
  }
  Expression extreme(const Expression& a, const Expression& b) {
    const Scalar type = common_type(a.type, b.type);
    const bool is_min = chance(2);
    const Expression x = cast(a, type), y = cast(b, type);
    return {std::string(is_min ? "min" : "max") + "(" + x.text + ", " + y.text + ")", type,
            [x, y, is_min](State& s) {
              const Value p = x.value(s), q = y.value(s);
              return truth(is_min ? computed("<", q, p) : computed("<", p, q)) ? q : p;
            }};
  }
  Expression real(int depth) {
    if (depth <= 0) {
      const Expression e = leaf();
      return is_real(e.type) ? e : cast(e, real_type());
    }
    switch (below(7)) {
      case 0:
        return cast(any(depth - 1), real_type());
      case 1:
        return selected(condition(depth - 1), real(depth - 1), real(depth - 1));
      case 2:
        return extreme(real(depth - 1), real(depth - 1));
      case 3:
        return called(real(depth - 1));
      default: {
        const std::vector<std::string> operators{"+", "-", "*", "/"};
        const Expression a = any(depth - 1);
        return joined(is_real(a.type) ? a : cast(a, real_type()), one_of(operators),
                      any(depth - 1));
      }
    }
  }
  Expression called(const Expression& e) {
    const std::vector<std::string> functions{"sqrt", "fabs", "floor", "ceil", "exp", "tanh"};
    const std::string function = one_of(functions);
    return {function + "(" + e.text + ")", e.type, [e, function](State& s) {
              return std::visit(
                  [&](auto a) -> Value {
                    if constexpr (std::is_floating_point_v<decltype(a)>) {
                      if (function == "sqrt") return std::sqrt(a);
                      if (function == "fabs") return std::fabs(a);
                      if (function == "floor") return std::floor(a);
                      if (function == "ceil") return std::ceil(a);
                      if (function == "exp") return std::exp(a);
                      return std::tanh(a);
                    } else {
                      return a;
                    }
                  },
                  e.value(s));
            }};
  }
  Expression any(int depth) {
    if (depth <= 0) return leaf();
    switch (below(5)) {
      case 0:
      case 1:
        return real(depth);
      case 2:
        return condition(depth);
      default:
        return integer(depth);
    }
  }
  /// A value that every value of the type can be assigned from.
  Expression any_for(Scalar type, int depth) {
    return is_real(type) || type == Scalar::boolean ? any(depth) : integer(depth);
  }

  // Statements. `actions` gets what each of them does.

  using Actions = std::vector<Action>;

  std::size_t declare(Scalar type, const std::string& name) {
    names_.push_back(name);
    types_.push_back(type);
    slots_ = std::max(slots_, names_.size());
    return names_.size() - 1;
  }
  void declaration(Actions& actions) {
    const Scalar type = any_type();
    const Expression e = any_for(type, 2);
    const std::size_t slot = declare(type, "v" + std::to_string(variables_++));
    is_constant_.resize(names_.size(), false);
    is_constant_[slot] = chance(4);
    line((is_constant_[slot] ? "const " : "") + text_of(type) + " " + names_[slot] + " = " +
         e.text + ";");
    actions.push_back([slot, type, e](State& s) {
      s.locals[slot] = converted(e.value(s), type);
      return After::next;
    });
  }

  /// `name op= e` for a target of a type, and the function that computes the new value.
  struct Change {
    std::string text;  // from the operator on
    std::function<Value(State&, const Value&)> value;
  };
  Change change(Scalar type, bool may_read) {
    if (may_read && type != Scalar::boolean && chance(2)) {
      const bool is_shift = !is_real(type) && chance(4);
      const std::vector<std::string> operators =
          is_real(type) ? std::vector<std::string>{"+", "-", "*", "/"}
          : is_shift    ? std::vector<std::string>{"<<", ">>"}
                        : std::vector<std::string>{"+", "-", "*", "&", "|", "^"};
      const std::string op = one_of(operators);
      const Expression e =
          is_shift ? joined(integer(1), "&", constant(std::int32_t{7})) : any_for(type, 2);
      return {" " + op + "= " + e.text, [op, e, type](State& s, const Value& old) {
                return converted(computed(op, old, e.value(s)), type);
              }};
    }
    const Expression e = any_for(type, 2);
    return {" = " + e.text,
            [e, type](State& s, const Value&) { return converted(e.value(s), type); }};
  }

  std::optional<std::size_t> changeable_local() {
    std::vector<std::size_t> slots;
    for (std::size_t i = first_changeable_; i < names_.size(); ++i) {
      if (i >= is_constant_.size() || !is_constant_[i]) slots.push_back(i);
    }
    if (slots.empty()) return std::nullopt;
    return one_of(slots);
  }
  void assignment(Actions& actions) {
    const std::optional<std::size_t> found = changeable_local();
    if (!found) return declaration(actions);
    const std::size_t slot = *found;
    const Scalar type = types_[slot];
    if (type != Scalar::boolean && chance(4)) {
      const bool is_up = chance(2);
      line((chance(2) ? (is_up ? "++" : "--") + names_[slot]
                      : names_[slot] + (is_up ? "++" : "--")) +
           ";");
      actions.push_back([slot, type, is_up](State& s) {
        s.locals[slot] =
            converted(computed(is_up ? "+" : "-", s.locals[slot], Value(std::int32_t{1})), type);
        return After::next;
      });
      return;
    }
    const Change made = change(type, true);
    line(names_[slot] + made.text + ";");
    actions.push_back([slot, made](State& s) {
      s.locals[slot] = made.value(s, s.locals[slot]);
      return After::next;
    });
  }
  /// Updates an array of counters at an index that other threads use too.
  void atomic_update(Actions& actions) {
    const std::size_t array = counters_;
    const Expression at = integer(1), by = integer(1);
    const RandomArgument& of = argument(array);
    const std::vector<std::string> functions{"add", "min", "max"};
    // Functions that commute with each other: the result must not depend on the order.
    const std::string function = functions[counter_function_];
    line("atomic_" + function + "(" + of.name + ", size_t(" + at.text + ") % size(" + of.name +
         "), " + text_of(of.type) + "(" + by.text + "));");
    actions.push_back([array, at, by, function, type = of.type](State& s) {
      std::vector<Value>& values = (*s.arguments)[array].values;
      Value& one = values[integer_of(at.value(s)) % values.size()];
      const Value value = converted(by.value(s), type);
      if (function == "add") {
        one = computed("+", one, value);
      } else if (truth(function == "min" ? computed("<", value, one) : computed("<", one, value))) {
        one = value;
      }
      return After::next;
    });
  }

  /// Statements in braces, whose variables end with them.
  Actions body(int depth) {
    ++depth_;
    const std::size_t names = names_.size();
    Actions actions;
    statements(actions, depth, 1 + below(3));
    end_scope(names);
    --depth_;
    return actions;
  }
  void end_scope(std::size_t names) {
    names_.resize(names);
    types_.resize(names);
    if (is_constant_.size() > names) is_constant_.resize(names);
  }
  void branch(Actions& actions, int depth) {
    const Expression c = condition(2);
    line("if (" + c.text + ") {");
    const Actions yes = body(depth - 1);
    Actions no;
    if (chance(2)) {
      line("} else {");
      no = body(depth - 1);
    }
    line("}");
    actions.push_back([c, yes, no](State& s) { return run(truth(c.value(s)) ? yes : no, s); });
  }
  void loop(Actions& actions, int depth) {
    const std::uint64_t rounds = 1 + below(4);
    const std::size_t names = names_.size();
    const std::size_t slot = declare(Scalar::i32, "i" + std::to_string(variables_++));
    is_constant_.resize(names_.size(), false);
    is_constant_[slot] = true;  // only the loop itself changes its counter
    const std::string i = names_[slot];
    const std::string count = std::to_string(rounds);
    const std::uint64_t kind = below(3);
    if (kind == 0) {
      line("for (int " + i + " = 0; " + i + " < " + count + "; ++" + i + ") {");
    } else {
      line("int " + i + " = 0;");
      line(kind == 1 ? "while (" + i + "++ < " + count + ") {" : "do {");
    }
    Actions round = body(depth - 1);
    if (chance(3)) {
      const Expression c = condition(1);
      const bool is_break = chance(2);
      ++depth_;
      line("if (" + c.text + ") " + (is_break ? "break;" : "continue;"));
      --depth_;
      round.push_back([c, is_break](State& s) {
        if (!truth(c.value(s))) return After::next;
        return is_break ? After::break_ : After::continue_;
      });
    }
    line(kind == 2 ? "} while (++" + i + " < " + count + ");" : "}");
    actions.push_back([slot, rounds, round, kind](State& s) {
      for (std::uint64_t k = 0; k < rounds; ++k) {
        s.locals[slot] = static_cast<std::int32_t>(kind == 1 ? k + 1 : k);
        const After after = run(round, s);
        if (after == After::break_) break;
        if (after == After::return_) return after;
      }
      return After::next;
    });
    end_scope(names);
  }
  void statements(Actions& actions, int depth, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      switch (below(depth > 0 ? 8 : 4)) {
        case 0:
          declaration(actions);
          break;
        case 3:
          if (counters_ != no_array) {
            atomic_update(actions);
            break;
          }
          [[fallthrough]];
        case 1:
        case 2:
          assignment(actions);
          break;
        case 4:
        case 5:
          branch(actions, depth);
          break;
        default:
          loop(actions, depth);
          break;
      }
    }
  }

  /// Writes the element of each output that the thread owns.
  void write_outputs(Actions& actions, bool at_reversed) {
    for (const std::size_t array : outputs_) {
      const RandomArgument& of = argument(array);
      const bool is_part = of.intent == Intent::part;
      const Expression when = condition(1);
      const Change made = change(of.type, of.intent == Intent::inout);
      const std::string at = form_ == Form::element ? ""
                             : at_reversed          ? "[size(" + of.name + ") - 1 - " + own_ + "]"
                                                    : "[" + own_ + "]";
      line((is_part ? "if (" + when.text + ") " : "") + of.name + at + made.text + ";");
      actions.push_back([array, is_part, when, made, at_reversed](State& s) {
        if (is_part && !truth(when.value(s))) return After::next;
        std::vector<Value>& values = (*s.arguments)[array].values;
        Value& element = values[at_reversed ? values.size() - 1 - s.index : s.index];
        element = made.value(s, element);
        return After::next;
      });
    }
  }

  // Kernels.

  State state() {
    State made;
    made.locals.resize(slots_);
    made.arguments = &kernel_.expected;
    made.block_size = kernel_.shape.block[0];
    made.grid_size = kernel_.shape.grid[0];
    return made;
  }
  void begin(Form form, std::uint64_t blocks, std::uint64_t threads) {
    kernel_.form = form_ = form;
    kernel_.shape = {{blocks, 1, 1}, {threads, 1, 1}};
  }
  void add_counters() {
    const std::vector<Scalar> types{Scalar::i32, Scalar::u32, Scalar::i64, Scalar::u64};
    counters_ = add("c", one_of(types), Intent::inout, 1 + below(4));
    counter_function_ = below(3);
  }
  void run_threads(const Actions& actions, std::uint64_t elements) {
    kernel_.expected = kernel_.arguments;
    if (planted_ != nullptr) return;  // its result depends on the order of threads
    State s = state();
    for (s.block = 0; s.block < s.grid_size; ++s.block) {
      for (s.thread = 0; s.thread < s.block_size; ++s.thread) {
        s.index = s.block * s.block_size + s.thread;
        if (s.index < elements) run(actions, s);
      }
    }
  }

  void thread_kernel() {
    const std::uint64_t blocks = 2 + below(4), threads = 1 + below(8);
    const std::uint64_t elements = (blocks - 1) * threads + 1 + below(threads);
    begin(Form::thread, blocks, threads);
    add_inputs(0);
    add_outputs(elements);
    if (planted_ != nullptr || chance(2)) add_counters();
    line("kernel f(" + parameters() + ") {");
    ++depth_;
    own_ = "i";
    has_thread_ = true;
    line("const size_t i = index.x;");
    line("if (i >= size(" + argument(outputs_[0]).name + ")) return;");
    Actions actions;
    statements(actions, 2, 1 + below(4));
    if (planted_ != nullptr) plant_in_thread();
    // Of two elements, the next one and the one from the end are the same.
    write_outputs(actions, planted_ == nullptr && chance(2));
    --depth_;
    line("}");
    run_threads(actions, elements);
  }

  void plant_in_thread() {
    const std::string& x = argument(one_of(inputs_)).name;
    const std::string& y = argument(outputs_[0]).name;
    const std::string& c = argument(counters_).name;
    switch (below(7)) {
      case 0:
        plant(Kind::out_of_range, "if (" + x + "[i + size(" + x + ")] != 0) return;");
        break;
      case 1:
        plant(Kind::out_of_range, y + "[int(i) - 1000] = 0;");
        break;
      case 2:
        plant(Kind::out_of_range, "atomic_add(" + c + ", size(" + c + "), 1);");
        break;
      case 3:
        // Each thread writes the element of the next one too, which may be in another block.
        plant(Kind::block_race, y + "[(i + 1) % size(" + y + ")] = 0;");
        break;
      case 4:
        plant(Kind::block_race, c + "[0] += 1;");
        break;
      case 5:
        plant(Kind::divide_by_zero, "if (5 / (i - i) != 0) return;");
        break;
      default:
        planted_->line = line("float nothing;");
        plant(Kind::uninitialised_read, "if (i < 2 && nothing < 0) return;");
        break;
    }
  }
  void plant(Kind kind, const std::string& statement) {
    planted_->kind = kind;
    planted_->line = line(statement);
  }

  void element_kernel() {
    const std::uint64_t threads = 1 + below(8);
    const std::uint64_t elements = 1 + below(30);
    begin(Form::element, (elements + threads - 1) / threads, threads);
    add_inputs(elements);
    add_outputs(elements);
    line("element f(" + parameters() + ") {");
    ++depth_;
    Actions actions;
    statements(actions, 2, 1 + below(4));
    write_outputs(actions, false);
    --depth_;
    line("}");
    run_threads(actions, elements);
  }

  void reduction() {
    const std::uint64_t elements = 1 + below(9000);
    begin(Form::reduction, (elements + 4095) / 4096, 256);
    form_ = Form::element;  // the names of arrays are elements here
    add_inputs(elements);
    form_ = Form::reduction;
    const std::vector<Scalar> types{Scalar::i32, Scalar::u32, Scalar::i64, Scalar::f32,
                                    Scalar::f64};
    const Scalar type = kernel_.result = one_of(types);
    form_ = Form::element;
    const Expression map = any_for(type, 2);
    const Expression a{"a", type, [](State& s) { return s.a; }};
    const Expression b{"b", type, [](State& s) { return s.b; }};
    const Expression identity = constant(converted(Value(std::int32_t{chance(2)}), type));
    const Expression combine =
        chance(2)       ? joined(a, "+", b)
        : chance(2)     ? extreme(a, b)
        : is_real(type) ? joined(a, "*", b)
                        : joined(joined(a, "*", constant(Value(std::int32_t{3}))), "^", b);
    line("reduction<" + text_of(type) + "> f(" + parameters() + ") {");
    line("  identity = " + identity.text + ";");
    line("  map = " + map.text + ";");
    line("  combine = " + combine.text + ";");
    line("}");
    kernel_.expected = kernel_.arguments;

    State s = state();
    const auto reduce = [&](std::uint64_t count, const std::function<Value(std::uint64_t)>& at) {
      std::vector<Value> results;
      for (std::uint64_t begin = 0; begin < count; begin += 4096) {
        std::vector<Value> lanes(256, converted(identity.value(s), type));
        const auto join = [&](const Value& left, const Value& right) {
          s.a = left;
          s.b = right;
          return converted(combine.value(s), type);
        };
        for (std::uint64_t i = begin; i < std::min(count, begin + 4096); ++i) {
          lanes[i % 256] = join(lanes[i % 256], at(i));
        }
        for (std::size_t near = 128; near > 0; near /= 2) {
          for (std::size_t lane = 0; lane < near; ++lane) {
            lanes[lane] = join(lanes[lane], lanes[lane + near]);
          }
        }
        results.push_back(lanes[0]);
      }
      return results;
    };
    kernel_.results = {"results", type, Intent::out, reduce(elements, [&](std::uint64_t i) {
                         s.index = i;
                         return converted(map.value(s), type);
                       })};
    const std::vector<Value> partial = kernel_.results.values;
    kernel_.total = {"total", type, Intent::out,
                     reduce(partial.size(), [&](std::uint64_t i) { return partial[i]; })};
  }

  // Block kernels. In each loop over threads, a shared array is either owned (each thread uses one
  // element) or readable (all threads read any element).

  void block_kernel() {
    const std::uint64_t blocks = 1 + below(3), threads = 2 + below(7);
    const std::uint64_t elements = (blocks - 1) * threads + 1 + below(threads);
    begin(Form::block, blocks, threads);
    add_inputs(0);
    add_outputs(elements);
    tile_elements_ = threads;
    line("block f(" + parameters() + ") {");
    ++depth_;
    for (std::uint64_t i = 0; i < 2; ++i) {
      tile_names_.push_back("t" + std::to_string(i));
      tile_types_.push_back(any_type());
      line("shared<" + text_of(tile_types_[i]) + ", " + std::to_string(threads) + "> " +
           tile_names_[i] + ";");
    }
    // What the block does: each is code of the whole block.
    Actions actions;
    block_statements(actions);
    const std::uint64_t planted = planted_ != nullptr ? below(4) : 0;
    if (planted_ != nullptr && planted == 0) {
      plant_unwritten_tile();
    }
    fill_tile(actions, 0);
    if (planted_ != nullptr && planted > 0) plant_in_block(planted);
    readable_ = {0};
    fill_tile(actions, 1);
    readable_ = {0, 1};
    if (chance(2)) declaration(actions);
    if (chance(2)) rounds(actions);
    Actions last = begin_loop();
    line("const size_t i = block.x * block_size.x + thread.x;");
    line("if (i >= size(" + argument(outputs_[0]).name + ")) continue;");
    own_ = "i";
    Actions inner;
    statements(inner, 1, below(3));
    write_outputs(inner, chance(2));
    last.push_back([inner, elements](State& s) {
      return s.index >= elements ? After::return_ : run(inner, s);
    });
    end_loop(actions, std::move(last));
    --depth_;
    line("}");

    kernel_.expected = kernel_.arguments;
    if (planted_ != nullptr) return;
    State s = state();
    for (s.block = 0; s.block < blocks; ++s.block) {
      s.shared.clear();
      for (const Scalar type : tile_types_) s.shared.emplace_back(threads, zero_of(type));
      run(actions, s);
    }
  }

  Actions begin_loop() {
    line("for (auto thread : threads) {");
    ++depth_;
    has_thread_ = true;
    loop_names_ = names_.size();
    first_changeable_ = names_.size();
    return {};
  }
  void end_loop(Actions& actions, Actions body) {
    --depth_;
    line("}");
    has_thread_ = false;
    first_changeable_ = 0;
    end_scope(loop_names_);
    actions.push_back([body = std::move(body)](State& s) {
      for (s.thread = 0; s.thread < s.block_size; ++s.thread) {
        s.index = s.block * s.block_size + s.thread;
        run(body, s);
      }
      return After::next;
    });
  }
  void block_statements(Actions& actions) {
    for (std::uint64_t i = below(3); i > 0; --i) {
      chance(2) ? declaration(actions) : assignment(actions);
    }
  }

  /// A loop over threads in which each thread writes an element of its own.
  void fill_tile(Actions& actions, std::size_t tile) {
    Actions body = begin_loop();
    statements(body, 1, below(3));
    const Scalar type = tile_types_[tile];
    const Change made = change(type, false);
    const std::uint64_t shift = below(tile_elements_);
    line(tile_names_[tile] + "[(thread.x + " + std::to_string(shift) + ") % " +
         std::to_string(tile_elements_) + "]" + made.text + ";");
    body.push_back([tile, shift, made](State& s) {
      std::vector<Value>& of = s.shared[tile];
      Value& element = of[(s.thread + shift) % of.size()];
      element = made.value(s, element);
      return After::next;
    });
    end_loop(actions, std::move(body));
  }
  /// A loop of the block around two loops over threads: one writes array 1 and reads array 0, and
  /// the next one the other way round.
  void rounds(Actions& actions) {
    const std::uint64_t count = 1 + below(3);
    const std::size_t names = names_.size();
    const std::size_t slot = declare(Scalar::i32, "r" + std::to_string(variables_++));
    is_constant_.resize(names_.size(), false);
    is_constant_[slot] = true;
    const std::string r = names_[slot];
    line("for (int " + r + " = 0; " + r + " < " + std::to_string(count) + "; " + r + "++) {");
    ++depth_;
    Actions round;
    readable_ = {0};
    fill_tile(round, 1);
    readable_ = {1};
    fill_tile(round, 0);
    readable_ = {0, 1};
    --depth_;
    line("}");
    actions.push_back([slot, count, round](State& s) {
      for (std::uint64_t k = 0; k < count; ++k) {
        s.locals[slot] = static_cast<std::int32_t>(k);
        run(round, s);
      }
      return After::next;
    });
    end_scope(names);
  }

  void plant_unwritten_tile() {
    line("for (auto thread : threads) {");
    plant(Kind::uninitialised_read, "  if (t0[thread.x] == 0) continue;");
    line("}");
  }
  /// Before this, array 0 is written and array 1 is not.
  void plant_in_block(std::uint64_t planted) {
    const std::string n = std::to_string(tile_elements_);
    const std::string next = "t1[(thread.x + 1) % " + n + "]";
    line("for (auto thread : threads) {");
    switch (planted) {
      case 1: {  // the end of the loop is missing between the write and the read
        const std::uint32_t write = line("  t1[thread.x] = t0[thread.x] != 0;");
        line("  const bool is_set = t0[0] != 0;");
        plant(Kind::thread_race, "  if (" + next + " != 0 && is_set) continue;");
        planted_->other_line = write;
        break;
      }
      case 2:  // every thread writes one element
        plant(Kind::thread_race, "  t1[" + std::to_string(below(tile_elements_)) + "] = 0;");
        planted_->other_line = planted_->line;
        break;
      default:
        plant(Kind::out_of_range, "  t1[thread.x + 1] = 0;");
        break;
    }
    line("}");
  }

  static constexpr std::size_t no_array = std::numeric_limits<std::size_t>::max();

  std::mt19937_64 random_;
  PlantedMistake* const planted_;
  RandomKernel kernel_;
  Form form_ = Form::thread;
  std::string text_;
  std::uint32_t lines_ = 0;
  std::size_t depth_ = 0;
  std::vector<std::size_t> inputs_, values_, outputs_;  // indexes of arguments
  std::size_t counters_ = no_array;
  std::size_t counter_function_ = 0;
  std::string own_;          // the text of the index of the thread
  bool has_thread_ = false;  // thread.x is known
  // Local variables in scope, by slot of State::locals.
  std::vector<std::string> names_;
  std::vector<Scalar> types_;
  std::vector<bool> is_constant_;
  std::size_t slots_ = 0;
  std::size_t variables_ = 0;
  std::size_t first_changeable_ = 0;  // a loop over threads does not write variables of the block
  std::size_t loop_names_ = 0;
  // Shared arrays.
  std::vector<std::string> tile_names_;
  std::vector<Scalar> tile_types_;
  std::uint64_t tile_elements_ = 1;
  std::vector<std::size_t> readable_;
};

}  // namespace

std::vector<std::byte> RandomArgument::bytes() const {
  std::vector<std::byte> made;
  for (const Value& value : values) {
    std::visit(
        [&](auto of) {
          const auto* first = reinterpret_cast<const std::byte*>(&of);
          made.insert(made.end(), first, first + sizeof of);
        },
        value);
  }
  return made;
}

std::size_t RandomArgument::first_difference(const std::vector<std::byte>& bytes) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool is_equal = std::visit(
        [&](auto expected) {
          auto actual = expected;
          std::memcpy(&actual, bytes.data() + i * sizeof actual, sizeof actual);
          if constexpr (std::is_floating_point_v<decltype(expected)>) {
            if (std::isnan(expected)) return std::isnan(actual);
          }
          return std::memcmp(&actual, &expected, sizeof actual) == 0;
        },
        values[i]);
    if (!is_equal) return i;
  }
  return values.size();
}

bool PlantedMistake::is(const language::Mistake& mistake) const {
  const auto is_race = [](Kind of) { return of == Kind::thread_race || of == Kind::block_race; };
  if (!is_race(kind)) return mistake.kind == kind && mistake.at.line == line;
  if (!is_race(mistake.kind)) return false;
  const std::uint32_t a = mistake.at.line, b = mistake.other.line;
  return (a == line && (other_line == 0 || b == other_line)) ||
         (b == line && (other_line == 0 || a == other_line));
}

RandomKernel make_random_kernel(std::uint64_t seed) { return Maker(seed, nullptr).make(); }
RandomKernel make_random_kernel(std::uint64_t seed, PlantedMistake& planted) {
  return Maker(seed, &planted).make();
}

}  // namespace tern::test
