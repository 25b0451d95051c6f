#include "coherence/host_access_checks.hpp"

#include "coherence/guarded_heap.hpp"

namespace tern {
namespace {

/// Returns the host memory if no device shares it, else null.
const CopySet::Memory* unshared_memory(const CopySet& copies) noexcept {
  const CopySet::Memory& memory = copies.memory(CopySet::host);
  return memory.storage && memory.parts == PlaceSet::of(CopySet::host) ? &memory : nullptr;
}

}  // namespace

// --- Checksums

std::optional<HostAccessChecks::Sealing> HostAccessChecks::plan_seal(const CopySet& copies,
                                                                     const LeaseTable& leases,
                                                                     std::uint32_t slot) noexcept {
  const CopySet::Memory* const memory = unshared_memory(copies);
  const LeaseTable::Slot& lease = leases[slot];
  const ByteRange range = lease.range;
  const auto may_write = [&](const LeaseTable::Slot& other) {
    return is_write(other.access) && other.overlaps(range);
  };
  if (memory == nullptr || lease.place != CopySet::host || !memory->is_read_clear ||
      leases.find_other(slot, may_write) != nullptr ||
      !copies.directory().is_valid(range.begin, range.end, CopySet::host)) {
    return std::nullopt;
  }
  return Sealing{memory->storage, memory->address, copies.directory().bytes(), range, lease.site};
}

void HostAccessChecks::seal(const Sealing& sealing) noexcept {
  seal_.set(sealing.storage->id(), sealing.first, sealing.bytes, sealing.range, sealing.site);
}

HostAccessChecks::Sealed HostAccessChecks::sealed(const CopySet& copies) noexcept {
  const CopySet::Memory* const memory = unshared_memory(copies);
  return memory != nullptr ? Sealed{memory->storage, memory->address} : Sealed{};
}

std::optional<HostSeal::Broken> HostAccessChecks::take_broken(const Sealed& copy,
                                                              ByteRange range) noexcept {
  if (!copy.storage) return std::nullopt;
  return seal_.take_broken(copy.storage->id(), copy.first, range);
}

// --- Protected pages

GuardedHeap* HostAccessChecks::guarded(const CopySet& copies) noexcept {
  const CopySet::Memory* const memory = unshared_memory(copies);
  if (memory == nullptr || memory->storage->kind() != MemoryKind::host) return nullptr;
  return dynamic_cast<GuardedHeap*>(memory->storage->origin());
}

bool HostAccessChecks::has_guarded_pages(const CopySet& copies) noexcept {
  return guarded(copies) != nullptr;
}

void HostAccessChecks::open_pages(const CopySet& copies) noexcept {
  const StorageHandle& storage = copies.memory(CopySet::host).storage;
  if (!storage || storage->resource()) return;
  if (auto* const pages = dynamic_cast<GuardedHeap*>(storage->origin())) pages->open();
}

void HostAccessChecks::close_pages(const CopySet& copies, const LeaseTable& leases) noexcept {
  GuardedHeap* const pages = guarded(copies);
  if (pages == nullptr) return;
  pages->begin_rules();
  const Validity& directory = copies.directory();
  directory.visit(0, directory.bytes(), [&](std::size_t begin, std::size_t end, PlaceSet valid) {
    if (valid.has(CopySet::host)) pages->allow({begin, end}, GuardedHeap::Allowed::reading);
  });
  for (const LeaseTable::Slot& lease : leases.all()) {
    if (lease.place != CopySet::host) continue;
    pages->allow(lease.range, is_write(lease.access) ? GuardedHeap::Allowed::everything
                                                     : GuardedHeap::Allowed::reading);
  }
  pages->close(last_lease_);
}

}  // namespace tern
