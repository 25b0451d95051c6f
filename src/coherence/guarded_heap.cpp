#include "coherence/guarded_heap.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "core/fault_watch.hpp"
#include "core/no_host_memory.hpp"

namespace tern {
namespace {

/// Prints the report of a fault. Returns false, because the access must not be retried.
bool explain(const Fault& fault) noexcept {
  std::array<char, 600> text;
  const auto written = fmt::format_to_n(
      text.data(), text.size(),
      "unified buffer '{}': the host touched byte {} of its copy without a lease.\n"
      "  the last lease was opened at {}:{}\n"
      "  open one with read_host(), rw_host() or discard_host(), and keep it as long as the "
      "pointer\n",
      fault.name, fault.offset, fault.site.file, fault.site.line);
  const std::size_t bytes = std::min(written.size, text.size());
  static_cast<void>(!write(STDERR_FILENO, text.data(), bytes));
  return false;
}

int protection(GuardedHeap::Allowed allowed) noexcept {
  switch (allowed) {
    case GuardedHeap::Allowed::nothing:
      return PROT_NONE;
    case GuardedHeap::Allowed::reading:
      return PROT_READ;
    case GuardedHeap::Allowed::everything:
      break;
  }
  return PROT_READ | PROT_WRITE;
}

}  // namespace

std::size_t GuardedHeap::page_bytes() noexcept {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t GuardedHeap::page_count() const noexcept {
  return (bytes_ + page_bytes() - 1) / page_bytes();
}

Result<StorageOrigin::Memory> GuardedHeap::try_begin(CallSite site) noexcept {
  const std::size_t pages = page_count();
  void* const address = mmap(nullptr, pages * page_bytes(), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return no_host_memory(bytes_, "a guarded copy of a unified buffer", site);
  }
  try {
    now_.assign(pages, Allowed::everything);
    wanted_.assign(pages, Allowed::everything);
  } catch (const std::bad_alloc&) {
    munmap(address, pages * page_bytes());
    return no_host_memory("guarded memory", site);
  }
  address_ = static_cast<std::byte*>(address);
  watch_faults(address_, pages * page_bytes(), tag_.name(), explain);
  return Memory{address_, address_, bytes_};
}

void GuardedHeap::free() noexcept {
  if (address_ == nullptr) return;
  forget_faults(address_);
  munmap(std::exchange(address_, nullptr), page_count() * page_bytes());
}

void GuardedHeap::open() noexcept {
  if (address_ == nullptr ||
      std::ranges::all_of(now_, [](Allowed one) { return one == Allowed::everything; })) {
    return;
  }
  if (mprotect(address_, now_.size() * page_bytes(), PROT_READ | PROT_WRITE) == 0) {
    std::ranges::fill(now_, Allowed::everything);
  }
}

void GuardedHeap::begin_rules() noexcept { std::ranges::fill(wanted_, Allowed::nothing); }

void GuardedHeap::allow(ByteRange range, Allowed allowed) noexcept {
  if (range.begin >= range.end) return;
  const std::size_t behind =
      std::min((range.end + page_bytes() - 1) / page_bytes(), wanted_.size());
  for (std::size_t page = range.begin / page_bytes(); page < behind; ++page) {
    wanted_[page] = std::max(wanted_[page], allowed);
  }
}

void GuardedHeap::close(const CallSite& last_lease) noexcept {
  if (address_ == nullptr) return;
  set_fault_site(address_, last_lease);
  for (std::size_t page = 0; page < now_.size();) {
    std::size_t behind = page + 1;
    while (behind < now_.size() && wanted_[behind] == wanted_[page]) ++behind;
    const auto first = static_cast<std::ptrdiff_t>(page),
               last = static_cast<std::ptrdiff_t>(behind);
    const bool is_so = std::all_of(now_.begin() + first, now_.begin() + last,
                                   [&](Allowed one) { return one == wanted_[page]; });
    // If the system cannot protect the pages, they stay accessible.
    if (!is_so && mprotect(address_ + page * page_bytes(), (behind - page) * page_bytes(),
                           protection(wanted_[page])) == 0) {
      std::fill(now_.begin() + first, now_.begin() + last, wanted_[page]);
    }
    page = behind;
  }
}

}  // namespace tern
