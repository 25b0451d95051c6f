// Tells an attached tool, such as compute-sanitizer, which blocks of an allocation a pool has
// handed out.
//
// Such a tool sees only the driver's allocations. To the tool, all memory of a pool is one live
// block. Through the memory extension of NVTX, Tern reports the blocks inside, so the tool can
// report a kernel that accesses a freed block. The tool names its library in the environment
// (NVTX_INJECTION64_PATH) before the program starts. Without a tool, Tern loads nothing, reports
// nothing, and pools send no notes.
//
// Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace tern::cuda {

/// The part of the extension's binary interface that Tern uses. A test compares it with the
/// official header if the header is installed.
namespace nvtx {

struct ModuleSegment {
  std::size_t segment_id;
  std::size_t slot_count;
  std::intptr_t* function_slots;
};
struct ModuleInfo {
  std::uint16_t nvtx_version;
  std::uint16_t struct_bytes;
  std::uint16_t module_id;
  std::uint16_t compatibility_id;
  std::size_t segment_count;
  ModuleSegment* segments;
  void* get_export_function;
  const void* extension_info;
};
/// "InitializeInjectionNvtxExtension" of a tool's library. Fills the slots and returns nonzero on
/// success.
using Initialize = int(ModuleInfo* module);

/// The tables that a tool requests first, to install its functions of the NVTX core. Tern uses one
/// of these functions.
using Function = void();
struct Callbacks {
  std::size_t struct_bytes;
  int (*module_functions)(int module, Function**** table, unsigned* count);
};
struct VersionInfo {
  std::size_t struct_bytes;
  std::uint32_t version;
  std::uint32_t reserved;
  void (*set_tool_version)(std::uint32_t version);
};
using GetTable = const void*(std::uint32_t table);
/// "InitializeInjectionNvtx2" of a tool's library.
using InitializeCore = int(GetTable* get_table);
inline constexpr std::uint32_t callbacks_table = 1, version_table = 3;
inline constexpr int core2_module = 5;
inline constexpr std::size_t core2_count = 16, domain_create = 12;
using DomainCreate = void*(const char* name);

struct VirtualRange {
  std::size_t bytes;
  const void* address;
};
struct HeapDescription {
  std::uint16_t compatibility_id;
  std::uint16_t struct_bytes;
  std::uint32_t reserved;
  std::uint32_t usage;
  std::uint32_t type;
  std::size_t specific_bytes;
  const void* specific;
  std::uint32_t category;
  std::uint32_t message_type;
  const void* message;
};
struct RegionsToRegister {
  std::uint16_t compatibility_id;
  std::uint16_t struct_bytes;
  std::uint32_t region_type;
  void* heap;
  std::size_t count;
  std::size_t element_bytes;
  const void* elements;
  void** handles;
};
struct RegionsToUnregister {
  std::uint16_t compatibility_id;
  std::uint16_t struct_bytes;
  std::uint32_t reference_type;
  std::size_t count;
  std::size_t element_bytes;
  const void* elements;
};

inline constexpr std::uint16_t version = 3, memory_module = 1, memory_compatibility = 0x0102;
inline constexpr std::uint32_t usage_sub_allocator = 1, type_virtual_address = 1,
                               reference_by_pointer = 1;
inline constexpr std::size_t slot_count = 63;
/// Indices of the functions below in the slots, and the values of a slot that the tool did not
/// fill.
inline constexpr std::size_t heap_register = 0, heap_unregister = 1, regions_register = 3,
                             regions_unregister = 5;
inline constexpr std::intptr_t slot_fresh = 0, slot_disabled = 1;

using HeapRegister = void*(void* domain, const HeapDescription* heap);
using HeapUnregister = void(void* domain, void* heap);
using RegionsRegister = void(void* domain, const RegionsToRegister* regions);
using RegionsUnregister = void(void* domain, const RegionsToUnregister* regions);

}  // namespace nvtx

class SuballocationNotes {
 public:
  /// Loads the library, once. Returns null if there is no such library, or if the tool does not
  /// accept reports about memory.
  [[nodiscard]] static std::unique_ptr<SuballocationNotes> attach(const std::string& library);
  /// Attaches a tool that is already loaded. Memory is reported in a domain of Tern; a tool without
  /// the functions of the core gets no domain.
  [[nodiscard]] static std::unique_ptr<SuballocationNotes> attach(
      nvtx::Initialize* initialize, nvtx::InitializeCore* initialize_core = nullptr);

  /// Reports that the pool hands out the block. Reports the allocation first, if it is new. If the
  /// tool rejects the allocation, its blocks are not reported.
  void begin(const void* allocation, std::size_t allocation_bytes, const void* block,
             std::size_t block_bytes) noexcept;
  void end(const void* block) noexcept;
  /// Call this before the allocation is freed.
  void forget(const void* allocation) noexcept;

 private:
  SuballocationNotes() = default;

  nvtx::HeapRegister* heap_register_ = nullptr;
  nvtx::HeapUnregister* heap_unregister_ = nullptr;
  nvtx::RegionsRegister* regions_register_ = nullptr;
  nvtx::RegionsUnregister* regions_unregister_ = nullptr;

  void* domain_ = nullptr;
  std::mutex mutex_;
  std::map<const void*, void*> heaps_;         // guarded by mutex_: by the allocation's address
  std::map<const void*, const void*> blocks_;  // guarded by mutex_: the allocation of each block
};

}  // namespace tern::cuda
