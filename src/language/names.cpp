#include "language/names.hpp"

#include <algorithm>
#include <array>
#include <iterator>

namespace tern::language {
namespace {

struct TypeRow {
  std::string_view name;
  std::size_t bytes;
  bool is_real, is_signed;
};

// In the order of the enumerators, like the other tables.
constexpr TypeRow types[] = {
    {"bool", 1, false, false},     {"int8_t", 1, false, true},    {"uint8_t", 1, false, false},
    {"int16_t", 2, false, true},   {"uint16_t", 2, false, false}, {"int", 4, false, true},
    {"unsigned", 4, false, false}, {"int64_t", 8, false, true},   {"uint64_t", 8, false, false},
    {"float", 4, true, false},     {"double", 8, true, false},
};

struct TypeAlias {
  std::string_view name;
  Scalar type;
};

constexpr TypeAlias type_aliases[] = {
    {"int32_t", Scalar::i32}, {"uint32_t", Scalar::u32}, {"size_t", Scalar::u64}};

constexpr std::string_view forms[] = {"element", "kernel", "block", "reduction"};
constexpr std::string_view intents[] = {"", "in", "out", "inout", "part"};
constexpr std::string_view functions[] = {"sqrt", "rsqrt", "fabs", "exp",  "exp2",  "log",  "log2",
                                          "sin",  "cos",   "tan",  "tanh", "floor", "ceil", "round",
                                          "pow",  "fmod",  "fma",  "abs",  "min",   "max"};
constexpr std::string_view atomics[] = {"atomic_add", "atomic_min", "atomic_max", "atomic_exchange",
                                        "atomic_compare_exchange"};
constexpr std::string_view coordinates[] = {"index", "thread", "block", "block_size", "grid_size"};
constexpr std::string_view operators[] = {
    "",  "+",  "-", "*",  "/",  "%",  "<<", ">>", "&", "|", "^",
    "<", "<=", ">", ">=", "==", "!=", "&&", "||", "-", "~", "!"};

/// Words with a meaning in every kernel that are in no table above.
constexpr std::string_view other_words[] = {"size", "shared", "threads"};

// Words separated by spaces. Words that begin with two underscores, or with an underscore and a
// capital letter, are refused by a rule and are not listed.
constexpr std::string_view keywords_of_cpp =
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t "
    "char32_t char8_t class co_await co_return co_yield compl concept const const_cast consteval "
    "constexpr constinit continue decltype default delete do double dynamic_cast else enum "
    "explicit export extern false float for friend goto if inline int intptr_t long mutable "
    "namespace new noexcept not not_eq nullptr nullptr_t operator or or_eq protected ptrdiff_t "
    "public register reinterpret_cast requires restrict return short signed sizeof static "
    "static_assert static_cast std struct switch template this thread_local throw true try "
    "typedef typeid typename typeof typeof_unqual uintptr_t union unsigned using virtual void "
    "volatile wchar_t while xor xor_eq";
constexpr std::string_view names_of_headers =
    "CHAR_BIT DBL_MAX DBL_MIN EOF FLT_EPSILON FLT_MAX FLT_MIN HUGE_VAL HUGE_VALF INFINITY INT_MAX "
    "INT_MIN LONG_MAX LONG_MIN MAXFLOAT M_E M_PI M_PI_F NAN NULL UINT_MAX ULONG_MAX assert errno "
    "linux main offsetof printf unix";
constexpr std::string_view words_of_opencl =
    "atomic_int atomic_uint complex constant event_t generic get_global_id get_group_id "
    "get_local_id global half imaginary kernel local pipe private quad queue_t read_only "
    "read_write sampler_t uchar uint ulong uniform ushort write_only";
constexpr std::string_view words_of_cuda =
    "blockDim blockIdx cudaError_t cudaStream_t dim3 gridDim threadIdx warpSize";

bool has_word(std::string_view list, std::string_view word) noexcept {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(' '), list.size());
    if (list.substr(0, end) == word) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

struct Equivalent {
  std::string_view foreign, own;
};

constexpr Equivalent equivalents[] = {
    {"char", "int8_t"},
    {"uchar", "uint8_t"},
    {"short", "int16_t"},
    {"ushort", "uint16_t"},
    {"uint", "unsigned"},
    {"long", "int64_t"},
    {"ulong", "size_t"},
    {"signed", "int"},
    {"half", "float"},
    {"ptrdiff_t", "int64_t"},
    {"intptr_t", "int64_t"},
    {"ssize_t", "int64_t"},
    {"uintptr_t", "size_t"},
    {"i8", "int8_t"},
    {"u8", "uint8_t"},
    {"i16", "int16_t"},
    {"u16", "uint16_t"},
    {"i32", "int32_t"},
    {"u32", "uint32_t"},
    {"i64", "int64_t"},
    {"u64", "uint64_t"},
    {"f32", "float"},
    {"f64", "double"},
    {"float32", "float"},
    {"float64", "double"},
    {"float32_t", "float"},
    {"float64_t", "double"},
    {"boolean", "bool"},
    {"_Bool", "bool"},
    {"threadIdx", "thread.x"},
    {"blockIdx", "block.x"},
    {"blockDim", "block_size.x"},
    {"gridDim", "grid_size.x"},
    {"get_global_id", "index.x"},
    {"get_local_id", "thread.x"},
    {"get_group_id", "block.x"},
    {"get_local_size", "block_size.x"},
    {"get_num_groups", "grid_size.x"},
    {"atomicAdd", "atomic_add"},
    {"atomicMin", "atomic_min"},
    {"atomicMax", "atomic_max"},
    {"atomicExch", "atomic_exchange"},
    {"atomicCAS", "atomic_compare_exchange"},
    {"atomic_cas", "atomic_compare_exchange"},
    {"atomic_cmpxchg", "atomic_compare_exchange"},
    {"atomic_xchg", "atomic_exchange"},
    {"fmin", "min"},
    {"fmax", "max"},
    {"fminf", "min"},
    {"fmaxf", "max"},
    {"sqrtf", "sqrt"},
    {"rsqrtf", "rsqrt"},
    {"fabsf", "fabs"},
    {"powf", "pow"},
    {"fmodf", "fmod"},
    {"fmaf", "fma"},
};

template <class Value, std::size_t count>
std::optional<Value> find_in(const std::string_view (&table)[count], std::string_view word) {
  if (word.empty()) return std::nullopt;
  const auto found = std::find(std::begin(table), std::end(table), word);
  if (found == std::end(table)) return std::nullopt;
  return static_cast<Value>(found - std::begin(table));
}

/// Returns whether the word is a vector type of OpenCL C or CUDA C++, such as float4, or an image.
bool is_vector_or_image_type(std::string_view word) noexcept {
  if (word.starts_with("image") && word.ends_with("_t")) return true;
  for (const std::string_view base :
       {"char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "longlong", "ulonglong",
        "half", "float", "double"}) {
    if (!word.starts_with(base)) continue;
    const std::string_view lanes = word.substr(base.size());
    if (lanes == "1" || lanes == "2" || lanes == "3" || lanes == "4" || lanes == "8" ||
        lanes == "16") {
      return true;
    }
  }
  return false;
}

/// Returns the Levenshtein distance, or 3 if the distance is larger than 2. Names that are too long
/// for the table count as different.
std::size_t distance(std::string_view left, std::string_view right) noexcept {
  constexpr std::size_t far = 3, max_length = 48;
  if (left.size() > max_length || right.size() > max_length) return far;
  std::array<std::size_t, max_length + 1> row = {};
  for (std::size_t column = 0; column <= right.size(); ++column) row[column] = column;
  for (std::size_t line = 1; line <= left.size(); ++line) {
    std::size_t diagonal = row[0];
    row[0] = line;
    for (std::size_t column = 1; column <= right.size(); ++column) {
      const std::size_t replaced = diagonal + (left[line - 1] == right[column - 1] ? 0 : 1);
      diagonal = row[column];
      row[column] = std::min({replaced, row[column] + 1, row[column - 1] + 1});
    }
  }
  return std::min(row[right.size()], far);
}

}  // namespace

std::string_view type_text(Scalar type) noexcept {
  return types[static_cast<std::size_t>(type)].name;
}

std::size_t bytes_of(Scalar type) noexcept { return types[static_cast<std::size_t>(type)].bytes; }

bool is_real(Scalar type) noexcept { return types[static_cast<std::size_t>(type)].is_real; }

bool is_integer(Scalar type) noexcept { return !is_real(type); }

bool is_signed(Scalar type) noexcept { return types[static_cast<std::size_t>(type)].is_signed; }

std::optional<Scalar> find_type(std::string_view name) noexcept {
  for (std::size_t i = 0; i < std::size(types); ++i) {
    if (types[i].name == name) return static_cast<Scalar>(i);
  }
  for (const TypeAlias& alias : type_aliases) {
    if (alias.name == name) return alias.type;
  }
  return std::nullopt;
}

Scalar promoted(Scalar type) noexcept {
  return is_integer(type) && bytes_of(type) < 4 ? Scalar::i32 : type;
}

Scalar common_type(Scalar left, Scalar right) noexcept {
  if (left == Scalar::f64 || right == Scalar::f64) return Scalar::f64;
  if (left == Scalar::f32 || right == Scalar::f32) return Scalar::f32;
  left = promoted(left);
  right = promoted(right);
  if (bytes_of(left) != bytes_of(right)) return bytes_of(left) > bytes_of(right) ? left : right;
  return is_signed(left) ? right : left;  // of one size, the type without a sign
}

std::string_view text(Form form) noexcept { return forms[static_cast<std::size_t>(form)]; }
std::string_view text(Intent intent) noexcept { return intents[static_cast<std::size_t>(intent)]; }
std::string_view text(Function function) noexcept {
  return functions[static_cast<std::size_t>(function)];
}
std::string_view text(Atomic atomic) noexcept { return atomics[static_cast<std::size_t>(atomic)]; }
std::string_view text(Coordinate coordinate) noexcept {
  return coordinates[static_cast<std::size_t>(coordinate)];
}
std::string_view text(Operator op) noexcept { return operators[static_cast<std::size_t>(op)]; }

std::optional<Form> find_form(std::string_view word) noexcept { return find_in<Form>(forms, word); }
std::optional<Intent> find_intent(std::string_view word) noexcept {
  return find_in<Intent>(intents, word);
}
std::optional<Function> find_function(std::string_view word) noexcept {
  return find_in<Function>(functions, word);
}
std::optional<Atomic> find_atomic(std::string_view word) noexcept {
  return find_in<Atomic>(atomics, word);
}
std::optional<Coordinate> find_coordinate(std::string_view word) noexcept {
  return find_in<Coordinate>(coordinates, word);
}

std::size_t argument_count(Function function) noexcept {
  switch (function) {
    case Function::fma:
      return 3;
    case Function::pow:
    case Function::fmod:
    case Function::min:
    case Function::max:
      return 2;
    default:
      return 1;
  }
}

std::size_t argument_count(Atomic atomic) noexcept {
  return atomic == Atomic::compare_exchange ? 4 : 3;
}

bool takes_integers(Function function) noexcept {
  return function == Function::abs || function == Function::min || function == Function::max;
}

bool is_foreign_keyword(std::string_view word) noexcept {
  return has_word(keywords_of_cpp, word) || has_word(names_of_headers, word) ||
         has_word(words_of_opencl, word) || has_word(words_of_cuda, word) ||
         is_vector_or_image_type(word);
}

bool is_own_word(std::string_view word) noexcept {
  return find_type(word) || find_intent(word) || find_function(word) || find_atomic(word) ||
         find_coordinate(word) ||
         std::find(std::begin(other_words), std::end(other_words), word) != std::end(other_words);
}

std::string_view equivalent_of(std::string_view foreign_word) noexcept {
  for (const Equivalent& row : equivalents) {
    if (row.foreign == foreign_word) return row.own;
  }
  // sinf() and the like.
  if (foreign_word.ends_with('f')) {
    if (const std::optional<Function> found =
            find_function(foreign_word.substr(0, foreign_word.size() - 1))) {
      return text(*found);
    }
  }
  return {};
}

void NearestName::consider(std::string_view candidate) noexcept {
  // Short names differ from everything by two characters.
  const std::size_t allowed = word_.size() < 3 ? 0 : word_.size() < 5 ? 1 : 2;
  const std::size_t longer = std::max(word_.size(), candidate.size());
  if (longer - std::min(word_.size(), candidate.size()) > allowed) return;
  const std::size_t found = distance(word_, candidate);
  if (found > allowed || found >= best_distance_) return;
  best_ = candidate;
  best_distance_ = found;
}

void NearestName::consider_types() noexcept {
  for (const TypeRow& row : types) consider(row.name);
  for (const TypeAlias& alias : type_aliases) consider(alias.name);
}

void NearestName::consider_own_words() noexcept {
  consider_types();
  for (const std::string_view word : functions) consider(word);
  for (const std::string_view word : atomics) consider(word);
  for (const std::string_view word : coordinates) consider(word);
  for (const std::string_view word : other_words) consider(word);
}

}  // namespace tern::language
