// Copies and fills on a CUDA device.
//
// The driver does most of them. This class adds fills of every width from 1 to 16 bytes at any
// address, batches of copies, and two kinds of copies for which the driver would block the caller
// until all earlier work of the stream is done: copies between the device and pageable host memory,
// which are staged through page-locked memory at several times the rate (staging.hpp), and copies
// from host to host memory. Such a copy waits at most for itself, and on a busy stream not at all.
//
// If an operation that needs several driver calls fails in the middle, the contents of the
// destination are unspecified. Call all functions in a scope and with a resolved stream handle.
// Thread-safe.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>

#include "backends/cuda/context.hpp"
#include "core/spans_in_flight.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"

namespace tern::cuda {

class Staging;

/// The stream of a copy, whether all of its work is known to be complete, and the call site for
/// reports about host memory.
struct CopyStream {
  CUstream handle = nullptr;
  bool is_idle = false;
  CallSite site = {};
};

class CudaCopies {
 public:
  /// `staging` may be null: the driver then copies pageable memory.
  CudaCopies(Context& context, std::unique_ptr<Staging> staging);
  ~CudaCopies();

  [[nodiscard]] Result<void> copy(const CopyStream& stream, void* destination, const void* source,
                                  std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> copy_2d(const CopyStream& stream, const Copy2D& copy) noexcept;
  [[nodiscard]] Result<void> copy_batch(const CopyStream& stream,
                                        std::span<const CopyRange> copies) noexcept;
  [[nodiscard]] Result<void> copy_from_peer(CUstream stream, void* destination, Context& peer,
                                            const void* source, std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> fill(CUstream stream, void* destination, std::size_t bytes,
                                  const Pattern& pattern) noexcept;

 private:
  /// What the driver knows about an address; it decides the route of a copy.
  struct Known {
    bool is_host = false;      // pageable, page-locked or registered
    bool is_pageable = false;  // unknown to the driver
    std::uintptr_t base = 0;   // all of [base, base + bytes) has the same kind
    std::size_t bytes = 0;

    [[nodiscard]] bool holds(std::uintptr_t address, std::size_t length) const noexcept {
      return address - base < bytes && length <= bytes - (address - base);
    }
  };
  /// The driver needs longer for each attribute, so a single copy asks only for the kind; `base`
  /// and `bytes` are then 0.
  enum class LookUp : std::uint8_t { kind, range };
  [[nodiscard]] Known look_up(const void* address, LookUp what = LookUp::kind) noexcept;
  [[nodiscard]] bool is_capturing(CUstream stream) noexcept;
  /// Returns whether all work that precedes the next work of the stream is done.
  [[nodiscard]] bool is_idle(const CopyStream& stream) noexcept;
  [[nodiscard]] Result<void> copy_from_or_to_host(const CopyStream& stream, const Copy2D& copy,
                                                  const Known& from, const Known& to) noexcept;
  [[nodiscard]] Result<void> copy_by_host(const CopyStream& stream, const Copy2D& copy,
                                          bool is_to_pageable) noexcept;
  [[nodiscard]] Result<void> stage(const CopyStream& stream, const Copy2D& copy, bool is_to_device,
                                   bool& is_staged) noexcept;
  [[nodiscard]] Result<void> copy_by_driver(CUstream stream, void* destination, const void* source,
                                            std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> copy_2d_by_driver(CUstream stream, const Copy2D& copy,
                                               bool is_from_pageable, bool is_to_pageable) noexcept;
  [[nodiscard]] Result<void> batch_by_driver(CUstream stream,
                                             std::span<const CopyRange> copies) noexcept;
  /// Fills with 1, 2 or 4 bytes at an aligned address.
  [[nodiscard]] Result<void> fill_words(CUstream stream, std::uintptr_t address, std::size_t bytes,
                                        const Pattern& pattern) noexcept;

  /// A copy that the host makes when the stream reaches it. A host function does not run after an
  /// error, so it must not own memory: completed entries are removed by the next copy or at the
  /// end.
  struct HostCopy {
    Copy2D copy;
    SpansNumber spans = 0;
    std::atomic<bool> is_done = false;
  };
  static void run_host_copy(void* context);

  Context& context_;
  std::unique_ptr<Staging> staging_;
  std::mutex host_copies_mutex_;
  std::list<HostCopy> host_copies_;  // guarded by host_copies_mutex_
};

}  // namespace tern::cuda
