#include "tern/interop/cuda_array_interface.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "support/gate.hpp"
#include "tern/backends/catalog.hpp"

namespace tern {
namespace {

using Numbers = std::vector<std::int64_t>;
constexpr std::int64_t largest_extent = std::numeric_limits<std::int64_t>::max();

class CudaArray : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(exported_memory().count, 0u);
    EXPECT_EQ(reclaim_exported().count, 0u);
  }
  Buffer count_up(Shape shape) {
    std::vector<float> values(shape.element_count());
    std::iota(values.begin(), values.end(), 0.0f);
    Buffer buffer(device, std::move(shape), DType::f32);
    buffer.copy_from(std::span<const float>(values));
    return buffer;
  }

  Device device = open_device("cuda?driver=sim");
  Stream stream{device};
};

TEST_F(CudaArray, DescribesElementsWhereTheyAre) {
  const Buffer buffer = count_up({2, 3});
  device.synchronize();
  const CudaArrayExport made = try_export_cuda_array(StridedBuffer(buffer)).value();
  const CudaArrayInterface& given = made.description;
  EXPECT_EQ(given.shape, (Numbers{2, 3}));
  EXPECT_EQ(given.typestr, "<f4");
  EXPECT_EQ(given.data, buffer.address());
  EXPECT_FALSE(given.is_read_only);
  EXPECT_FALSE(given.strides);
  EXPECT_FALSE(given.stream) << "nothing is pending";
  EXPECT_EQ(given.version, 3);
  EXPECT_EQ(exported_memory().count, 1u);
}

TEST_F(CudaArray, StridesAreBytesAndNoElementsHaveNoAddress) {
  const Buffer buffer = count_up({4, 6});
  const Numbers apart = {1, 6};
  const StridedBuffer turned = StridedBuffer::over(buffer, 4, DType::f32, Shape{3, 4}, apart);
  const CudaArrayExport made =
      try_export_cuda_array(turned, {.stream = stream, .is_read_only = true}).value();
  EXPECT_EQ(made.description.strides, (Numbers{4, 24}));
  EXPECT_EQ(made.description.data, buffer.address() + 4);
  EXPECT_TRUE(made.description.is_read_only);
  const Buffer none(device, {3, 0}, DType::f64);
  const CudaArrayExport empty = try_export_cuda_array(StridedBuffer(none)).value();
  EXPECT_EQ(empty.description.data, 0u);
  EXPECT_EQ(empty.description.shape, (Numbers{3, 0}));
  EXPECT_FALSE(empty.description.stream);
}

TEST_F(CudaArray, TheStreamCoversAllThatIsPendingAndIsNeverZero) {
  const Stream one(device), two(device);
  Buffer buffer = count_up({100});
  device.synchronize();
  test::Gate gate;
  gate.hold(one);
  gate.hold(two);
  Buffer front = buffer.slice(0, 50), back = buffer.slice(50, 50);
  front.fill(1.0f, one);
  back.fill(2.0f, two);
  const CudaArrayExport named =
      try_export_cuda_array(StridedBuffer(buffer), {.stream = stream}).value();
  EXPECT_EQ(named.description.stream, stream.try_native().value().value);
  EXPECT_FALSE(stream.is_idle()) << "it waits for both";
  const CudaArrayExport by_default =
      try_export_cuda_array(StridedBuffer(buffer), {.stream = device.default_stream()}).value();
  EXPECT_EQ(by_default.description.stream, CudaArrayInterface::legacy_stream);
  const Stream thread = Stream::borrow(device, NativeStream{2});
  const CudaArrayExport by_thread =
      try_export_cuda_array(StridedBuffer(buffer), {.stream = thread}).value();
  EXPECT_EQ(by_thread.description.stream, CudaArrayInterface::per_thread_stream);
  const CudaArrayExport own = try_export_cuda_array(StridedBuffer(buffer)).value();
  ASSERT_TRUE(own.description.stream);
  EXPECT_NE(*own.description.stream, 0u);
  gate.open();
  stream.synchronize();
  EXPECT_EQ(buffer.to_vector<float>()[99], 2.0f);
}

TEST_F(CudaArray, ComesInBehindItsStreamAndKeepsTheOwner) {
  const Stream theirs(device);
  Buffer source = count_up({2, 3});
  device.synchronize();
  test::Gate gate;
  gate.hold(theirs);
  source.fill(5.0f, theirs);
  CudaArrayExport made = try_export_cuda_array(StridedBuffer(source), {.stream = theirs}).value();
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> kept = owner;
  StridedBuffer taken =
      try_import_cuda_array(device, made.description, {.owner = std::move(owner)}).value();
  EXPECT_TRUE(taken.hull().is_external());
  EXPECT_EQ(taken.hull().address(), source.address());
  EXPECT_FALSE(kept.expired());
  Buffer copy(device, {2, 3}, DType::f32);
  const Result<bool> is_ready = taken.hull().storage()->uses().try_is_ready(Access::read);
  EXPECT_FALSE(is_ready.value()) << "they still write it";
  gate.open();
  EXPECT_EQ(taken.buffer().to_vector<float>(), std::vector<float>(6, 5.0f));
  taken = {};
  device.synchronize();
  static_cast<void>(reclaim_deferred());
  EXPECT_TRUE(kept.expired());
}

TEST_F(CudaArray, EveryNameComesBack) {
  std::size_t known = 0;
  for (const DType dtype : {DType::boolean, DType::i8, DType::i16, DType::i32, DType::i64,
                            DType::u8, DType::u16, DType::u32, DType::u64, DType::f16, DType::f32,
                            DType::f64, DType::complex64, DType::complex128}) {
    EXPECT_EQ(try_dtype_of_typestr(try_typestr(dtype).value()).value(), dtype);
    ++known;
  }
  EXPECT_EQ(known, 14u);
  for (const DType dtype : {DType::bf16, DType::f8_e4m3fn, DType::f8_e5m2, DType::void_}) {
    EXPECT_EQ(try_typestr(dtype).failure().code(), ErrorCode::unsupported);
  }
}

TEST_F(CudaArray, OlderVersionsHaveNoStreamAndTheCallerSaysWho) {
  const Buffer source = count_up({4});
  device.synchronize();
  const CudaArrayExport made = try_export_cuda_array(StridedBuffer(source)).value();
  for (const int version : {0, 1, 2, 3}) {
    CudaArrayInterface description = made.description;
    description.version = version;
    EXPECT_TRUE(try_import_cuda_array(device, description, {.stream = stream}));
  }
  CudaArrayInterface repeated = made.description;
  repeated.shape = {3, 4};
  repeated.strides = Numbers{0, 4};
  EXPECT_TRUE(try_import_cuda_array(device, repeated).value().hull().storage()->is_read_only());
  // As an import through DLPack: elements that share bytes or run backwards are read-only.
  CudaArrayInterface overlapping = made.description;
  overlapping.shape = {2, 3};
  overlapping.strides = Numbers{4, 4};
  EXPECT_TRUE(try_import_cuda_array(device, overlapping).value().hull().storage()->is_read_only());
  CudaArrayInterface backwards = made.description;
  backwards.data += 12;
  backwards.strides = Numbers{-4};
  EXPECT_TRUE(try_import_cuda_array(device, backwards).value().hull().storage()->is_read_only());
  CudaArrayInterface turned = made.description;
  turned.shape = {2, 2};
  turned.strides = Numbers{4, 8};
  EXPECT_FALSE(try_import_cuda_array(device, turned).value().hull().storage()->is_read_only());
  for (const std::uintptr_t default_stream : {1u, 2u}) {
    CudaArrayInterface description = made.description;
    description.stream = default_stream;
    EXPECT_TRUE(try_import_cuda_array(device, description)) << default_stream;
  }
}

TEST_F(CudaArray, RefusesWhatIsWrongByKey) {
  const Buffer source = count_up({2, 3});
  device.synchronize();
  const CudaArrayExport made = try_export_cuda_array(StridedBuffer(source)).value();
  struct Hostile {
    std::string key;
    std::function<void(CudaArrayInterface&)> spoil;
  };
  std::vector<Hostile> all;
  for (const int version : {-1, 4, 99}) {
    all.push_back({"version", [=](CudaArrayInterface& d) { d.version = version; }});
  }
  for (const char* typestr :
       {"", "<", ">f4", "|V2", "<f3", "f4", "<f44", "<U4", "|b2", "<m8", "O"}) {
    all.push_back({"typestr", [=](CudaArrayInterface& d) { d.typestr = typestr; }});
  }
  for (const std::int64_t extent :
       {std::int64_t{-1}, -largest_extent, largest_extent, largest_extent / 2}) {
    all.push_back({"shape", [=](CudaArrayInterface& d) { d.shape[0] = extent; }});
  }
  all.push_back({"shape", [](CudaArrayInterface& d) { d.shape = Numbers(65, 1); }});
  for (const std::int64_t stride : {std::int64_t{1}, std::int64_t{2}, std::int64_t{-3},
                                    largest_extent - 3, -(largest_extent - 3)}) {
    all.push_back({"strides", [=](CudaArrayInterface& d) { d.strides = Numbers{stride, 4}; }});
  }
  all.push_back({"strides", [](CudaArrayInterface& d) { d.strides = Numbers{4}; }});
  all.push_back({"data", [](CudaArrayInterface& d) { d.data = 0; }});
  all.push_back({"data", [](CudaArrayInterface& d) { d.data = ~std::uintptr_t{0} - 3; }});
  all.push_back({"stream", [](CudaArrayInterface& d) { d.stream = 0; }});
  for (const Hostile& hostile : all) {
    CudaArrayInterface description = made.description;
    hostile.spoil(description);
    const Result<StridedBuffer> taken = try_import_cuda_array(device, description);
    ASSERT_FALSE(taken) << hostile.key;
    EXPECT_EQ(taken.failure().code(), ErrorCode::invalid_argument) << taken.failure().text();
    EXPECT_EQ(taken.failure().string("name"), hostile.key) << taken.failure().text();
  }
  CudaArrayInterface masked = made.description;
  masked.has_mask = true;
  EXPECT_EQ(try_import_cuda_array(device, masked).failure().code(), ErrorCode::unsupported);
}

TEST_F(CudaArray, IsForCudaDevices) {
  for (const char* spec : {"host", "sim"}) {
    const Device other = open_device(spec);
    const Buffer buffer(other, {2}, DType::f32, {.contents = Contents::zero});
    EXPECT_EQ(try_export_cuda_array(StridedBuffer(buffer)).failure().code(),
              ErrorCode::unsupported);
    EXPECT_EQ(try_import_cuda_array(other, {}).failure().code(), ErrorCode::unsupported);
  }
  EXPECT_EQ(try_export_cuda_array({}).failure().code(), ErrorCode::not_allocated);
  const Buffer unwritten(device, {2}, DType::f32);
  EXPECT_EQ(
      try_export_cuda_array(StridedBuffer(unwritten), {.is_read_only = true}).failure().code(),
      ErrorCode::never_written);
  const Buffer half(device, {2}, DType::bf16);
  EXPECT_EQ(try_export_cuda_array(StridedBuffer(half)).failure().code(), ErrorCode::unsupported);
  const Device sim = open_device("sim");
  const Stream other(sim);
  EXPECT_EQ(try_export_cuda_array(StridedBuffer(count_up({2})), {.stream = other}).failure().code(),
            ErrorCode::device_mismatch);
}

TEST_F(CudaArray, OnlyVersionThreeSaysThatNothingIsPending) {
  const Buffer buffer = count_up({4});
  device.synchronize();
  const auto is_known = [&](int version, std::optional<std::uintptr_t> on,
                            const CudaArrayOptions& options) {
    CudaArrayInterface description;
    description.shape = {4};
    description.typestr = "<f4";
    description.data = buffer.address();
    description.version = version;
    description.stream = on;
    return try_import_cuda_array(device, description, options)
        .value()
        .hull()
        .storage()
        ->is_readiness_known();
  };
  EXPECT_TRUE(is_known(3, {}, {})) << "no stream: no synchronization is needed";
  EXPECT_TRUE(is_known(3, CudaArrayInterface::legacy_stream, {}));
  EXPECT_FALSE(is_known(2, {}, {})) << "older versions have no word for it";
  EXPECT_TRUE(is_known(2, {}, {.stream = stream}));
  EXPECT_TRUE(is_known(2, {}, {.is_complete = true}));
  device.synchronize();  // the imports are released behind their streams
}

}  // namespace
}  // namespace tern
