#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>

#include "backends/memory_file.hpp"
#include "support/fake_driver_bench.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

struct Virtual : testing::Test {
  Virtual() {
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    EXPECT_EQ(cu.cuMemAddressReserve(&address, 4 * page_bytes, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemCreate(&pages, page_bytes, &properties, 0), CUDA_SUCCESS);
  }
  CUresult access(CUdeviceptr at, std::size_t bytes, int device, CUmemAccess_flags flags) {
    const CUmemAccessDesc desc{{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    return cu.cuMemSetAccess(at, bytes, &desc, 1);
  }

  FakeDriverBench bench;
  const DriverTable& cu = bench.cu;
  CUmemAllocationProp properties;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle pages = 0;
};
using FakeCudaPages = Virtual;

TEST_F(FakeCudaPages, ChecksSizesAndProperties) {
  std::size_t bytes = 0;
  EXPECT_EQ(
      cu.cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      CUDA_SUCCESS);
  EXPECT_EQ(bytes, page_bytes);
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle made = 0;
  EXPECT_EQ(cu.cuMemAddressReserve(&at, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressReserve(&at, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressReserve(&at, page_bytes, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressReserve(&at, page_bytes, 2 * page_bytes, 0, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu.cuMemAddressReserve(&at, page_bytes, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressReserve(&at, 512 * mib, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu.cuMemCreate(&made, 4096, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemCreate(&made, 64 * mib, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu.cuMemCreate(&made, page_bytes, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_EQ(cu.cuMemCreate(&made, page_bytes, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  properties.location.id = 2;
  EXPECT_EQ(cu.cuMemCreate(&made, page_bytes, &properties, 0), CUDA_ERROR_INVALID_DEVICE);
  properties.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  EXPECT_EQ(cu.cuMemCreate(&made, page_bytes, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
  properties.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  EXPECT_EQ(cu.cuMemCreate(&made, page_bytes, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemRelease(0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(FakeCudaPages, MapsWholeHandlesAndUnmapsWholeMappings) {
  EXPECT_EQ(cu.cuMemMap(address, 2 * page_bytes, 0, pages, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu.cuMemMap(address, page_bytes, page_bytes, pages, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu.cuMemMap(address + 4096, page_bytes, 0, pages, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemMap(address, page_bytes, 0, 77, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemMap(bench.memory(page_bytes), page_bytes, 0, pages, 0),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu.cuMemMap(address, page_bytes, 0, pages, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemMap(address, page_bytes, 0, pages, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressFree(address, 4 * page_bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemUnmap(address, page_bytes / 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemUnmap(address + page_bytes, page_bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemRelease(pages), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemRelease(pages), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.free_bytes(), 64 * mib - 2 * page_bytes);
  EXPECT_EQ(cu.cuMemUnmap(address, page_bytes), CUDA_SUCCESS);
  EXPECT_EQ(bench.free_bytes(), 64 * mib - page_bytes);
  EXPECT_EQ(cu.cuMemAddressFree(address, page_bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressFree(address, 4 * page_bytes), CUDA_SUCCESS);
}

TEST_F(FakeCudaPages, GivesNoAccessUntilItIsSet) {
  const CUdeviceptr plain = bench.memory();
  const CUfunction kernel = bench.kernel("add_one");
  std::uint32_t count = 4;
  ASSERT_EQ(cu.cuMemMap(address, page_bytes, 0, pages, 0), CUDA_SUCCESS);
  const void* const mapped = reinterpret_cast<const void*>(address + 8);
  EXPECT_EQ(bench.driver.access(mapped, 0), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyAsync(plain, address, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(access(address, 2 * page_bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READ),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(access(address, page_bytes, 9, CU_MEM_ACCESS_FLAGS_PROT_READ),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cu.cuMemSetAccess(address, page_bytes, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(access(address, page_bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  EXPECT_EQ(bench.driver.access(mapped, 0), CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(access(address, page_bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 64, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemcpyAsync(plain, address, 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(bench.launch(kernel, nullptr, {&address, &count}), CUDA_SUCCESS);
  // Access ends with the mapping.
  ASSERT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemUnmap(address, page_bytes), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemMap(address, page_bytes, 0, pages, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  // A kernel that touches it is found out later, and the context is of no more use.
  EXPECT_EQ(bench.launch(kernel, nullptr, {&address, &count}), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(FakeCudaPages, IsUnmappedOnlyBehindItsLastUse) {
  const CUstream stream = bench.stream();
  ASSERT_EQ(cu.cuMemMap(address, page_bytes, 0, pages, 0), CUDA_SUCCESS);
  ASSERT_EQ(access(address, page_bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemsetD8Async(address, 1, 8, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemUnmap(address, page_bytes), CUDA_ERROR_ASSERT);
  EXPECT_EQ(bench.found(), "TERN-S102");
  ASSERT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemUnmap(address, page_bytes), CUDA_SUCCESS);
}

TEST_F(FakeCudaPages, AreExportedAndImportedAsDescriptors) {
  constexpr auto file_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  int file = -1;
  // The handle types are chosen when the pages are created.
  EXPECT_EQ(cu.cuMemExportToShareableHandle(&file, pages, file_type, 0), CUDA_ERROR_INVALID_VALUE);
  properties.requestedHandleTypes = file_type;
  CUmemGenericAllocationHandle mine = 0, theirs = 0, none = 0;
  ASSERT_EQ(cu.cuMemCreate(&mine, page_bytes, &properties, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemExportToShareableHandle(nullptr, mine, file_type, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemExportToShareableHandle(&file, mine, file_type, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemExportToShareableHandle(&file, mine, CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu.cuMemExportToShareableHandle(&file, 0, file_type, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu.cuMemExportToShareableHandle(&file, mine, file_type, 0), CUDA_SUCCESS);

  const auto as_pointer = [](int number) {
    return reinterpret_cast<void*>(static_cast<std::intptr_t>(number));
  };
  EXPECT_EQ(cu.cuMemImportFromShareableHandle(nullptr, as_pointer(file), file_type),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemImportFromShareableHandle(&none, as_pointer(file), CU_MEM_HANDLE_TYPE_FABRIC),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu.cuMemImportFromShareableHandle(&none, as_pointer(-1), file_type),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemImportFromShareableHandle(&none, as_pointer(STDIN_FILENO), file_type),
            CUDA_ERROR_INVALID_VALUE);
  // Nearly right: no seal, so not what a device exported.
  const int unsealed = try_make_memory_file("test").value();
  ASSERT_TRUE(try_resize_memory_file(unsealed, page_bytes));
  EXPECT_EQ(cu.cuMemImportFromShareableHandle(&none, as_pointer(unsealed), file_type),
            CUDA_ERROR_INVALID_VALUE);
  close(unsealed);
  ASSERT_EQ(cu.cuMemImportFromShareableHandle(&theirs, as_pointer(file), file_type), CUDA_SUCCESS);
  EXPECT_NE(mine, theirs);
  close(file);

  // One memory, which lives until the second handle is released.
  ASSERT_EQ(cu.cuMemMap(address, page_bytes, 0, theirs, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemMap(address + page_bytes, 2 * page_bytes, 0, mine, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu.cuMemRelease(mine), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemRelease(theirs), CUDA_SUCCESS);
  EXPECT_EQ(access(address, page_bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemUnmap(address, page_bytes), CUDA_SUCCESS);
}

}  // namespace
}  // namespace tern::sim
