#include "backends/cuda/suballocation_notes.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#if __has_include(<nvtx3/nvToolsExtMem.h>)
// The official header uses old casts and has functions without a prototype.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wold-style-cast"
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtMem.h>
#pragma GCC diagnostic pop
#define TERN_HAS_NVTX_HEADER 1
#endif

namespace tern::cuda {
namespace {

#ifdef TERN_HAS_NVTX_HEADER
static_assert(sizeof(nvtx::VirtualRange) == sizeof(nvtxMemVirtualRangeDesc_t));
static_assert(offsetof(nvtx::VirtualRange, address) == offsetof(nvtxMemVirtualRangeDesc_t, ptr));
static_assert(sizeof(nvtx::HeapDescription) == sizeof(nvtxMemHeapDesc_t));
static_assert(offsetof(nvtx::HeapDescription, usage) == offsetof(nvtxMemHeapDesc_t, usage));
static_assert(offsetof(nvtx::HeapDescription, specific) ==
              offsetof(nvtxMemHeapDesc_t, typeSpecificDesc));
static_assert(offsetof(nvtx::HeapDescription, message) == offsetof(nvtxMemHeapDesc_t, message));
static_assert(sizeof(nvtx::RegionsToRegister) == sizeof(nvtxMemRegionsRegisterBatch_t));
static_assert(offsetof(nvtx::RegionsToRegister, heap) ==
              offsetof(nvtxMemRegionsRegisterBatch_t, heap));
static_assert(offsetof(nvtx::RegionsToRegister, handles) ==
              offsetof(nvtxMemRegionsRegisterBatch_t, regionHandleElementsOut));
static_assert(sizeof(nvtx::RegionsToUnregister) == sizeof(nvtxMemRegionsUnregisterBatch_t));
static_assert(offsetof(nvtx::RegionsToUnregister, elements) ==
              offsetof(nvtxMemRegionsUnregisterBatch_t, refElements));
static_assert(nvtx::memory_module == NVTX_EXT_MODULEID_MEM);
static_assert(nvtx::memory_compatibility == NVTX_EXT_COMPATID_MEM);
static_assert(nvtx::heap_register == NVTX3EXT_CBID_nvtxMemHeapRegister);
static_assert(nvtx::heap_unregister == NVTX3EXT_CBID_nvtxMemHeapUnregister);
static_assert(nvtx::regions_register == NVTX3EXT_CBID_nvtxMemRegionsRegister);
static_assert(nvtx::regions_unregister == NVTX3EXT_CBID_nvtxMemRegionsUnregister);
static_assert(nvtx::usage_sub_allocator == NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR);
static_assert(nvtx::type_virtual_address == NVTX_MEM_TYPE_VIRTUAL_ADDRESS);
static_assert(nvtx::reference_by_pointer == NVTX_MEM_REGION_REF_TYPE_POINTER);
static_assert(nvtx::version == NVTX_VERSION);
// What the core of NVTX is asked by is not in a public header; its numbers are checked by use.
#endif

/// What the tool has heard, in words.
std::vector<std::string>& heard() {
  static std::vector<std::string> all;
  return all;
}

std::string text_of(const nvtx::VirtualRange& range) {
  return std::to_string(reinterpret_cast<std::uintptr_t>(range.address)) + "+" +
         std::to_string(range.bytes);
}

void* on_heap(void*, const nvtx::HeapDescription* heap) {
  EXPECT_EQ(heap->struct_bytes, sizeof *heap);
  EXPECT_EQ(heap->usage, nvtx::usage_sub_allocator);
  heard().push_back("heap " + text_of(*static_cast<const nvtx::VirtualRange*>(heap->specific)));
  return &heard();
}
void off_heap(void*, void* heap) {
  EXPECT_EQ(heap, &heard());
  heard().emplace_back("no heap");
}
void on_regions(void*, const nvtx::RegionsToRegister* regions) {
  EXPECT_EQ(regions->heap, &heard());
  EXPECT_EQ(regions->count, 1u);
  heard().push_back("block " + text_of(*static_cast<const nvtx::VirtualRange*>(regions->elements)));
}
void off_regions(void*, const nvtx::RegionsToUnregister* regions) {
  EXPECT_EQ(regions->reference_type, nvtx::reference_by_pointer);
  heard().push_back("no block " + std::to_string(reinterpret_cast<std::uintptr_t>(
                                      *static_cast<const void* const*>(regions->elements))));
}

int fill(nvtx::ModuleInfo* module) {
  EXPECT_EQ(module->nvtx_version, nvtx::version);
  EXPECT_EQ(module->module_id, nvtx::memory_module);
  EXPECT_EQ(module->segments->slot_count, nvtx::slot_count);
  std::intptr_t* slots = module->segments->function_slots;
  slots[nvtx::heap_register] = reinterpret_cast<std::intptr_t>(&on_heap);
  slots[nvtx::heap_unregister] = reinterpret_cast<std::intptr_t>(&off_heap);
  slots[nvtx::regions_register] = reinterpret_cast<std::intptr_t>(&on_regions);
  slots[nvtx::regions_unregister] = reinterpret_cast<std::intptr_t>(&off_regions);
  return 1;
}

const void* at(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

TEST(SuballocationNotes, TellTheToolOfAnAllocationOnceAndOfEachBlock) {
  heard().clear();
  const auto notes = SuballocationNotes::attach(fill);
  ASSERT_NE(notes, nullptr);
  notes->begin(at(1000), 500, at(1000), 50);
  notes->begin(at(1000), 500, at(1100), 60);
  notes->end(at(1000));
  notes->end(at(1000));  // not there any more
  notes->forget(at(1000));
  notes->end(at(1100));  // gone with it
  notes->forget(at(1000));
  notes->begin(at(1000), 700, at(1000), 10);
  EXPECT_EQ(heard(), (std::vector<std::string>{"heap 1000+500", "block 1000+50", "block 1100+60",
                                               "no block 1000", "no heap", "heap 1000+700",
                                               "block 1000+10"}));
}

/// The domain that the tool gave, as its functions of the core see it.
int marker = 0;
void* create_domain(const char* name) {
  heard().push_back(std::string("domain ") + name);
  return &marker;
}

int fill_core(nvtx::GetTable* get_table) {
  EXPECT_EQ(get_table(99), nullptr);
  EXPECT_EQ(static_cast<const nvtx::VersionInfo*>(get_table(nvtx::version_table))->version,
            nvtx::version);
  const auto* callbacks = static_cast<const nvtx::Callbacks*>(get_table(nvtx::callbacks_table));
  nvtx::Function*** table = nullptr;
  unsigned count = 0;
  EXPECT_EQ(callbacks->module_functions(1, &table, &count), 0);
  EXPECT_EQ(callbacks->module_functions(nvtx::core2_module, &table, &count), 1);
  EXPECT_EQ(count, nvtx::core2_count);
  *table[nvtx::domain_create] = reinterpret_cast<nvtx::Function*>(&create_domain);
  return 1;
}

TEST(SuballocationNotes, BelongToADomainOfTheirOwn) {
  heard().clear();
  const auto notes = SuballocationNotes::attach(
      [](nvtx::ModuleInfo* module) {
        const int filled = fill(module);
        nvtx::HeapRegister* look = [](void* domain, const nvtx::HeapDescription*) -> void* {
          EXPECT_EQ(domain, &marker);
          return nullptr;
        };
        module->segments->function_slots[nvtx::heap_register] =
            reinterpret_cast<std::intptr_t>(look);
        return filled;
      },
      fill_core);
  ASSERT_NE(notes, nullptr);
  notes->begin(at(1000), 500, at(1000), 50);
  EXPECT_EQ(heard(), std::vector<std::string>{"domain Tern"});
}

TEST(SuballocationNotes, SayNothingOfBlocksInMemoryThatTheToolRefuses) {
  heard().clear();
  const auto notes = SuballocationNotes::attach([](nvtx::ModuleInfo* module) {
    const int filled = fill(module);
    nvtx::HeapRegister* refuse = [](void*, const nvtx::HeapDescription*) -> void* {
      return nullptr;
    };
    module->segments->function_slots[nvtx::heap_register] = reinterpret_cast<std::intptr_t>(refuse);
    return filled;
  });
  ASSERT_NE(notes, nullptr);
  notes->begin(at(1000), 500, at(1000), 50);
  notes->end(at(1000));
  notes->forget(at(1000));
  EXPECT_EQ(heard(), std::vector<std::string>{});
}

TEST(SuballocationNotes, AreNotMadeWithoutATool) {
  EXPECT_EQ(SuballocationNotes::attach(std::string()), nullptr);
  EXPECT_EQ(SuballocationNotes::attach(std::string("/no/such/library.so")), nullptr);
  EXPECT_EQ(SuballocationNotes::attach(static_cast<nvtx::Initialize*>(nullptr)), nullptr);
}

TEST(SuballocationNotes, AreNotMadeForAToolThatRefusesOrHasNoEarForMemory) {
  EXPECT_EQ(SuballocationNotes::attach([](nvtx::ModuleInfo*) { return 0; }), nullptr);
  EXPECT_EQ(SuballocationNotes::attach([](nvtx::ModuleInfo* module) {
              const int filled = fill(module);
              module->segments->function_slots[nvtx::regions_register] = nvtx::slot_disabled;
              return filled;
            }),
            nullptr);
}

}  // namespace
}  // namespace tern::cuda
