// The fuzz target for DLPack: builds a tensor from the input bytes, imports it, and uses the parts
// that are in allocated memory.

#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "support/fuzz_bytes.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/interop/dlpack.hpp"

namespace tern::test {

struct FuzzedTensor {
  std::vector<std::int64_t> shape, strides;
  int deleted = 0;
};

/// Returns whether elements overlap or a stride is not positive. For tensors with few elements.
inline bool is_for_reading(const StridedBuffer& tensor) {
  const std::span<const std::size_t> extents = tensor.shape().extents();
  for (std::size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] > 1 && tensor.strides()[i] <= 0) return true;
  }
  std::set<std::int64_t> seen;
  for (std::size_t n = 0; n < tensor.element_count(); ++n) {
    std::int64_t at = 0;
    std::size_t rest = n;
    for (std::size_t i = extents.size(); i-- > 0; rest /= extents[i]) {
      at += static_cast<std::int64_t>(rest % extents[i]) * tensor.strides()[i];
    }
    if (!seen.insert(at).second) return true;
  }
  return false;
}

/// Imports a tensor that Tern exported and whose numbers the input has changed.
inline void fuzz_returned_dlpack(const Device& host, FuzzBytes& from) {
  static const Buffer own = [&] {
    Buffer made(host, Shape{8, 8}, DType::f32);
    const std::vector<float> ones(64, 1.0f);
    made.copy_from(std::span<const float>(ones));
    return made;
  }();
  const bool is_read_only = from.chance(2);
  abi::DLManagedTensorVersioned* const given =
      try_export_dlpack(own, {.is_read_only = is_read_only}).value();
  abi::DLTensor& tensor = given->dl_tensor;
  for (std::size_t i = 0; i < 2; ++i) {
    if (from.chance(2)) tensor.shape[i] = from.number(9);
    if (from.chance(2)) {
      tensor.strides[i] = from.chance(3) ? -(from.take<std::int8_t>() % 9) : from.number(9);
    }
  }
  if (from.chance(3)) tensor.byte_offset = static_cast<std::uint64_t>(from.number(300));
  if (from.chance(9)) tensor.ndim = static_cast<std::int32_t>(from.take<std::uint8_t>() % 3);
  if (from.chance(9)) tensor.dtype = {2, 64, 1};
  if (from.chance(20)) tensor.data = nullptr;
  {
    const Result<StridedBuffer> back = try_import_dlpack(host, given);
    if (!back) {
      require_in_fuzz(back.failure().code() == ErrorCode::dlpack_rejected);
      require_in_fuzz(back.failure().string("field").has_value());
    } else if (back->element_count() != 0) {
      const Buffer& hull = back->hull();
      require_in_fuzz(hull.address() >= own.address());
      require_in_fuzz(
          is_within(hull.address() - own.address(), hull.size_bytes(), own.size_bytes()));
      if (is_read_only || is_for_reading(*back)) require_in_fuzz(hull.storage()->is_read_only());
    }
  }
  static_cast<void>(reclaim_deferred());
  require_in_fuzz(exported_memory().count == 0);
}

inline void fuzz_dlpack(std::span<const std::byte> bytes) {
  static const Device host = open_device("host");
  static std::vector<std::byte> arena(std::size_t{1} << 20);
  FuzzBytes from(bytes);
  if (from.take<std::uint8_t>() % 4 == 1) return fuzz_returned_dlpack(host, from);
  FuzzedTensor made;
  abi::DLTensor tensor = {};
  const std::uint8_t rank = from.take<std::uint8_t>();
  // Enough memory for all numbers that the importer may read.
  made.shape.resize(Shape::max_rank);
  made.strides.resize(Shape::max_rank);
  tensor.ndim = rank < 240 ? rank % 5 : from.take<std::int32_t>();
  for (std::int32_t i = 0; i < 5; ++i) {
    made.shape[static_cast<std::size_t>(i)] = from.number(20);
    made.strides[static_cast<std::size_t>(i)] =
        from.chance(3) ? -(from.take<std::int8_t>() % 9) : from.number(40);
  }
  tensor.shape = from.chance(30) ? nullptr : made.shape.data();
  tensor.strides = from.chance(4) ? nullptr : made.strides.data();
  tensor.data = from.chance(20) ? nullptr : arena.data() + arena.size() / 2;
  tensor.byte_offset = static_cast<std::uint64_t>(from.number(64));
  const std::uint8_t type = from.take<std::uint8_t>();
  constexpr std::array<abi::DLDataType, 6> known = {
      {{0, 32, 1}, {1, 8, 1}, {2, 64, 1}, {5, 128, 1}, {6, 8, 1}, {4, 16, 1}}};
  tensor.dtype = type < 200 ? known[type % known.size()] : from.take<abi::DLDataType>();
  tensor.device = {from.chance(20) ? from.take<std::int32_t>() : abi::kDLCPU,
                   from.chance(20) ? from.take<std::int32_t>() : 0};

  abi::DLManagedTensorVersioned versioned = {};
  versioned.version = {from.chance(20) ? from.take<std::uint32_t>() : 1, from.take<std::uint8_t>()};
  versioned.flags = from.take<std::uint64_t>();
  versioned.manager_ctx = &made;
  versioned.deleter = [](abi::DLManagedTensorVersioned* self) {
    ++static_cast<FuzzedTensor*>(self->manager_ctx)->deleted;
  };
  versioned.dl_tensor = tensor;
  abi::DLManagedTensor legacy = {};
  legacy.dl_tensor = tensor;
  legacy.manager_ctx = &made;
  legacy.deleter = [](abi::DLManagedTensor* self) {
    ++static_cast<FuzzedTensor*>(self->manager_ctx)->deleted;
  };
  if (from.take<std::uint8_t>() % 4 == 1) {
    {
      const Result<Column> column = from.chance(3) ? try_import_dlpack_column(host, &legacy)
                                                   : try_import_dlpack_column(host, &versioned);
      if (column) {
        require_in_fuzz(column->capacity() == column->values().size());
      } else {
        require_in_fuzz(column.failure().text().size() > 20);
      }
    }
    static_cast<void>(reclaim_deferred());
    require_in_fuzz(made.deleted == 1);
    return;
  }
  {
    const bool is_legacy = from.chance(3);
    const Result<StridedBuffer> taken =
        is_legacy ? try_import_dlpack(host, &legacy) : try_import_dlpack(host, &versioned);
    if (!taken) {
      require_in_fuzz(taken.failure().text().size() > 20);
    } else if (taken->element_count() != 0) {
      const std::uintptr_t first = taken->hull().address();
      const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(arena.data());
      const bool is_inside =
          first >= begin && is_within(first - begin, taken->hull().size_bytes(), arena.size());
      const bool is_read_only = taken->hull().storage()->is_read_only();
      const bool is_said = (versioned.flags & abi::DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
      require_in_fuzz(is_read_only || !(is_legacy || is_said));
      if (taken->element_count() <= 4096) require_in_fuzz(is_read_only || !is_for_reading(*taken));
      if (is_inside && taken->element_count() <= 4096) {
        static const Stream stream(host);
        const Result<Buffer> dense = taken->try_contiguous(stream);
        if (dense) require_in_fuzz(dense->size() == taken->element_count());
        stream.synchronize();
        const Result<abi::DLManagedTensorVersioned*> again =
            try_export_dlpack(*taken, {.is_read_only = true});
        if (again) (*again)->deleter(*again);
      }
    }
  }
  static_cast<void>(reclaim_deferred());
  require_in_fuzz(made.deleted == 1);
}

}  // namespace tern::test
