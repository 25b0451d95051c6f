#include "core/spans_in_flight.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <list>
#include <mutex>
#include <new>
#include <vector>

#include "core/memory_tool.hpp"

namespace tern {
namespace {

struct Entry {
  SpansNumber number = 0;
  SpansOrigin origin;
  bool is_anything = false;
  std::vector<HostSpan> spans = {};
  std::vector<HostSpan> poisoned = {};
};

bool overlap(const HostSpan& a, const HostSpan& b) noexcept {
  const auto first = [](const HostSpan& span) {
    return reinterpret_cast<std::uintptr_t>(span.address);
  };
  return first(a) < first(b) + b.bytes && first(b) < first(a) + a.bytes;
}

/// Prints the line that submitted the copy, which the tool does not know. Uses no heap memory,
/// because the report is needed most when the heap is damaged or exhausted.
void print_freed(const Entry& entry, const HostSpan& span) noexcept {
  const CallSite& site = entry.origin.site;
  std::array<char, 1024> text;
  const int length =
      std::snprintf(text.data(), text.size(),
                    "tern: the copy submitted at %s:%u in %s will %s %zu bytes of freed host "
                    "memory. Keep the memory until the host has waited for the copy.\n",
                    site.file, site.line, site.function,
                    span.use == HostSpan::Use::read ? "read" : "write", span.bytes);
  if (length <= 0) return;
  const auto bytes = std::min(static_cast<std::size_t>(length), text.size() - 1);
  static_cast<void>(!::write(STDERR_FILENO, text.data(), bytes));
}

class Registry {
 public:
  SpansNumber add(const SpansOrigin& origin, std::span<const HostSpan> spans,
                  bool is_anything) noexcept {
    MemoryTool* const tool = memory_tool();
    if (tool == nullptr) return 0;
    try {
      std::list<Entry> made;
      Entry& entry = made.emplace_back();
      entry.origin = origin;
      entry.is_anything = is_anything;
      entry.spans.assign(spans.begin(), spans.end());
      entry.poisoned.reserve(spans.size());
      const std::lock_guard lock(mutex_);
      entry.number = ++last_number_;
      for (const HostSpan& span : spans) {
        if (span.use != HostSpan::Use::awaited || span.bytes == 0 || is_shared(span)) continue;
        // Memory that is already poisoned has another owner, who unpoisons it.
        if (!tool->is_accessible(span.address, span.bytes)) continue;
        tool->poison(span.address, span.bytes);
        entry.poisoned.push_back(span);
      }
      entries_.splice(entries_.end(), made);
      return last_number_;
    } catch (const std::bad_alloc&) {
      return 0;
    }
  }

  void run(SpansNumber number) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(entries_, number, &Entry::number);
    if (found == entries_.end()) return;
    unpoison(*found);
    report_freed(*found);
  }

  void end(SpansNumber number) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(entries_, number, &Entry::number);
    if (found == entries_.end()) return;
    unpoison(*found);
    entries_.erase(found);
  }

  void lose(const void* owner) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](Entry& entry) {
      if (entry.origin.owner != owner) return false;
      unpoison(entry);
      return true;
    });
  }

  void poison(const HostSpan& span) noexcept {
    MemoryTool* const tool = memory_tool();
    if (tool == nullptr) return;
    try {
      const std::lock_guard lock(mutex_);
      poisoned_.push_back(span);
      tool->poison(span.address, span.bytes);
    } catch (const std::bad_alloc&) {
      // The memory stays accessible.
    }
  }

  void unpoison(const HostSpan& span) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(poisoned_, span.address, &HostSpan::address);
    if (found == poisoned_.end()) return;
    unpoison_all({&*found, 1});
    poisoned_.erase(found);
  }

  // The forking thread holds the lock, so the child never inherits it locked by a thread that does
  // not exist there.
  void before_fork() noexcept { mutex_.lock(); }
  void after_fork(bool is_child) noexcept {
    if (is_child) {
      for (Entry& entry : entries_) unpoison(entry);
      unpoison_all(poisoned_);
      poisoned_.clear();
    }
    mutex_.unlock();
  }

  std::size_t count() noexcept {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  // Call with mutex_ held.
  [[nodiscard]] bool is_shared(const HostSpan& span) const noexcept {
    return std::ranges::any_of(entries_, [&](const Entry& entry) {
      return entry.is_anything || std::ranges::any_of(entry.spans, [&](const HostSpan& other) {
               return overlap(span, other);
             });
    });
  }
  /// Prints freed spans. The tool reports the access itself; if the driver makes the access, this
  /// function reports it.
  static void report_freed(const Entry& entry) noexcept {
    MemoryTool* const tool = memory_tool();
    if (tool == nullptr || !entry.origin.site.is_known()) return;
    for (const HostSpan& span : entry.spans) {
      if (!tool->is_freed(span.address, span.bytes)) continue;
      print_freed(entry, span);
      if (!entry.origin.is_moved_by_driver) continue;
      tool->report(span.address, span.bytes, span.use != HostSpan::Use::read);
    }
  }
  static void unpoison(Entry& entry) noexcept {
    unpoison_all(entry.poisoned);
    entry.poisoned.clear();
  }
  static void unpoison_all(std::span<const HostSpan> spans) noexcept {
    MemoryTool* const tool = memory_tool();
    for (const HostSpan& span : spans) {
      if (tool != nullptr) tool->unpoison_unless_freed(span.address, span.bytes);
    }
  }

  std::mutex mutex_;
  std::list<Entry> entries_;        // guarded by mutex_; oldest first
  SpansNumber last_number_ = 0;     // guarded by mutex_
  std::vector<HostSpan> poisoned_;  // guarded by mutex_; by poison()
};

Registry& registry() noexcept {
  // Never destroyed: streams run until the process ends.
  alignas(Registry) static std::byte storage[sizeof(Registry)];
  static Registry& one = *::new (storage) Registry;
  return one;
}

}  // namespace

SpansNumber spans_submitted(const SpansOrigin& origin, std::span<const HostSpan> spans) noexcept {
  return memory_tool() == nullptr ? 0 : registry().add(origin, spans, false);
}
SpansNumber anything_submitted(const SpansOrigin& origin) noexcept {
  return memory_tool() == nullptr ? 0 : registry().add(origin, {}, true);
}
void spans_run(SpansNumber number) noexcept {
  if (number != 0) registry().run(number);
}
void spans_ended(SpansNumber number) noexcept {
  if (number != 0) registry().end(number);
}
void spans_lost(const void* owner) noexcept {
  if (memory_tool() != nullptr) registry().lose(owner);
}
void poison_in_flight(const void* address, std::size_t bytes) noexcept {
  if (memory_tool() != nullptr) registry().poison({address, bytes});
}
void unpoison_in_flight(const void* address, std::size_t bytes) noexcept {
  if (memory_tool() != nullptr) registry().unpoison({address, bytes});
}
void spans_before_fork() noexcept {
  if (memory_tool() != nullptr) registry().before_fork();
}
void spans_after_fork(bool is_child) noexcept {
  if (memory_tool() != nullptr) registry().after_fork(is_child);
}
std::size_t spans_in_flight() noexcept { return memory_tool() == nullptr ? 0 : registry().count(); }

}  // namespace tern
