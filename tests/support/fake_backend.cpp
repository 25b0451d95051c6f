#include "support/fake_backend.hpp"

#include <atomic>
#include <utility>

#include "backends/host/host_backend.hpp"
#include "memory/pool/block_poisoning.hpp"

namespace tern::test {
namespace {

std::size_t index_of(Call call) { return static_cast<std::size_t>(call); }

const char* name_of(Call call) {
  switch (call) {
#define TERN_CALL(name) \
  case Call::name:      \
    return #name;
    TERN_FOR_EACH_CALL(TERN_CALL)
#undef TERN_CALL
  }
  return "unknown";
}

}  // namespace

std::size_t Ledger::count(Call call) const {
  const std::lock_guard lock(mutex_);
  return counts_[index_of(call)];
}
std::size_t Ledger::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}
std::size_t Ledger::live_streams() const {
  const std::lock_guard lock(mutex_);
  return streams_.size();
}
std::size_t Ledger::live_events() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}
std::size_t Ledger::live_kernels() const {
  const std::lock_guard lock(mutex_);
  return kernels_.size();
}
std::size_t Ledger::live_registrations() const {
  const std::lock_guard lock(mutex_);
  return registrations_;
}
std::size_t Ledger::failures() const {
  const std::lock_guard lock(mutex_);
  return failures_;
}
std::size_t Ledger::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}
std::size_t Ledger::idle_copies() const {
  const std::lock_guard lock(mutex_);
  return idle_copies_;
}

bool Ledger::has_closed() const {
  const std::lock_guard lock(mutex_);
  return has_closed_;
}
void Ledger::fail_at(std::size_t index) {
  const std::lock_guard lock(mutex_);
  fail_at_ = total_ + index;
}
void Ledger::fail_next(Call call, std::size_t times) {
  const std::lock_guard lock(mutex_);
  to_fail_[index_of(call)] = times;
}
void Ledger::run_after(Call call, std::function<void()> function) {
  const std::lock_guard lock(mutex_);
  after_[index_of(call)] = std::move(function);
}
void Ledger::wait_for(Call call, std::size_t times) const {
  std::unique_lock lock(mutex_);
  entered_.wait(lock, [&] { return counts_[index_of(call)] >= times; });
}

std::optional<Failure> Ledger::enter(Call call) {
  const std::lock_guard lock(mutex_);
  ++counts_[index_of(call)];
  ++total_;
  entered_.notify_all();
  std::size_t& planned = to_fail_[index_of(call)];
  if (planned == 0 && total_ != fail_at_) return std::nullopt;
  if (planned > 0) --planned;
  ++failures_;
  return Failure(ErrorCode::driver)
      .with("call", name_of(call))
      .with("name", "FAKE_FAILURE")
      .with("code", std::uint64_t{7});
}

void Ledger::leave(Call call) {
  std::function<void()> function;
  {
    const std::lock_guard lock(mutex_);
    function = std::exchange(after_[index_of(call)], nullptr);
  }
  if (function) function();
}

void Ledger::expect(bool holds) {
  if (!holds) ++violations_;
}

class FakeBackend final : public Backend {
 public:
  FakeBackend(std::shared_ptr<Ledger> ledger, const FakeOptions& options)
      : ledger_(std::move(ledger)),
        free_bytes_(options.free_bytes),
        registered_offset_(options.registered_offset) {
    host::HostOptions host;
    host.threads = options.threads;
    host_ = *host::open_backend(host);
    info_ = host_->info();
    info_.backend = options.backend;
    info_.spec = options.spec;
    info_.capabilities = {
#define TERN_CAPABILITY(enumerator, meaning) Capability::enumerator,
        TERN_FOR_EACH_CAPABILITY(TERN_CAPABILITY)
#undef TERN_CAPABILITY
    };
    if (options.describe) options.describe(info_);
  }
  ~FakeBackend() override {
    const std::lock_guard lock(ledger_->mutex_);
    ledger_->has_closed_ = true;
  }

  const DeviceInfo& info() const noexcept override { return info_; }
  Result<MemoryInfo> memory() noexcept override {
    if (const auto failure = ledger_->enter(Call::memory)) return *failure;
    Result<MemoryInfo> memory = host_->memory();
    if (memory && free_bytes_) memory->free_bytes = *free_bytes_;
    return memory;
  }
  Result<void> synchronize() noexcept override {
    if (const auto failure = ledger_->enter(Call::synchronize)) return *failure;
    Result<void> outcome = host_->synchronize();
    ledger_->leave(Call::synchronize);
    return outcome;
  }

  Result<void*> allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment, CallSite site,
                         Tag tag) noexcept override {
    if (const auto failure = ledger_->enter(Call::allocate)) return *failure;
    return host_->allocate(kind, bytes, alignment, site, tag);
  }
  Result<void> release(void* address, CallSite site) noexcept override {
    if (const auto failure = ledger_->enter(Call::release)) return *failure;
    return host_->release(address, site);
  }
  Result<PointerInfo> pointer_info(const void* address) noexcept override {
    if (const auto failure = ledger_->enter(Call::pointer_info)) return *failure;
    return host_->pointer_info(address);
  }
  Result<void*> allocate_async(const Submission& submission, std::size_t bytes,
                               std::size_t alignment) noexcept override {
    if (const auto failure = ledger_->enter(Call::allocate_async)) return *failure;
    return host_->allocate_async(submission, bytes, alignment);
  }
  Result<void> release_async(const Submission& submission, void* address) noexcept override {
    if (const auto failure = ledger_->enter(Call::release_async)) return *failure;
    return host_->release_async(submission, address);
  }
  Result<void*> register_host(void* address, std::size_t) noexcept override {
    if (const auto failure = ledger_->enter(Call::register_host)) return *failure;
    const std::lock_guard lock(ledger_->mutex_);
    ++ledger_->registrations_;
    return static_cast<std::byte*>(address) + registered_offset_;
  }
  Result<void> unregister_host(void*) noexcept override {
    if (const auto failure = ledger_->enter(Call::unregister_host)) return *failure;
    const std::lock_guard lock(ledger_->mutex_);
    ledger_->expect(ledger_->registrations_ > 0);
    --ledger_->registrations_;
    return {};
  }

  Result<void*> reserve(std::size_t bytes) noexcept override {
    if (const auto failure = ledger_->enter(Call::reserve)) return *failure;
    return host_->reserve(bytes);
  }
  Result<void> unreserve(void* address, std::size_t bytes) noexcept override {
    if (const auto failure = ledger_->enter(Call::unreserve)) return *failure;
    return host_->unreserve(address, bytes);
  }
  Result<NativePages> create_pages(std::size_t bytes) noexcept override {
    if (const auto failure = ledger_->enter(Call::create_pages)) return *failure;
    const Result<NativePages> pages = host_->create_pages(bytes);
    if (pages) ledger_->leave(Call::create_pages);
    return pages;
  }
  Result<NativePages> create_shareable_pages(std::size_t bytes) noexcept override {
    if (const auto failure = ledger_->enter(Call::create_shareable_pages)) return *failure;
    return host_->create_shareable_pages(bytes);
  }
  Result<int> export_pages(NativePages pages) noexcept override {
    if (const auto failure = ledger_->enter(Call::export_pages)) return *failure;
    return host_->export_pages(pages);
  }
  Result<NativePages> import_pages(int descriptor, std::size_t bytes) noexcept override {
    if (const auto failure = ledger_->enter(Call::import_pages)) return *failure;
    return host_->import_pages(descriptor, bytes);
  }
  Result<void> release_pages(NativePages pages) noexcept override {
    if (const auto failure = ledger_->enter(Call::release_pages)) return *failure;
    return host_->release_pages(pages);
  }
  Result<void> map(void* address, NativePages pages) noexcept override {
    if (const auto failure = ledger_->enter(Call::map)) return *failure;
    Result<void> mapped = host_->map(address, pages);
    if (mapped) ledger_->leave(Call::map);
    return mapped;
  }
  Result<void> unmap(void* address, std::size_t bytes) noexcept override {
    if (const auto failure = ledger_->enter(Call::unmap)) return *failure;
    Result<void> done = host_->unmap(address, bytes);
    if (done) ledger_->leave(Call::unmap);
    return done;
  }
  Result<void> set_access(void* address, std::size_t bytes, PageAccess access) noexcept override {
    if (const auto failure = ledger_->enter(Call::set_access)) return *failure;
    return host_->set_access(address, bytes, access);
  }

  Result<void> copy(const Submission& submission, void* destination, const void* source,
                    std::size_t bytes) noexcept override {
    if (const auto failure = ledger_->enter(Call::copy)) return *failure;
    if (submission.is_idle) {
      const std::lock_guard lock(ledger_->mutex_);
      ++ledger_->idle_copies_;
    }
    Result<void> queued = host_->copy(submission, destination, source, bytes);
    if (queued) ledger_->leave(Call::copy);
    return queued;
  }
  Result<void> copy_2d(const Submission& submission, const Copy2D& copy) noexcept override {
    if (const auto failure = ledger_->enter(Call::copy_2d)) return *failure;
    return host_->copy_2d(submission, copy);
  }
  Result<void> fill(const Submission& submission, void* destination, std::size_t bytes,
                    const Pattern& pattern) noexcept override {
    if (const auto failure = ledger_->enter(Call::fill)) return *failure;
    return host_->fill(submission, destination, bytes, pattern);
  }
  Result<void> copy_from_peer(const Submission& submission, void* destination, Backend&,
                              const void* source, std::size_t bytes) noexcept override {
    if (const auto failure = ledger_->enter(Call::copy_from_peer)) return *failure;
    return host_->copy(submission, destination, source, bytes);
  }
  Result<bool> enable_peer_access(Backend&) noexcept override {
    if (const auto failure = ledger_->enter(Call::enable_peer_access)) return *failure;
    has_peer_access_ = true;
    return true;
  }
  Result<PeerAccess> peer_access(Backend&) noexcept override {
    if (const auto failure = ledger_->enter(Call::peer_access)) return *failure;
    return has_peer_access_ ? PeerAccess::enabled : PeerAccess::disabled;
  }
  Result<void> disable_peer_access(Backend&) noexcept override {
    if (const auto failure = ledger_->enter(Call::disable_peer_access)) return *failure;
    has_peer_access_ = false;
    return {};
  }

  NativeStream default_stream() noexcept override { return host_->default_stream(); }
  Result<NativeStream> create_stream(const StreamOptions& options) noexcept override {
    if (const auto failure = ledger_->enter(Call::create_stream)) return *failure;
    const Result<NativeStream> stream = host_->create_stream(options);
    const std::lock_guard lock(ledger_->mutex_);
    if (stream) ledger_->streams_.insert(stream->value);
    return stream;
  }
  /// Every handle is a foreign stream, and its number is the handle. 0 is the default stream.
  Result<BorrowedStream> borrow_stream(NativeStream handle) noexcept override {
    if (handle.value == 0) return BorrowedStream{host_->default_stream(), 1, true};
    const Result<NativeStream> stream = create_stream({});
    if (!stream) return stream.failure();
    return BorrowedStream{*stream, handle.value, false};
  }
  StreamIdentity identify_stream(NativeStream handle) noexcept override {
    return {.id = handle.value, .is_default = handle.value == 0};
  }
  void destroy_stream(NativeStream stream) noexcept override {
    if (forget(ledger_->streams_, stream.value)) host_->destroy_stream(stream);
  }
  Result<bool> query(NativeStream stream) noexcept override {
    if (const auto failure = ledger_->enter(Call::query_stream)) return *failure;
    return host_->query(stream);
  }
  Result<void> synchronize(NativeStream stream) noexcept override {
    if (const auto failure = ledger_->enter(Call::synchronize_stream)) return *failure;
    return host_->synchronize(stream);
  }

  Result<NativeEvent> create_event(bool has_timing) noexcept override {
    if (const auto failure = ledger_->enter(Call::create_event)) return *failure;
    const Result<NativeEvent> event = host_->create_event(has_timing);
    const std::lock_guard lock(ledger_->mutex_);
    if (event) ledger_->events_.insert(event->value);
    return event;
  }
  void destroy_event(NativeEvent event) noexcept override {
    note_not_waited_for(event);
    if (forget(ledger_->events_, event.value)) host_->destroy_event(event);
  }
  Result<void> record(const Submission& submission, NativeEvent event) noexcept override {
    if (const auto failure = ledger_->enter(Call::record)) return *failure;
    note_not_waited_for(event);
    if (!is_live(submission.stream) || !is_live(event)) return dead_handle();
    Result<void> recorded = host_->record(submission, event);
    ledger_->leave(Call::record);
    return recorded;
  }
  Result<void> wait(const Submission& submission, NativeEvent event) noexcept override {
    if (const auto failure = ledger_->enter(Call::wait)) return *failure;
    if (!is_live(submission.stream)) return dead_handle();
    return host_->wait(submission, event);
  }
  Result<bool> query(NativeEvent event) noexcept override {
    if (const auto failure = ledger_->enter(Call::query_event)) return *failure;
    if (!is_live(event)) return dead_handle();
    return host_->query(event);
  }
  Result<void> synchronize(NativeEvent event) noexcept override {
    {
      // Set before the call is counted, because a test may wait for the count and then rely on
      // this.
      const std::lock_guard lock(ledger_->mutex_);
      ledger_->waited_for_.insert(event.value);
    }
    Result<void> outcome;
    if (const auto failure = ledger_->enter(Call::synchronize_event)) {
      outcome = *failure;
    } else if (!is_live(event)) {
      outcome = dead_handle();
    } else {
      outcome = host_->synchronize(event);
      ledger_->leave(Call::synchronize_event);
    }
    const std::lock_guard lock(ledger_->mutex_);
    ledger_->waited_for_.extract(event.value);
    return outcome;
  }
  Result<std::uint64_t> elapsed_ns(NativeEvent start, NativeEvent end) noexcept override {
    if (const auto failure = ledger_->enter(Call::elapsed_ns)) return *failure;
    return host_->elapsed_ns(start, end);
  }
  Result<void> call_host(const Submission& submission, HostFunction function,
                         void* context) noexcept override {
    if (const auto failure = ledger_->enter(Call::call_host)) return *failure;
    return host_->call_host(submission, function, context);
  }

  Result<void> prefetch(const Submission& submission, void* address, std::size_t bytes,
                        Place destination) noexcept override {
    if (const auto failure = ledger_->enter(Call::prefetch)) return *failure;
    return host_->prefetch(submission, address, bytes, destination);
  }
  Result<void> advise(void*, std::size_t, Advice, Place) noexcept override {
    if (const auto failure = ledger_->enter(Call::advise)) return *failure;
    return {};
  }
  Result<NativeKernel> load_kernel(const KernelSource& source) noexcept override {
    if (const auto failure = ledger_->enter(Call::load_kernel)) return *failure;
    const Result<NativeKernel> kernel = host_->load_kernel(source);
    const std::lock_guard lock(ledger_->mutex_);
    if (kernel) ledger_->kernels_.insert(kernel->value);
    return kernel;
  }
  void unload_kernel(NativeKernel kernel) noexcept override {
    if (forget(ledger_->kernels_, kernel.value)) host_->unload_kernel(kernel);
  }
  Result<void> launch(const Submission& submission, NativeKernel kernel, const LaunchSize& size,
                      std::span<const KernelArgument> arguments) noexcept override {
    if (const auto failure = ledger_->enter(Call::launch)) return *failure;
    return host_->launch(submission, kernel, size, arguments);
  }
  void note_subrelease(const Submission&, const Suballocation&) noexcept override {
    // This function cannot fail and is not a driver call, so it is not counted. It only runs the
    // function of run_after().
    ledger_->leave(Call::note_subrelease);
  }

 private:
  static Failure dead_handle() noexcept {
    return Failure(ErrorCode::driver).with("call", "fake").with("name", "DEAD_HANDLE");
  }
  bool is_live(NativeStream stream) noexcept {
    const std::lock_guard lock(ledger_->mutex_);
    const bool is =
        stream.value == host_->default_stream().value || ledger_->streams_.contains(stream.value);
    ledger_->expect(is);
    return is;
  }
  bool is_live(NativeEvent event) noexcept {
    const std::lock_guard lock(ledger_->mutex_);
    const bool is = ledger_->events_.contains(event.value);
    ledger_->expect(is);
    return is;
  }
  bool forget(std::set<std::uintptr_t>& set, std::uintptr_t handle) noexcept {
    const std::lock_guard lock(ledger_->mutex_);
    const bool was = set.erase(handle) == 1;
    ledger_->expect(was);
    return was;
  }
  void note_not_waited_for(NativeEvent event) noexcept {
    const std::lock_guard lock(ledger_->mutex_);
    ledger_->expect(!ledger_->waited_for_.contains(event.value));
  }

  // Pools of this device do not poison free blocks, because that would add driver calls to the
  // counts.
  const pool::ScopedOpenPools open_pools_;
  const std::shared_ptr<Ledger> ledger_;
  const std::optional<std::size_t> free_bytes_;
  const std::ptrdiff_t registered_offset_;
  std::unique_ptr<Backend> host_;
  std::atomic<bool> has_peer_access_ = false;
  DeviceInfo info_;
};

std::unique_ptr<Backend> make_fake_backend(std::shared_ptr<Ledger> ledger,
                                           const FakeOptions& options) {
  return std::make_unique<FakeBackend>(std::move(ledger), options);
}

}  // namespace tern::test
