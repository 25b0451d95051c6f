#include "backends/cuda/suballocation_notes.hpp"

#include <array>
#include <list>
#include <new>
#include <utility>

#include "backends/shared_library.hpp"

namespace tern::cuda {
namespace {

template <class Function>
bool take(const std::array<std::intptr_t, nvtx::slot_count>& slots, std::size_t slot,
          Function*& function) noexcept {
  if (slots[slot] == nvtx::slot_fresh || slots[slot] == nvtx::slot_disabled) return false;
  function = reinterpret_cast<Function*>(slots[slot]);
  return true;
}

/// The description of the extension's functions that a tool receives and fills.
struct Module {
  std::array<std::intptr_t, nvtx::slot_count> slots = {};
  nvtx::ModuleSegment segment = {};
  nvtx::ModuleInfo info = {};
};

// The addresses where a tool stores its functions: one variable per function, and an array of them.
std::array<nvtx::Function*, nvtx::core2_count> core2_functions = {};
std::array<nvtx::Function**, nvtx::core2_count> core2_table = {};

int module_functions(int module, nvtx::Function**** table, unsigned* count) {
  if (module != nvtx::core2_module) return 0;
  for (std::size_t i = 0; i < core2_table.size(); ++i) core2_table[i] = &core2_functions[i];
  if (table != nullptr) *table = core2_table.data();
  if (count != nullptr) *count = static_cast<unsigned>(core2_table.size());
  return 1;
}

const void* get_table(std::uint32_t table) {
  static const nvtx::Callbacks callbacks{sizeof(nvtx::Callbacks), module_functions};
  static const nvtx::VersionInfo version{sizeof(nvtx::VersionInfo), nvtx::version, 0,
                                         [](std::uint32_t) {}};
  if (table == nvtx::callbacks_table) return &callbacks;
  return table == nvtx::version_table ? &version : nullptr;
}

/// Creates a domain for Tern if the tool supports domains. Null is the default domain.
void* create_domain(nvtx::InitializeCore* initialize) {
  if (initialize == nullptr || initialize(get_table) == 0) return nullptr;
  nvtx::Function* const create = core2_functions[nvtx::domain_create];
  return create == nullptr ? nullptr : reinterpret_cast<nvtx::DomainCreate*>(create)("Tern");
}

}  // namespace

std::unique_ptr<SuballocationNotes> SuballocationNotes::attach(const std::string& library) {
  if (library.empty()) return nullptr;
  void* tool = open_shared_library(library.c_str());
  if (tool == nullptr) return nullptr;
  return attach(
      reinterpret_cast<nvtx::Initialize*>(find_symbol(tool, "InitializeInjectionNvtxExtension")),
      reinterpret_cast<nvtx::InitializeCore*>(find_symbol(tool, "InitializeInjectionNvtx2")));
}

std::unique_ptr<SuballocationNotes> SuballocationNotes::attach(
    nvtx::Initialize* initialize, nvtx::InitializeCore* initialize_core) {
  if (initialize == nullptr) return nullptr;
  void* const domain = create_domain(initialize_core);
  // The tool may keep the address of the slots forever.
  static std::list<Module>& kept = *new std::list<Module>;
  auto& [slots, segment, module] = kept.emplace_back();
  segment = {1, nvtx::slot_count, slots.data()};
  module = {
      nvtx::version, sizeof module, nvtx::memory_module, nvtx::memory_compatibility, 1, &segment,
      nullptr,       nullptr};
  if (initialize(&module) == 0) return nullptr;
  std::unique_ptr<SuballocationNotes> notes(new SuballocationNotes);
  notes->domain_ = domain;
  const bool has_all = take(slots, nvtx::heap_register, notes->heap_register_) &&
                       take(slots, nvtx::heap_unregister, notes->heap_unregister_) &&
                       take(slots, nvtx::regions_register, notes->regions_register_) &&
                       take(slots, nvtx::regions_unregister, notes->regions_unregister_);
  return has_all ? std::move(notes) : nullptr;
}

void SuballocationNotes::begin(const void* allocation, std::size_t allocation_bytes,
                               const void* block, std::size_t block_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  auto known = heaps_.find(allocation);
  if (known == heaps_.end()) {
    try {
      known = heaps_.emplace(allocation, nullptr).first;
    } catch (const std::bad_alloc&) {
      return;  // an incomplete report is better than a failure of the program
    }
    const nvtx::VirtualRange range{allocation_bytes, allocation};
    const nvtx::HeapDescription heap{nvtx::memory_compatibility,
                                     sizeof(nvtx::HeapDescription),
                                     0,
                                     nvtx::usage_sub_allocator,
                                     nvtx::type_virtual_address,
                                     sizeof range,
                                     &range,
                                     0,
                                     0,
                                     nullptr};
    known->second = heap_register_(domain_, &heap);
  }
  if (known->second == nullptr) return;  // the tool does not accept this kind of memory
  try {
    if (!blocks_.emplace(block, allocation).second) return;
  } catch (const std::bad_alloc&) {
    return;
  }
  const nvtx::VirtualRange range{block_bytes, block};
  const nvtx::RegionsToRegister regions{nvtx::memory_compatibility,
                                        sizeof(nvtx::RegionsToRegister),
                                        nvtx::type_virtual_address,
                                        known->second,
                                        1,
                                        sizeof range,
                                        &range,
                                        nullptr};
  regions_register_(domain_, &regions);
}

void SuballocationNotes::end(const void* block) noexcept {
  const nvtx::RegionsToUnregister regions{nvtx::memory_compatibility,
                                          sizeof(nvtx::RegionsToUnregister),
                                          nvtx::reference_by_pointer,
                                          1,
                                          sizeof block,
                                          &block};
  const std::lock_guard lock(mutex_);
  if (blocks_.erase(block) != 0) regions_unregister_(domain_, &regions);
}

void SuballocationNotes::forget(const void* allocation) noexcept {
  const std::lock_guard lock(mutex_);
  const auto known = heaps_.find(allocation);
  if (known == heaps_.end()) return;
  std::erase_if(blocks_, [&](const auto& block) { return block.second == allocation; });
  if (known->second != nullptr) heap_unregister_(domain_, known->second);
  heaps_.erase(known);
}

}  // namespace tern::cuda
