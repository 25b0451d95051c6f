// The slabs of a recording, and where they come from: a file, or a ring in memory.
//
// A thread claims a slab, writes events into it without a lock, and claims the next one when it is
// full. memory_event.hpp describes the contents.

#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tern/core/result.hpp"
#include "trace/memory_event.hpp"

namespace tern::trace {

/// A slab in memory. Other threads read it while its thread writes, so all words are atomic.
class Slab {
 public:
  explicit Slab(std::byte* memory) noexcept : memory_(memory) {}

  [[nodiscard]] SlabHeader& header() const noexcept {
    return *reinterpret_cast<SlabHeader*>(memory_);
  }
  [[nodiscard]] std::atomic_ref<std::uint64_t> used() const noexcept {
    return std::atomic_ref(header().used);
  }
  [[nodiscard]] std::atomic_ref<std::uint64_t> order() const noexcept {
    return std::atomic_ref(header().order);
  }
  [[nodiscard]] std::byte* contents() const noexcept { return memory_ + sizeof(SlabHeader); }
  [[nodiscard]] std::byte* memory() const noexcept { return memory_; }

  void begin(SlabKind kind, std::uint32_t thread, std::uint64_t number) const noexcept {
    used().store(0, std::memory_order_relaxed);
    order().store(number, std::memory_order_release);
    // A reader that sees an event of the new contents must see the new number, too.
    std::atomic_thread_fence(std::memory_order_release);
    std::atomic_ref(header().thread).store(thread, std::memory_order_relaxed);
    std::atomic_ref(header().kind).store(kind, std::memory_order_release);
  }
  void put(std::uint64_t index, const MemoryEvent& event) const noexcept {
    auto* const to = reinterpret_cast<std::uint64_t*>(contents() + index * sizeof event);
    const auto put_word = [to](std::size_t at, std::uint64_t word) {
      std::atomic_ref(to[at]).store(word, std::memory_order_relaxed);
    };
    // The small fields are joined in registers. A word that is read from memory right after its
    // parts were written there would cost as much as the other words together.
    static_assert(std::endian::native == std::endian::little);
    put_word(0, event.time_ns);
    put_word(1, event.stream);
    put_word(2, event.block);
    put_word(3, event.address);
    put_word(4, event.bytes);
    put_word(5, event.extra);
    put_word(6, event.site | std::uint64_t{event.resource} << 32);
    put_word(7, event.device | std::uint64_t{event.tag} << 32 |
                    std::uint64_t{static_cast<std::uint8_t>(event.kind)} << 48 |
                    std::uint64_t{event.detail} << 56);
    used().store(index + 1, std::memory_order_release);
  }

 private:
  std::byte* memory_;
};

/// A header that says that a recording of this process starts now.
[[nodiscard]] FileHeader new_header() noexcept;

/// Where slabs come from.
class SlabStore {
 public:
  SlabStore() = default;
  SlabStore(const SlabStore&) = delete;
  SlabStore& operator=(const SlabStore&) = delete;
  virtual ~SlabStore() = default;

  /// Returns a slab with unused contents, or none.
  [[nodiscard]] virtual std::optional<Slab> claim(SlabKind kind, std::uint32_t thread) noexcept = 0;
  /// The thread writes no more to the slab.
  virtual void release(Slab slab) noexcept = 0;
  virtual void note_lost(std::uint64_t events) noexcept = 0;
  [[nodiscard]] virtual std::uint64_t lost() const noexcept = 0;
  /// The recording has stopped. Threads may still be writing to their slabs.
  virtual void close() noexcept = 0;

  /// Returns whether new slabs replace old ones. Only then can they be written to a file.
  [[nodiscard]] virtual bool is_ring() const noexcept { return false; }
  /// Writes header, definitions and events to a file, while other threads record. An older file is
  /// replaced only by a complete one. Throws std::bad_alloc.
  [[nodiscard]] virtual Result<void> try_dump(const std::string& /*path*/) { return {}; }
};

/// Slabs in a new file. Fails with file if the file cannot be created, and with invalid_argument if
/// another recording writes to it. Throws std::bad_alloc.
[[nodiscard]] Result<std::unique_ptr<SlabStore>> try_open_slabs(const std::string& path);

/// A ring of slabs in memory. Fails with out_of_memory. Throws std::bad_alloc.
[[nodiscard]] Result<std::unique_ptr<SlabStore>> try_make_ring(std::size_t bytes);

}  // namespace tern::trace
