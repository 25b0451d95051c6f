#include "language/dialect.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "language/names.hpp"

namespace tern::language {
namespace {

/// In the order of Scalar.
struct TypeWords {
  std::string_view name, short_name;
};
constexpr TypeWords type_words[] = {
    {"bool", "bool"},    {"tern_i8", "i8"},   {"tern_u8", "u8"},   {"tern_i16", "i16"},
    {"tern_u16", "u16"}, {"tern_i32", "i32"}, {"tern_u32", "u32"}, {"tern_i64", "i64"},
    {"tern_u64", "u64"}, {"float", "f32"},    {"double", "f64"},
};

const TypeWords& words_of(Scalar type) noexcept {
  return type_words[static_cast<std::size_t>(type)];
}

bool is_wide(Scalar type) noexcept { return bytes_of(type) == 8; }

std::string_view space_name(Space space) noexcept {
  switch (space) {
    case Space::local:
      return "local";
    case Space::global:
      return "global";
    case Space::shared:
      return "shared";
  }
  return "";
}

/// The call of an atomic function of OpenCL C. Its 32-bit functions are built in, and the names of
/// those of the 64-bit extensions begin with atom_.
std::string opencl_atomic(Atomic atomic, Scalar type) {
  constexpr std::string_view names[] = {"add", "min", "max", "xchg", "cmpxchg"};
  return fmt::format("{}_{}(p, {}v)", is_wide(type) ? "atom" : "atomic",
                     names[static_cast<std::size_t>(atomic)],
                     atomic == Atomic::compare_exchange ? "e, " : "");
}

/// CUDA has these functions for `unsigned long long`, but some of them not for `long long`. The
/// cast changes no bits, and the minimum and the maximum exist for both.
std::string cuda_atomic(Atomic atomic, Scalar type) {
  constexpr std::string_view names[] = {"Add", "Min", "Max", "Exch", "CAS"};
  const std::string name = fmt::format("atomic{}", names[static_cast<std::size_t>(atomic)]);
  const bool is_ordered = atomic == Atomic::min || atomic == Atomic::max;
  if (type != Scalar::i64 || is_ordered) {
    return fmt::format("{}(p, {}v)", name, atomic == Atomic::compare_exchange ? "e, " : "");
  }
  return fmt::format("(tern_i64){}((tern_u64*)p, {}(tern_u64)v)", name,
                     atomic == Atomic::compare_exchange ? "(tern_u64)e, " : "");
}

/// The body of an atomic function of the host. Threads of one block run one after the other, so an
/// atomic operation on memory of a block needs no atomic instruction.
std::string cpp_atomic(Atomic atomic, Scalar type, Space space) {
  const std::string_view t = type_name(type);
  constexpr std::string_view changes[] = {"o + v", "v < o ? v : o", "o < v ? v : o", "v",
                                          "o == e ? v : o"};
  const std::string_view change = changes[static_cast<std::size_t>(atomic)];
  if (space == Space::shared) return fmt::format("  {0} o = *p; *p = {1}; return o;\n", t, change);
  switch (atomic) {
    case Atomic::add:
      if (is_real(type)) break;
      return "  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);\n";
    case Atomic::exchange:
      return "  return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);\n";
    case Atomic::compare_exchange:
      return "  __atomic_compare_exchange_n(p, &e, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);\n"
             "  return e;\n";
    default:
      break;
  }
  return fmt::format(
      "  {0} o, n;\n"
      "  __atomic_load(p, &o, __ATOMIC_RELAXED);\n"
      "  do {{ n = {1}; }} while (!__atomic_compare_exchange(p, &o, &n, 1, __ATOMIC_RELAXED,\n"
      "                                                    __ATOMIC_RELAXED));\n"
      "  return o;\n",
      t, change);
}

/// OpenCL C has no atomic operation on floats. The loop compares bits, so it also ends for a NaN.
std::string opencl_float_add(Space space) {
  return fmt::format(
      "  volatile {0}tern_u32* q = (volatile {0}tern_u32*)p;\n"
      "  tern_u32 o = *q, seen;\n"
      "  while ((seen = atomic_cmpxchg(q, o, as_uint(as_float(o) + v))) != o) o = seen;\n"
      "  return as_float(o);\n",
      space_word(Dialect::opencl, space));
}

}  // namespace

std::string_view type_name(Scalar type) noexcept { return words_of(type).name; }
std::string_view short_name(Scalar type) noexcept { return words_of(type).short_name; }

std::string_view stored_type_name(Scalar type) noexcept {
  return type_name(type == Scalar::boolean ? Scalar::u8 : type);
}

std::string_view argument_type_name(Dialect dialect, Scalar type) noexcept {
  constexpr std::string_view names[] = {"uchar", "char", "uchar", "short", "ushort", "int",
                                        "uint",  "long", "ulong", "float", "double"};
  if (dialect != Dialect::opencl) return stored_type_name(type);
  return names[static_cast<std::size_t>(type)];
}

std::string_view space_word(Dialect dialect, Space space) noexcept {
  if (dialect != Dialect::opencl || space == Space::local) return "";
  return space == Space::global ? "__global " : "__local ";
}

std::string integer_literal(Dialect dialect, Scalar type, std::uint64_t bits) {
  if (type == Scalar::boolean) return bits != 0 ? "true" : "false";
  // LL is a type of 128 bits in OpenCL C, and L may have 32 bits elsewhere.
  const std::string_view wide = dialect == Dialect::opencl ? "L" : "LL";
  switch (type) {
    case Scalar::u32:
      return fmt::format("{}u", static_cast<std::uint32_t>(bits));
    case Scalar::u64:
      return fmt::format("{}u{}", bits, wide);
    case Scalar::i32: {
      const auto value = static_cast<std::int32_t>(bits);
      if (value >= 0) return fmt::format("{}", value);
      // The smallest number has no literal: C reads a minus as an operator.
      return fmt::format("({} - 1)", value + 1);
    }
    case Scalar::i64: {
      const auto value = static_cast<std::int64_t>(bits);
      if (value >= 0) return fmt::format("{}{}", value, wide);
      return fmt::format("({}{} - 1)", value + 1, wide);
    }
    case Scalar::i8:
      return fmt::format("((tern_i8){})", static_cast<std::int8_t>(bits));
    case Scalar::i16:
      return fmt::format("((tern_i16){})", static_cast<std::int16_t>(bits));
    default:
      break;
  }
  return fmt::format("(({}){})", type_name(type),
                     bits & ((std::uint64_t{1} << 8 * bytes_of(type)) - 1));
}

std::string real_literal(Scalar type, double value) {
  const bool is_single = type == Scalar::f32;
  const std::string_view suffix = is_single ? "f" : "";
  // Constants are computed by the compilers, which agree about these.
  if (std::isnan(value)) return fmt::format("(0.0{0} / 0.0{0})", suffix);
  if (is_single) value = static_cast<double>(static_cast<float>(value));
  if (std::isinf(value)) return fmt::format("({1}1.0{0} / 0.0{0})", suffix, value < 0 ? "-" : "");
  std::string digits = is_single ? fmt::format("{:#}{}", static_cast<float>(value), suffix)
                                 : fmt::format("{:#}", value);
  return std::signbit(value) ? fmt::format("({})", digits) : digits;
}

bool needs_helper(Dialect dialect, Function function) noexcept {
  return function == Function::abs || function == Function::min || function == Function::max ||
         (function == Function::rsqrt && dialect == Dialect::cpp);
}

std::string function_name(Dialect dialect, Function function, Scalar type) {
  const std::string_view name = language::text(function);
  const std::string_view suffix = type == Scalar::f32 ? "f" : "";
  switch (dialect) {
    case Dialect::opencl:
      return std::string(name);
    case Dialect::cuda:
      return fmt::format("{}{}", name, suffix);
    case Dialect::cpp:
      return fmt::format("__builtin_{}{}", name, suffix);
  }
  return {};
}

Helper function_helper(Dialect dialect, Function function, Scalar type) {
  const std::string_view t = type_name(type);
  const auto make = [&](std::string_view name, std::string_view parameters, std::string body) {
    Helper helper{fmt::format("tern_{}_{}", name, short_name(type)), {}};
    helper.text = fmt::format("{}{} {}({}) {{ return {}; }}\n", function_prefix(dialect), t,
                              helper.name, parameters, body);
    return helper;
  };
  const std::string one = fmt::format("{} a", t), two = fmt::format("{0} a, {0} b", t);
  switch (function) {
    // As std::min and std::max: if a value is not a number, the result is `a`.
    case Function::min:
      return make("min", two, "b < a ? b : a");
    case Function::max:
      return make("max", two, "a < b ? b : a");
    case Function::abs:
      if (is_real(type))
        return make("abs", one, function_name(dialect, Function::fabs, type) + "(a)");
      if (!is_signed(type)) return make("abs", one, "a");
      // Unsigned, because the negation of the smallest number is not defined.
      return make("abs", one,
                  fmt::format("a < 0 ? ({})(0u - ({})a) : a", t,
                              type_name(is_wide(type) ? Scalar::u64 : Scalar::u32)));
    case Function::rsqrt:
      return make("rsqrt", one,
                  fmt::format("{} / {}(a)", real_literal(type, 1),
                              function_name(dialect, Function::sqrt, type)));
    default:
      break;
  }
  return {};
}

Helper atomic_helper(Dialect dialect, Atomic atomic, Scalar type, Space space) {
  const std::string_view t = type_name(type);
  Helper helper;
  helper.name =
      fmt::format("tern_{}_{}_{}", language::text(atomic), short_name(type), space_name(space));
  const std::string head =
      fmt::format("{}{} {}({}{}{}* p, {}{} v) {{\n", function_prefix(dialect), t, helper.name,
                  dialect == Dialect::opencl ? "volatile " : "", space_word(dialect, space), t,
                  atomic == Atomic::compare_exchange ? fmt::format("{} e, ", t) : "", t);
  std::string body;
  switch (dialect) {
    case Dialect::opencl:
      body = is_real(type) ? opencl_float_add(space)
                           : fmt::format("  return {};\n", opencl_atomic(atomic, type));
      break;
    case Dialect::cuda:
      body = fmt::format("  return {};\n", cuda_atomic(atomic, type));
      break;
    case Dialect::cpp:
      body = cpp_atomic(atomic, type, space);
      break;
  }
  helper.text = fmt::format("{}{}}}\n", head, body);
  return helper;
}

Helper real_increment_helper(Dialect dialect, Operator op, Scalar type, Space space) {
  const bool is_add = op == Operator::add;
  Helper helper;
  helper.name = fmt::format("tern_{}_{}_{}", is_add ? "increment" : "decrement", short_name(type),
                            space_name(space));
  helper.text = fmt::format("{0}{1} {2}({3}{1}* p) {{ {1} o = *p; *p = o {4} {5}; return o; }}\n",
                            function_prefix(dialect), type_name(type), helper.name,
                            space_word(dialect, space), is_add ? '+' : '-', real_literal(type, 1));
  return helper;
}

std::string_view function_prefix(Dialect dialect) noexcept {
  switch (dialect) {
    case Dialect::opencl:
      return "static ";
    case Dialect::cuda:
      return "static __device__ __forceinline__ ";
    case Dialect::cpp:
      return "static inline __attribute__((always_inline)) ";
  }
  return "";
}

std::string prologue(Dialect dialect, bool uses_float64, bool uses_atomics64) {
  std::string text;
  if (dialect == Dialect::opencl) {
    // Each device shall compute the same bits, so none may fuse a multiplication and an addition.
    text += "#pragma OPENCL FP_CONTRACT OFF\n";
    if (uses_float64) text += "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n";
    if (uses_atomics64) {
      text +=
          "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n"
          "#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable\n";
    }
    text += "typedef char tern_i8;\ntypedef long tern_i64;\ntypedef unsigned long tern_u64;\n";
  } else {
    text +=
        "typedef signed char tern_i8;\ntypedef long long tern_i64;\n"
        "typedef unsigned long long tern_u64;\n";
  }
  text +=
      "typedef unsigned char tern_u8;\ntypedef short tern_i16;\ntypedef unsigned short tern_u16;\n"
      "typedef int tern_i32;\ntypedef unsigned int tern_u32;\n";
  return text;
}

}  // namespace tern::language
