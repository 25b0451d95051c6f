#include <string>
#include <string_view>
#include <utility>

#include "tern/table/schema.hpp"

namespace tern {

std::string_view name(TypeKind kind) noexcept {
  switch (kind) {
#define TERN_TYPE_KIND(enumerator, text) \
  case TypeKind::enumerator:             \
    return text;
    TERN_FOR_EACH_TYPE_KIND(TERN_TYPE_KIND)
#undef TERN_TYPE_KIND
  }
  return "unknown";
}

std::string_view name(TimeUnit unit) noexcept {
  constexpr std::string_view names[] = {"s", "ms", "us", "ns"};
  return names[static_cast<std::size_t>(unit)];
}

LogicalType LogicalType::time(TimeUnit unit) noexcept {
  LogicalType type(TypeKind::time);
  type.unit_ = unit;
  return type;
}

LogicalType LogicalType::timestamp(TimeUnit unit, std::string zone) noexcept {
  LogicalType type(TypeKind::timestamp);
  type.unit_ = unit;
  type.zone_ = std::move(zone);
  return type;
}

LogicalType LogicalType::duration(TimeUnit unit) noexcept {
  LogicalType type(TypeKind::duration);
  type.unit_ = unit;
  return type;
}

Result<LogicalType> LogicalType::try_of(DType dtype, CallSite site) noexcept {
  switch (dtype) {
    case DType::boolean:
      return LogicalType(TypeKind::boolean);
    case DType::i8:
      return LogicalType(TypeKind::i8);
    case DType::i16:
      return LogicalType(TypeKind::i16);
    case DType::i32:
      return LogicalType(TypeKind::i32);
    case DType::i64:
    case DType::index:
      return LogicalType(TypeKind::i64);
    case DType::u8:
    case DType::byte:
      return LogicalType(TypeKind::u8);
    case DType::u16:
      return LogicalType(TypeKind::u16);
    case DType::u32:
      return LogicalType(TypeKind::u32);
    case DType::u64:
      return LogicalType(TypeKind::u64);
    case DType::f16:
      return LogicalType(TypeKind::f16);
    case DType::f32:
      return LogicalType(TypeKind::f32);
    case DType::f64:
      return LogicalType(TypeKind::f64);
    default:
      return Failure(ErrorCode::type_mismatch,
                     "columns do not support elements of {actual}. Keep the elements in a Buffer.",
                     site)
          .with("actual", name(dtype));
  }
}

DType LogicalType::dtype() const noexcept {
  switch (kind_) {
    case TypeKind::i8:
      return DType::i8;
    case TypeKind::i16:
      return DType::i16;
    case TypeKind::i32:
    case TypeKind::date32:
      return DType::i32;
    case TypeKind::time:
      return unit_ <= TimeUnit::millisecond ? DType::i32 : DType::i64;
    case TypeKind::i64:
    case TypeKind::date64:
    case TypeKind::timestamp:
    case TypeKind::duration:
      return DType::i64;
    case TypeKind::u8:
      return DType::u8;
    case TypeKind::u16:
      return DType::u16;
    case TypeKind::u32:
      return DType::u32;
    case TypeKind::u64:
      return DType::u64;
    case TypeKind::f16:
      return DType::f16;
    case TypeKind::f32:
      return DType::f32;
    case TypeKind::f64:
      return DType::f64;
    case TypeKind::boolean:
    case TypeKind::utf8:
    case TypeKind::large_utf8:
    case TypeKind::binary:
    case TypeKind::large_binary:
      break;
  }
  return DType::byte;
}

DType LogicalType::offset_dtype() const noexcept {
  if (!is_variable()) return DType::void_;
  const bool is_large = kind_ == TypeKind::large_utf8 || kind_ == TypeKind::large_binary;
  return is_large ? DType::i64 : DType::i32;
}

std::size_t LogicalType::width_bits() const noexcept {
  if (is_bits()) return 1;
  return is_variable() ? 0 : 8 * size_bytes(dtype());
}

std::string LogicalType::text() const {
  std::string text(name(kind_));
  if (kind_ == TypeKind::time || kind_ == TypeKind::timestamp || kind_ == TypeKind::duration) {
    text += '[';
    text += name(unit_);
    if (!zone_.empty()) text += ", " + zone_;
    text += ']';
  }
  return text;
}

bool operator==(const LogicalType& a, const LogicalType& b) noexcept {
  return a.kind_ == b.kind_ && a.unit_ == b.unit_ && a.zone_ == b.zone_;
}

}  // namespace tern
