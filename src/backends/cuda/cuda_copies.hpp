// Copies and fills on a CUDA device.
//
// The driver's own calls do most of it. What they do not do well or at all is done here: fills of
// every width from 1 to 16 bytes at any address, many copies in one call, and two kinds of copies
// that the driver lets the caller wait for, with all that the stream has in front of them: between
// the device and pageable host memory, which go through page-locked memory instead (staging.hpp)
// and at several times the rate, and from host memory to host memory. Such a copy waits for nothing
// but itself, and on a stream with work in front for nothing at all.
//
// What takes several calls of the driver and fails in the middle leaves the destination's bytes
// unspecified. All calls are in a scope, and on a handle that was resolved. Thread-safe.

#pragma once

#include <atomic>
#include <cstddef>
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

class CudaCopies {
 public:
  /// Staging may be null: then pageable memory is left to the driver.
  CudaCopies(Context& context, std::unique_ptr<Staging> staging);
  ~CudaCopies();

  // The site is for reports about the host memory of a copy.
  [[nodiscard]] Result<void> copy(CUstream stream, void* destination, const void* source,
                                  std::size_t bytes, CallSite site = {}) noexcept;
  [[nodiscard]] Result<void> copy_2d(CUstream stream, const Copy2D& copy,
                                     CallSite site = {}) noexcept;
  [[nodiscard]] Result<void> copy_batch(CUstream stream, std::span<const CopyRange> copies,
                                        CallSite site = {}) noexcept;
  [[nodiscard]] Result<void> copy_from_peer(CUstream stream, void* destination, Context& peer,
                                            const void* source, std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> fill(CUstream stream, void* destination, std::size_t bytes,
                                  const Pattern& pattern) noexcept;

 private:
  /// What the driver knows of an address, for the way a copy takes.
  struct Known {
    bool is_host = false;      // pageable, page-locked or registered
    bool is_pageable = false;  // the driver does not know it
    std::uintptr_t base = 0;   // all of [base, base + bytes) is alike
    std::size_t bytes = 0;

    [[nodiscard]] bool holds(std::uintptr_t address, std::size_t length) const noexcept {
      return address - base < bytes && length <= bytes - (address - base);
    }
  };
  [[nodiscard]] Known look_up(const void* address) noexcept;
  [[nodiscard]] bool is_capturing(CUstream stream) noexcept;
  /// Is everything done that the next work of the stream comes after?
  [[nodiscard]] bool is_idle(CUstream stream) noexcept;
  [[nodiscard]] Result<void> copy_from_or_to_host(CUstream stream, const Copy2D& copy,
                                                  const Known& from, const Known& to,
                                                  CallSite site) noexcept;
  [[nodiscard]] Result<void> copy_by_host(CUstream stream, const Copy2D& copy, bool is_to_pageable,
                                          CallSite site) noexcept;
  [[nodiscard]] Result<void> stage(CUstream stream, const Copy2D& copy, bool is_to_device,
                                   CallSite site, bool& is_staged) noexcept;
  [[nodiscard]] Result<void> copy_by_driver(CUstream stream, void* destination, const void* source,
                                            std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> copy_2d_by_driver(CUstream stream, const Copy2D& copy,
                                               bool is_from_pageable, bool is_to_pageable) noexcept;
  [[nodiscard]] Result<void> batch_by_driver(CUstream stream,
                                             std::span<const CopyRange> copies) noexcept;
  /// Of 1, 2 or 4 bytes, at an address that is a multiple of it.
  [[nodiscard]] Result<void> fill_words(CUstream stream, std::uintptr_t address, std::size_t bytes,
                                        const Pattern& pattern) noexcept;

  /// A copy that the host makes when the stream gets there. A host function must not free, for it
  /// does not run after an error; so those that are done are dropped by the next, or at the end.
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
