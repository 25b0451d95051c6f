// An AddressRange is a reservation of addresses on a device whose pages come and go at its end.
//
//   Result<AddressRange> range = AddressRange::try_reserve(device, 64 * gib, {.budget = budget});
//   range->try_back(3 * mib);               // the first 3 MiB can be used: two pages of 2 MiB
//   range->try_unback(1 * mib, uses);       // the second page is freed after its uses
//
// The addresses never move. A budget is charged for the pages, to the byte, and not for the
// reservation: addresses cost no memory. Pages that lose their backing are pending until the marks
// of their users are done. Pending pages stay mapped and charged. If the range grows again before
// that, it takes them back without a driver call. A call that fails leaves the range as it was.
//
// If the driver refuses to free a page, the page stays charged, and reclaim() tries again. The
// destructor waits for the marks and frees everything. Not thread-safe: the owner orders the calls.
//
// Invariants:
//   1. The pieces follow each other from offset 0. The first usable_ pieces are open for access.
//   2. A piece is charged for exactly its bytes from before its pages exist until they are freed.
//   3. Only the pieces from usable_ on are pending, and waits_ covers all their uses.

#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/operations.hpp"
#include "tern/memory/budget.hpp"

namespace tern {

/// Who is charged for the pages of a range.
struct AddressRangeOptions {
  BudgetHandle budget = {};  // null charges nothing
  Tag tag = {};
};

class AddressRange {
 public:
  /// The largest piece that one driver call creates. A driver charges per piece, not per byte.
  static constexpr std::size_t max_piece_bytes = std::size_t{256} << 20;

  AddressRange() noexcept = default;
  AddressRange(AddressRange&& other) noexcept { swap(other); }
  AddressRange& operator=(AddressRange&& other) noexcept {
    AddressRange(std::move(other)).swap(*this);
    return *this;
  }
  ~AddressRange();

  /// Reserves the addresses, rounded up to whole pages. Needs Capability::virtual_memory. Fails
  /// with unsupported, size_overflow, device_mismatch for a budget of another device, and as the
  /// device does.
  [[nodiscard]] static Result<AddressRange> try_reserve(const Device& device, std::size_t bytes,
                                                        const AddressRangeOptions& options = {},
                                                        CallSite site = CallSite::here()) noexcept;

  /// Backs at least the first `bytes` with pages. If new pages are needed, creates `ahead_bytes` at
  /// once if that is more and if device and budget allow it. Fails with capacity past the end of
  /// the reservation, with out_of_memory after the default resource of the device returned its
  /// free memory and called its pressure handlers, and with out_of_budget. Before that, as far as
  /// the Overflow of the budget allows, waits for pending frees and evicts copies of unified
  /// buffers that the budget counts.
  [[nodiscard]] Result<void> try_back(std::size_t bytes, std::size_t ahead_bytes = 0,
                                      CallSite site = CallSite::here()) noexcept;
  /// Takes the backing away from all pieces that begin at or after `keep_bytes`. They are freed
  /// once the marks are done, by this call or by a later one. Fails if the host has no memory for
  /// the marks.
  [[nodiscard]] Result<void> try_unback(std::size_t keep_bytes, std::span<const Mark> uses,
                                        CallSite site = CallSite::here()) noexcept;
  /// Frees pending pages whose marks are done. Never waits for them. Returns the freed bytes.
  std::size_t reclaim() noexcept;
  /// Frees everything whose marks are done. Returns false if something is left; then the call can
  /// be repeated. No other work may use the range.
  [[nodiscard]] bool try_end() noexcept;

  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] std::byte* address() const noexcept { return base_; }
  [[nodiscard]] std::size_t reserved_bytes() const noexcept { return reserved_bytes_; }
  /// The bytes from the first address on that can be used.
  [[nodiscard]] std::size_t backed_bytes() const noexcept;
  /// All pages that take memory, which is what the budget is charged: backed and pending ones.
  [[nodiscard]] std::size_t resident_bytes() const noexcept;
  [[nodiscard]] std::size_t pending_bytes() const noexcept {
    return resident_bytes() - backed_bytes();
  }
  /// The marks that pending pages wait for.
  [[nodiscard]] std::span<const Mark> waits() const noexcept { return waits_; }

 private:
  /// Pages that are mapped together. A piece goes through these states in order, and back: charged,
  /// created, mapped, open. The handle is released once the piece is open, because a mapping keeps
  /// its pages alive.
  struct Piece {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    Charge charge = {};
    NativePages pages = {};  // 0: not created, or released
    bool is_mapped = false;
    bool is_open = false;
  };

  void swap(AddressRange& other) noexcept;
  [[nodiscard]] std::size_t end_of(std::size_t pieces) const noexcept {
    return pieces == 0 ? 0 : pieces_[pieces - 1].offset + pieces_[pieces - 1].bytes;
  }
  /// Moves the piece on to open. On failure the piece stays where it came to.
  [[nodiscard]] Result<void> try_open(Piece& piece) noexcept;
  /// Moves the piece back to charged. Returns false if the driver refuses.
  [[nodiscard]] bool try_close(Piece& piece) noexcept;
  /// Adds an open piece of exactly `bytes`.
  [[nodiscard]] Result<void> try_add(std::size_t bytes, CallSite site) noexcept;
  /// Adds pieces until `bytes` more are backed. On failure, earlier ones stay.
  [[nodiscard]] Result<void> try_grow(std::size_t bytes, std::size_t ahead_bytes,
                                      CallSite site) noexcept;
  /// Closes pieces from the last one on, down to usable_.
  std::size_t close_pending() noexcept;

  Device device_;
  std::byte* base_ = nullptr;
  std::size_t reserved_bytes_ = 0;
  BudgetHandle budget_;
  Tag tag_ = {};
  std::vector<Piece> pieces_;
  std::size_t usable_ = 0;
  std::vector<Mark> waits_;
};

}  // namespace tern
