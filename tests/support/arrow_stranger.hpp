// A foreign table in Arrow's C form, which counts its releases.

#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "tern/core/error.hpp"
#include "tern/detail/interop/arrow_abi.h"

namespace tern::test {

/// Ten rows. Column "n" has numbers, "s" strings, and "b" booleans, some of them null.
struct ArrowStranger {
  static constexpr std::int64_t rows = 10;

  ArrowStranger() {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int32_t>(i);
    for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int32_t>(i);
    constexpr const char* formats[] = {"i", "u", "b"};
    constexpr const char* names[] = {"n", "s", "b"};
    for (std::size_t i = 0; i < 3; ++i) {
      ArrowSchema& field = fields[i];
      field.format = formats[i];
      field.name = names[i];
      field.flags = ARROW_FLAG_NULLABLE;
      field.release = [](ArrowSchema* self) { self->release = nullptr; };
      field_pointers[i] = &field;
      ArrowArray& column = columns[i];
      column.length = rows;
      column.n_buffers = i == 1 ? 3 : 2;
      column.buffers = buffers[i].data();
      column.release = [](ArrowArray* self) { self->release = nullptr; };
      column_pointers[i] = &column;
    }
    buffers[0] = {nullptr, numbers.data(), nullptr};
    buffers[1] = {nullptr, offsets.data(), letters.data()};
    buffers[2] = {validity.data(), flags.data(), nullptr};
    columns[2].null_count = 2;

    schema.format = "+s";
    schema.name = "";
    schema.n_children = 3;
    schema.children = field_pointers.data();
    schema.private_data = this;
    schema.release = [](ArrowSchema* self) {
      ++static_cast<ArrowStranger*>(self->private_data)->schema_released;
      self->release = nullptr;
    };
    array.length = rows;
    array.n_buffers = 1;
    array.buffers = no_buffer.data();
    array.n_children = 3;
    array.children = column_pointers.data();
    array.private_data = this;
    array.release = [](ArrowArray* self) {
      ++static_cast<ArrowStranger*>(self->private_data)->array_released;
      self->release = nullptr;
    };
  }
  ArrowStranger(const ArrowStranger&) = delete;
  ArrowStranger& operator=(const ArrowStranger&) = delete;

  ArrowDeviceArray on_host() const {
    ArrowDeviceArray made = {};
    made.array = array;
    made.device_id = -1;
    made.device_type = ARROW_DEVICE_CPU;
    return made;
  }

  alignas(64) std::array<std::int32_t, 16> numbers = {};
  alignas(64) std::array<std::int32_t, 16> offsets = {};
  alignas(64) std::array<char, 16> letters = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h',
                                              'i', 'j', 'k', 'l', 'm', 'n', 'o', 'p'};
  std::array<std::uint8_t, 4> validity = {0b11110111, 0b01, 0, 0};
  std::array<std::uint8_t, 4> flags = {0b10101010, 0b10, 0, 0};
  std::array<std::array<const void*, 3>, 3> buffers = {};
  std::array<const void*, 1> no_buffer = {};
  std::array<ArrowSchema, 3> fields = {};
  std::array<ArrowArray, 3> columns = {};
  std::array<ArrowSchema*, 3> field_pointers = {};
  std::array<ArrowArray*, 3> column_pointers = {};
  ArrowSchema schema = {};
  ArrowArray array = {};
  std::atomic<int> array_released = 0, schema_released = 0;
};

/// Removes each required callback of a stream in turn, and expects that the import fails and
/// releases the stream if it can. Then calls also(source).
template <class Source, class Import, class Also>
void expect_callbacks_needed(Import import, Also also) {
  for (int which = 0; which < 3; ++which) {
    Source null(1);
    if (which == 0) null.stream.get_schema = nullptr;
    if (which == 1) null.stream.get_next = nullptr;
    if (which == 2) null.stream.release = nullptr;
    EXPECT_EQ(import(&null.stream).failure().code(), ErrorCode::arrow_rejected) << which;
    EXPECT_EQ(null.released, which == 2 ? 0 : 1) << which;
    also(null);
  }
}

}  // namespace tern::test
