#include "language/kernel_code.hpp"

#include <bit>
#include <map>

#include "language/names.hpp"

namespace tern::language {
namespace {

constexpr std::uint32_t none = KernelCode::none;

/// The number of a type in TERN_NUMBER_CODES.
std::uint32_t number_index(Scalar type) {
  switch (type) {
    case Scalar::u32:
      return 1;
    case Scalar::i64:
      return 2;
    case Scalar::u64:
      return 3;
    case Scalar::f32:
      return 4;
    case Scalar::f64:
      return 5;
    default:
      return 0;
  }
}

Code code_of(Code first, std::uint32_t index) {
  return static_cast<Code>(static_cast<std::uint32_t>(first) + index);
}
Code number_code(Code first, Scalar type) { return code_of(first, number_index(type)); }
Code real_code(Code first, Scalar type) { return code_of(first, type == Scalar::f64 ? 1 : 0); }
/// The narrow types come first in Scalar and in the codes of loads and stores.
Code memory_code(Code first, Scalar type) {
  switch (type) {
    case Scalar::boolean:
      return first;
    case Scalar::i8:
      return code_of(first, 1);
    case Scalar::u8:
      return code_of(first, 2);
    case Scalar::i16:
      return code_of(first, 3);
    case Scalar::u16:
      return code_of(first, 4);
    default:
      return code_of(first, 5 + number_index(type));
  }
}

/// Whether a value of one type is the same 64 bits as its conversion to the other.
bool has_same_bits(Scalar from, Scalar to) {
  if (from == to) return true;
  if (is_real(from) || is_real(to) || to == Scalar::boolean) return false;
  if (to == Scalar::i64 || to == Scalar::u64 || from == Scalar::boolean) return true;
  return bytes_of(from) < bytes_of(to) && (!is_signed(from) || is_signed(to));
}

bool has_effects(const Expression& expression) {
  using Kind = Expression::Kind;
  if (expression.kind == Kind::assign || expression.kind == Kind::increment ||
      expression.kind == Kind::atomic) {
    return true;
  }
  for (const Expression& operand : expression.operands) {
    if (has_effects(operand)) return true;
  }
  return false;
}

class Compiler {
 public:
  explicit Compiler(const Program& program) : program_(program) {
    code_.register_count = coordinate_registers;
    registers_.resize(program.variables.size(), none);
    flags_.resize(program.variables.size(), none);
    arrays_.resize(program.variables.size(), none);
    for (std::uint32_t i = 0; i < program.variables.size(); ++i) declare(i);
  }

  KernelCode compile() {
    if (program_.form == Form::reduction) {
      code_.result = new_register();
      code_.identity = piece(program_.identity);
      code_.map = piece(program_.map);
      code_.combine = piece(program_.combine);
      for (std::uint32_t i = 0; i < program_.variables.size(); ++i) {
        const Variable& variable = program_.variables[i];
        if (variable.kind != Variable::Kind::result) continue;
        (variable.name == "a" ? code_.left : code_.right) = registers_[i];
      }
      // An expression that ignores `a` or `b` may come without the variable.
      if (code_.left == none) code_.left = new_register();
      if (code_.right == none) code_.right = new_register();
    } else {
      code_.body = next();
      statement(program_.body);
      emit({.code = Code::end});
    }
    return std::move(code_);
  }

 private:
  // What `break` and `continue` leave: instructions to complete when the target is known.
  struct Loop {
    std::vector<std::uint32_t> breaks, continues;
  };

  void declare(std::uint32_t index) {
    const Variable& variable = program_.variables[index];
    if (variable.kind != Variable::Kind::array && variable.kind != Variable::Kind::shared) {
      registers_[index] = new_register();
      if (variable.kind == Variable::Kind::value) {
        code_.values.push_back({variable.parameter, variable.type, registers_[index]});
      }
      return;
    }
    KernelCode::Array array{.variable = index, .type = variable.type};
    if (variable.kind == Variable::Kind::shared) {
      array.is_shared = true;
      array.elements = variable.elements;
    } else {
      array.argument = variable.parameter;
      array.intent = program_.parameters[variable.parameter].intent;
    }
    arrays_[index] = static_cast<std::uint32_t>(code_.arrays.size());
    code_.arrays.push_back(array);
  }

  // Registers. Temporary ones are free again at the end of the statement.

  std::uint32_t new_register() { return code_.register_count++; }
  std::uint32_t temporary() {
    if (free_.empty()) {
      used_.push_back(new_register());
    } else {
      used_.push_back(free_.back());
      free_.pop_back();
    }
    return used_.back();
  }
  void free_temporaries() {
    free_.insert(free_.end(), used_.rbegin(), used_.rend());
    used_.clear();
  }
  std::uint32_t constant(std::uint64_t bits) {
    const auto [it, is_new] = constants_.try_emplace(bits, 0);
    if (is_new) {
      it->second = new_register();
      code_.constants.emplace_back(it->second, bits);
    }
    return it->second;
  }
  static std::uint64_t real_bits(double value, Scalar type) {
    return type == Scalar::f32 ? std::bit_cast<std::uint32_t>(static_cast<float>(value))
                               : std::bit_cast<std::uint64_t>(value);
  }
  std::uint32_t one(Scalar type) { return constant(is_real(type) ? real_bits(1, type) : 1); }
  std::uint32_t integer(std::uint64_t bits, Scalar type) {
    switch (type) {
      case Scalar::boolean:
        return constant(bits != 0);
      case Scalar::i8:
        return constant(extend<std::int8_t>(bits));
      case Scalar::i16:
        return constant(extend<std::int16_t>(bits));
      case Scalar::i32:
        return constant(extend<std::int32_t>(bits));
      case Scalar::u8:
        return constant(bits & 0xff);
      case Scalar::u16:
        return constant(bits & 0xffff);
      case Scalar::u32:
        return constant(bits & 0xffffffff);
      default:
        return constant(bits);
    }
  }
  template <class T>
  static std::uint64_t extend(std::uint64_t bits) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<T>(bits)));
  }

  // Instructions.

  std::uint32_t next() const { return static_cast<std::uint32_t>(code_.instructions.size()); }
  std::uint32_t emit(const Instruction& instruction) {
    code_.instructions.push_back(instruction);
    return next() - 1;
  }
  /// Returns the register of the result: `wanted`, or a temporary one if there is no wish.
  std::uint32_t emit_to(std::uint32_t wanted, Instruction instruction) {
    instruction.to = wanted == none ? temporary() : wanted;
    emit(instruction);
    return instruction.to;
  }
  std::uint32_t move(std::uint32_t from, std::uint32_t wanted) {
    if (wanted == none || wanted == from) return from;
    return emit_to(wanted, {.code = Code::move, .a = from});
  }
  void arrive(const std::vector<std::uint32_t>& jumps) {
    for (const std::uint32_t jump : jumps) code_.instructions[jump].to = next();
  }
  std::uint32_t place(const CodePlace& place) {
    code_.places.push_back(place);
    return static_cast<std::uint32_t>(code_.places.size() - 1);
  }

  // Expressions. Each function returns the register with the value. With a `wanted` register, the
  // value is in that one. It is written only after all operands are read, so that an assigned
  // variable may be wanted by its own new value.

  std::uint32_t value(const Expression& e, std::uint32_t wanted = none) {
    using Kind = Expression::Kind;
    switch (e.kind) {
      case Kind::integer:
        return move(integer(e.integer, e.type), wanted);
      case Kind::real:
        return move(constant(real_bits(e.real, e.type)), wanted);
      case Kind::variable:
        return move(variable(e), wanted);
      case Kind::coordinate:
        return move(coordinate_register(e.coordinate, e.axis), wanted);
      case Kind::element: {
        const Access access = accessed(e, AccessKind::read);
        return load(access, wanted);
      }
      case Kind::size:
        return move(size_of(e.variable), wanted);
      case Kind::unary:
        return unary(e, wanted);
      case Kind::binary:
        return binary(e, wanted);
      case Kind::conditional:
        return conditional(e, wanted);
      case Kind::cast: {
        const Expression& from = e.operands[0];
        if (has_same_bits(from.type, e.type)) return value(from, wanted);
        return cast(value(from), from.type, e.type, e.at, wanted);
      }
      case Kind::assign:
        return assign(e, wanted);
      case Kind::increment:
        return increment(e, wanted, true);
      case Kind::call:
        return call(e, wanted);
      case Kind::atomic:
        return atomic(e, wanted);
    }
    return none;
  }

  std::uint32_t variable(const Expression& e) {
    check_value(e);
    return registers_[e.variable];
  }
  void check_value(const Expression& e) {
    if (flags_[e.variable] == none) return;
    const std::uint32_t where = place({.at = e.at, .variable = e.variable});
    emit({.code = Code::check_value, .a = flags_[e.variable], .place = where});
  }
  void note_assignment(std::uint32_t variable) {
    if (flags_[variable] != none) move(constant(1), flags_[variable]);
    if (program_.variables[variable].kind != Variable::Kind::value) return;
    for (KernelCode::Value& one : code_.values) {
      if (one.target == registers_[variable]) one.is_changed = true;
    }
  }

  std::uint32_t size_of(std::uint32_t variable) {
    KernelCode::Array& array = code_.arrays[arrays_[variable]];
    if (array.is_shared) return constant(array.elements);
    if (array.size_register == none) array.size_register = new_register();
    return array.size_register;
  }

  struct Access {
    std::uint32_t array, index, place;
    Scalar type;
  };
  Access accessed(const Expression& e, AccessKind kind) {
    // The index is evaluated first: its own accesses have their own places.
    const bool is_own = e.operands.empty();
    const std::uint32_t index =
        is_own ? coordinate_register(Coordinate::index, 0) : value(e.operands[0]);
    KernelCode::Array& array = code_.arrays[arrays_[e.variable]];
    if (kind == AccessKind::atomic) {
      array.is_atomic = true;
    } else {
      array.is_read |= kind != AccessKind::write;
      array.is_written |= kind != AccessKind::read;
    }
    const bool has_sign = !is_own && is_signed(e.operands[0].type);
    const std::uint32_t where =
        place({.at = e.at, .access = kind, .variable = e.variable, .has_signed_index = has_sign});
    return {arrays_[e.variable], index, where, array.type};
  }
  std::uint32_t load(const Access& access, std::uint32_t wanted = none) {
    return emit_to(wanted, {.code = memory_code(Code::load_boolean, access.type),
                            .a = access.index,
                            .c = access.array,
                            .place = access.place});
  }
  void store(const Access& access, std::uint32_t from) {
    emit({.code = memory_code(Code::store_boolean, access.type),
          .a = access.index,
          .b = from,
          .c = access.array,
          .place = access.place});
  }

  std::uint32_t unary(const Expression& e, std::uint32_t wanted) {
    const std::uint32_t a = value(e.operands[0]);
    if (e.op == Operator::logical_not) {
      return emit_to(wanted, {.code = Code::logical_not,
                              .a = cast(a, e.operands[0].type, Scalar::boolean, e.at)});
    }
    const Scalar type = promoted(e.type);
    if (e.op == Operator::negate) {
      const std::uint32_t negated = emit_to(e.type == type ? wanted : none,
                                            {.code = number_code(Code::negate_i32, type), .a = a});
      return e.type == type ? negated : cast(negated, type, e.type, e.at, wanted);
    }
    const std::uint32_t flipped = emit_to(none, {.code = Code::bit_complement, .a = a});
    return is_signed(e.type) || e.type == Scalar::u64 ? move(flipped, wanted)
                                                      : low_bits(flipped, e.type, wanted);
  }

  std::uint32_t binary(const Expression& e, std::uint32_t wanted) {
    if (e.op == Operator::logical_and || e.op == Operator::logical_or) return logical(e, wanted);
    const std::uint32_t a = value(e.operands[0]);
    const std::uint32_t b = value(e.operands[1]);
    if (is_comparison(e.op)) return compare(e.op, e.operands[0].type, a, b, wanted);
    return arithmetic(e.op, e.type, a, b, e.at, wanted);
  }

  /// `a op b` in the type, as C computes it: in int if the type is narrower than int.
  std::uint32_t arithmetic(Operator op, Scalar narrow, std::uint32_t a, std::uint32_t b,
                           Position at, std::uint32_t wanted) {
    const Scalar type = promoted(narrow);
    const std::uint32_t computed = type == narrow ? wanted : none;
    Instruction made{.a = a, .b = b};
    switch (op) {
      case Operator::add:
        made.code = number_code(Code::add_i32, type);
        break;
      case Operator::subtract:
        made.code = number_code(Code::subtract_i32, type);
        break;
      case Operator::multiply:
        made.code = number_code(Code::multiply_i32, type);
        break;
      case Operator::divide:
        made.code = number_code(Code::divide_i32, type);
        break;
      case Operator::remainder:
        made.code = number_code(Code::remainder_i32, type);
        break;
      case Operator::shift_left:
        made.code = number_code(Code::shift_left_i32, type);
        break;
      case Operator::shift_right:
        made.code = number_code(Code::shift_right_i32, type);
        break;
      case Operator::bit_and:
        made.code = Code::bit_and;
        break;
      case Operator::bit_or:
        made.code = Code::bit_or;
        break;
      default:
        made.code = Code::bit_xor;
        break;
    }
    const bool may_divide = op == Operator::divide || op == Operator::remainder;
    if (is_shift(op) || (may_divide && !is_real(type)))
      made.place = place({.at = at, .type = type});
    const std::uint32_t result = emit_to(computed, made);
    return type == narrow ? result : cast(result, type, narrow, at, wanted);
  }

  std::uint32_t compare(Operator op, Scalar type, std::uint32_t a, std::uint32_t b,
                        std::uint32_t wanted) {
    const bool is_turned = op == Operator::greater || op == Operator::greater_equal;
    Instruction made{.a = is_turned ? b : a, .b = is_turned ? a : b};
    // Extended integers compare like those of 64 bits.
    const Scalar wide = is_real(type) ? type : is_signed(type) ? Scalar::i64 : Scalar::u64;
    switch (op) {
      case Operator::equal:
        made.code = is_real(type) ? real_code(Code::equal_f32, type) : Code::equal_bits;
        break;
      case Operator::not_equal:
        made.code = is_real(type) ? real_code(Code::not_equal_f32, type) : Code::not_equal_bits;
        break;
      case Operator::less:
      case Operator::greater:
        made.code = number_code(Code::less_i32, wide);
        break;
      default:
        made.code = number_code(Code::less_equal_i32, wide);
        break;
    }
    return emit_to(wanted, made);
  }

  std::uint32_t condition(const Expression& e, std::uint32_t wanted = none) {
    if (e.type == Scalar::boolean) return value(e, wanted);
    return cast(value(e), e.type, Scalar::boolean, e.at, wanted);
  }

  std::uint32_t logical(const Expression& e, std::uint32_t wanted) {
    // Not in the wanted register: the right side may read it after the left side was written.
    const std::uint32_t result = temporary();
    condition(e.operands[0], result);
    const bool is_and = e.op == Operator::logical_and;
    const std::uint32_t skip =
        emit({.code = is_and ? Code::jump_if_false : Code::jump_if_true, .a = result});
    condition(e.operands[1], result);
    arrive({skip});
    return move(result, wanted);
  }

  std::uint32_t conditional(const Expression& e, std::uint32_t wanted) {
    const std::uint32_t result = wanted == none ? temporary() : wanted;
    const std::uint32_t otherwise =
        emit({.code = Code::jump_if_false, .a = condition(e.operands[0])});
    value(e.operands[1], result);
    const std::uint32_t end = emit({.code = Code::jump});
    arrive({otherwise});
    value(e.operands[2], result);
    arrive({end});
    return result;
  }

  std::uint32_t cast(std::uint32_t from, Scalar type, Scalar to, Position at,
                     std::uint32_t wanted = none) {
    if (has_same_bits(type, to)) return move(from, wanted);
    if (to == Scalar::boolean) {
      return emit_to(wanted, {.code = is_real(type) ? real_code(Code::boolean_of_f32, type)
                                                    : Code::boolean_of_integer,
                              .a = from});
    }
    if (is_real(type) && is_real(to)) {
      return emit_to(wanted,
                     {.code = to == Scalar::f32 ? Code::f32_of_f64 : Code::f64_of_f32, .a = from});
    }
    if (is_real(type)) {
      return emit_to(wanted,
                     {.code = type == Scalar::f32 ? Code::integer_of_f32 : Code::integer_of_f64,
                      .detail = static_cast<std::uint16_t>(to),
                      .a = from,
                      .place = place({.at = at, .type = to})});
    }
    if (!is_real(to)) return low_bits(from, to, wanted);
    const Code first = to == Scalar::f32 ? Code::f32_of_signed : Code::f64_of_signed;
    return emit_to(wanted, {.code = code_of(first, is_signed(type) ? 0 : 1), .a = from});
  }
  std::uint32_t low_bits(std::uint32_t from, Scalar to, std::uint32_t wanted) {
    const std::uint32_t index =
        static_cast<std::uint32_t>(to) - static_cast<std::uint32_t>(Scalar::i8);
    return emit_to(wanted, {.code = code_of(Code::low_i8, index), .a = from});
  }

  /// `old op right` for compound assignment and increments, as a value of the target's type.
  std::uint32_t updated(const Expression& e, std::uint32_t old, std::uint32_t right, Scalar type,
                        Scalar target, std::uint32_t wanted) {
    const std::uint32_t left = cast(old, target, type, e.at);
    const std::uint32_t result =
        arithmetic(e.op, type, left, right, e.at, type == target ? wanted : none);
    return cast(result, type, target, e.at, wanted);
  }

  std::uint32_t assign(const Expression& e, std::uint32_t wanted) {
    const Expression& target = e.operands[0];
    const Expression& right = e.operands[1];
    // The count of a shift has a type of its own; others compute in the type of the right side.
    const Scalar type = promoted(is_shift(e.op) ? target.type : right.type);
    if (target.kind == Expression::Kind::variable) {
      const std::uint32_t at = registers_[target.variable];
      if (e.op == Operator::none) {
        value(right, at);
      } else {
        const std::uint32_t by = value(right);
        check_value(target);
        updated(e, at, by, type, target.type, at);
      }
      note_assignment(target.variable);
      return move(at, wanted);
    }
    // C++ evaluates the right side first. An effect in the index must not change it afterwards.
    std::uint32_t from = value(right);
    if (!target.operands.empty() && has_effects(target.operands[0])) from = move(from, temporary());
    if (e.op == Operator::none) {
      store(accessed(target, AccessKind::write), from);
      return move(from, wanted);
    }
    const Access access = accessed(target, AccessKind::update);
    const std::uint32_t result = updated(e, load(access), from, type, target.type, none);
    store(access, result);
    return move(result, wanted);
  }

  std::uint32_t increment(const Expression& e, std::uint32_t wanted, bool is_used) {
    const Expression& target = e.operands[0];
    const Scalar type = promoted(target.type);
    const bool returns_old = is_used && !e.is_prefix;
    if (target.kind == Expression::Kind::variable) {
      const std::uint32_t at = registers_[target.variable];
      check_value(target);
      // `i = i++` leaves the old value, so the old one cannot wait in a wanted register that is i.
      const std::uint32_t old = returns_old ? move(at, temporary()) : none;
      updated(e, at, one(type), type, target.type, at);
      note_assignment(target.variable);
      return move(returns_old ? old : at, wanted);
    }
    const Access access = accessed(target, AccessKind::update);
    const std::uint32_t old = load(access);
    const std::uint32_t changed = updated(e, old, one(type), type, target.type, none);
    store(access, changed);
    return move(returns_old ? old : changed, wanted);
  }

  std::uint32_t call(const Expression& e, std::uint32_t wanted) {
    Instruction made;
    std::uint32_t* const operands[] = {&made.a, &made.b, &made.c};
    for (std::size_t i = 0; i < e.operands.size() && i < 3; ++i) {
      *operands[i] = value(e.operands[i]);
    }
    const Scalar type = promoted(e.type);
    // Extended integers have the order of those of 64 bits.
    const Scalar wide = is_real(type) ? type : is_signed(type) ? Scalar::i64 : Scalar::u64;
    switch (e.function) {
      case Function::abs:
      case Function::fabs:
        made.code = number_code(Code::abs_i32, type);
        return cast(emit_to(none, made), type, e.type, e.at, wanted);
      case Function::min:
        made.code = number_code(Code::min_i32, wide);
        break;
      case Function::max:
        made.code = number_code(Code::max_i32, wide);
        break;
      case Function::sqrt:
        made.code = real_code(Code::sqrt_f32, type);
        break;
      case Function::rsqrt:
        made.code = real_code(Code::rsqrt_f32, type);
        break;
      case Function::exp:
        made.code = real_code(Code::exp_f32, type);
        break;
      case Function::exp2:
        made.code = real_code(Code::exp2_f32, type);
        break;
      case Function::log:
        made.code = real_code(Code::log_f32, type);
        break;
      case Function::log2:
        made.code = real_code(Code::log2_f32, type);
        break;
      case Function::sin:
        made.code = real_code(Code::sin_f32, type);
        break;
      case Function::cos:
        made.code = real_code(Code::cos_f32, type);
        break;
      case Function::tan:
        made.code = real_code(Code::tan_f32, type);
        break;
      case Function::tanh:
        made.code = real_code(Code::tanh_f32, type);
        break;
      case Function::floor:
        made.code = real_code(Code::floor_f32, type);
        break;
      case Function::ceil:
        made.code = real_code(Code::ceil_f32, type);
        break;
      case Function::round:
        made.code = real_code(Code::round_f32, type);
        break;
      case Function::pow:
        made.code = real_code(Code::pow_f32, type);
        break;
      case Function::fmod:
        made.code = real_code(Code::fmod_f32, type);
        break;
      case Function::fma:
        made.code = real_code(Code::fma_f32, type);
        break;
    }
    return emit_to(wanted, made);
  }

  std::uint32_t atomic(const Expression& e, std::uint32_t wanted) {
    Instruction made{.detail = static_cast<std::uint16_t>(e.atomic)};
    if (e.operands.size() == 3) {
      // The expected and the new value are in two consecutive registers.
      made.b = new_register();
      const std::uint32_t second = new_register();
      value(e.operands[1], made.b);
      value(e.operands[2], second);
    } else {
      made.b = value(e.operands[1]);
    }
    const Access access = accessed(e, AccessKind::atomic);
    made.code = number_code(Code::atomic_i32, access.type);
    made.a = access.index;
    made.c = access.array;
    made.place = access.place;
    return emit_to(wanted, made);
  }

  /// An expression whose value nobody uses.
  void effect(const Expression& e) {
    if (e.kind == Expression::Kind::increment) {
      increment(e, none, false);
    } else {
      value(e);
    }
    free_temporaries();
  }

  // Statements.

  void statement(const Statement& s) {
    using Kind = Statement::Kind;
    switch (s.kind) {
      case Kind::declare:
        return declaration(s);
      case Kind::expression:
        return effect(s.expressions[0]);
      case Kind::if_:
        return if_(s);
      case Kind::for_:
        statement(s.statements[0]);
        return loop(s, s.expressions.empty() ? nullptr : &s.expressions[0],
                    s.has_step ? &s.expressions[1] : nullptr, s.statements[1], false);
      case Kind::while_:
        return loop(s, &s.expressions[0], nullptr, s.statements[0], false);
      case Kind::do_:
        return loop(s, &s.expressions[0], nullptr, s.statements[0], true);
      case Kind::break_:
        loops_.back().breaks.push_back(emit({.code = Code::jump}));
        return;
      case Kind::continue_:
        loops_.back().continues.push_back(emit({.code = Code::jump}));
        return;
      case Kind::return_:
        emit({.code = Code::end});
        return;
      case Kind::block:
        for (const Statement& inner : s.statements) statement(inner);
        return;
      case Kind::threads:
        return threads(s);
    }
  }

  void declaration(const Statement& s) {
    if (!s.expressions.empty()) {
      value(s.expressions[0], registers_[s.variable]);
    } else {
      // Only variables that begin without a value pay for checks that they have one.
      if (flags_[s.variable] == none) flags_[s.variable] = new_register();
      move(constant(0), flags_[s.variable]);
    }
    free_temporaries();
  }

  void if_(const Statement& s) {
    const std::uint32_t otherwise =
        emit({.code = Code::jump_if_false, .a = condition(s.expressions[0])});
    free_temporaries();
    statement(s.statements[0]);
    if (s.statements.size() < 2) return arrive({otherwise});
    const std::uint32_t end = emit({.code = Code::jump});
    arrive({otherwise});
    statement(s.statements[1]);
    arrive({end});
  }

  /// The condition is at the end of the code, so that a round needs one jump.
  void loop(const Statement& s, const Expression* until, const Expression* step,
            const Statement& body, bool begins_with_body) {
    const std::uint32_t begin =
        begins_with_body || until == nullptr ? none : emit({.code = Code::jump});
    const std::uint32_t round = next();
    loops_.emplace_back();
    statement(body);
    arrive(loops_.back().continues);
    if (step != nullptr) effect(*step);
    if (begin != none) arrive({begin});
    const std::uint32_t where = place({.at = s.at});
    if (until == nullptr) {
      emit({.code = Code::jump_back, .to = round, .place = where});
    } else {
      const std::uint32_t a = condition(*until);
      emit({.code = Code::jump_back_if_true, .to = round, .a = a, .place = where});
      free_temporaries();
    }
    arrive(loops_.back().breaks);
    loops_.pop_back();
  }

  void threads(const Statement& s) {
    const std::uint32_t begin = emit({.code = Code::threads, .place = place({.at = s.at})});
    statement(s.statements[0]);
    emit({.code = Code::end});
    arrive({begin});
  }

  std::uint32_t piece(const Expression& e) {
    const std::uint32_t begin = next();
    // The parser has cast the value; a tree made by hand may have not.
    cast(value(e), e.type, program_.result, e.at, code_.result);
    emit({.code = Code::end});
    free_temporaries();
    return begin;
  }

  const Program& program_;
  KernelCode code_;
  std::vector<std::uint32_t> registers_;  // of each variable that is no array
  std::vector<std::uint32_t> flags_;      // whether the variable has a value; or none
  std::vector<std::uint32_t> arrays_;     // index into KernelCode::arrays; or none
  std::vector<std::uint32_t> free_, used_;
  std::map<std::uint64_t, std::uint32_t> constants_;
  std::vector<Loop> loops_;
};

}  // namespace

KernelCode compile(const Program& program) { return Compiler(program).compile(); }

}  // namespace tern::language
