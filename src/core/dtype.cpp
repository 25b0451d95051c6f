#include "tern/core/dtype.hpp"

#include <array>

namespace tern {
namespace {

struct Alias {
  std::string_view name;
  DType dtype;
};

/// NumPy's names that differ from Tern's.
constexpr std::array<Alias, 16> numpy_names = {{
    {"int8", DType::i8},
    {"int16", DType::i16},
    {"int32", DType::i32},
    {"int64", DType::i64},
    {"uint8", DType::u8},
    {"uint16", DType::u16},
    {"uint32", DType::u32},
    {"uint64", DType::u64},
    {"float8_e4m3fn", DType::f8_e4m3fn},
    {"float8_e5m2", DType::f8_e5m2},
    {"float16", DType::f16},
    {"bfloat16", DType::bf16},
    {"float32", DType::f32},
    {"float64", DType::f64},
    {"half", DType::f16},
    {"double", DType::f64},
}};

}  // namespace

Result<DType> try_parse_dtype(std::string_view text) noexcept {
#define TERN_DTYPE(enumerator, own_name, bytes) \
  if (text == own_name) return DType::enumerator;
  TERN_FOR_EACH_DTYPE(TERN_DTYPE)
#undef TERN_DTYPE
  for (const Alias& alias : numpy_names) {
    if (text == alias.name) return alias.dtype;
  }
  return Failure(ErrorCode::invalid_argument,
                 "'{value}' is not a dtype. Use a name such as f32, i64, bf16, bool or float32.")
      .with("name", "dtype")
      .with("value", text);
}

}  // namespace tern
