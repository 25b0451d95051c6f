#include "tern/interop/dlpack.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "support/ladder.hpp"
#include "support/on_device.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/launch/launch_recorder.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

using abi::DLManagedTensor;
using abi::DLManagedTensorVersioned;

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max(),
                       least = std::numeric_limits<std::int64_t>::min();

/// A tensor of somebody else's, who counts how often he is let go.
struct Stranger {
  explicit Stranger(std::vector<std::int64_t> extents = {2, 3},
                    std::vector<std::int64_t> apart = {3, 1})
      : shape(std::move(extents)), strides(std::move(apart)) {
    std::iota(values.begin(), values.end(), 0.0f);
    managed.version = {1, 3};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensorVersioned* self) {
      ++static_cast<Stranger*>(self->manager_ctx)->deleted;
    };
    managed.dl_tensor = {values.data(),
                         {abi::kDLCPU, 0},
                         static_cast<std::int32_t>(shape.size()),
                         {abi::kDLFloat, 32, 1},
                         shape.data(),
                         strides.data(),
                         0};
    legacy.dl_tensor = managed.dl_tensor;
    legacy.manager_ctx = this;
    legacy.deleter = [](DLManagedTensor* self) {
      ++static_cast<Stranger*>(self->manager_ctx)->deleted;
    };
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  std::array<float, 64> values = {};
  std::vector<std::int64_t> shape, strides;
  std::atomic<int> deleted = 0;
  DLManagedTensorVersioned managed = {};
  DLManagedTensor legacy = {};
};

class DlpackHost : public testing::Test {
 protected:
  Device host = open_device("host");
};

// --- What others give

TEST_F(DlpackHost, ImportsATensorWithoutACopy) {
  Stranger stranger;
  {
    const StridedBuffer taken = import_dlpack(host, &stranger.managed);
    EXPECT_EQ(taken.shape(), (Shape{2, 3}));
    EXPECT_EQ(taken.dtype(), DType::f32);
    EXPECT_TRUE(taken.hull().is_external());
    EXPECT_EQ(taken.buffer().address(), reinterpret_cast<std::uintptr_t>(stranger.values.data()));
    EXPECT_EQ(taken.buffer().to_vector<float>(), (std::vector<float>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(stranger.deleted, 0);
  }
  EXPECT_EQ(stranger.deleted, 1);
}

TEST_F(DlpackHost, TakesTheOlderFormToReadUnlessToldOtherwise) {
  Stranger one, two;
  Buffer read = import_dlpack(host, &one.legacy).buffer();
  EXPECT_THROW(static_cast<void>(read.rw_host<float>()), ReadOnly);
  Buffer write = import_dlpack(host, &two.legacy, {.legacy_is_writable = true}).buffer();
  write.rw_host<float>()[0] = 7;
  EXPECT_EQ(two.values[0], 7.0f);
  read = write = {};
  EXPECT_EQ(one.deleted, 1);
  EXPECT_EQ(two.deleted, 1);
}

TEST_F(DlpackHost, HonoursReadOnlyAndIgnoresFlagsItDoesNotKnow) {
  Stranger stranger;
  stranger.managed.flags = ~std::uint64_t{0};
  Buffer taken = import_dlpack(host, &stranger.managed).buffer();
  EXPECT_THROW(static_cast<void>(taken.discard_host<float>()), ReadOnly);
  EXPECT_EQ(taken.read_host<float>()[5], 5.0f);
}

TEST_F(DlpackHost, AcceptsWhatTheStandardAllows) {
  const Stream stream(host);
  const auto elements = [&](Stranger& stranger) {
    return import_dlpack(host, &stranger.managed).contiguous(stream).to_vector<float>();
  };
  Stranger dense({2, 3}, {});
  dense.managed.dl_tensor.strides = nullptr;
  EXPECT_EQ(elements(dense), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  Stranger offset({2, 2}, {8, 2});
  offset.managed.dl_tensor.byte_offset = 12;
  EXPECT_EQ(elements(offset), (std::vector<float>{3, 5, 11, 13}));
  Stranger turned({3}, {-2});
  turned.managed.dl_tensor.data = &turned.values[9];
  EXPECT_EQ(elements(turned), (std::vector<float>{9, 7, 5}));
  Stranger repeated({2, 2}, {0, 1});
  EXPECT_EQ(elements(repeated), (std::vector<float>{0, 1, 0, 1}));
  Stranger scalar({}, {});
  EXPECT_EQ(elements(scalar), (std::vector<float>{0}));
  Stranger minor;
  minor.managed.version = {1, 99};
  EXPECT_EQ(elements(minor).size(), 6u);
  Stranger alone;
  alone.managed.deleter = nullptr;
  EXPECT_EQ(elements(alone).size(), 6u);
  Stranger single({1, 2}, {least, 1});
  EXPECT_EQ(elements(single), (std::vector<float>{0, 1}));
  for (void* const data : {static_cast<void*>(nullptr), static_cast<void*>(&alone)}) {
    Stranger empty({3, 0, 2}, {most, 5, least});
    empty.managed.dl_tensor.data = data;
    empty.managed.dl_tensor.byte_offset = ~std::uint64_t{0};
    const StridedBuffer none = import_dlpack(host, &empty.managed);
    EXPECT_EQ(none.shape(), (Shape{3, 0, 2}));
    EXPECT_EQ(none.element_count(), 0u);
  }
}

TEST_F(DlpackHost, SharedElementsCannotBeWritten) {
  Stranger repeated({4, 2}, {0, 1});
  const StridedBuffer taken = import_dlpack(host, &repeated.managed);
  EXPECT_TRUE(taken.hull().storage()->is_read_only());
  Stranger none({3, 0, 2}, {0, 0, 0});
  const StridedBuffer nothing = import_dlpack(host, &none.managed);
  EXPECT_FALSE(nothing.hull().storage()->is_read_only()) << "no two elements share anything";
}

TEST_F(DlpackHost, ADeleterThatThrowsCountsAsCalled) {
  const auto make_throw = [](Stranger& stranger) {
    stranger.managed.deleter = [](DLManagedTensorVersioned* self) {
      ++static_cast<Stranger*>(self->manager_ctx)->deleted;
      throw 1;
    };
  };
  Stranger taken;
  make_throw(taken);
  EXPECT_EQ(import_dlpack(host, &taken.managed).element_count(), 6u);
  EXPECT_EQ(taken.deleted, 1);
  Stranger refused;
  make_throw(refused);
  refused.managed.dl_tensor.ndim = -1;
  EXPECT_FALSE(try_import_dlpack(host, &refused.managed));
  EXPECT_EQ(refused.deleted, 1);
  Stranger of_another_version;
  make_throw(of_another_version);
  of_another_version.managed.version.major = 2;
  EXPECT_FALSE(try_import_dlpack(host, &of_another_version.managed));
  EXPECT_EQ(of_another_version.deleted, 1);
}

TEST_F(DlpackHost, MisalignedElementsComeAsBytesAndNoFurther) {
  for (const std::size_t shift : {1u, 2u, 3u}) {
    Stranger stranger({3}, {1});
    stranger.managed.dl_tensor.byte_offset = shift;
    {
      const StridedBuffer taken = import_dlpack(host, &stranger.managed);
      EXPECT_EQ(taken.hull().size_bytes(), 12u);
      EXPECT_EQ(taken.try_buffer().failure().code(), ErrorCode::misaligned);
    }
    EXPECT_EQ(stranger.deleted, 1);
  }
}

TEST_F(DlpackHost, EverySupportedTypeRoundTrips) {
  std::size_t known = 0;
  for (unsigned code = 0; code < 256; ++code) {
    for (const unsigned bits : {0u, 1u, 4u, 7u, 8u, 16u, 24u, 32u, 64u, 128u, 255u}) {
      const abi::DLDataType type = {static_cast<std::uint8_t>(code),
                                    static_cast<std::uint8_t>(bits), 1};
      const Result<DType> dtype = try_dtype_of(type);
      if (!dtype) {
        EXPECT_EQ(dtype.failure().code(), ErrorCode::dlpack_rejected);
        continue;
      }
      ++known;
      EXPECT_EQ(size_bytes(*dtype) * 8, bits);
      const abi::DLDataType back = try_dlpack_type(*dtype).value();
      EXPECT_EQ(back.code, code);
      EXPECT_EQ(back.bits, bits);
    }
  }
  EXPECT_EQ(known, 17u);
  EXPECT_EQ(try_dlpack_type(DType::void_).failure().code(), ErrorCode::dlpack_rejected);
}

// --- What nobody should give

struct Hostile {
  std::string what;
  std::function<void(Stranger&)> spoil;
  ErrorCode code = ErrorCode::dlpack_rejected;
};

std::vector<Hostile> hostile_tensors() {
  std::vector<Hostile> all;
  const auto add = [&](std::string what, std::function<void(Stranger&)> spoil,
                       ErrorCode code = ErrorCode::dlpack_rejected) {
    all.push_back({std::move(what), std::move(spoil), code});
  };
  for (const std::int32_t ndim : {-1, -2, 65, 128, 1000, std::numeric_limits<std::int32_t>::max(),
                                  std::numeric_limits<std::int32_t>::min()}) {
    add("ndim " + std::to_string(ndim), [=](Stranger& s) { s.managed.dl_tensor.ndim = ndim; });
  }
  add("shape null", [](Stranger& s) { s.managed.dl_tensor.shape = nullptr; });
  for (const std::size_t axis : {0u, 1u}) {
    for (const std::int64_t extent : {std::int64_t{-1}, std::int64_t{-3}, least, least + 1}) {
      add("extent " + std::to_string(extent), [=](Stranger& s) { s.shape[axis] = extent; });
    }
    for (const std::int64_t extent : {most, most / 2, most / 4 + 1, std::int64_t{1} << 62}) {
      add("bytes overflow " + std::to_string(extent), [=](Stranger& s) {
        s.shape[axis] = extent;
        s.managed.dl_tensor.strides = nullptr;
      });
      add("strides overflow " + std::to_string(extent),
          [=](Stranger& s) { s.strides[axis] = extent; });
      add("strides overflow -" + std::to_string(extent),
          [=](Stranger& s) { s.strides[axis] = -extent; });
    }
    add("least stride", [=](Stranger& s) { s.strides[axis] = least; });
    add("before all addresses", [=](Stranger& s) { s.strides[axis] = -(most / 16); });
  }
  for (const std::uint64_t offset :
       {~std::uint64_t{0}, ~std::uint64_t{0} - 4, ~std::uint64_t{0} - (std::uint64_t{1} << 46)}) {
    add("byte_offset " + std::to_string(offset),
        [=](Stranger& s) { s.managed.dl_tensor.byte_offset = offset; });
  }
  add("data null", [](Stranger& s) { s.managed.dl_tensor.data = nullptr; });
  add("data null with an offset", [](Stranger& s) {
    s.managed.dl_tensor.data = nullptr;
    s.managed.dl_tensor.byte_offset = 64;
  });
  add("data at the end", [](Stranger& s) {
    s.managed.dl_tensor.data = reinterpret_cast<void*>(~std::uintptr_t{0} - 3);
  });
  for (const unsigned lanes : {0u, 2u, 3u, 4u, 8u, 16u, 255u, 256u, 65535u}) {
    add("lanes " + std::to_string(lanes),
        [=](Stranger& s) { s.managed.dl_tensor.dtype.lanes = static_cast<std::uint16_t>(lanes); });
  }
  for (unsigned code = 0; code < 256; ++code) {
    const bool is_known = code <= 2 || (code >= 4 && code <= 6) || code == 10 || code == 12;
    const std::vector<unsigned> widths =
        is_known ? std::vector<unsigned>{0, 1, 4, 7, 9, 24, 48, 255} : std::vector<unsigned>{8};
    for (const unsigned bits : widths) {
      add("dtype " + std::to_string(code) + ":" + std::to_string(bits), [=](Stranger& s) {
        s.managed.dl_tensor.dtype.code = static_cast<std::uint8_t>(code);
        s.managed.dl_tensor.dtype.bits = static_cast<std::uint8_t>(bits);
      });
    }
  }
  for (const unsigned bits : {16u, 32u, 64u}) {
    add("wide bool", [=](Stranger& s) {
      s.managed.dl_tensor.dtype = {abi::kDLBool, static_cast<std::uint8_t>(bits), 1};
    });
  }
  add("complex of 32 bits", [](Stranger& s) {
    s.managed.dl_tensor.dtype = {abi::kDLComplex, 32, 1};
  });
  for (const std::int32_t type : {0,
                                  -1,
                                  4,
                                  5,
                                  6,
                                  7,
                                  8,
                                  9,
                                  10,
                                  11,
                                  14,
                                  15,
                                  16,
                                  17,
                                  18,
                                  19,
                                  99,
                                  1000,
                                  std::numeric_limits<std::int32_t>::max(),
                                  std::numeric_limits<std::int32_t>::min()}) {
    add("device type " + std::to_string(type),
        [=](Stranger& s) { s.managed.dl_tensor.device.device_type = type; });
  }
  for (const std::int32_t id : {-1, 1, 2, 1 << 30}) {
    add("host " + std::to_string(id),
        [=](Stranger& s) { s.managed.dl_tensor.device.device_id = id; });
  }
  for (const std::int32_t type : {2, 3, 12, 13}) {
    add(
        "another device " + std::to_string(type),
        [=](Stranger& s) { s.managed.dl_tensor.device.device_type = type; },
        ErrorCode::device_mismatch);
  }
  for (const std::int32_t type : {2, 12}) {
    add("a negative device " + std::to_string(type), [=](Stranger& s) {
      s.managed.dl_tensor.device = {type, -1};
    });
  }
  for (const std::uint32_t major : {0u, 2u, 3u, 100u, ~0u}) {
    add("version " + std::to_string(major), [=](Stranger& s) { s.managed.version.major = major; });
  }
  return all;
}

TEST_F(DlpackHost, RejectsEveryHostileTensorByFieldAndDeletesItOnce) {
  std::size_t refused = 0;
  for (const Hostile& hostile : hostile_tensors()) {
    Stranger stranger;
    hostile.spoil(stranger);
    const MemoryCount before = exported_memory();
    const Result<StridedBuffer> taken = try_import_dlpack(host, &stranger.managed);
    ASSERT_FALSE(taken) << hostile.what;
    EXPECT_EQ(taken.failure().code(), hostile.code)
        << hostile.what << ": " << taken.failure().text();
    EXPECT_EQ(stranger.deleted, 1) << hostile.what;
    EXPECT_EQ(exported_memory().count, before.count);
    if (hostile.code == ErrorCode::dlpack_rejected) {
      EXPECT_TRUE(taken.failure().string("field")) << hostile.what;
    }
    ++refused;
  }
  // The older form knows no version, and everything else.
  for (const Hostile& hostile : hostile_tensors()) {
    Stranger stranger;
    hostile.spoil(stranger);
    if (stranger.managed.version.major != 1) continue;
    stranger.legacy.dl_tensor = stranger.managed.dl_tensor;
    const Result<StridedBuffer> taken = try_import_dlpack(host, &stranger.legacy);
    ASSERT_FALSE(taken) << hostile.what;
    EXPECT_EQ(stranger.deleted, 1) << hostile.what;
    ++refused;
  }
  RecordProperty("refused", static_cast<int>(refused));
  std::printf("%zu hostile tensors refused\n", refused);
  EXPECT_GE(refused, 500u);
  EXPECT_EQ(try_import_dlpack(host, static_cast<DLManagedTensor*>(nullptr)).failure().code(),
            ErrorCode::invalid_argument);
}

TEST_F(DlpackHost, ReadsNothingBehindTheFlagsOfAnotherVersion) {
  // Only the part that is the same in every version exists.
  struct Short {
    abi::DLPackVersion version;
    void* manager_ctx;
    void (*deleter)(DLManagedTensorVersioned*);
    std::uint64_t flags;
  };
  static int deleted = 0;
  deleted = 0;
  const auto other = std::make_unique<Short>(
      Short{{2, 0}, nullptr, [](DLManagedTensorVersioned*) { ++deleted; }, 0});
  const Result<StridedBuffer> taken =
      try_import_dlpack(host, reinterpret_cast<DLManagedTensorVersioned*>(other.get()));
  EXPECT_EQ(taken.failure().number("value"), 2u);
  EXPECT_EQ(deleted, 1);
}

TEST_F(DlpackHost, ShapesThatChangeLaterMakeNoDifference) {
  Stranger stranger;
  const StridedBuffer taken = import_dlpack(host, &stranger.managed);
  stranger.shape = {most, most};
  stranger.strides = {0, 0};
  stranger.managed.dl_tensor = {};
  EXPECT_EQ(taken.buffer().to_vector<float>().size(), 6u);
}

TEST_F(DlpackHost, ADeleterMayUseTern) {
  static Device* device = nullptr;
  static bool has_worked = false;
  device = &host;
  has_worked = false;
  Stranger stranger;
  stranger.managed.deleter = [](DLManagedTensorVersioned*) {
    has_worked = Array<float>::zeros(*device, 10).to_vector() == std::vector<float>(10);
  };
  static_cast<void>(import_dlpack(host, &stranger.managed));
  EXPECT_TRUE(has_worked);
}

// --- What we give

class DlpackDevices : public test::OnDevice {
 protected:
  void TearDown() override {
    EXPECT_EQ(exported_memory().count, 0u);
    if (!device.is_open()) return;
    EXPECT_EQ(reclaim_exported().count, 0u);
  }
  Buffer count_up(Shape shape) {
    std::vector<float> values(shape.element_count());
    std::iota(values.begin(), values.end(), 0.0f);
    Buffer buffer(device, std::move(shape), DType::f32);
    buffer.copy_from(std::span<const float>(values));
    return buffer;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, DlpackDevices,
                         testing::Values("host", "sim", "sim?schedule=lazy", "cuda?driver=sim",
                                         "cuda:0"),
                         test::spec_name);

TEST_P(DlpackDevices, ExportsTheSameMemoryAndKeepsItUntilTheDeleter) {
  Buffer buffer = count_up({2, 3});
  const std::uintptr_t address = buffer.address();
  const StorageId id = buffer.id();
  DLManagedTensorVersioned* const given = try_export_dlpack(buffer).value();
  EXPECT_EQ(given->version.major, 1u);
  EXPECT_EQ(given->version.minor, 3u);
  EXPECT_EQ(given->flags, 0u);
  const abi::DLTensor& tensor = given->dl_tensor;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data), address);
  EXPECT_EQ(tensor.byte_offset, 0u);
  EXPECT_EQ(tensor.ndim, 2);
  EXPECT_EQ(tensor.shape[0], 2);
  EXPECT_EQ(tensor.shape[1], 3);
  EXPECT_EQ(tensor.strides[0], 3);
  EXPECT_EQ(tensor.strides[1], 1);
  const std::string backend = device.info().backend;
  EXPECT_EQ(tensor.device.device_type, backend == "host"  ? abi::kDLCPU
                                       : backend == "sim" ? abi::kDLExtDev
                                                          : abi::kDLCUDA);
  EXPECT_EQ(tensor.device.device_id, 0);
  buffer = {};
  EXPECT_EQ(exported_memory().count, 1u);
  EXPECT_EQ(exported_memory().bytes, 24u);
  // It comes back as what it was.
  const StridedBuffer back = import_dlpack(device, given);
  EXPECT_EQ(back.buffer().id(), id);
  EXPECT_FALSE(back.hull().is_external());
  EXPECT_EQ(back.buffer().to_vector<float>(), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(exported_memory().count, 0u);
}

TEST_P(DlpackDevices, TheOlderFormIsTheSameTensor) {
  const Buffer buffer = count_up({4});
  DLManagedTensor* const given = try_export_dlpack_legacy(StridedBuffer(buffer)).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(given->dl_tensor.data), buffer.address());
  EXPECT_EQ(import_dlpack(device, given).buffer(), buffer);
  const Result<DLManagedTensor*> refused =
      try_export_dlpack_legacy(StridedBuffer(buffer), {.is_read_only = true});
  EXPECT_EQ(refused.failure().code(), ErrorCode::dlpack_rejected);
}

TEST_P(DlpackDevices, ViewsHaveTheirOwnAddressAndNoOffset) {
  const Buffer buffer = count_up({10});
  const Buffer slice = buffer.slice(3, 4);
  DLManagedTensorVersioned* const given = try_export_dlpack(slice).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(given->dl_tensor.data), buffer.address() + 12);
  EXPECT_EQ(given->dl_tensor.byte_offset, 0u);
  EXPECT_EQ(given->dl_tensor.shape[0], 4);
  given->deleter(given);
  const std::int64_t strides[] = {1, 5};
  const StridedBuffer turned = StridedBuffer::over(buffer, 0, DType::f32, {5, 2}, strides);
  DLManagedTensorVersioned* const strided = try_export_dlpack(turned).value();
  EXPECT_EQ(strided->dl_tensor.strides[0], 1);
  EXPECT_EQ(strided->dl_tensor.strides[1], 5);
  const StridedBuffer back = import_dlpack(device, strided);
  EXPECT_EQ(back.contiguous(stream).to_vector<float>(),
            (std::vector<float>{0, 5, 1, 6, 2, 7, 3, 8, 4, 9}));
  const std::int64_t negative[] = {-1};
  const Failure backwards =
      try_export_dlpack(StridedBuffer::over(buffer, 36, DType::f32, {10}, negative)).failure();
  EXPECT_EQ(backwards.code(), ErrorCode::dlpack_rejected);
  EXPECT_EQ(backwards.text(),
            "a DLPack tensor cannot be exported (strides[i]: -1): other libraries do not support "
            "negative strides. Export contiguous(stream).");
  const std::int64_t dense[] = {1, 1};
  const Failure too_long = try_export_dlpack(StridedBuffer::over(buffer, 0, DType::f32,
                                                                 {0, std::size_t{1} << 63}, dense))
                               .failure();
  EXPECT_EQ(too_long.text(),
            "a DLPack tensor cannot be exported (shape[i]: 9223372036854775808): an extent must "
            "be below 2^63.");
}

TEST_P(DlpackDevices, ImportsATensorThatTheConsumerChanged) {
  const Buffer buffer = count_up({10});
  const Buffer slice = buffer.slice(2, 6);
  const auto change = [&](auto&& how) {
    DLManagedTensorVersioned* const given = try_export_dlpack(slice).value();
    how(given->dl_tensor);
    return try_import_dlpack(device, given);
  };
  const auto floats = [&](const Result<StridedBuffer>& back) {
    return back.value().contiguous(stream).to_vector<float>();
  };
  EXPECT_EQ(floats(change([](abi::DLTensor& tensor) {
              tensor.shape[0] = 2;
              tensor.byte_offset = 8;
            })),
            (std::vector<float>{4, 5}));
  EXPECT_EQ(floats(change([](abi::DLTensor& tensor) {
              tensor.shape[0] = 5;
              tensor.data = static_cast<float*>(tensor.data) + 1;
            })),
            (std::vector<float>{3, 4, 5, 6, 7}));
  const Result<StridedBuffer> cast = change([](abi::DLTensor& tensor) {
    tensor.dtype = {abi::kDLInt, 32, 1};
  });
  EXPECT_EQ(cast.value().dtype(), DType::i32);
  EXPECT_EQ(cast.value().hull().id(), buffer.id());
  // Other memory than went out is no part of it, although it is the buffer's.
  const Result<StridedBuffer> before =
      change([](abi::DLTensor& tensor) { tensor.data = static_cast<float*>(tensor.data) - 1; });
  EXPECT_EQ(before.failure().code(), ErrorCode::dlpack_rejected);
  EXPECT_EQ(before.failure().string("field"), "data + byte_offset");
  EXPECT_FALSE(change([](abi::DLTensor& tensor) { tensor.byte_offset = 4; }));
  EXPECT_FALSE(change([](abi::DLTensor& tensor) { tensor.byte_offset = ~std::uint64_t{0}; }));
  EXPECT_FALSE(change([](abi::DLTensor& tensor) { tensor.data = nullptr; }));
  EXPECT_FALSE(change([](abi::DLTensor& tensor) { tensor.shape[0] = most; }));
  EXPECT_FALSE(change([](abi::DLTensor& tensor) { tensor.dtype.lanes = 2; }));
  EXPECT_EQ(exported_memory().count, 0u) << "refused, and let go";
}

TEST_P(DlpackDevices, NoElementsHaveNoAddress) {
  constexpr std::size_t large = std::size_t{1} << 40;
  for (const Shape& shape : {Shape{0}, Shape{3, 0, 2}, Shape{large, large, large, 0}}) {
    const Buffer buffer(device, shape, DType::i64);
    DLManagedTensorVersioned* const given = try_export_dlpack(buffer).value();
    EXPECT_EQ(given->dl_tensor.data, nullptr);
    EXPECT_EQ(given->dl_tensor.ndim, static_cast<std::int32_t>(shape.rank()));
    EXPECT_NE(given->dl_tensor.strides, nullptr);
    EXPECT_EQ(import_dlpack(device, given).shape(), shape);
  }
  // An extent that no consumer can read.
  const Buffer wide(device, Shape{0, std::size_t{1} << 63}, DType::i8);
  EXPECT_EQ(try_export_dlpack(wide).failure().number("value"), std::uint64_t{1} << 63);
  const Buffer scalar = Buffer::allocate(device, Shape{}, DType::f64);
  DLManagedTensorVersioned* const given = try_export_dlpack(scalar).value();
  EXPECT_EQ(given->dl_tensor.ndim, 0);
  EXPECT_NE(given->dl_tensor.data, nullptr);
  given->deleter(given);
}

TEST_P(DlpackDevices, IsOrderedAfterTheWriters) {
  // Written on one stream, taken over on another: the checker of a simulated device would see.
  const Stream consumer(device);
  Buffer buffer(device, Shape{1000}, DType::f32);
  buffer.fill(1.0f, stream);
  DLManagedTensorVersioned* const given = try_export_dlpack(buffer, {.stream = consumer}).value();
  consumer.fill(static_cast<float*>(given->dl_tensor.data), 1000, 0.0f);
  consumer.synchronize();
  given->deleter(given);
  // Without a stream the host may look at once, where it can.
  buffer.fill(3.0f, stream);
  DLManagedTensorVersioned* const awaited = try_export_dlpack(buffer).value();
  EXPECT_TRUE(stream.next_mark());
  EXPECT_TRUE(buffer.storage()->uses().try_is_ready(Access::read_write).value());
  awaited->deleter(awaited);
  if (device.info().backend != "sim") return;
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_P(DlpackDevices, ComesBackReadOnlyIfItWentOutSo) {
  Buffer buffer = count_up({10});
  DLManagedTensorVersioned* const given = try_export_dlpack(buffer, {.is_read_only = true}).value();
  {
    const StridedBuffer back = import_dlpack(device, given);
    EXPECT_TRUE(back.hull().storage()->is_read_only());
    EXPECT_EQ(back.hull().address(), buffer.address());
    EXPECT_EQ(back.contiguous(stream).to_vector<float>()[9], 9.0f);
    EXPECT_EQ(back.buffer().try_fill(1.0f, stream).failure().code(), ErrorCode::read_only);
    EXPECT_EQ(exported_memory().count, 1u) << "it is held as others hold it";
  }
  static_cast<void>(reclaim_deferred());
  EXPECT_EQ(exported_memory().count, 0u);
  buffer.fill(1.0f, stream);
  EXPECT_EQ(buffer.to_vector<float>()[9], 1.0f);
}

TEST_P(DlpackDevices, ComesBackReadOnlyIfElementsShareBytesOrRunBackwards) {
  struct Change {
    std::vector<std::int64_t> shape, strides;
    std::int64_t first;
    bool is_read_only;
  };
  const Change changes[] = {{{5, 2}, {0, 1}, 0, true},  {{5, 2}, {2, 0}, 0, true},
                            {{5, 2}, {-2, 1}, 8, true}, {{5, 2}, {2, -1}, 1, true},
                            {{5, 3}, {1, 1}, 0, true},  {{4, 4}, {2, 1}, 0, true},
                            {{2, 5}, {1, 2}, 0, false}, {{5, 2}, {2, 1}, 0, false},
                            {{3, 2}, {4, 1}, 0, false}, {{1, 2}, {0, 1}, 0, false}};
  for (const bool is_ours : {true, false}) {
    for (const Change& change : changes) {
      SCOPED_TRACE(testing::PrintToString(change.shape) + testing::PrintToString(change.strides));
      const Buffer buffer = count_up({10});
      DLManagedTensorVersioned* const given =
          try_export_dlpack(buffer.reshape(Shape{5, 2})).value();
      // Somebody else's is one whose deleter is not Tern's.
      static void (*deleter)(DLManagedTensorVersioned*) = nullptr;
      deleter = given->deleter;
      if (!is_ours) given->deleter = [](DLManagedTensorVersioned* self) { deleter(self); };
      std::ranges::copy(change.shape, given->dl_tensor.shape);
      std::ranges::copy(change.strides, given->dl_tensor.strides);
      given->dl_tensor.byte_offset = static_cast<std::uint64_t>(change.first) * sizeof(float);
      const StridedBuffer back = import_dlpack(device, given);
      EXPECT_EQ(back.hull().storage()->is_read_only(), change.is_read_only);
      EXPECT_EQ(back.hull().is_external(), !is_ours || change.is_read_only);
    }
    static_cast<void>(reclaim_deferred());
    device.synchronize();
  }
}

TEST_P(DlpackDevices, ComesBackRefusedWithAWrongShape) {
  const Buffer buffer = count_up({4, 3});
  struct Wrong {
    std::int64_t rows, columns, row_stride, column_stride;
    std::uint64_t byte_offset;
  };
  for (const Wrong& wrong :
       {Wrong{5, 3, 3, 1, 0}, Wrong{4, 4, 3, 1, 0}, Wrong{-1, 3, 3, 1, 0},
        Wrong{std::numeric_limits<std::int64_t>::max(), 3, 3, 1, 0}, Wrong{4, 3, 4, 1, 0},
        Wrong{4, 3, std::numeric_limits<std::int64_t>::max(), 1, 0},
        Wrong{4, 3, std::numeric_limits<std::int64_t>::min(), 1, 0}, Wrong{4, 3, -3, 1, 0},
        Wrong{4, 3, 3, 1, 4}, Wrong{1, 1, 3, 1, 2}, Wrong{4, 3, 3, 1, ~std::uint64_t{0}}}) {
    SCOPED_TRACE(testing::PrintToString(wrong.rows) + " by " +
                 testing::PrintToString(wrong.columns));
    DLManagedTensorVersioned* const given = try_export_dlpack(buffer).value();
    given->dl_tensor.shape[0] = wrong.rows;
    given->dl_tensor.shape[1] = wrong.columns;
    given->dl_tensor.strides[0] = wrong.row_stride;
    given->dl_tensor.strides[1] = wrong.column_stride;
    given->dl_tensor.byte_offset = wrong.byte_offset;
    const Result<StridedBuffer> back = try_import_dlpack(device, given);
    ASSERT_FALSE(back);
    EXPECT_EQ(back.failure().code(), ErrorCode::dlpack_rejected) << back.failure().text();
    EXPECT_TRUE(back.failure().string("field")) << back.failure().text();
    EXPECT_EQ(exported_memory().count, 0u);
  }
}

TEST_P(DlpackDevices, ImportIsOrderedAfterForeignWriters) {
  const Stream theirs(device);
  Buffer buffer = count_up({1000});
  DLManagedTensorVersioned* const given = try_export_dlpack(buffer, {.stream = theirs}).value();
  theirs.fill(static_cast<float*>(given->dl_tensor.data), 1000, 2.0f);
  const Buffer back = import_dlpack(device, given, {.stream = theirs}).buffer();
  EXPECT_EQ(back.id(), buffer.id());
  const Buffer copied(device, Shape{1000}, DType::f32);
  copy(copied, back, stream);
  EXPECT_EQ(copied.to_vector<float>(), std::vector<float>(1000, 2.0f));
  // A stream that takes no work is refused, as for tensors of others.
  DLManagedTensorVersioned* const again = try_export_dlpack(buffer).value();
  Stream ended(device);
  const StreamRef gone = ended;
  ended = {};
  EXPECT_EQ(try_import_dlpack(device, again, {.stream = gone}).failure().code(),
            ErrorCode::stream_misuse);
  EXPECT_EQ(exported_memory().count, 0u) << "refused, and let go";
  if (device.info().backend != "sim") return;
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_P(DlpackDevices, HasNoNegativeStridesEvenInDimensionsOfOneElement) {
  const Buffer buffer = count_up({4, 3});
  const std::int64_t strides[] = {3, -5, 1};
  DLManagedTensorVersioned* const given =
      try_export_dlpack(StridedBuffer::over(buffer, 0, DType::f32, Shape{4, 1, 3}, strides))
          .value();
  EXPECT_EQ(given->dl_tensor.strides[0], 3);
  EXPECT_EQ(given->dl_tensor.strides[1], 1);
  EXPECT_EQ(given->dl_tensor.strides[2], 1);
  given->deleter(given);
}

TEST_P(DlpackDevices, RefusesAStreamOfAnotherDevice) {
  const Device other = sim::open({});
  const Stream elsewhere(other);
  const Buffer buffer = count_up({4});
  EXPECT_EQ(try_export_dlpack(buffer, {.stream = elsewhere}).failure().code(),
            ErrorCode::device_mismatch);
  EXPECT_EQ(exported_memory().count, 0u);
  DLManagedTensorVersioned* const given = try_export_dlpack(buffer).value();
  EXPECT_EQ(try_import_dlpack(other, given).failure().code(), ErrorCode::device_mismatch);
  EXPECT_EQ(exported_memory().count, 0u) << "refused, and let go";
  DLManagedTensorVersioned* const nowhere = try_export_dlpack(buffer).value();
  const Result<StridedBuffer> refused = try_import_dlpack(Device(), nowhere);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::device_mismatch);
  EXPECT_EQ(refused.failure().string("a"), "no device");
}

TEST_P(DlpackDevices, IsNotUsedAgainBeforeTheDeviceWasWaitedFor) {
  if (device.info().is_host) GTEST_SKIP() << "memory of the host is free at once";
  const ResourceHandle pool = std::make_shared<PoolResource>(device);
  Array<float> array = Array<float>::uninitialized(pool, 1000, {.stream = stream});
  const std::uintptr_t address = array.address();
  DLManagedTensorVersioned* const given = try_export_dlpack(array.buffer()).value();
  array = {};
  given->deleter(given);
  EXPECT_NE(Array<float>::uninitialized(pool, 1000, {.stream = stream}).address(), address);
  EXPECT_EQ(reclaim_exported().count, 0u);
}

TEST_P(DlpackDevices, DeletersMayComeFromAnyThread) {
  const Buffer buffer = count_up({16});
  std::vector<test::Thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) {
        DLManagedTensorVersioned* const given = try_export_dlpack(buffer).value();
        given->deleter(given);
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(buffer.storage()->shares(), 1u);
}

TEST_P(DlpackDevices, RejectsUnsupportedTensors) {
  EXPECT_EQ(try_export_dlpack(Buffer()).failure().code(), ErrorCode::not_allocated);
  const Buffer unwritten(device, Shape{4}, DType::f32);
  EXPECT_EQ(try_export_dlpack(unwritten, {.is_read_only = true}).failure().code(),
            ErrorCode::never_written);
  EXPECT_FALSE(unwritten.is_allocated());
  // To be written by them: from then on it counts as written.
  DLManagedTensorVersioned* const given = try_export_dlpack(unwritten).value();
  stream.fill(static_cast<float*>(given->dl_tensor.data), 4, 5.0f);
  stream.synchronize();
  given->deleter(given);
  EXPECT_EQ(unwritten.to_vector<float>(), std::vector<float>(4, 5.0f));
}

TEST_P(DlpackDevices, AStrictRecorderTakesWhatWasImported) {
  const Buffer mine = count_up({8});
  abi::DLManagedTensorVersioned* const given = try_export_dlpack(mine).value();
  // As a stranger would hand it on: with another deleter.
  struct Again {
    abi::DLManagedTensorVersioned managed;
    abi::DLManagedTensorVersioned* inner;
  };
  Again again = {*given, given};
  again.managed.manager_ctx = &again;
  again.managed.deleter = [](abi::DLManagedTensorVersioned* self) {
    abi::DLManagedTensorVersioned* const inner = static_cast<Again*>(self->manager_ctx)->inner;
    inner->deleter(inner);
  };
  {
    const Buffer taken = import_dlpack(device, &again.managed, {.stream = stream}).buffer();
    EXPECT_TRUE(taken.is_external());
    if (device.info().capabilities.has(Capability::kernels)) {
      LaunchRecorder recorder(stream);
      recorder.use(taken, Access::read);
      recorder.preflight();
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(recorder.pointer(0)), mine.address());
      recorder.commit();
    }
    EXPECT_EQ(exported_memory().count, 1u);
  }
  device.synchronize();
  EXPECT_EQ(reclaim_deferred().count, 0u);
  EXPECT_EQ(exported_memory().count, 0u);
}

/// Would a strict recorder take it?
ErrorCode strict_code(StreamRef stream, const Buffer& imported) {
  LaunchRecorder recorder(stream);
  recorder.use(imported, Access::read);
  const Result<void> begun = recorder.try_preflight();
  recorder.cancel();
  return begun ? ErrorCode{} : begun.failure().code();
}

TEST(Dlpack, ATensorOfAnotherOpeningOfTheDeviceIsRejectedAsSuch) {
  const Device first = sim::open({}), second = sim::open({});
  ASSERT_EQ(first.spec(), second.spec());
  const Buffer buffer = Buffer::allocate(first, Shape{4}, DType::f32);
  const Failure refused = try_import_dlpack(second, try_export_dlpack(buffer).value()).failure();
  EXPECT_EQ(refused.code(), ErrorCode::device_mismatch);
  EXPECT_EQ(refused.text(), "a DLPack tensor is memory of another opening of '" +
                                std::string(first.spec()) +
                                "'. Import it with a handle of the device that exported it.");
  EXPECT_EQ(exported_memory().count, 0u);
}

TEST(Dlpack, ATensorOfADeviceSaysNothingOfPendingWrites) {
  const Device device = sim::open({});
  const Stream stream(device), producer(device);
  void* const memory = device.allocate(MemoryKind::device, 24);
  const abi::DLDevice there =
      try_dlpack_device(*Buffer::allocate(device, Shape{1}, DType::f32).storage()).value();
  const auto import = [&](Stranger& stranger, const DlpackOptions& options) {
    stranger.managed.dl_tensor.data = memory;
    stranger.managed.dl_tensor.device = there;
    return import_dlpack(device, &stranger.managed, options).buffer();
  };
  {
    Stranger bare, ordered, complete;
    EXPECT_EQ(strict_code(stream, import(bare, {})), ErrorCode::untracked_buffer);
    EXPECT_EQ(strict_code(stream, import(ordered, {.stream = producer})), ErrorCode{});
    EXPECT_EQ(strict_code(stream, import(complete, {.is_complete = true})), ErrorCode{});
    device.synchronize();
    static_cast<void>(reclaim_deferred());
  }
  device.release(memory);
}

TEST_F(DlpackHost, ATensorOfTheHostIsComplete) {
  Stranger stranger;
  const Buffer taken = import_dlpack(host, &stranger.managed).buffer();
  EXPECT_TRUE(taken.storage()->is_readiness_known()) << "the protocol has no streams for it";
}

TEST(Dlpack, GivesTheStructureOfAnOfficialHeader) {
  struct Official {  // laid out as theirs
    abi::DLPackVersion version;
    void* manager_ctx;
    void (*deleter)(Official*);
    std::uint64_t flags;
    abi::DLTensor dl_tensor;
  };
  const Device host = open_device("host");
  const Array<float> array = Array<float>::zeros(host, 3);
  Official* const given = export_dlpack<Official>(array.buffer());
  EXPECT_EQ(given->dl_tensor.shape[0], 3);
  EXPECT_EQ(import_dlpack(host, given).element_count(), 3u);
}

TEST(Dlpack, ChargesNothingMoreAndGrowsNothingOverManyExports) {
  const Device device = sim::open({});
  const Buffer buffer = Buffer::allocate(device, Shape{4}, DType::f32);
  for (int i = 0; i < 100'000; ++i) {
    DLManagedTensorVersioned* const given =
        try_export_dlpack(buffer, {.is_unordered = true}).value();
    given->deleter(given);
  }
  EXPECT_EQ(buffer.storage()->shares(), 1u);
  EXPECT_EQ(exported_memory().bytes, 0u);
}

}  // namespace
}  // namespace tern
