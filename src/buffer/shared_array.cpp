// Making, opening, publishing and acquiring shared arrays.

#include "tern/buffer/shared_array.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "buffer/share_address.hpp"
#include "buffer/share_client.hpp"
#include "buffer/share_server.hpp"
#include "buffer/shared_pages.hpp"
#include "buffer/sure_wait.hpp"
#include "core/no_host_memory.hpp"
#include "core/process.hpp"
#include "tern/detail/buffer/storage.hpp"

namespace tern {

namespace share {

/// What one process knows about a shared array: the export, or the connection to the exporter.
struct State {
  /// Ends the turn. Runs in a host function of a stream.
  void end_turn() noexcept {
    if (server) {
      server->publish(address.id);
    } else {
      client.give_back();
    }
  }
  /// Waits until the last publish() has ended the turn. Afterwards no host function uses the state.
  [[nodiscard]] Result<void> try_wait_published(CallSite site) noexcept {
    if (!is_publishing) return {};
    is_publishing = false;
    return try_wait_surely(stream, published, site);
  }

  Device device;
  std::uint64_t generation = process_generation();
  Address address;
  std::shared_ptr<Server> server;  // of an exporter
  Client client;                   // of an importer
  StreamRef stream;                // of the last publish()
  Mark published;
  bool is_publishing = false;
  bool has_turn = false;
};

}  // namespace share

namespace {

using share::Client;
using share::Descriptor;
using share::Server;
using share::SharedPages;

/// The memory of a shared array in one process.
class SharedOrigin final : public StorageOrigin {
 public:
  SharedOrigin(SharedPages&& pages, bool host_reads, Charge&& charge) noexcept
      : pages_(std::move(pages)), host_reads_(host_reads), charge_(std::move(charge)) {}

  [[nodiscard]] const char* what() const noexcept override { return "shared memory"; }
  [[nodiscard]] bool is_external() const noexcept override { return true; }
  [[nodiscard]] Result<Memory> try_begin(CallSite) noexcept override {
    return Memory{pages_.address(), host_reads_ ? pages_.address() : nullptr, pages_.bytes()};
  }
  [[nodiscard]] bool try_end() noexcept override {
    const Result<void> done = pages_.try_unmap();
    if (done) return true;
    // Nothing is left to unmap in a forked child, or on a lost device.
    const ErrorCode code = done.failure().code();
    return code == ErrorCode::after_fork || code == ErrorCode::device_lost;
  }

 private:
  SharedPages pages_;
  const bool host_reads_;
  const Charge charge_;
};

/// Returns a time that can be added to a clock: not negative, and at most a year.
share::Timeout bounded(const std::optional<std::chrono::milliseconds>& timeout) noexcept {
  if (!timeout) return {};
  return std::clamp(*timeout, std::chrono::milliseconds(0),
                    std::chrono::milliseconds(std::chrono::hours(24 * 365)));
}

Failure no_array(const char* call, CallSite site) noexcept {
  return Failure(ErrorCode::not_allocated,
                 "{call} was called on a shared array that is empty: it was default-constructed or "
                 "moved from. Make or open an array.",
                 site)
      .with("id", std::uint64_t{0})
      .with("call", call);
}

/// Makes the buffer over mapped pages.
Result<Buffer> try_wrap(const Device& device, SharedPages&& pages, Charge&& charge,
                        std::size_t count, DType dtype, const SharedOptions& options) noexcept {
  const std::size_t bytes = pages.bytes();
  const MemoryKind kind = storage_kind_of(MemoryKind::mapped, device.info().is_host);
  const bool host_reads = reach_of(kind, device.info().capabilities).host_reads;
  std::unique_ptr<StorageOrigin> origin(
      new (std::nothrow) SharedOrigin(std::move(pages), host_reads, std::move(charge)));
  if (!origin) return no_host_memory("a shared array", options.site);
  Result<StorageHandle> storage = Storage::try_make(device, bytes, kind, std::move(origin),
                                                    {.tag = options.tag, .site = options.site});
  if (!storage) return storage.failure();
  if (Result<void> there = (*storage)->try_ensure({}, options.site); !there) {
    return there.failure();
  }
  return Buffer::try_over(*std::move(storage), 0, Shape::flat(count), dtype, options.site);
}

Result<Charge> try_charge(const SharedOptions& options, std::size_t bytes) noexcept {
  if (!options.budget) return Charge();
  return options.budget->try_charge(bytes, options.tag, options.site);
}

Result<std::shared_ptr<share::State>> try_make_state(const Device& device, CallSite site) noexcept {
  try {
    auto state = std::make_shared<share::State>();
    state->device = device;
    return state;
  } catch (const std::bad_alloc&) {
    return no_host_memory("a shared array", site);
  }
}

}  // namespace

SharedBuffer::SharedBuffer(std::shared_ptr<share::State> state, Buffer buffer) noexcept
    : state_(std::move(state)), buffer_(std::move(buffer)) {}

SharedBuffer& SharedBuffer::operator=(SharedBuffer&& other) noexcept {
  if (this == &other) return *this;
  close();
  state_ = std::move(other.state_);
  buffer_ = std::move(other.buffer_);
  return *this;
}

SharedBuffer::~SharedBuffer() { close(); }

void SharedBuffer::close() noexcept {
  if (!state_) return;
  if (check_not_forked(state_->generation)) {
    static_cast<void>(state_->try_wait_published(CallSite()));
    if (state_->server) {
      state_->server->remove(state_->address.id);
    } else {
      state_->client.leave();
    }
  }
  state_.reset();
  buffer_ = Buffer();
}

// --- Making and opening

Result<SharedBuffer> SharedBuffer::try_make(const Device& device, std::size_t count, DType dtype,
                                            const SharedOptions& options) noexcept {
  const CallSite site = options.site;
  if (tern::size_bytes(dtype) == 0) {
    return Failure(ErrorCode::invalid_argument,
                   "a shared array cannot have elements of {name} {value}, which have no size. Use "
                   "another type.",
                   site)
        .with("name", "dtype")
        .with("value", name(dtype));
  }
  const Result<std::size_t> wanted = Shape::flat(count).try_byte_count(dtype);
  if (!wanted) return Failure(wanted.failure()).at(site);
  const Result<std::size_t> bytes = SharedPages::try_page_bytes(device, *wanted, site);
  if (!bytes) return bytes.failure();
  Result<std::shared_ptr<share::State>> state = try_make_state(device, site);
  if (!state) return state.failure();
  Result<Charge> charge = try_charge(options, *bytes);
  if (!charge) return charge.failure();
  Result<std::shared_ptr<Server>> server = Server::try_get();
  if (!server) return Failure(server.failure()).at(site);
  Descriptor memory;
  Result<SharedPages> pages = SharedPages::try_create(device, *bytes, memory);
  if (!pages) return Failure(pages.failure()).at(site);
  Result<Buffer> buffer =
      try_wrap(device, *std::move(pages), *std::move(charge), count, dtype, options);
  if (!buffer) return buffer.failure();
  // Last, because from here on other processes can open the array.
  const Result<share::Address> address = (*server)->try_add(
      std::move(memory),
      {.bytes = *bytes, .elements = count, .dtype = dtype, .backend = device.info().backend});
  if (!address) return Failure(address.failure()).at(site);
  (*state)->address = *address;
  (*state)->server = *std::move(server);
  (*state)->has_turn = true;
  return SharedBuffer(*std::move(state), *std::move(buffer));
}

Result<SharedBuffer> SharedBuffer::try_open(std::string_view handle, const Device& device,
                                            const SharedOptions& options) noexcept {
  const CallSite site = options.site;
  const Result<share::Address> address = share::try_parse(handle, site);
  if (!address) return address.failure();
  if (const Result<std::size_t> able = SharedPages::try_page_bytes(device, 0, site); !able) {
    return able.failure();
  }
  Result<std::shared_ptr<share::State>> state = try_make_state(device, site);
  if (!state) return state.failure();
  Result<Client> client = Client::try_open(*address, bounded(options.timeout), site);
  if (!client) return client.failure();
  if (client->backend() != device.info().backend) {
    return Failure(ErrorCode::device_mismatch,
                   "a shared array of a '{a}' device cannot be opened on '{b}'. Open it on the "
                   "device on which process {pid} made it.",
                   site)
        .with("a", client->backend())
        .with("b", device.spec())
        .with("pid", address->pid);
  }
  const std::size_t bytes = client->bytes();
  Result<Charge> charge = try_charge(options, bytes);
  if (!charge) return charge.failure();
  Result<SharedPages> pages = SharedPages::try_import(device, client->memory(), bytes);
  if (!pages) return Failure(pages.failure()).at(site);
  client->drop_memory();
  Result<Buffer> buffer = try_wrap(device, *std::move(pages), *std::move(charge),
                                   client->elements(), client->dtype(), options);
  if (!buffer) return buffer.failure();
  (*state)->address = *address;
  (*state)->client = *std::move(client);
  return SharedBuffer(*std::move(state), *std::move(buffer));
}

// --- Properties

std::string SharedBuffer::handle() const {
  return state_ ? share::print(state_->address) : std::string();
}

bool SharedBuffer::is_exporter() const noexcept { return state_ && state_->server; }

bool SharedBuffer::has_turn() const noexcept { return state_ && state_->has_turn; }

std::size_t SharedBuffer::importers() const noexcept {
  if (!is_exporter() || !check_not_forked(state_->generation)) return 0;
  return state_->server->importers(state_->address.id);
}

// --- Turns

Result<void> SharedBuffer::try_publish(StreamRef stream, CallSite site) noexcept {
  if (!state_) return no_array("publish()", site);
  share::State& state = *state_;
  if (Result<void> ours = check_not_forked(state.generation); !ours) {
    return Failure(ours.failure()).at(site);
  }
  if (!state.has_turn) {
    return Failure(ErrorCode::access_conflict,
                   "shared array {id} of process {pid} cannot be published, because this process "
                   "does not have the turn. Call acquire() first.",
                   site)
        .with("range", "the whole array")
        .with("id", state.address.id)
        .with("pid", state.address.pid);
  }
  const Result<bool> is_capturing = stream.try_is_capturing();
  if (!is_capturing) return Failure(is_capturing.failure()).at(site);
  if (*is_capturing) {
    return Failure(ErrorCode::stream_misuse,
                   "a shared array cannot be published on stream {stream}: {why}. Publish after "
                   "the capture, or on another stream.",
                   site)
        .with("stream", stream.id().number())
        .with("why", "the stream is being captured into a graph");
  }
  // The stream waits for the uses of all streams, and later uses of this process wait for the end
  // of the turn.
  Storage& storage = *buffer_.storage();
  Result<StorageUse> use = storage.try_use(stream, Access::read_write, 0, storage.bytes(), site);
  if (!use) return use.failure();
  const auto end_turn = [](void* of) { static_cast<share::State*>(of)->end_turn(); };
  if (Result<void> called = stream.try_call(end_turn, &state, site); !called) return called;
  const Result<Mark> mark = stream.try_mark();
  use->end();
  state.stream = stream;
  state.published = mark ? *mark : stream.next_mark();
  state.is_publishing = true;
  state.has_turn = false;
  return {};
}

Result<void> SharedBuffer::try_acquire(std::optional<std::chrono::milliseconds> timeout,
                                       CallSite site) noexcept {
  if (!state_) return no_array("acquire()", site);
  share::State& state = *state_;
  if (Result<void> ours = check_not_forked(state.generation); !ours) {
    return Failure(ours.failure()).at(site);
  }
  if (state.has_turn) {
    return Failure(ErrorCode::access_conflict,
                   "shared array {id} of process {pid} cannot be acquired, because this process "
                   "already has the turn. Call publish() first.",
                   site)
        .with("range", "the whole array")
        .with("id", state.address.id)
        .with("pid", state.address.pid);
  }
  // A simulated device works only while the host waits for it.
  if (Result<void> published = state.try_wait_published(site); !published) return published;
  Result<void> acquired = state.server
                              ? state.server->try_acquire(state.address.id, bounded(timeout), site)
                              : state.client.try_acquire(bounded(timeout), site);
  // An exporter has the turn even if an importer was lost.
  const bool was_lost = !acquired && acquired.failure().code() == ErrorCode::peer_lost;
  state.has_turn = acquired || (state.server && was_lost);
  return acquired;
}

}  // namespace tern
