// Decides how calls on files end, and counts them. Set it with FileTransfers::set_faults().

#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "buffer/file_transfers.hpp"

namespace tern::test {

class PlannedFaults final : public FileFaults {
 public:
  explicit PlannedFaults(FileTransfers& transfers) : transfers_(transfers) {
    transfers_.set_faults(this);
  }
  ~PlannedFaults() override {
    release();
    transfers_.set_faults(nullptr);
  }

  /// Calls that `which` selects end with this error, at most `times` times.
  template <class Which>
  void fail(int error, Which which, std::size_t times = ~std::size_t{0}) {
    const std::lock_guard lock(mutex_);
    plans_.push_back({which, {.error = error}, times});
  }
  /// Calls that `which` selects transfer at most this many bytes.
  template <class Which>
  void shorten(std::size_t max_bytes, Which which) {
    const std::lock_guard lock(mutex_);
    plans_.push_back({which, {.max_bytes = max_bytes}, ~std::size_t{0}});
  }
  /// Calls block until release().
  void hold() {
    const std::lock_guard lock(mutex_);
    is_held_ = true;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    is_held_ = false;
    changed_.notify_all();
  }
  [[nodiscard]] std::vector<FileCall> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  template <class Which>
  [[nodiscard]] std::size_t count(Which which) const {
    std::size_t found = 0;
    for (const FileCall& call : calls()) found += which(call) ? 1u : 0u;
    return found;
  }

  [[nodiscard]] Verdict before(const FileCall& call) noexcept override {
    std::unique_lock lock(mutex_);
    calls_.push_back(call);
    changed_.wait(lock, [this] { return !is_held_; });
    for (Plan& plan : plans_) {
      if (plan.times == 0 || !plan.which(call)) continue;
      --plan.times;
      return plan.verdict;
    }
    return {};
  }

 private:
  struct Plan {
    bool (*which)(const FileCall& call);
    Verdict verdict;
    std::size_t times;
  };

  FileTransfers& transfers_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Plan> plans_;
  std::vector<FileCall> calls_;
  bool is_held_ = false;
};

inline bool any_call(const FileCall&) { return true; }
inline bool is_write_call(const FileCall& call) { return call.is_write; }
inline bool is_read_call(const FileCall& call) { return !call.is_write; }
inline bool is_direct_call(const FileCall& call) { return call.is_direct; }
inline bool asks_cache_call(const FileCall& call) { return call.asks_cache; }

}  // namespace tern::test
